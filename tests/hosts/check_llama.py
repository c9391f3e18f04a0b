#!/usr/bin/env python3
"""Checks the plug-in for llama.cpp against llama.cpp alone, on a trained model that llama.cpp itself quantised: the
bytes of all logits are to be the same at every budget. Prints TAP. llama.sh prepares what it needs."""
import argparse
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "bench"))
import make_gguf
import quality_llama as trained

KINDS = ("BF16", "Q8_0", "Q4_K_M", "Q2_K", "MXFP4_MOE")
BUDGETS = ("100%", "50%", "25%", "12.5%", "2%")


class Tap:
    def __init__(self):
        self.n = self.failed = 0

    def claim(self, holds, text, *evidence):
        self.n += 1
        self.failed += not holds
        print("%sok %d - %s" % ("" if holds else "not ", self.n, text), flush=True)
        for line in evidence if not holds else ():
            print("# " + str(line).replace("\n", "\n# "))

    def end(self):
        print("1..%d" % self.n)
        return 1 if self.failed else 0


def host(plugin, *arguments, **settings):
    """What llama_logits.py prints: exit status, the lines of JSON, standard error."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MOEPAGE_")}
    environment.update({"MOEPAGE_" + k.upper(): v for k, v in settings.items()})
    done = subprocess.run([sys.executable, os.path.join(HERE, "llama_logits.py"), *arguments,
                           *(["--plugin", plugin] if plugin else [])],
                          env=environment, capture_output=True, text=True, timeout=600)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def logits(result):
    return [line["logits"] for line in result[1]] if result[0] == 0 else None


def quantise(source, kind, path):
    """In a process of its own, for llama.cpp tells all about it on standard output."""
    code = "import sys; import make_gguf; make_gguf.quantize(*sys.argv[1:])"
    subprocess.run([sys.executable, "-c", code, source, kind, path], cwd=os.path.dirname(make_gguf.__file__),
                   capture_output=True, check=True)


def write_models(folder, checkpoint):
    """The model widened, so that its rows are long enough for k-quants, in every kind: paths by kind."""
    plain = os.path.join(folder, "BF16.gguf")
    trained.write_gguf(plain, *trained.widen(*trained.read_checkpoint(checkpoint)))
    paths = {"BF16": plain}
    for kind in KINDS[1:]:
        paths[kind] = os.path.join(folder, kind + ".gguf")
        quantise(plain, kind, paths[kind])
    return paths


def check_budgets(tap, plugin, paths):
    for kind, path in paths.items():
        alone = logits(host(None, path))
        for budget in BUDGETS:
            result = host(plugin, path, budget=budget)
            tap.claim(alone and logits(result) == alone and "expert uses were hits" in result[2],
                      "%s at %s: the logits of llama.cpp alone" % (kind, budget), result)


def check_ways(tap, plugin, path):
    alone = logits(host(None, path))
    for policy in ("lru", "lfu-aged", "lirs"):
        result = host(plugin, path, budget="25%", policy=policy)
        tap.claim(logits(result) == alone and "policy " + policy in result[2], "policy " + policy, result)
    result = host(plugin, path, "--warm-up", budget="25%")
    tap.claim(logits(result) == alone, "after a warm-up with all experts", result)
    result = host(plugin, path, "--threads", "1", budget="auto")
    tap.claim(logits(result) == alone and "512 of 512 experts" in result[2], "all memory that is free", result)
    result = host(plugin, path, "--no-mmap", budget="25%")
    tap.claim(logits(result) == alone and "nothing is paged" in result[2], "without a mapping, which is said", result)
    result = host(plugin, path, path, "--times", "2", budget="25%")
    tap.claim(logits(result) == 4 * alone and result[2].count("have a slot") == 4, "two models at once, opened twice",
              result)


def check_metrics(tap, plugin, path, folder):
    file = os.path.join(folder, "metrics.prom")
    result = host(plugin, path, budget="25%", stats=file)
    with open(file) as text:
        lines = dict(line.rsplit(" ", 1) for line in text if not line.startswith("#"))
    routed = [float(v) for k, v in lines.items() if k.startswith("moepage_experts_routed")]
    tap.claim(result[0] == 0 and "of %d expert uses" % sum(routed) in result[2], "a file of metrics", routed, result)


def check_refusals(tap, plugin, path):
    for wrong, sentence in (({"budget": "1x"}, "budget=1x"), ({"budget": "1000"}, "are needed"),
                            ({"budget": "25%", "policy": "best"}, 'no eviction policy "best"'),
                            ({"budget": ""}, "MOEPAGE_BUDGET="), ({"budget": "25%", "stats": ""}, "MOEPAGE_STATS="),
                            ({"budget": "25%", "options": "threads=-1"}, "threads")):
        result = host(plugin, path, **wrong)
        tap.claim(result[0] == 1 and not result[1] and "moepage: " in result[2] and sentence in result[2],
                  "refused: %s" % wrong, result)
    result = host(plugin, path, "--write-again", budget="25%")
    tap.claim(result[0] == 1 and not result[1] and "was changed since it was opened" in result[2],
              "a file that is written to fails the next step", result)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plugin")
    parser.add_argument("checkpoint")
    args = parser.parse_args()
    tap = Tap()
    with tempfile.TemporaryDirectory() as folder:
        paths = write_models(folder, args.checkpoint)
        check_budgets(tap, args.plugin, paths)
        check_ways(tap, args.plugin, paths["Q4_K_M"])
        check_metrics(tap, args.plugin, paths["Q8_0"], folder)
        check_refusals(tap, args.plugin, paths["Q8_0"])
    return tap.end()


if __name__ == "__main__":
    sys.exit(main())
