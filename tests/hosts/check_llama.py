#!/usr/bin/env python3
"""Checks the plug-in for llama.cpp against llama.cpp alone, on a trained model that llama.cpp itself quantised: the
bytes of all logits are to be the same at every budget. Prints TAP. llama.sh prepares what it needs."""
import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

from hosts import BUDGETS, HERE, Tap, surroundings, write_models


def host(plugin, *arguments, **settings):
    """What llama_logits.py prints: exit status, the lines of JSON, standard error."""
    done = subprocess.run([sys.executable, os.path.join(HERE, "llama_logits.py"), *arguments,
                           *(["--plugin", plugin] if plugin else [])],
                          env=surroundings(None, **settings), capture_output=True, text=True, timeout=600)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def logits(result):
    return [line["logits"] for line in result[1]] if result[0] == 0 else None


def check_budgets(tap, plugin, paths):
    for kind, path in paths.items():
        alone = logits(host(None, path))
        for budget in BUDGETS:
            result = host(plugin, path, budget=budget)
            tap.claim(alone and logits(result) == alone and "expert uses were hits" in result[2],
                      "%s at %s: the logits of llama.cpp alone" % (kind, budget), result)


def check_kernels(tap, plugin, paths):
    """The library's own kernels: other bits than llama.cpp's, and the same at every budget and number of threads."""
    for kind, path in paths.items():
        alone, whole = logits(host(None, path)), host(plugin, path, budget="100%", kernels="moepage")
        tap.claim(logits(whole) and logits(whole) != alone and "kernels of moepage" in whole[2],
                  "%s by own kernels" % kind, alone, whole)
        for budget in BUDGETS[1:]:
            result = host(plugin, path, "--threads", "1" if budget == "25%" else "2", budget=budget, kernels="moepage")
            tap.claim(logits(result) == logits(whole), "%s at %s by own kernels: the logits of 100 %%" % (kind, budget), whole, result)
    result = host(plugin, paths["Q4_K_M"], budget="25%", kernels="auto")
    chosen = re.search(r"kernels of (\S+): ([0-9.]+) ms by moepage's .* ([0-9.]+) ms by llama.cpp's", result[2])
    tap.claim(chosen and (chosen[1] == "moepage") == (float(chosen[2]) <= float(chosen[3])) and
              logits(result) == logits(host(plugin, paths["Q4_K_M"], budget="50%", kernels=chosen[1])),
              "kernels are chosen by their times", result)


def check_device(tap, plugin, paths, stand_in):
    """Slots in memory that the CPU must not touch: the logits are llama.cpp's, whose CPU backend computes there."""
    for kind, path in paths.items():
        alone = logits(host(None, path))
        for budget in BUDGETS:
            result = host(plugin, path, "--late", stand_in, budget=budget, device="AWAY0")
            tap.claim(alone and logits(result) == alone and "in memory of AWAY0" in result[2],
                      "%s at %s in another device's memory: the logits of llama.cpp alone" % (kind, budget), result)
    path = paths["Q4_K_M"]
    result = host(plugin, path, paths["Q8_0"], "--late", stand_in, budget="25%", device="AWAY0")
    tap.claim(logits(result) == logits(host(None, path)) + logits(host(None, paths["Q8_0"])), "two models there at once", result)
    result = host(plugin, path, "--late", stand_in, budget="auto", device="AWAY0")
    tap.claim(result[0] == 0 and "512 of 512 experts" in result[2], "all memory of the device that is free", result)
    for settings, sentence in (({"device": "AWAY1"}, "no such device"), ({"device": "MOEPAGE"}, "no such device"),
                               ({"device": "AWAY0", "kernels": "moepage"}, "its own kernels compute"),
                               ({"device": "AWAY0", "stand_in": "room"}, "does not keep"),
                               ({"device": "AWAY0", "stand_in": "layout"}, "does not keep"),
                               ({"device": "AWAY0", "stand_in": "small"}, "no memory for an arena")):
        result = host(plugin, path, "--late", stand_in, **{"budget": "25%", **settings})
        tap.claim(result[0] == 1 and not result[1] and "moepage: " in result[2] and sentence in result[2],
                  "refused: %s" % settings, result)


def check_ways(tap, plugin, path):
    alone = logits(host(None, path))
    for policy in ("lru", "lfu-aged", "lirs"):
        result = host(plugin, path, budget="25%", policy=policy)
        tap.claim(logits(result) == alone and "policy " + policy in result[2], "policy " + policy, result)
    result = host(plugin, path, "--warm-up", budget="25%")
    tap.claim(logits(result) == alone, "after a warm-up with all experts", result)
    result = host(plugin, path, "--threads", "1", budget="auto")
    tap.claim(logits(result) == alone and "512 of 512 experts" in result[2], "all memory that is free", result)
    for mode in ("none", "direct-io"):
        result = host(plugin, path, "--load", mode, budget="25%")
        tap.claim(logits(result) == alone and "128 of 512 experts" in result[2] and "nothing is paged" not in result[2],
                  "without a mapping, loaded by %s" % mode, result)
    result = host(plugin, path, "--load", "none", "--unlinked", budget="25%")
    tap.claim(logits(result) == alone and "nothing is paged" in result[2],
              "from a file without a name: the experts stay in memory, which is said", result)
    result = host(plugin, path, "--unlinked", budget="25%")
    tap.claim(result[0] == 1 and "is not to be found" in result[2], "a mapping of a file without a name is refused", result)
    result = host(plugin, path, path, "--times", "2", budget="25%")
    tap.claim(logits(result) == 4 * alone and result[2].count("have a slot") == 4, "two models at once, opened twice",
              result)


def write_altered(path, copy):
    """A copy of a model in Q8_0 with other weights in the middle of each down projection of the first layer's experts."""
    from gguf import GGUFReader
    block = 34
    tensor = next(each for each in GGUFReader(path).tensors if each.name == "blk.0.ffn_down_exps.weight")
    bytes_each = int(tensor.n_bytes) // int(tensor.shape[2])
    shutil.copyfile(path, copy)
    with open(copy, "r+b") as file:
        for expert in range(int(tensor.shape[2])):
            file.seek(int(tensor.data_offset) + expert * bytes_each + bytes_each // block // 2 * block + 2)
            file.write(bytes([127] * (block - 2)))


def check_alike(tap, plugin, path, folder):
    """Two models that begin and end alike: each has its own experts, which are found again by their bytes."""
    copy = os.path.join(folder, "altered.gguf")
    write_altered(path, copy)
    alone = logits(host(None, path)) + logits(host(None, copy))
    result = host(plugin, path, copy, "--load", "none", budget="25%")
    tap.claim(alone[0] != alone[1] and logits(result) == alone and "nothing is paged" not in result[2],
              "two models that differ in the middle of experts, without a mapping", alone, result)


def metrics(path):
    with open(path) as text:
        return dict(line.rsplit(" ", 1) for line in text if not line.startswith("#"))


def check_hits(tap, plugin, path, simulator, folder):
    """A token by token run of a cache: what it hits is what the simulator says of its routes."""
    trace, file = os.path.join(folder, "trace"), os.path.join(folder, "metrics")
    for policy in ("lru", "cycle", "lirs"):
        result = host(plugin, path, "--prompt", "1", "--tokens", "64", budget="25%", policy=policy, options="regime=cache",
                      trace=trace, stats=file)
        did = metrics(file) if result[0] == 0 else {}
        uses = {k: int(v) for k, v in did.items() if k.startswith("moepage_experts_routed_total")}
        live = [sum(n for k, n in uses.items() if '"hit"' in k), sum(uses.values())]
        done = subprocess.run([simulator, "--trace", trace, "--policy", policy, "--capacity", "128", "--json"],
                              capture_output=True, text=True)
        simulated = json.loads(done.stdout)["results"][0] if done.returncode == 0 else {}
        tap.claim(live[0] > 0 and live == [simulated.get("hits"), simulated.get("accesses")],
                  "policy %s hits what moepage-sim says of the recorded trace" % policy, live, simulated, done.stderr, result)


def check_state(tap, plugin, path, folder):
    """What a predictor has learnt in a run is there in the next one."""
    state = os.path.join(folder, "learnt")
    learning = {"budget": "25%", "state": state, "options": "predictor=coactivation prefetch=predictor"}
    alone, runs = logits(host(None, path)), [host(plugin, path, **learning) for _ in range(2)]
    tap.claim([logits(run) for run in runs] == [alone, alone] and "is not there yet" in runs[0][2] and
              "is not there yet" not in runs[1][2] and os.path.getsize(state) > 0, "a predictor's state between runs", runs)
    with open(state, "r+b") as file:
        file.truncate(os.path.getsize(state) // 2)
    result = host(plugin, path, **learning)
    tap.claim(result[0] == 1 and "moepage: " in result[2], "a damaged state is refused", result)


def check_metrics(tap, plugin, path, folder):
    file = os.path.join(folder, "metrics.prom")
    result = host(plugin, path, budget="25%", stats=file)
    lines = metrics(file)
    routed = [float(v) for k, v in lines.items() if k.startswith("moepage_experts_routed")]
    tap.claim(result[0] == 0 and "of %d expert uses" % sum(routed) in result[2], "a file of metrics", routed, result)


def check_refusals(tap, plugin, path):
    for wrong, sentence in (({"budget": "1x"}, "budget=1x"), ({"budget": "1000"}, "are needed"),
                            ({"budget": "25%", "policy": "best"}, 'no eviction policy "best"'),
                            ({"budget": ""}, "MOEPAGE_BUDGET="), ({"budget": "25%", "stats": ""}, "MOEPAGE_STATS="),
                            ({"budget": "25%", "options": "threads=-1"}, "threads"),
                            ({"budget": "25%", "kernels": "fast"}, "MOEPAGE_KERNELS=fast")):
        result = host(plugin, path, **wrong)
        tap.claim(result[0] == 1 and not result[1] and "moepage: " in result[2] and sentence in result[2],
                  "refused: %s" % wrong, result)
    result = host(plugin, path, "--write-again", budget="25%")
    tap.claim(result[0] == 1 and not result[1] and "was changed since it was opened" in result[2],
              "a file that is written to fails the next step", result)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plugin")
    parser.add_argument("simulator", help="moepage-sim")
    parser.add_argument("quantise", help="llama-quantize")
    parser.add_argument("--stand-in", required=True, help="stand_in.c, built")
    parser.add_argument("--models", required=True, help="a folder for them")
    parser.add_argument("--only", default=".", help="a regular expression of checks")
    args = parser.parse_args()
    tap = Tap()
    paths = write_models(args.models, args.quantise)
    with tempfile.TemporaryDirectory() as folder:
        checks = {"budgets": lambda: check_budgets(tap, args.plugin, paths),
                  "kernels": lambda: check_kernels(tap, args.plugin, paths),
                  "device": lambda: check_device(tap, args.plugin, paths, args.stand_in),
                  "ways": lambda: check_ways(tap, args.plugin, paths["Q4_K_M"]),
                  "alike": lambda: check_alike(tap, args.plugin, paths["Q8_0"], folder),
                  "metrics": lambda: check_metrics(tap, args.plugin, paths["Q8_0"], folder),
                  "hits": lambda: check_hits(tap, args.plugin, paths["Q8_0"], args.simulator, folder),
                  "state": lambda: check_state(tap, args.plugin, paths["Q8_0"], folder),
                  "refusals": lambda: check_refusals(tap, args.plugin, paths["Q8_0"])}
        for name, check in checks.items():
            if re.search(args.only, name):
                check()
    return tap.end()


if __name__ == "__main__":
    sys.exit(main())
