#!/usr/bin/env python3
"""Times the example's tokenizers on texts of 1 MiB: seconds of CPU time, the median of five.

    python3 time_text.py [FILE...]      (GGUF files that libmoepage opens, or tokenizer.json)

Without files the two tokenizers here. Packages as in reference.py, and `make lib`."""
import glob
import json
import os
import statistics
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import make_kinds  # noqa: E402
import reference  # noqa: E402

SIZE = 1 << 20


def fill(part):
    encoded = part.encode()
    return (encoded * (SIZE // len(encoded) + 1))[:SIZE].decode(errors="ignore")


def texts():
    documents = "".join(open(name, encoding="utf-8").read()
                        for name in sorted(glob.glob(f"{reference.ROOT}/docs/*.md")))
    return {"documents": fill(documents), "Han": fill("".join(map(chr, range(0x4e00, 0x9000)))),
            "a": fill("a"), "A": fill("A"), "spaces": fill(" "), "spaces and x": fill(" " * 1000 + "x"),
            "lines": fill("\n"), "digits": fill("1234567890"), "<": fill("<"), "marks": fill("a\u0323\u0301")}


def seconds(tokenizer, text):
    def once():
        begun = time.process_time()
        tokenizer.encode(text)
        return time.process_time() - begun
    return statistics.median(once() for _ in range(5))


def make_files(folder):
    with open(f"{HERE}/loose.json", encoding="ascii") as file:
        loose = json.load(file)
    with open(f"{HERE}/pieces.json", encoding="ascii") as file:
        pieces = json.load(file)
    made = {f"{folder}/{pre}.gguf": reference.values_of(loose, pre) for pre in reference.KINDS}
    made[f"{folder}/scores.gguf"] = make_kinds.spaced_values(pieces)
    for path, values in made.items():
        reference.write_gguf(path, values, len(values["tokenizer.ggml.tokens"]))
    return list(made) + [f"{HERE}/spaced.json"]


def main():
    with tempfile.TemporaryDirectory() as folder:
        library = reference.build_ours(folder)
        for path in sys.argv[1:] or make_files(folder):
            tokenizer = reference.Ours(library, path)
            times = {name: seconds(tokenizer, text) for name, text in texts().items()}
            print(os.path.basename(path) + ": " + ", ".join(f"{name} {t:.2f}" for name, t in times.items()),
                  flush=True)


if __name__ == "__main__":
    main()
