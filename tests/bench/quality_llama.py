#!/usr/bin/env python3
"""moepage on GGUF files that llama.cpp quantised, beside llama.cpp and beside a float64 evaluation of the same
decoded weights. quality_llama.sh prepares what it needs. Prints a line and a verdict for every claim, and exits with 1
if one does not hold.

The model is the trained one, as it is, and widened: of rows of 128 and 64 llama.cpp makes no k-quants.
"""
import argparse
import ctypes
import json
import os
import random
import subprocess
import sys
import tempfile

import gguf
import llama_cpp
import numpy

import make_gguf
from trained_gguf import read_checkpoint, widen, write_gguf

# Lives as long as llama.cpp may call it.
QUIET = llama_cpp.llama_log_callback(lambda level, text, user: None)

WINDOW = 256
KINDS = ("BF16", "Q8_0", "Q4_K_M", "Q2_K", "MXFP4_MOE")
BUDGETS = ("100%", "50%", "25%", "12.5%")
F32_UNIT = 2.0 ** -24


# ---- GGUF files ------------------------------------------------------------------------------------------------------

def read_gguf(path):
    """Every tensor's values as gguf decodes them, as float64, and how many weights each type has."""
    values, kinds = {}, {}
    for tensor in gguf.GGUFReader(path).tensors:
        decoded = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        values[tensor.name] = decoded.reshape(tuple(reversed([int(n) for n in tensor.shape]))).astype(numpy.float64)
        kinds[tensor.tensor_type.name] = kinds.get(tensor.tensor_type.name, 0) + values[tensor.name].size
    return values, kinds


# ---- The judge -------------------------------------------------------------------------------------------------------

class Judge:
    """The model in float64. With `noise`, every sum of n products is moved by (n + 2) 2^-24 times the sum of their
    magnitudes, up or down at random: as far as a sum in FP32 of any order can be off. Experts are then chosen as by
    `routes`: those of the same windows without noise."""

    def __init__(self, config, values, noise=None, routes=None):
        self.c, self.w, self.noise = config, values, noise
        self.given = routes
        self.routes = []    # [layers]: the tokens' experts, best first
        self.margin = None  # [tokens]: the smallest gap so far at a router's last choice, over the logits' size

    def sum(self, subscripts, x, w):
        out = numpy.einsum(subscripts, x, w, optimize=True)
        if self.noise:
            n = w.shape[-1]
            most = numpy.einsum(subscripts, abs(x), abs(w), optimize=True)
            out = out + (n + 2) * F32_UNIT * most * self.noise.choice([-1.0, 1.0], size=out.shape)
        return out

    def norm(self, x, name):
        scale = 1 / numpy.sqrt((x * x).mean(axis=-1, keepdims=True) + self.c["rms_norm_eps"])
        return x * scale * self.w[name + ".weight"]

    def rotate(self, x):
        half = x.shape[-1] // 2
        angles = numpy.arange(x.shape[1])[:, None] * self.c["rope_theta"] ** (-numpy.arange(half) / half)
        cos, sin = numpy.cos(angles)[:, None], numpy.sin(angles)[:, None]
        a, b = x[..., :half], x[..., half:]
        return numpy.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    def attend(self, h, part):
        c = self.c
        d, heads, kv = c["head_dim"], c["num_attention_heads"], c["num_key_value_heads"]
        x = self.norm(h, part + "attn_norm")
        q, k, v = (self.sum("bth,oh->bto", x, self.w[part + "attn_%s.weight" % which]) for which in "qkv")
        q = self.rotate(self.norm(q.reshape(*q.shape[:2], heads, d), part + "attn_q_norm"))
        k = self.rotate(self.norm(k.reshape(*k.shape[:2], kv, d), part + "attn_k_norm"))
        k = k.repeat(heads // kv, axis=2)
        v = v.reshape(*v.shape[:2], kv, d).repeat(heads // kv, axis=2)
        scores = numpy.einsum("bthd,bshd->bhts", q, k, optimize=True) / numpy.sqrt(d)
        scores += numpy.triu(numpy.full(scores.shape[-2:], -numpy.inf), 1)
        p = numpy.exp(scores - scores.max(axis=-1, keepdims=True))
        p /= p.sum(axis=-1, keepdims=True)
        y = numpy.einsum("bhts,bshd->bthd", p, v, optimize=True).reshape(*h.shape[:2], heads * d)
        return h + self.sum("bth,oh->bto", y, self.w[part + "attn_output.weight"])

    def mix(self, h, part):
        x = self.norm(h, part + "ffn_norm").reshape(-1, h.shape[-1])
        k = self.c["num_experts_per_tok"]
        logits = self.sum("th,eh->te", x, self.w[part + "ffn_gate_inp.weight"])
        layer = len(self.routes)
        order = self.given[layer] if self.given else numpy.argsort(-logits, axis=-1, kind="stable")
        self.routes.append(order)
        best = numpy.take_along_axis(logits, order, axis=-1)
        gap = (best[:, k - 1] - best[:, k]) / abs(best).max(axis=-1)
        self.margin = gap if self.margin is None else numpy.minimum(self.margin, gap)
        p = numpy.exp(best[:, :k] - best[:, :1])
        p /= p.sum(axis=-1, keepdims=True)
        out = numpy.zeros_like(x)
        for e in range(self.c["num_experts"]):
            rows, ranks = numpy.nonzero(order[:, :k] == e)
            if not len(rows):
                continue
            gate, up, down = (self.w[part + "ffn_%s_exps.weight" % which][e] for which in ("gate", "up", "down"))
            g, u = self.sum("th,ih->ti", x[rows], gate), self.sum("th,ih->ti", x[rows], up)
            y = self.sum("ti,hi->th", g / (1 + numpy.exp(-g)) * u, down)
            out[rows] += p[rows, ranks][:, None] * y
        return h + out.reshape(h.shape)

    def logits(self, windows):
        """[windows][positions][vocabulary]; sets the margins."""
        h = self.w["token_embd.weight"][windows]
        self.routes, self.margin = [], None
        for layer in range(self.c["num_hidden_layers"]):
            part = "blk.%d." % layer
            h = self.mix(self.attend(h, part), part)
        return self.sum("bth,oh->bto", self.norm(h, "output_norm"), self.w["output.weight"])


def perplexity(logits, windows):
    """Of bytes 1 and on of each window."""
    x = logits[:, :-1].astype(numpy.float64)
    x = x - x.max(axis=-1, keepdims=True)
    log_p = x - numpy.log(numpy.exp(x).sum(axis=-1, keepdims=True))
    return float(numpy.exp(-numpy.take_along_axis(log_p, windows[:, 1:, None], axis=-1).mean()))


# ---- Ours ------------------------------------------------------------------------------------------------------------

def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE)
    if done.returncode:
        raise SystemExit("%s ended with %d" % (" ".join(command[:8]), done.returncode))
    return json.loads(done.stdout.decode("utf-8", "replace").splitlines()[-1])


def generate(args, model, prompts, max_tokens, *flags):
    """Tokens, and every prompt's logits."""
    with tempfile.NamedTemporaryFile() as file:
        out = run([args.generate, "--model", model, "--max-tokens", str(max_tokens), "--json", "--threads", "2",
                   "--logits-out", file.name, *flags]
                  + [x for p in prompts for x in ("--tokens", ",".join(map(str, p)))])
        logits = numpy.fromfile(file.name, dtype=numpy.float32)
    return [o["tokens"] for o in out["outputs"]], logits


def our_logits(args, model, windows, math):
    """The windows' logits: one row for each byte."""
    _, logits = generate(args, model, windows.tolist(), 1, "--math", math)
    return logits.reshape(*windows.shape, -1)


def our_perplexity(args, model, texts, math):
    found = run([args.eval, "--model", model, "--json", "--math", math, "--threads", "2",
                 "--windows", str(args.windows), "--data", *texts])
    return 2.0 ** found["settings"][0]["all"]["bits_per_byte"]


# ---- llama.cpp -------------------------------------------------------------------------------------------------------

class Llama:
    def __init__(self, path):
        self.l = llama_cpp
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        if not self.model:
            raise SystemExit("llama.cpp does not load " + path)
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = 2 * WINDOW
        params.n_threads = params.n_threads_batch = 1
        params.type_k = params.type_v = gguf.GGMLQuantizationType.F32.value
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.batch = llama_cpp.llama_batch_init(2 * WINDOW, 0, 1)

    def feed(self, tokens, position):
        b = self.batch
        b.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            b.token[i], b.pos[i], b.n_seq_id[i], b.logits[i] = token, position + i, 1, True
            b.seq_id[i][0] = 0
        if self.l.llama_decode(self.context, b):
            raise SystemExit("llama_decode failed")
        rows = self.l.llama_get_logits(self.context)
        return numpy.ctypeslib.as_array(rows, (len(tokens), self.vocabulary)).copy()

    def clear(self):
        self.l.llama_memory_clear(self.l.llama_get_memory(self.context), True)

    def logits(self, windows):
        out = []
        for window in windows.tolist():
            self.clear()
            out.append(self.feed(window, 0))
        return numpy.stack(out)

    def perplexity(self, windows):
        parts = [perplexity(self.logits(windows[at:at + 64]), windows[at:at + 64]) for at in range(0, len(windows), 64)]
        sizes = [len(windows[at:at + 64]) for at in range(0, len(windows), 64)]
        return float(numpy.exp(numpy.average(numpy.log(parts), weights=sizes)))

    def greedy(self, prompt, n):
        self.clear()
        tokens, rows, at = [], self.feed(prompt, 0), len(prompt)
        for _ in range(n):
            tokens.append(int(rows[-1].argmax()))
            rows = self.feed(tokens[-1:], at)
            at += 1
        return tokens

    def close(self):
        self.l.llama_free(self.context)
        self.l.llama_model_free(self.model)


# ---- Claims ----------------------------------------------------------------------------------------------------------

failed = []


def claim(holds, text):
    print("  %-4s %s" % ("ok" if holds else "FAIL", text), flush=True)
    if not holds:
        failed.append(text)


def check_budgets(args, model, prompts, peer):
    expected = generate(args, model, prompts, args.tokens, "--budget", BUDGETS[0])
    for math in ("fp32", "int8"):
        first = generate(args, model, prompts, args.tokens, "--math", math)
        for budget in BUDGETS:
            found = generate(args, model, prompts, args.tokens, "--math", math, "--budget", budget)
            if found[0] != first[0] or found[1].tobytes() != first[1].tobytes():
                claim(False, "%s: tokens and logits at %s differ from those at 100%%" % (math, budget))
                break
        else:
            claim(True, "%s: greedy tokens and the bits of %d logits are the same at %s"
                  % (math, len(first[1]), ", ".join(BUDGETS)))
    same = [sum(1 for _ in iter_same(ours, peer.greedy(prompt, args.tokens)))
            for ours, prompt in zip(expected[0], prompts)]
    print("       greedy tokens as llama.cpp's, of %d for each prompt: %s" % (args.tokens, same))


def iter_same(a, b):
    for x, y in zip(a, b):
        if x != y:
            return
        yield x


def off(found, exact):
    """Root mean square of the differences, over that of the logits."""
    return float(numpy.sqrt(((found - exact) ** 2).mean() / (exact ** 2).mean()))


def check_logits(args, config, values, model, windows, peer):
    judge = Judge(config, values)
    exact = judge.logits(windows)
    shape = windows.shape
    noisy = Judge(config, values, numpy.random.default_rng(3), judge.routes).logits(windows)
    # Where the eighth choice is that close to the ninth, rounding may choose: from there on the window is another.
    close = numpy.logical_or.accumulate(judge.margin.reshape(shape) < args.margin, axis=1)
    sure = ~close
    bound = abs(noisy - exact).max(axis=-1)[sure].max()
    ours = our_logits(args, model, windows, "fp32")
    most = abs(ours - exact).max(axis=-1)[sure].max()
    claim(most <= bound and sure.mean() > 0.9,
          "fp32: logits off float64's by %.1e at most; sums of FP32 may be off by %.1e (%.1f %% of %d rows: no router's "
          "choice closer than %.0e)" % (most, bound, 100 * sure.mean(), sure.size, args.margin))
    mine, theirs, plain = off(our_logits(args, model, windows, "int8"), exact), off(peer.logits(windows), exact), off(
        ours, exact)
    claim(mine <= args.slack * theirs or mine <= 1e-5,
          "logits off float64's, root mean square over theirs: fp32 %.1e, int8 %.1e, llama.cpp %.1e"
          % (plain, mine, theirs))
    return perplexity(exact, windows), perplexity(peer.logits(windows), windows), perplexity(ours, windows)


def check_model(args, name, config, path, kind, texts, windows):
    values, kinds = read_gguf(path)
    weights = ", ".join("%s %.0f %%" % (k, 100 * n / sum(kinds.values()))
                        for k, n in sorted(kinds.items(), key=lambda of: -of[1]) if n > 0.005 * sum(kinds.values()))
    print("%s, %s: %s" % (name, kind, weights), flush=True)
    peer = Llama(path)
    prompts = [w[:96].tolist() for w in windows[::max(1, len(windows) // 8)][:8]]
    check_budgets(args, path, prompts, peer)
    some = windows.reshape(len(texts), -1, WINDOW)[:, :args.judged].reshape(-1, WINDOW)
    exact, theirs, ours = check_logits(args, config, values, path, some, peer)
    print("       perplexity of %d windows: float64 %.6f, fp32 %+.4f %%, llama.cpp %+.4f %%"
          % (len(some), exact, 100 * (ours / exact - 1), 100 * (theirs / exact - 1)))
    theirs = peer.perplexity(windows)
    for math in ("fp32", "int8"):
        found = our_perplexity(args, path, texts, math)
        claim(abs(found / theirs - 1) <= 1e-3, "%s: perplexity of %d windows %.6f, llama.cpp's %.6f: %+.4f %%"
              % (math, len(windows), found, theirs, 100 * (found / theirs - 1)))
    peer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("generate")
    parser.add_argument("eval")
    parser.add_argument("checkpoint")
    parser.add_argument("dir", help="where the files are made")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--models", default="trained,widened")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--windows", type=int, default=0, help="of each text, for perplexity; 0 = all")
    parser.add_argument("--judged", type=int, default=2, help="windows of each text that float64 evaluates")
    parser.add_argument("--margin", type=float, default=1e-6)
    parser.add_argument("--slack", type=float, default=1.1, help="int8 may be off by so many times llama.cpp's")
    args = parser.parse_args()
    llama_cpp.llama_log_set(QUIET, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    texts = sorted(os.path.join(args.checkpoint, "eval", f) for f in os.listdir(os.path.join(args.checkpoint, "eval"))
                   if f.endswith(".bin"))
    windows = numpy.concatenate([numpy.fromfile(t, dtype=numpy.uint8).reshape(-1, WINDOW)[:args.windows or None]
                                 for t in texts]).astype(int)
    config, tensors = read_checkpoint(args.checkpoint)
    models = {"trained": (config, tensors), "widened": widen(config, tensors)}
    for name in args.models.split(","):
        plain = os.path.join(args.dir, "tiny-%s-BF16.gguf" % name)
        write_gguf(plain, *models[name])
        for kind in args.kinds.split(","):
            path = os.path.join(args.dir, "tiny-%s-%s.gguf" % (name, kind))
            if kind != "BF16":
                make_gguf.quantize(plain, kind, path)
            check_model(args, name, models[name][0], path, kind, texts, windows)
    print("%d claims do not hold" % len(failed) if failed else "every claim holds")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
