#!/usr/bin/env python3
"""moepage-generate beside llama.cpp on the same GGUF files, everything resident: runs in turn, medians, and the
ratio of each pair of neighbours. compare_llama.sh prepares what it needs.

Ours prefills a resident model only from a second prompt on: the time of its prompt is the difference between runs
with two prompts and with one. With --cpu, for machines that others use too, the clock is the processes' own time, in
user mode for ours, whose loads cancel out in the same way; it goes with --threads 1.
"""
import argparse
import json
import os
import random
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
VOCABULARY = 151936


def run(command):
    """The line of JSON that a command prints, and its time in user mode."""
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        text = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit("%s ended with %d" % (command[0], process.returncode))
    return json.loads(text.decode("utf-8", "replace").splitlines()[-1]), usage.ru_utime


def llama(model, args):
    return run([sys.executable, os.path.join(HERE, "run_llama.py"), model, "--threads", str(args.threads),
                "--prompt", str(args.prompt), "--tokens", str(args.tokens)] + ["--cpu"] * args.cpu)[0]


def ours(model, math, args):
    draw = random.Random(2)
    prompts = [",".join(str(draw.randrange(VOCABULARY)) for _ in range(args.prompt)) for _ in range(2)]

    def once(n_prompts, n_tokens):
        out, user = run([args.tool, "--model", model, "--budget", "100%", "--json", "--math", math,
                         "--threads", str(args.threads), "--batch-prefill", str(args.prompt),
                         "--max-tokens", str(n_tokens)] + [x for p in prompts[:n_prompts]
                                                           for x in ("--tokens", p)])
        return (user, user) if args.cpu else (out["stats"]["prefill_ns"] / 1e9,
                                              out["stats"]["decode_ns"] / 1e9)

    one, two, more = once(1, 1), once(2, 1), once(1, args.tokens + 1)
    return {"prefill_tok_s": args.prompt / (two[0] - one[0]),
            "decode_tok_s": args.tokens / (more[1] - one[1])}


def spread(values):
    return "%8.2f [%.2f to %.2f]" % (statistics.median(values), min(values), max(values))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tool")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--math", default="fp32,bf16,int8",
                        help="int8 is llama.cpp's own arithmetic for quantised weights, and fp32 for all others")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cpu", action="store_true")
    args = parser.parse_args()
    for model in args.models:
        maths = args.math.split(",")
        peers, mine = [], {math: [] for math in maths}
        for _ in range(args.rounds):
            peers.append(llama(model, args))
            for math in maths:
                mine[math].append(ours(model, math, args))
        print("%s, %d threads, %d rounds, %s" % (os.path.basename(model), args.threads, args.rounds,
                                                 "processor time" if args.cpu else "wall-clock time"))
        for what in ("prefill_tok_s", "decode_tok_s"):
            print("  %-13s llama.cpp %s" % (what, spread([p[what] for p in peers])))
            for math in maths:
                print("  %-13s %-9s %s, over llama.cpp's %s"
                      % (what, math, spread([m[what] for m in mine[math]]),
                         spread([m[what] / p[what] for m, p in zip(mine[math], peers)])), flush=True)


if __name__ == "__main__":
    main()
