#!/usr/bin/env python3
"""Runs llama.cpp on a prompt of random tokens, then greedily, and prints a line of JSON: a digest of the bytes of
all logits, the tokens, and tokens per second. With --plugin its experts are paged by that library.
Needs llama-cpp-python."""
import argparse
import ctypes
import hashlib
import json
import os
import random
import shutil
import sys
import tempfile
import time

import llama_cpp as llama


def load_backend(path):
    """A backend looks its host's functions up among all of the process's, where programs in C have them."""
    folder = os.environ.get("LLAMA_CPP_LIB_PATH") or os.path.join(os.path.dirname(llama.__file__), "lib")
    ctypes.CDLL(os.path.join(folder, "libggml-base.so.0"), ctypes.RTLD_GLOBAL)
    ggml = ctypes.CDLL(os.path.join(folder, "libggml.so.0"), ctypes.RTLD_GLOBAL)
    ggml.ggml_backend_load.restype = ctypes.c_void_p
    if not ggml.ggml_backend_load(path.encode()):
        raise SystemExit("llama.cpp does not load " + path)


def unlinked_copy(path):
    """A path of an open file that no folder has."""
    with tempfile.NamedTemporaryFile() as copy:
        with open(path, "rb") as file:
            shutil.copyfileobj(file, copy)
        copy.flush()
        return "/proc/self/fd/%d" % os.dup(copy.fileno())


def open_model(args, path):
    params = llama.llama_model_default_params()
    params.use_extra_bufts = args.repack
    params.load_mode = {"mmap": llama.LLAMA_LOAD_MODE_MMAP, "none": llama.LLAMA_LOAD_MODE_NONE,
                        "direct-io": llama.LLAMA_LOAD_MODE_DIRECT_IO}[args.load]
    if args.unlinked:
        path = unlinked_copy(path)
    model = llama.llama_model_load_from_file(path.encode(), params)
    if not model:
        raise SystemExit("llama.cpp does not load " + path)
    return model


def open_context(args, model):
    params = llama.llama_context_default_params()
    params.n_ctx = args.prompt + args.tokens + 8
    params.n_batch = params.n_ubatch = args.prompt
    params.n_threads = params.n_threads_batch = args.threads
    context = llama.llama_init_from_model(model, params)
    if not context:
        raise SystemExit("llama.cpp makes no context")
    return context


def feed(context, batch, tokens, position, digest, words):
    """One call, all logits into the digest; the best token behind the last one."""
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i] = token
        batch.pos[i] = position + i
        batch.n_seq_id[i] = 1
        batch.seq_id[i][0] = 0
        batch.logits[i] = True
    if llama.llama_decode(context, batch):
        raise SystemExit("llama_decode failed")
    best = 0
    for i in range(len(tokens)):
        row = llama.llama_get_logits_ith(context, i)
        digest.update(ctypes.string_at(row, 4 * words))
        best = max(range(words), key=row.__getitem__) if i + 1 == len(tokens) else 0
    return best


def warm_up(context, batch, words):
    """As the host's programs do: one token through all experts."""
    llama.llama_set_warmup(context, True)
    feed(context, batch, [0], 0, hashlib.sha256(), words)
    llama.llama_memory_clear(llama.llama_get_memory(context), True)
    llama.llama_set_warmup(context, False)


def run(args, context, words):
    """The prompt and what follows it: the line of JSON, as a dictionary."""
    batch = llama.llama_batch_init(args.prompt, 0, 1)
    draw = random.Random(1)
    prompt = [draw.randrange(words) for _ in range(args.prompt)]
    digest, tokens = hashlib.sha256(), []
    if args.warm_up:
        warm_up(context, batch, words)
    start = time.monotonic()
    tokens.append(feed(context, batch, prompt, 0, digest, words))
    filled = time.monotonic()
    while len(tokens) < args.tokens:
        tokens.append(feed(context, batch, tokens[-1:], args.prompt + len(tokens) - 1, digest, words))
    end = time.monotonic()
    llama.llama_batch_free(batch)
    return {"logits": digest.hexdigest(), "tokens": tokens, "prompt_per_s": args.prompt / (filled - start),
            "tokens_per_s": (args.tokens - 1) / (end - filled) if args.tokens > 1 else 0}


def write_again(path):
    """The file's first byte, as it is: its contents count as changed."""
    with open(path, "r+b") as file:
        byte = file.read(1)
        file.seek(0)
        file.write(byte)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="+", help="several are open at once, and run one after the other")
    parser.add_argument("--plugin", help="path of libggml-moepage.so")
    parser.add_argument("--late", help="path of a backend that is loaded behind the models, of which it takes nothing itself")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--times", type=int, default=1, help="how often all models are opened and closed")
    parser.add_argument("--repack", action="store_true")
    parser.add_argument("--load", choices=("mmap", "none", "direct-io"), default="mmap")
    parser.add_argument("--unlinked", action="store_true", help="load a copy that has no name any more")
    parser.add_argument("--warm-up", action="store_true")
    parser.add_argument("--write-again", action="store_true", help="write to the model's file once it is open")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    quiet = llama.llama_log_callback(
        lambda level, text, user: sys.stderr.write(text.decode(errors="replace")) if args.verbose else None)
    llama.llama_log_set(quiet, ctypes.c_void_p(0))
    llama.llama_backend_init()
    if args.plugin:
        load_backend(args.plugin)
    for _ in range(args.times):
        models = [open_model(args, path) for path in args.model]
        if args.late:
            load_backend(args.late)
        contexts = [open_context(args, model) for model in models]
        if args.write_again:
            write_again(args.model[0])
        for model, context in zip(models, contexts):
            words = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
            print(json.dumps(run(args, context, words)), flush=True)
        for context in contexts:
            llama.llama_free(context)
        for model in models:
            llama.llama_model_free(model)


if __name__ == "__main__":
    main()
