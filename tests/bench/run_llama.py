#!/usr/bin/env python3
"""Times llama.cpp on one model: a prompt of random tokens, once to warm up and once for the clock, then as many
random tokens one by one; or given ones. Prints one line of JSON. Needs llama-cpp-python."""
import argparse
import ctypes
import json
import random
import time

import llama_cpp as llama


clock = time.monotonic


def feed(context, batch, tokens, position):
    """One call with these tokens, logits of the last."""
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i] = token
        batch.pos[i] = position + i
        batch.n_seq_id[i] = 1
        batch.seq_id[i][0] = 0
        batch.logits[i] = i + 1 == len(tokens)
    start = clock()
    if llama.llama_decode(context, batch):
        raise SystemExit("llama_decode failed")
    llama.llama_get_logits(context)
    return clock() - start


def read_bytes():
    """What this process has had read from the disk so far."""
    with open("/proc/self/io") as file:
        return int(dict(line.split(":") for line in file)["read_bytes"])


def tokens_of(text):
    return [int(token) for token in text.split(",")]


def main():
    global clock
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--no-warm-up", action="store_true")
    parser.add_argument("--cpu", action="store_true", help="count the process's own time")
    parser.add_argument("--mapped", action="store_true", help="no repacked copies of weights in memory of their own")
    parser.add_argument("--prompt-tokens", type=tokens_of, help="in place of random ones")
    parser.add_argument("--forced", type=tokens_of, help="in place of random ones, after the prompt")
    args = parser.parse_args()
    args.prompt = len(args.prompt_tokens or range(args.prompt))
    args.tokens = len(args.forced or range(args.tokens))
    if args.cpu:
        clock = time.process_time
    quiet = llama.llama_log_callback(lambda level, text, user: None)
    llama.llama_log_set(quiet, ctypes.c_void_p(0))
    llama.llama_backend_init()
    params = llama.llama_model_default_params()
    params.use_extra_bufts = not args.mapped
    model = llama.llama_model_load_from_file(args.model.encode(), params)
    if not model:
        raise SystemExit("llama.cpp does not load " + args.model)
    params = llama.llama_context_default_params()
    params.n_ctx = 2 * args.prompt + args.tokens
    params.n_batch = params.n_ubatch = args.prompt
    params.n_threads = params.n_threads_batch = args.threads
    context = llama.llama_init_from_model(model, params)
    batch = llama.llama_batch_init(args.prompt, 0, 1)
    words = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    draw = random.Random(1)
    prompt = args.prompt_tokens or [draw.randrange(words) for _ in range(args.prompt)]
    if not args.no_warm_up:
        feed(context, batch, prompt, 0)
        llama.llama_memory_clear(llama.llama_get_memory(context), True)
    prefill = feed(context, batch, prompt, 0)
    following = args.forced or [draw.randrange(words) for _ in range(args.tokens)]
    before = read_bytes()
    decode = sum(feed(context, batch, [token], args.prompt + i) for i, token in enumerate(following))
    print(json.dumps({"prefill_tok_s": args.prompt / prefill, "decode_tok_s": args.tokens / decode,
                      "decode_read_bytes": read_bytes() - before}))


if __name__ == "__main__":
    main()
