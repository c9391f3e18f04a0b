#!/usr/bin/env python3
"""Trains a small byte-pair tokenizer with Qwen2's cuts and saves how the reference encodes texts.

Run from the repository root with Hugging Face's tokenizers installed; README.md here has the
versions. Writes tokens.txt, merges.txt and cases.json.
"""
import glob
import json
import os
import random

from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
CUTS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]

TEXTS = [
    "", " ", "a", "int main(void)\n{\n    return 0;\n}\n", "It's we'll I'M they'Ve 'tis don't 'd",
    "x  y   z    ", "   leading", "tab\tand\t\ttabs", "line\r\nends\n\n\n  mixed \n x", "\n", " \n ", "\n ",
    "12345 and 3.14159 or 1,000", "naïve façade Ærøskøbing", "Привет, мир!", "日本語のテキスト、です。",
    "مرحبا ١٢٣", "🙂🙂 emoji 👩‍👩‍👧", "a\u00a0b\u2003c\u3000d", "\u0001\u007f\u0085\u00ad",
    "e\u0301 combining", "Ⅷ ² ½ ௧", "!!!???...\n\n---", " (x) [y] {z}", "hello_world fooBar",
    "<|im_start|>user\nHello<|im_end|>\n", "<|im_start|<|im_end|>|>", "<tool>x</tool> <tool>",
    "'", "''s", "'S 'RE 're", "a'b'c'll", "€100 £5", "\u200bzero\u200b width", "   \n\n  \t\n end",
    "\U00010330\U0001d7d8 gothic", "ꙮ꙯", "١٢٣abc", "a1b2", "\r\r", "  \r\n",
]


def random_texts(count):
    """Short texts of characters that the cuts tell apart."""
    draw = random.Random(7)
    letters = "aZséßЖ語ʼ1٣½' \t\n\r.,!_\u00a0\u3000\u0301🙂<|>"
    return ["".join(draw.choice(letters) for _ in range(draw.randint(1, 24))) for _ in range(count)]


def train():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(CUTS), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=SPECIAL, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train(sorted(glob.glob("docs/g*.md")) + ["README.md"], trainer)
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False)])
    return tokenizer


def main():
    tokenizer = train()
    saved = json.loads(tokenizer.to_str())
    tokens = sorted(tokenizer.get_vocab().items(), key=lambda pair: pair[1])
    own = {"<tool>": "own", **{name: "control" for name in SPECIAL}}
    with open(f"{HERE}/tokens.txt", "w", encoding="utf-8", newline="\n") as out:
        for text, index in tokens:
            out.write(f"{own.get(text, 'normal')} {text}\n")
    with open(f"{HERE}/merges.txt", "w", encoding="utf-8", newline="\n") as out:
        for pair in saved["model"]["merges"]:
            out.write((pair if isinstance(pair, str) else " ".join(pair)) + "\n")
    cases = [{"text": text, "ids": tokenizer.encode(text, add_special_tokens=False).ids}
             for text in TEXTS + random_texts(300)]
    with open(f"{HERE}/cases.json", "w", encoding="ascii", newline="\n") as out:
        out.write("[\n" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases) +
                  "\n]\n")


if __name__ == "__main__":
    main()
