#!/usr/bin/env python3
"""Compares the example's tokenizers with the references on random Unicode.

    python3 compare_random.py [TEXTS [SEED [MOST]]]     (default 10000 1 10000)

Packages as in reference.py, and `make lib`. Each kind of tokenizer encodes TEXTS texts: ours, from a GGUF file
and from a tokenizer.json, Hugging Face's tokenizers and, of the first MOST, llama.cpp. Ours must be Hugging
Face's; how many of llama.cpp's are others is printed. Before that all characters' classes are compared, and in
the end normal form C. """
import json
import os
import random
import sys
import tempfile

from tokenizers import Regex, normalizers
from tokenizers.pre_tokenizers import Split

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import make_kinds  # noqa: E402
import reference  # noqa: E402

CLASSES = {r"\p{Lu}": 1, r"\p{Ll}": 2, r"\p{Lt}": 4, r"\p{Lm}": 8, r"\p{Lo}": 16, r"\p{L}": 31, r"\p{M}": 32,
           r"\p{N}": 64, r"\p{P}": 128, r"\p{S}": 256, r"\s": 512}
ALL = [chr(c) for c in range(1, 0x110000) if not 0xd800 <= c < 0xe000]


def members(expression):
    """The characters that Hugging Face's expressions match."""
    pieces = Split(Regex(expression + "+"), behavior="removed", invert=True).pre_tokenize_str("".join(ALL))
    return {c for piece, _ in pieces for c in piece}


def compare_classes(library):
    for expression, mask in CLASSES.items():
        ours = {c for c in ALL if library.letters_classes(ord(c)) & mask}
        other = ours ^ members(expression)
        print(f"{expression}: {len(ours)} characters, {len(other)} other than the reference's")
        assert not other


def random_text(draw):
    """Characters of one script, of all of Unicode, and of those that expressions tell apart."""
    blocks = [0x00, 0x80, 0x100, 0x300, 0x370, 0x400, 0x590, 0x600, 0x900, 0xb80, 0xe00, 0x1100, 0x1e00,
              0x2000, 0x2100, 0x2600, 0x3000, 0x3040, 0x4e00, 0xac00, 0xfb00, 0xff00, 0x10400, 0x1d400, 0x1f600]
    block = draw.choice(blocks)

    def part():
        kind = draw.random()
        if kind < 0.35:
            return draw.choice(make_kinds.LETTERS)
        if kind < 0.5:
            return draw.choice(make_kinds.WORDS)
        if kind < 0.9:
            return chr(max(1, block + draw.randrange(0x80)))
        return draw.choice(ALL)
    return "".join(part() for _ in range(draw.randint(1, 30)))


def count_others(texts, encode, right):
    others = [text for text, ids in zip(texts, right) if encode(text) != ids]
    return len(others), others[:1]


def report(name, counts):
    print(f"{name}: " + ", ".join(f"{who} {n} others{' such as ' + ascii(text[0]) if n else ''}"
                                  for who, (n, text) in counts.items()), flush=True)


def compare_kinds(library, loose, texts, most, folder):
    for pre in reference.KINDS:
        tokenizer = reference.with_kind(loose, pre)
        paths = f"{folder}/{pre}.gguf", f"{folder}/{pre}.json"
        values = reference.values_of(tokenizer, pre) | {"tokenizer.ggml.add_bos_token": False}
        reference.write_gguf(paths[0], values, len(values["tokenizer.ggml.tokens"]))
        with open(paths[1], "w", encoding="utf-8") as out:
            json.dump(tokenizer, out)
        hugging_face = reference.HuggingFace(tokenizer)
        right = [hugging_face.encode(text) for text in texts]
        counts = {"ours": count_others(texts, reference.Ours(library, paths[0]).encode, right),
                  "ours of JSON": count_others(texts, reference.Ours(library, paths[1]).encode, right),
                  "llama.cpp": count_others(texts[:most], reference.Llama(paths[0]).encode, right)}
        report(pre, counts)
        assert counts["ours"][0] == counts["ours of JSON"][0] == 0


def compare_spaced(library, texts, folder):
    """A text with <|im_end|> is left out with JSON: the token takes spaces behind it there."""
    with open(f"{HERE}/pieces.json", encoding="ascii") as file:
        pieces = json.load(file)
    with open(f"{HERE}/spaced.json", encoding="ascii") as file:
        hugging_face = reference.HuggingFace(json.load(file))
    path = f"{folder}/spaced.gguf"
    reference.write_gguf(path, make_kinds.spaced_values(pieces), len(pieces))
    llama = reference.Llama(path)
    right = [llama.encode(text) for text in texts]
    report("scores", {"ours": count_others(texts, reference.Ours(library, path).encode, right)})
    right = [hugging_face.encode(text, True) for text in texts]
    counts = count_others(texts, reference.Ours(library, f"{HERE}/spaced.json").encode, right)
    report("characters, of JSON", {"ours": counts})
    assert counts[0] == 0


def compare_composed(library, loose, texts, folder):
    """Characters that Unicode has had only since the reference's normalizer was made may compose in ours."""
    composing = loose | {"normalizer": {"type": "NFC"}, "pre_tokenizer": reference.KINDS["qwen2"]}
    path = f"{folder}/composing.json"
    with open(path, "w", encoding="utf-8") as out:
        json.dump(composing, out)
    hugging_face, form = reference.HuggingFace(composing), normalizers.NFC()
    changed = sum(form.normalize_str(text) != text for text in texts)
    right = [hugging_face.encode(text) for text in texts]
    report(f"normal form C, {changed} texts that it changes",
           {"ours": count_others(texts, reference.Ours(library, path).encode, right)})


def main():
    n, seed, most = (int(word) for word in sys.argv[1:] + ["10000", "1", "10000"][len(sys.argv) - 1:])
    draw = random.Random(seed)
    texts = [random_text(draw) for _ in range(n)]
    print(f"{n} texts, seed {seed}, llama.cpp: {min(n, most)}", flush=True)
    with open(f"{HERE}/loose.json", encoding="ascii") as file:
        loose = json.load(file)
    with tempfile.TemporaryDirectory() as folder:
        library = reference.build_ours(folder)
        compare_classes(library)
        compare_kinds(library, loose, texts, most, folder)
        compare_spaced(library, texts, folder)
        compare_composed(library, loose, texts, folder)


if __name__ == "__main__":
    main()
