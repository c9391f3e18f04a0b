"""What the scripts here share: published pre-tokenizers, small GGUF files, and three who encode.

It needs the packages tokenizers 0.23.3, gguf 0.19.0, numpy and, for Llama, llama-cpp-python 0.3.36
(tests/bench/install_llama.sh builds it); for Ours, `make lib` and a C compiler."""
import ctypes
import json
import os
import subprocess

import gguf
import numpy as np
import tokenizers

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", ".."))

ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
WORDS = ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+"
SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
AHEAD = r"[^\r\n\p{L}\p{N}]?"
CASED = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅ"
    "ὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎ"
    "ↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃")


def split(expression):
    return {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}


def byte_level(use_regex):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def digits(one_by_one):
    return {"type": "Digits", "individual_digits": one_by_one}


def sequence(*parts):
    return {"type": "Sequence", "pretokenizers": list(parts)}


def regular(*expressions):
    return sequence(*map(split, expressions), byte_level(False))


# By the names that GGUF files have for them.
KINDS = {
    "gpt-2": byte_level(True),
    "starcoder": sequence(digits(True), byte_level(True)),
    "qwen2": regular(r"|".join([WORDS, r"\p{N}", SIGNS, SPACES])),
    "qwen35": regular(r"|".join([ENDINGS, r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+", r"\p{N}",
                                 r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*", SPACES])),
    "llama-bpe": regular(r"|".join([WORDS, r"\p{N}{1,3}", SIGNS, SPACES])),
    "glm4": regular(r"|".join([WORDS, r"\p{N}{1,3}", SIGNS, SPACES])),
    "gpt-4o": regular("|".join([AHEAD + UPPER + "*" + LOWER + "+" + ENDINGS + "?",
                                AHEAD + UPPER + "+" + LOWER + "*" + ENDINGS + "?", r"\p{N}{1,3}",
                                r" ?[^\s\p{L}\p{N}]+[\r\n/]*", SPACES])),
    "tekken": regular("|".join([AHEAD + UPPER + "*" + LOWER + "+", AHEAD + UPPER + "+" + LOWER + "*",
                                r"\p{N}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", SPACES])),
    "deepseek-v3": regular(r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
                           r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
                           r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
                           .replace('\\"', '"') + SPACES),
    "deepseek-llm": sequence(*map(split, ["[\r\n]", rf"\s?[{CASED}]+",
                                          r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$",
                                          "[一-龥ࠀ-一가-퟿]+"]), digits(True), byte_level(False)),
    "deepseek-coder": sequence(*map(split, ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+",
                                            "[一-龥ࠀ-一가-퟿]+"]), digits(True), byte_level(False)),
    "default": regular(r"[\p{P}\$\+<=>\^~\|]+",
                       r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
                       r"\p{N}+", "[0-9][0-9][0-9]"),
}
# A piece that is a token is not merged.
WHOLE_FIRST = {"llama-bpe", "glm4", "tekken"}
# What llama.cpp has in a form of its own, with another meaning.
OTHERS = {"gpt-4o", "tekken", "deepseek-llm"}


# ---- GGUF files --------------------------------------------------------------------------------

def model_values(writer):
    """A qwen3moe as small as can be, of which llama.cpp asks these values."""
    writer.add_block_count(1)
    writer.add_context_length(512)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(32)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_expert_count(2)
    writer.add_expert_used_count(1)
    writer.add_expert_feed_forward_length(32)


def model_tensors(writer, n_tokens):
    def add(name, *shape):
        writer.add_tensor(name, np.zeros(shape, np.float32))
    add("token_embd.weight", n_tokens, 32)
    add("blk.0.ffn_gate_inp.weight", 2, 32)
    for part in "gate", "up", "down":
        add(f"blk.0.ffn_{part}_exps.weight", 2, 32, 32)
    add("output_norm.weight", 32)


def write_gguf(path, values, n_tokens):
    """values: key -> value, or (value, GGUFValueType, of elements)."""
    writer = gguf.GGUFWriter(path, "qwen3moe")
    model_values(writer)
    for key, value in values.items():
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_array(key, value)
    model_tensors(writer, n_tokens)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def values_of(tokenizer, pre):
    """A byte-level tokenizer.json, read, as metadata of a file that names its pre-tokenizer `pre`."""
    vocab = tokenizer["model"]["vocab"]
    added = {token["id"]: token for token in tokenizer["added_tokens"]}
    texts = {index: text for text, index in vocab.items()}
    texts |= {index: token["content"] for index, token in added.items()}
    n = max(texts) + 1
    kinds = [1 if i not in added else 3 if added[i]["special"] else 4 for i in range(n)]
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in tokenizer["model"]["merges"]]
    return {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre,
            "tokenizer.ggml.tokens": [texts[i] for i in range(n)],
            "tokenizer.ggml.token_type": kinds, "tokenizer.ggml.merges": merges,
            "tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 2}


def with_kind(tokenizer, pre):
    """A byte-level tokenizer.json with the pre-tokenizer of that name."""
    out = json.loads(json.dumps(tokenizer))
    out["pre_tokenizer"] = KINDS[pre]
    out["model"]["ignore_merges"] = pre in WHOLE_FIRST
    return out


# ---- Encoders ----------------------------------------------------------------------------------

class HuggingFace:
    def __init__(self, tokenizer):
        self.tokenizer = tokenizers.Tokenizer.from_str(json.dumps(tokenizer))

    def encode(self, text, around=False):
        return self.tokenizer.encode(text, add_special_tokens=around).ids


class Llama:
    def __init__(self, path):
        from llama_cpp import Llama as Model
        self.model = Model(path, vocab_only=True, verbose=False)

    def encode(self, text, around=False):
        return self.model.tokenize(text.encode(), add_bos=around, special=True)


def build_ours(folder):
    """The example's tokenizer as a shared library in `folder`."""
    names = "letters cuts cuts_known compose vocabulary merges bpe bpe_gguf bpe_json fail".split()
    path = os.path.join(folder, "libtokens.so")
    subprocess.run([os.environ.get("CC", "cc"), "-O2", "-std=gnu11", "-D_GNU_SOURCE", "-shared", "-fPIC",
                    "-I", f"{ROOT}/include", "-I", f"{ROOT}/examples", "-o", path,
                    *[f"{ROOT}/examples/common/{name}.c" for name in names], f"-L{ROOT}/lib",
                    f"-Wl,-rpath,{ROOT}/lib", "-lmoepage", "-ljansson", "-lm"], check=True)
    return ctypes.CDLL(path)


class Ours:
    """Of a tokenizer.json or of a GGUF file. Tokens around a text are the tokenizer's, always."""

    def __init__(self, library, path):
        self.library, self.bpe = library, ctypes.c_void_p()
        why = ctypes.create_string_buffer(200)
        if path.endswith(".json"):
            code = library.bpe_open_file(path.encode(), ctypes.byref(self.bpe), why)
        else:
            moepage, model = ctypes.CDLL(f"{ROOT}/lib/libmoepage.so"), ctypes.c_void_p()
            moepage.moepage_last_error.restype = ctypes.c_char_p
            if moepage.moepage_model_open(path.encode(), None, ctypes.byref(model)):
                raise ValueError(moepage.moepage_last_error())
            code = library.bpe_open(model, ctypes.byref(self.bpe), why)
        if code or not self.bpe:
            raise ValueError(f"{path}: {code}, {why.value.decode()}")

    def encode(self, text):
        ids, n = ctypes.POINTER(ctypes.c_uint32)(), ctypes.c_size_t()
        code = self.library.bpe_encode(self.bpe, ctypes.c_char_p(text.encode()), ctypes.byref(ids),
                                       ctypes.byref(n))
        if code:
            raise ValueError(code)
        out = ids[:n.value]
        ctypes.CDLL(None).free(ctypes.cast(ids, ctypes.c_void_p))
        return out
