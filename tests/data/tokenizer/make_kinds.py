#!/usr/bin/env python3
"""Trains two small tokenizers and saves how the references encode texts with them.

Run from the repository root; README.md here has the packages and their versions. Writes loose.json,
kinds.json, pieces.json, spaced.json and spaced-cases.json. Every text is encoded by two references, which must
agree unless reference.OTHERS says otherwise."""
import glob
import io
import json
import os
import random
import sys
import tempfile

import sentencepiece
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import reference  # noqa: E402

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# Characters that the expressions tell apart.
LETTERS = ("aAbBzZsStTéÉßſǅʰʼЖжΩ\u2126ωabc語日本ひカー한국ㄱßñक\u093fก\u0e31\u0301\u0308\u20dd"
           "0123456789²½Ⅷ٣௧'’\"!#$%&()*+,-./:;<=>?@[\\]^_`{|}~。、「！／…–—€£±×^¨"
           "      \t\n\r\n\r\n\u00a0\u2003\u3000\u200b\u200d\u00ad\u0085\u0001\u007f\ue000\u0378🙂👩")
WORDS = ["'s", "'S", "'ll", "'Re", "'ſ", " the", "The", "HTTPServer", "don't", "L'été", "12345", " 678",
         "\n\n", "  \n", "    ", "https://a.b/c?d=1\n", "//\r\n", "日本語", "カタカナ", "한국어", " {\n", "x1y2",
         "<|im_start|>", "<|im_end|>", "<tool>", "...", "!!!", "ÀÉ", "κόσμε", "Ünï", "<s>", "\ufb06", "ǅe"]


def random_texts(count, seed):
    draw = random.Random(seed)

    def part():
        return draw.choice(WORDS) if draw.random() < 0.3 else draw.choice(LETTERS)
    return ["".join(part() for _ in range(draw.randint(1, 14))) for _ in range(count)]


def corpus():
    """Documents, and random texts by which merges cross every cut that the expressions make."""
    texts = [open(name, encoding="utf-8").read() for name in sorted(glob.glob("docs/g*.md"))]
    for seed in range(60):
        texts += 3 * random_texts(10, 1000 + seed)
    return texts


# ---- Merged by ranks, over bytes -----------------------------------------------------------------

def train_loose(texts):
    """Without cuts, so that tokens differ wherever an expression cuts otherwise."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=1100, special_tokens=SPECIAL, show_progress=False,
                                  max_token_length=6, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([text for whole in texts for text in whole.split("\n\n")], trainer)
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False)])
    return json.loads(tokenizer.to_str())


def ids_of_kind(loose, pre, texts, folder):
    """Ids of all texts; of llama.cpp's, how many are others."""
    ours = reference.with_kind(loose, pre)
    right = reference.HuggingFace(ours)
    path = f"{folder}/{pre}.gguf"
    values = reference.values_of(ours, pre)
    reference.write_gguf(path, values, len(values["tokenizer.ggml.tokens"]))
    llama = reference.Llama(path)
    ids = [right.encode(text) for text in texts]
    others = [text for text, right in zip(texts, ids) if llama.encode(text) != right]
    return ids, others


# ---- Merged by scores, over characters -----------------------------------------------------------

def train_spaced(texts, folder):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for text in texts for line in text.split("\n") if line]),
        model_writer=model, model_type="bpe", vocab_size=700, byte_fallback=True, bos_id=1, eos_id=2,
        unk_id=0, character_coverage=0.98, normalization_rule_name="identity", split_digits=True,
        remove_extra_whitespaces=False, user_defined_symbols=["<tool>"], control_symbols=["<|im_end|>"],
        minloglevel=2, num_threads=1)
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def pieces_of(model):
    """[text, score, kind] of each, the kinds being GGUF's numbers."""
    def kind(i):
        tests = (model.is_unknown, 2), (model.is_control, 3), (model.is_byte, 6), (model.is_unused, 5)
        for test, number in tests:
            if test(i):
                return number
        return 4 if model.id_to_piece(i) == "<tool>" else 1
    return [[model.id_to_piece(i), model.get_score(i), kind(i)] for i in range(model.get_piece_size())]


def by_ranks(pieces):
    """The same tokenizer as checkpoints have it: every pair that makes a piece, the best piece first."""
    ids = {text: i for i, (text, _, kind) in enumerate(pieces) if kind in (1, 6)}
    plain = {text for text, _, kind in pieces if kind == 1}
    merges = []
    for text, score, kind in pieces:
        if kind == 1:
            merges += [(-score, ids[text], text[:i], text[i:]) for i in range(1, len(text))
                       if text[:i] in plain and text[i:] in plain]
    merges.sort(key=lambda merge: (merge[0], merge[1], ids[merge[2]]))
    space = "\u2581"
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": text, "single_word": False, "lstrip": False,
                          "rstrip": kind == 3 and "im_end" in text, "normalized": False,
                          "special": kind != 4}
                         for i, (text, _, kind) in enumerate(pieces) if kind in (2, 3, 4)],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": space},
            {"type": "Replace", "pattern": {"String": " "}, "content": space}]},
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                     {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": space}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True,
                  "ignore_merges": False, "vocab": {text: i for i, (text, _, kind) in enumerate(pieces)},
                  "merges": [[left, right] for _, _, left, right in merges]}}


def spaced_values(pieces):
    return {"tokenizer.ggml.model": "llama", "tokenizer.ggml.pre": "default",
            "tokenizer.ggml.tokens": [text for text, _, _ in pieces],
            "tokenizer.ggml.scores": [float(score) for _, score, _ in pieces],
            "tokenizer.ggml.token_type": [kind for _, _, kind in pieces],
            "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.ggml.add_bos_token": False}


def ids_spaced(model, pieces, converted, texts, folder):
    """Ids of all texts; SentencePiece itself knows no control tokens in a text, and takes none from its
    ends."""
    path = f"{folder}/spaced.gguf"
    reference.write_gguf(path, spaced_values(pieces), len(pieces))
    llama, ids = reference.Llama(path), []
    stripped = reference.HuggingFace(converted)
    for text in texts:
        ids.append(llama.encode(text))
        if not any(piece in text for piece, _, kind in pieces if kind in (2, 3, 4)):
            assert ids[-1] == model.encode(text), text
        if "<|im_end|>" not in text:
            assert ids[-1] == stripped.encode(text), (text, ids[-1], stripped.encode(text))
    return ids, [stripped.encode(text, around=True) for text in texts]


# ---- Files ---------------------------------------------------------------------------------------

def write(name, value, lines=None):
    """A value as JSON, with the elements of `lines` on lines of their own."""
    with open(f"{HERE}/{name}", "w", encoding="ascii", newline="\n") as out:
        if lines is None:
            out.write(json.dumps(value, separators=(",", ":")) + "\n")
        else:
            rows = (json.dumps(element, separators=(",", ":")) for element in value)
            out.write("[\n" + ",\n".join(rows) + "\n]\n")


def main():
    texts = ["", " ", "a", "\n", "  x", "x  ", "'S 'RE 're 'ſ", "<|im_start|>user\nHi<|im_end|>  \n x", "a\u0301e\u0301"]
    texts += random_texts(130, 7)
    learned = corpus()
    loose = train_loose(learned)
    with tempfile.TemporaryDirectory() as folder:
        kinds = []
        for pre in reference.KINDS:
            ids, others = ids_of_kind(loose, pre, texts, folder)
            print(f"{pre}: {len(others)} of {len(texts)} texts have other tokens in llama.cpp")
            assert not others or pre in reference.OTHERS, others
            kinds.append({"pre": pre, "pre_tokenizer": reference.KINDS[pre],
                          "whole_first": pre in reference.WHOLE_FIRST, "ids": ids})
        model = train_spaced(learned, folder)
        pieces = pieces_of(model)
        converted = by_ranks(pieces)
        ids, around = ids_spaced(model, pieces, converted, texts, folder)
    write("loose.json", loose)
    write("kinds.json", [texts] + kinds, True)
    write("pieces.json", pieces, True)
    write("spaced.json", converted)
    write("spaced-cases.json", [texts, ids, around], True)


if __name__ == "__main__":
    main()
