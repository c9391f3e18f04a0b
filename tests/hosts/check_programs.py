#!/usr/bin/env python3
"""Checks llama.cpp's own programs with the plug-in against the same programs without it, on a trained model that they
quantised: texts, perplexities and the bytes of logits are to be the same at every budget. Prints TAP. llama.sh
prepares what it needs."""
import argparse
import hashlib
import json
import os
import re
import subprocess
import sys

from hosts import BUDGETS, Host, Server, Tap, text_of, write_models

CONTEXT = 256


def digest(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


# ---- one program after the other ----

def perplexity(host, model, folder, **how):
    """How llama-perplexity ended and a digest of the logits that it saves; what it prints of each window."""
    text, saved = os.path.join(folder, "text"), os.path.join(folder, "logits")
    with open(text, "w") as out:
        out.write(text_of("en", n=6 * CONTEXT) + text_of("c", n=6 * CONTEXT))
    run = ("llama-perplexity", "-m", model, "-f", text, "--ctx-size", CONTEXT, "--batch-size", CONTEXT, "--threads", 2,
           "--no-repack", "--save-all-logits", saved)
    status, out, said = host.run(*run, **how)
    figures = dict(re.findall(r"\[(\d+)\]([0-9.]+),", out + said))  # other lines come between them
    return (status, digest(saved) if status == 0 else None), figures, said


def check_perplexity(tap, host, models, folder):
    for kind, path in models.items():
        expected, figures, said = perplexity(host, path, folder, plugin=False)
        tap.claim(expected[0] == 0 and len(figures) >= 10, "%s: llama-perplexity of %s alone" % (host.name, kind), said)
        for budget in BUDGETS:
            got, same, said = perplexity(host, path, folder, budget=budget)
            both = figures.keys() & same.keys()  # the host may end before its last line is written
            tap.claim(got == expected and len(both) >= 10 and all(figures[i] == same[i] for i in both) and
                      "expert uses were hits" in said,
                      "%s: llama-perplexity of %s at %s is the same, and its logits to the byte"
                      % (host.name, kind, budget), expected, figures, got, same, said)


def check_own_kernels(tap, host, models, folder):
    """The library's kernels: llama.cpp's perplexity but for rounding, and the same bytes at every budget."""
    for kind, path in models.items():
        _, theirs, _ = perplexity(host, path, folder, plugin=False)
        whole, ours, said = perplexity(host, path, folder, budget="100%", kernels="moepage")
        last = max(theirs, key=int, default="0")
        off = abs(float(ours.get(last, "inf")) / float(theirs.get(last, "1")) - 1)
        tap.claim(whole[0] == 0 and off < 1e-3, "%s: perplexity of %s by own kernels is llama.cpp's within 0.1 %%: %.4f %%"
                  % (host.name, kind, 100 * off), theirs, ours, said)
        for budget in BUDGETS[1:]:
            got, _, said = perplexity(host, path, folder, budget=budget, kernels="moepage")
            tap.claim(got == whole, "%s: logits of %s by own kernels at %s are those of 100 %%" % (host.name, kind, budget),
                      whole, got, said)


def speak(host, model, **how):
    status, out, said = host.run("llama-cli", "-m", model, "--prompt", "int main(", "--predict", 48, "--temp", 0,
                                 "--seed", 1, "--single-turn", "--threads", 2, "--no-repack", "--simple-io",
                                 "--no-show-timings", "--ctx-size", 512, **how)
    return (status, out[out.find("> int main("):]), said  # a spinner turns before that


def check_cli(tap, host, models):
    for kind, path in models.items():
        expected, said = speak(host, path, plugin=False)
        tap.claim(expected[0] == 0 and "int main(" in expected[1], "%s: llama-cli with %s alone" % (host.name, kind),
                  expected, said)
        for budget in BUDGETS:
            got, said = speak(host, path, budget=budget)
            tap.claim(got == expected and "expert uses were hits" in said,
                      "%s: llama-cli with %s at %s says the same" % (host.name, kind, budget), expected, got, said)


def check_parts(tap, host, models, simulator, folder):
    """A prompt that comes in parts: only the last one has logits, and the last layer of the others no rows. What is
    recorded of it can be replayed."""
    trace, prompt = os.path.join(folder, "trace"), text_of("c", n=100)
    for kind, path in models.items():
        run = (host, path, "-np", 1, "--ctx-size", 256, "--ubatch-size", 32)
        with Server(*run, plugin=False) as server:
            expected = server.ready() and server.complete(prompt)
        for budget in ("25%", BUDGETS[-1]):
            with Server(*run, budget=budget, trace=trace) as server:
                got = server.ready() and server.complete(prompt)
                status = server.stop()
            tap.claim(expected and got == expected and status == 0 and "expert uses were hits" in server.said,
                      "%s: a prompt in four parts with %s at %s" % (host.name, kind, budget), expected, got, status,
                      server.said)
        done = subprocess.run([simulator, "--trace", trace, "--policy", "lru", "--capacity", "128", "--json"],
                              capture_output=True, text=True)
        tap.claim(done.returncode == 0 and json.loads(done.stdout)["results"][0]["accesses"] > 0,
                  "%s: the trace of a prompt in parts with %s can be replayed" % (host.name, kind), done.stdout, done.stderr)


def check_bench(tap, host, models):
    for kind, path in models.items():
        status, out, said = host.run("llama-bench", "-m", path, "-p", 64, "-n", 16, "-r", 2, "-t", "1,2", "-o", "json",
                                     budget="25%")
        rates = [test["avg_ts"] for test in json.loads(out)] if status == 0 else []
        tap.claim(len(rates) == 4 and min(rates) > 0 and "expert uses were hits" in said,
                  "%s: llama-bench with %s at 25%% of the experts" % (host.name, kind), rates, said)


# ---- requests at once ----

def serve(host, model, prompts, plugin=True, **settings):
    """Answers to requests one after the other, and to all at once; how it ended; what it said."""
    with Server(host, model, "-np", len(prompts), "--ctx-size", 256 * len(prompts), plugin=plugin,
                **settings) as server:
        if not server.ready():
            server.stop()
            return None, None, "not ready", server.said
        alone = [server.complete(prompt) for prompt in prompts]
        together = server.complete_together(prompts)
        status = server.stop()
        return alone, together, status, server.said


def depends_on_batch(host, model, folder):
    """True if llama.cpp alone gives a token other logits in a batch of eight than in one of one, as some of its dense
    products do on some processors: greedy answers then differ where two tokens are nearly equal."""
    text, saved = os.path.join(folder, "text"), os.path.join(folder, "logits")
    with open(text, "w") as out:
        out.write(text_of("en", n=3 * CONTEXT))
    digests = set()
    for batch in (1, 8):
        status, _, _ = host.run("llama-perplexity", "-m", model, "-f", text, "--ctx-size", CONTEXT, "--batch-size", CONTEXT,
                                "--ubatch-size", batch, "--threads", 2, "--no-repack", "--save-all-logits", saved, plugin=False)
        digests.add(digest(saved) if status == 0 else batch)
    return len(digests) > 1


def check_server(tap, host, models, folder):
    """Every budget with the first model, a quarter and one wave with the others: bytes of logits are compared
    at all of them above."""
    prompts = [text_of(domain, n=48) for domain in ("c", "de", "dict", "en", "es", "fr", "math", "py")]
    first = next(iter(models.values()))
    for kind, path in models.items():
        expected, together, status, said = serve(host, path, prompts, plugin=False)
        tap.claim(status == 0 and expected and None not in expected, "%s: llama-server with %s alone" % (host.name, kind),
                  expected, together, status, said)
        steady = {"llama.cpp": together == expected,
                  "moepage": together == expected and not depends_on_batch(host, path, folder)}
        for kernels in steady:
            if not steady[kernels]:
                tap.skip("%s: eight requests to llama-server at once with %s by kernels of %s, each as alone"
                         % (host.name, kind, kernels), "llama.cpp's logits depend on the batch on this processor")
        budgets = BUDGETS if path is first else ("25%", BUDGETS[-1])
        for kernels, budget in [("llama.cpp", budget) for budget in budgets] + [("moepage", "100%"), ("moepage", "25%")]:
            got = serve(host, path, prompts, budget=budget, kernels=kernels)
            if (kernels, budget) == ("moepage", "100%"):
                expected = got[0]
            tap.claim(got[0] == expected and None not in expected and got[2] == 0 and
                      (got[1] == expected or not steady[kernels]) and "expert uses were hits" in got[3],
                      "%s: llama-server with %s at %s by kernels of %s answers as alone%s"
                      % (host.name, kind, budget, kernels, ", eight requests at once, too" if steady[kernels] else ""),
                      expected, *got)


# ---- versions ----

def check_refusal(tap, host, other, model):
    """A plug-in for another interface: the host says so, and runs without it."""
    status, _, said = Host(host.name, host.folder, other).run("llama-bench", "-m", model, "-p", 8, "-n", 0, "-r", 1)
    tap.claim(status == 0 and "incompatible API version" in said and "moepage:" not in said,
              "%s: a plug-in for another backend API is refused in a sentence" % host.name, status, said)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="of the host, for the claims")
    parser.add_argument("folder", help="with its programs")
    parser.add_argument("plugin")
    parser.add_argument("simulator")
    parser.add_argument("--other", help="a plug-in for another backend API")
    parser.add_argument("--models", required=True, help="a folder for them")
    parser.add_argument("--kinds", default="BF16,Q8_0,Q4_K_M,MXFP4_MOE")
    parser.add_argument("--only", default=".", help="a regular expression of checks")
    args = parser.parse_args()
    tap, host = Tap(), Host(args.name, args.folder, args.plugin)
    every = write_models(args.models, os.path.join(args.folder, "llama-quantize"))
    models = {kind: every[kind] for kind in args.kinds.split(",")}
    checks = {"perplexity": lambda: check_perplexity(tap, host, models, args.models),
              "own-kernels": lambda: check_own_kernels(tap, host, models, args.models),
              "cli": lambda: check_cli(tap, host, models),
              "parts": lambda: check_parts(tap, host, models, args.simulator, args.models),
              "bench": lambda: check_bench(tap, host, models),
              "server": lambda: check_server(tap, host, models, args.models)}
    if args.other:
        checks["refusal"] = lambda: check_refusal(tap, host, args.other, every["Q8_0"])
    for name, check in checks.items():
        if re.search(args.only, name):
            check()
    return tap.end()


if __name__ == "__main__":
    sys.exit(main())
