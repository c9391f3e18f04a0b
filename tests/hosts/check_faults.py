#!/usr/bin/env python3
"""Checks what the plug-in for llama.cpp does where something goes wrong: a line that says what, no crash, and, with a
plug-in that AddressSanitizer watches, nothing leaked. Prints TAP. llama.sh prepares what it needs."""
import argparse
import os
import re
import shutil
import signal
import sys
import time

from hosts import Host, Server, Tap, text_of, write_models

PROMPT = text_of("en", n=48)


class Watched:
    """A plug-in that AddressSanitizer watches: what to preload, and what it found. Leaks of the host's own are not the
    plug-in's."""

    def __init__(self, runtime, folder):
        self.preload = (runtime,) if runtime else ()
        self.folder, self.runtime = folder, runtime
        os.environ["ASAN_OPTIONS"] = "detect_leaks=1:exitcode=0:log_path=%s/asan" % folder
        os.environ["LSAN_OPTIONS"] = "report_objects=0"

    def found(self):
        """Reports with a line of the plug-in's or the library's source, and all that are no leaks."""
        reports = []
        for name in sorted(os.listdir(self.folder)):
            if name.startswith("asan."):
                with open(os.path.join(self.folder, name), errors="replace") as file:
                    reports += [part for part in file.read().split("\n\n")
                                if re.search(r"moepage| examples/llama/| src/|ERROR: AddressSanitizer", part)]
                os.remove(os.path.join(self.folder, name))
        return reports


class Faults:
    def __init__(self, tap, host, watched, model, folder):
        self.tap, self.host, self.watched, self.model, self.folder = tap, host, watched, model, folder

    def server(self, model=None, preload=(), **settings):
        return Server(self.host, model or self.model, "-np", 2, "--ctx-size", 1024,
                      preload=(*self.watched.preload, *preload), **settings)

    def claim(self, holds, text, *evidence):
        found = self.watched.found()
        self.tap.claim(holds and not found, text, *evidence, *found)

    def copy(self):
        path = os.path.join(self.folder, "copy.gguf")
        shutil.copyfile(self.model, path)
        return path

    def check_well(self):
        """What the other checks compare with; and nothing leaks where nothing goes wrong."""
        with self.server(budget="5%") as server:
            ready, self.expected = server.ready(), server.complete(PROMPT)
            status = server.stop()
        self.claim(ready and self.expected and status == 0 and "expert uses were hits" in server.said, "a run without faults",
                   status, server.said)

    def check_reload(self, models):
        status, out, said = self.host.run("llama-bench", "-m", ",".join(models), "-p", 32, "-n", 8, "-r", 1, "-t", 2,
                                          preload=self.watched.preload, budget="5%")
        self.claim(status == 0 and said.count("have a slot") == said.count("were hits") >= len(models),
                   "models that are loaded one after the other", status, out, said)

    def check_truncated(self):
        path = self.copy()
        with self.server(path, budget="5%") as server:
            good = server.ready() and server.complete(PROMPT)
            os.truncate(path, os.path.getsize(path) - 100000)  # the last layer's experts are there
            bad, alive = server.complete(PROMPT), server.process.poll() is None
            status = server.stop()
        self.claim(good == self.expected and bad is None and alive and status == 0 and
                   ("was truncated" in server.said or "was changed" in server.said), "a file that is truncated while it is open",
                   good, bad, alive, status, server.said)

    def check_read_error(self, library, kernels):
        trigger = os.path.join(self.folder, "fail")
        os.environ["FAIL_READS"] = trigger
        with self.server(budget="5%", preload=(library,), kernels=kernels) as server:
            good = server.ready() and server.complete(PROMPT)
            open(trigger, "w").close()
            bad, alive = server.complete(PROMPT), server.process.poll() is None
            os.remove(trigger)
            again = server.complete(PROMPT)
            status = server.stop()
        self.claim(good and good == again and (kernels == "moepage" or good == self.expected) and bad is None and alive and
                   status == 0 and "Q8_0.gguf: cannot read: Input/output error" in server.said and
                   "kernels of " + kernels in server.said,
                   "a read error fails its request alone, kernels of " + kernels, good, bad, again, status, server.said)

    def check_interrupt(self):
        with self.server(budget="5%") as server:
            ready, busy, deadline = server.ready(), False, time.monotonic() + 30
            connection = server.begin(PROMPT)
            while ready and not busy and time.monotonic() < deadline:
                busy = any(slot.get("is_processing") for slot in server.ask("/slots") or [])
            server.process.send_signal(signal.SIGINT)
            connection.close()
            status = server.wait()
        self.claim(busy and status == 0 and "expert uses were hits" in server.said, "SIGINT while it generates", status,
                   server.said)

    def check_settings(self):
        for wrong, sentence in (({"budget": "1x"}, "budget=1x"), ({"budget": "1000"}, "are needed"), ({"budget": ""}, "MOEPAGE_BUDGET="),
                                ({"budget": "5%", "policy": "best"}, 'no eviction policy "best"'),
                                ({"budget": "5%", "stats": ""}, "MOEPAGE_STATS="),
                                ({"budget": "5%", "options": "threads=-1"}, "threads"),
                                ({"budget": "5%", "state": "x"}, "nothing learns"),
                                ({"budget": "5%", "state": "/", "options": "predictor=coactivation prefetch=predictor"}, "moepage: "),
                                ({"budget": "5%", "trace": "/no/such/folder/x"}, "/no/such/folder")):
            with self.server(**wrong) as server:
                ready = server.ready(60)
                status = server.stop()
            self.claim(not ready and status not in (0, None) and status > 0 and "moepage: " in server.said and
                       sentence in server.said, "refused: %s" % wrong, ready, status, server.said)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", help="with llama.cpp's programs")
    parser.add_argument("plugin")
    parser.add_argument("--asan", help="the runtime, to preload")
    parser.add_argument("--fail-reads", required=True, help="the library of fail_reads.c")
    parser.add_argument("--models", required=True)
    args = parser.parse_args()
    models = write_models(args.models, os.path.join(args.folder, "llama-quantize"))
    tap = Tap()
    faults = Faults(tap, Host("host", args.folder, args.plugin), Watched(args.asan, args.models), models["Q8_0"], args.models)
    faults.check_well()
    faults.check_reload([models["Q8_0"], models["MXFP4_MOE"], models["Q8_0"]])
    faults.check_truncated()
    for kernels in ("llama.cpp", "moepage"):
        faults.check_read_error(args.fail_reads, kernels)
    faults.check_interrupt()
    faults.check_settings()
    return tap.end()


if __name__ == "__main__":
    sys.exit(main())
