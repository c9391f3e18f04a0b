#!/usr/bin/env python3
"""serve_loop's splits side by side, several times: every round serves the same requests with each of them, in the opposite
order of the round before. Prints each round's times, their medians, and the ratio of the first split to each other one, round
by round: machines change their pace, and the splits of a round meet nearly the same one.

    tests/bench/serve_rounds.py --rounds 5 --split mv-wsa-online,flux -- --arrivals FILE --bus 1G --admission
"""
import argparse
import json
import os
import statistics
import subprocess
import tempfile

SERVE_LOOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "build", "bin", "serve_loop")
MEASURES = [(name, part) for name in ("ttft", "tpot", "turn") for part in ("mean", "p50", "p90", "p99")]


def serve(splits, arguments):
    """Every split's measures, in ms, by name."""
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        subprocess.run([SERVE_LOOP, "--split", ",".join(splits), "--dashboard", "off", "--json", out.name, *arguments],
                       stdout=subprocess.DEVNULL, check=True)
        found = json.load(out)
    if found["not_served"]:
        raise SystemExit("not served: " + ", ".join(found["not_served"]))
    return {arm["split"]: [arm[name + "_ms"][part] for name, part in MEASURES] for arm in found["arms"]}


def spread(values, form):
    """Median, least and most."""
    return (form + " [" + form + ", " + form + "]") % (statistics.median(values), min(values), max(values))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--split", required=True, help="names, with commas between them")
    parser.add_argument("arguments", nargs="*", help="serve_loop's own, after --")
    given = parser.parse_args()
    splits = given.split.split(",")
    if given.rounds < 1 or len(set(splits)) < len(splits):
        parser.error("at least one round, and splits that differ")
    rounds = []
    for i in range(given.rounds):
        rounds.append(serve(splits[::-1] if i % 2 else splits, given.arguments))
        for split in splits:
            print("round %d, %-16s %s" % (i + 1, split + ":", ", ".join(
                "%s %s %.2f" % (*measure, ms) for measure, ms in zip(MEASURES, rounds[-1][split]))), flush=True)
    for m, measure in enumerate(MEASURES):
        of = [[each[split][m] for each in rounds] for split in splits]
        print("\n%s %s, ms: median [least, most]" % measure)
        for split, values in zip(splits, of):
            print("  %-24s %s" % (split, spread(values, "%.2f")))
        for split, values in list(zip(splits, of))[1:]:
            ratios = [a / b if b else float("nan") for a, b in zip(of[0], values)]
            print("  %-24s %s" % ("over " + split, spread(ratios, "%.3f")))


if __name__ == "__main__":
    main()
