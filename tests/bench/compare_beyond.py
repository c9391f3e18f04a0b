#!/usr/bin/env python3
"""moepage-generate beside llama.cpp's mapped files under a limit of memory that holds a part of the model: runs in
turn, from empty page caches, each in a cgroup of its own. compare_beyond.sh prepares what it needs.

What the process has read stays in the page cache and counts against the limit, as on a machine with that much
memory. Ours chooses the tokens (at temperature 1: random weights repeat themselves otherwise); llama.cpp is fed the same
ones. What is timed is their decoding, after a prompt that fills the caches.

A disk's read-ahead is what a page fault reads, too. --read-ahead KB sets it for the length of the run, which all of the
machine feels: 128 is the kernel's own default, and some virtual machines have much more.

With --packed ours opens a pack of the file, made by moepage-pack beside the tool: BF16 experts in exph, two thirds of the
bytes and the same bits. It is made once, and stays beside the file.

A line ends with the bound that follows from the disk: what ours read for a token at the rate of direct reads of
expert-sized blocks by four threads, taken in the same run.
"""
import argparse
import json
import mmap
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
VOCABULARY = 151936
MIB = 1 << 20


# ---- A limit of memory -----------------------------------------------------------------------------------------------

class Cgroup:
    """A group of its own, in either version's hierarchy; None of them: the run is skipped by name."""

    def __init__(self, limit):
        name = "moepage-beyond-%d" % os.getpid()
        self.path = None
        for root, file in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
            path = os.path.join(root, name)
            try:
                os.makedirs(path, exist_ok=True)
                with open(os.path.join(path, file), "w") as out:
                    out.write(str(limit))
                with open(os.path.join(path, file)) as found:
                    limited = found.read().strip() == str(limit)
            except OSError:
                limited = False
            if limited:
                self.path = path
                return
            if os.path.isdir(path):
                os.rmdir(path)
        print("skipped: no cgroup with a limit of memory can be made here (it needs root)")
        sys.exit(0)

    def enter(self):
        with open(os.path.join(self.path, "cgroup.procs"), "w") as out:
            out.write(str(os.getpid()))

    def read(self, *names):
        for name in names:
            try:
                with open(os.path.join(self.path, name)) as found:
                    return int(found.read())
            except OSError:
                pass
        return 0

    def peak(self):
        return self.read("memory.max_usage_in_bytes", "memory.peak")

    def close(self):
        for _ in range(50):
            try:
                os.rmdir(self.path)
                return
            except OSError:
                time.sleep(0.1)


class ReadAhead:
    """The read-ahead of the disk with a file, while a block runs."""

    def __init__(self, path, kilobytes):
        device = os.stat(path).st_dev
        base = "/sys/dev/block/%d:%d" % (os.major(device), os.minor(device))
        if not os.path.isdir(base + "/queue"):
            base = os.path.join(base, "..")  # a partition
        self.path, self.kilobytes = base + "/queue/read_ahead_kb", kilobytes

    def write(self, kilobytes):
        with open(self.path, "w") as out:
            out.write(str(kilobytes))

    def __enter__(self):
        with open(self.path) as found:
            self.before = int(found.read())
        print("read-ahead of the disk: %d KB" % (self.kilobytes or self.before), flush=True)
        if self.kilobytes:
            self.write(self.kilobytes)

    def __exit__(self, *_):
        if self.kilobytes:
            self.write(self.before)


def drop(path):
    """Drops a file's pages from the cache."""
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


def run(command, limit, model):
    """The JSON that a command prints under a limit, the bytes that it read from the disk, and the most memory."""
    drop(model)
    group = Cgroup(limit)
    with tempfile.TemporaryFile() as errors:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, preexec_fn=group.enter) as process:
            text = process.stdout.read()
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        peak = group.peak()
        group.close()
        if process.returncode:
            errors.seek(0)
            raise SystemExit("%s ended with %d: %s" % (" ".join(command[:12]), process.returncode,
                                                       errors.read()[-400:].decode("utf-8", "replace")))
    return json.loads(text.decode("utf-8", "replace").splitlines()[-1]), usage.ru_inblock * 512, peak


def disk_rate(path, block, seconds=2.0, readers=4):
    """Bytes per second of direct reads of blocks all over the file."""
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    blocks = os.fstat(file).st_size // block
    done, start = [], time.monotonic()

    def read(seed):
        buffer, draw = mmap.mmap(-1, block), random.Random(seed)
        while time.monotonic() - start < seconds:
            done.append(os.preadv(file, [buffer], draw.randrange(blocks) * block))

    threads = [threading.Thread(target=read, args=(i,)) for i in range(readers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rate = sum(done) / (time.monotonic() - start)
    os.close(file)
    return rate


# ---- Both programs ---------------------------------------------------------------------------------------------------

def ours(args, model, limit, prompt, n_tokens, flags):
    command = [args.tool, "--model", model, "--json", "--threads", str(args.threads), "--max-tokens", str(n_tokens),
               "--temperature", "1", "--seed", "3", "--tokens", ",".join(map(str, prompt)), *flags]
    out, read, peak = run(command, limit, model)
    return out["outputs"][0]["tokens"], out["stats"], read, peak


def llama(args, model, limit, prompt, forced):
    command = [sys.executable, os.path.join(HERE, "run_llama.py"), model, "--threads", str(args.threads),
               "--no-warm-up", "--mapped", "--prompt-tokens", ",".join(map(str, prompt)), "--forced", ",".join(map(str, forced))]
    return run(command, limit, model)


def pack_of(args, model):
    """The pack of a file, which moepage-pack makes if it is not there."""
    pack = os.path.splitext(model)[0] + ".moepack"
    if not os.path.exists(pack):
        tool = os.path.join(os.path.dirname(args.tool), "moepage-pack")
        subprocess.run([tool, model, pack], check=True, stdout=subprocess.DEVNULL)
    return pack


def memory_flags(args, model, limit, prompt):
    """What is left beside the dense tensors goes to slots; a few entries take what is being read."""
    _, stats, _, _ = ours(args, model, limit, prompt, 1, ["--budget", str(limit // 4), "--host-tier", str(256 * MIB)])
    tier = args.entries * (stats["host_tier_bytes"] // stats["host_tier_experts"])
    budget = limit - stats["dense_bytes"] - stats["workspace_bytes"] - tier - args.slack * MIB
    return ["--budget", str(budget), "--host-tier", str(tier), "--io-threads", str(args.readers)]


def spread(values, form="%.2f"):
    return (form + " [" + form + " to " + form + "]") % (statistics.median(values), min(values), max(values))


def compare(args, model, limit):
    draw = random.Random(2)
    prompt = [draw.randrange(VOCABULARY) for _ in range(args.prompt)]
    opened = pack_of(args, model) if args.packed else model
    math = args.math or ("bf16" if "bf16" in os.path.basename(model) else "int8")
    flags = memory_flags(args, opened, limit, prompt) + ["--math", math] + args.flags.split()
    print("%s, %.1f GB, limit %d MiB: %s" % (os.path.basename(opened), os.path.getsize(opened) / 1e9, limit // MIB,
                                             " ".join(flags)), flush=True)
    _, before, _, _ = ours(args, opened, limit, prompt, 1, flags)
    mine, theirs, ratios, disk, reads = [], [], [], [], []
    for turn in range(args.rounds):
        tokens, stats, read, peak = ours(args, opened, limit, prompt, args.tokens + 1, flags)
        mine.append(stats["decode_tok_s"])
        reads.append((stats["cold_bytes"] - before["cold_bytes"]) / args.tokens)
        hits = (stats["hits"] - before["hits"]) / (stats["routed"] - before["routed"])
        disk.append(disk_rate(opened, 3 * MIB))
        print("  ours: %.2f tokens/s decoding, hits %.1f %%; read %.2f GB, peak %d MiB; all steps: stalls %.1f s, experts %.1f s, dense %.1f s"
              " of %.1f s; disk %.0f MB/s" % (mine[-1], 100 * hits, read / 1e9, peak // MIB,
                                              stats["stall_ns"] / 1e9, stats["expert_compute_ns"] / 1e9,
                                              stats["dense_compute_ns"] / 1e9, stats["wall_ns"] / 1e9, disk[-1] / 1e6),
              flush=True)
        if args.alone:
            continue
        out, read, peak = llama(args, model, limit, prompt, tokens[:args.tokens])
        theirs.append(out["decode_tok_s"])
        ratios.append(mine[-1] / theirs[-1])
        print("  llama.cpp: %.2f tokens/s decoding; read %.2f GB, of these %.2f GB decoding, peak %d MiB"
              % (theirs[-1], read / 1e9, out["decode_read_bytes"] / 1e9, peak // MIB), flush=True)
    per_token, rate = statistics.median(reads), statistics.median(disk)
    print("  median: ours %s, llama.cpp %s, ratio %s; ours read %.0f MB a token, at %.0f MB/s no more than %.2f tokens/s"
          % (spread(mine), spread(theirs or [0]), spread(ratios or [0]), per_token / 1e6, rate / 1e6,
             rate / max(per_token, 1)), flush=True)


def bytes_of(text):
    return int(text.rstrip("MG")) * {"M": MIB, "G": 1 << 30}.get(text[-1], 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tool")
    parser.add_argument("models", nargs="+", help="FILE:LIMIT,LIMIT, such as x.gguf:2560M,4G")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--readers", type=int, default=4, help="--io-threads")
    parser.add_argument("--entries", type=int, default=12, help="experts in the host tier")
    parser.add_argument("--slack", type=int, default=128, help="MiB for all else")
    parser.add_argument("--math", help="default: bf16, and int8 for files in blocks")
    parser.add_argument("--flags", default="--prefetch gate --prefetch-depth 2 --policy lirs --regime cache", help="more for ours")
    parser.add_argument("--read-ahead", type=int, help="KB; default: as it is")
    parser.add_argument("--packed", action="store_true", help="ours reads a pack of the file")
    parser.add_argument("--alone", action="store_true", help="ours alone")
    args = parser.parse_args()
    for item in args.models:
        model, limits = item.rsplit(":", 1)
        with ReadAhead(model, args.read_ahead):
            for limit in limits.split(","):
                compare(args, model, bytes_of(limit))


if __name__ == "__main__":
    main()
