#!/usr/bin/env python3
"""llama-bench with the plug-in and without it, in turn, each in a cgroup of its own with a limit of memory, or with all
experts resident. compare_plugin.sh prepares what it needs.

llama-bench makes several passes; the first one warms caches and slots, and is left out. Where all experts are resident,
passes over a prompt come before those that decode, which alone would still be filling slots.

The first line of a case ends with the disk's rate: direct reads of 3 MiB by four threads, taken in the same run.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

import gguf

from compare_beyond import MIB, Cgroup, ReadAhead, bytes_of, disk_rate, drop

HERE = os.path.dirname(os.path.abspath(__file__))


class Model:
    """What a budget must leave beside the experts: the tensors of which every token reads all, and the experts that the
    plug-in reads at the same time."""

    def __init__(self, path):
        tensors = gguf.GGUFReader(path).tensors
        self.path = path
        self.experts = sum(int(t.n_bytes) for t in tensors if "_exps" in t.name)
        self.reading = 16 * max(sum(int(t.n_bytes) // int(t.shape[2]) for t in tensors if "_exps" in t.name and t.name.startswith("blk.%d." % layer))
                                for layer in range(sum("ffn_gate_exps" in t.name for t in tensors)))
        self.dense = sum(int(t.n_bytes) for t in tensors if "_exps" not in t.name and t.name != "token_embd.weight")


def bench(args, model, test, passes, limit, plugin, budget=None):
    """Rates of each test's passes in tokens per second, bytes read from the disk, and what the plug-in said at the end."""
    command = [os.path.join(args.folder, "llama-bench"), "-m", model.path, "-t", str(args.threads), "-r", str(passes),
               "--no-warmup", "-o", "json", *test, *(args.flags.split() if args.flags else [])]
    environment = {**os.environ, "OMP_WAIT_POLICY": args.wait}
    if plugin:
        environment.update(GGML_BACKEND_PATH=plugin, MOEPAGE_BUDGET=budget, MOEPAGE_OPTIONS=args.options,
                           MOEPAGE_POLICY=args.policy)
    group = Cgroup(limit) if limit else None
    if limit:
        drop(model.path)
    with tempfile.TemporaryFile() as errors:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=environment,
                              preexec_fn=group.enter if group else None) as process:
            text = process.stdout.read()
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if group:
            group.close()
        errors.seek(0)
        said = errors.read().decode("utf-8", "replace")
    if process.returncode:
        raise SystemExit("%s ended with %d: %s" % (" ".join(command), process.returncode, said[-600:]))
    said = [line for line in said.splitlines() if line.startswith("moepage: ")]
    return [each["samples_ts"] for each in json.loads(text)], usage.ru_inblock * 512, said[-1][9:] if said else ""


def spread(values, form="%.2f"):
    return (form + " [" + form + " to " + form + "]") % (statistics.median(values), min(values), max(values))


def compare_beyond(args, model, limit):
    """Tokens per second under a limit: the median of all passes but the first, in each round. Without the plug-in weights
    are not repacked, which would copy them to memory that is not there."""
    budget = limit - model.dense - model.reading - args.slack * MIB
    if budget <= 0:
        print("  skipped: nothing is left for experts")
        return
    rates = {name: [] for name in ("without", "with")}
    for _ in range(args.rounds):
        for name, plugin, more in (("without", None, ["--repack", "0"]), ("with", args.plugin, [])):
            (passes,), read, said = bench(args, model, ["-p", "0", "-n", str(args.tokens), *more], args.passes, limit, plugin,
                                          str(budget))
            rates[name].append(statistics.median(passes[1:]))
            print("  %s: %.2f tokens/s; %.2f GB read in all%s" % (name, rates[name][-1], read / 1e9, said and "; " + said),
                  flush=True)
    ratios = [a / b for a, b in zip(rates["with"], rates["without"])]
    print("  median: with %s, without %s, ratio %s" % (spread(rates["with"]), spread(rates["without"]), spread(ratios)),
          flush=True)


def compare_resident(args, model):
    tests = ["-p", str(args.prompt), "-n", str(args.tokens)]
    rates = {name: ([], []) for name in ("without", "with")}
    for _ in range(args.rounds):
        for name, plugin in (("without", None), ("with", args.plugin)):
            results, _, _ = bench(args, model, tests, args.passes, None, plugin, "100%")
            for of, passes in zip(rates[name], results):
                of.append(statistics.median(passes[1:]))
    for what, mine, theirs in zip(("a prompt", "decoding"), rates["with"], rates["without"]):
        print("  %s: with %s, without %s tokens/s, ratio %s"
              % (what, spread(mine), spread(theirs), spread([a / b for a, b in zip(mine, theirs)])), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", help="with llama-bench")
    parser.add_argument("plugin")
    parser.add_argument("cases", nargs="+", help="FILE:LIMIT, such as x.gguf:2560M, or FILE:all for all experts resident")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=32, help="decoded in a pass")
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--slack", type=int, default=160, help="MiB for all that is neither experts nor other weights")
    parser.add_argument("--options", default="regime=cache", help="MOEPAGE_OPTIONS")
    parser.add_argument("--policy", default="cycle")
    parser.add_argument("--flags", default="", help="more for llama-bench")
    parser.add_argument("--wait", default="active", choices=("passive", "active"), help="how OpenMP's threads wait")
    parser.add_argument("--read-ahead", type=int, help="KB; default: as it is")
    args = parser.parse_args()
    for case in args.cases:
        path, limit = case.rsplit(":", 1)
        model = Model(path)
        print("%s, %.1f GB, %.1f of them experts; %s; disk %.0f MB/s"
              % (os.path.basename(path), os.path.getsize(path) / 1e9, model.experts / 1e9,
                 "all resident" if limit == "all" else "limit %d MiB" % (bytes_of(limit) // MIB), disk_rate(path, 3 * MIB) / 1e6),
              flush=True)
        if limit == "all":
            compare_resident(args, model)
        else:
            with ReadAhead(path, args.read_ahead):
                compare_beyond(args, model, bytes_of(limit))


if __name__ == "__main__":
    main()
