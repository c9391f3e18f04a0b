#!/usr/bin/env python3
"""Generates text with a transformers model whose experts are paged.

    python generate.py --model DIR --prompt TEXT --budget 25%

Text goes to standard output as it comes; how loading and paging fare, to standard error. Needs
torch and transformers. The tokenizer is the model's own; a byte-level model that has none (a
vocabulary of 256 to 320 tokens, as of examples/models/tiny-qwen3moe) gets one whose tokens are
bytes.
"""
import argparse
import contextlib
import os
import sys
import time
from pathlib import Path

BYTES = 256


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--model", required=True, type=Path, help="a checkpoint's directory")
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt", help="text to continue")
    prompt.add_argument("--prompt-file", type=Path, metavar="FILE", help="a file with it")
    add("--budget", default="25%",
        help="share of the experts on the device, or bytes: 25%%, 2GiB (default 25%%); none: the "
             "model as it is, not paged")
    add("--max-tokens", type=int, default=64, metavar="N", help="to generate (default 64)")
    add("--policy", default="lru", help="which expert to evict (default lru)")
    add("--prefetch", default="off", choices=("off", "previous"))
    add("--compute", default="auto", choices=("auto", "torch", "library"),
        help="who computes the experts (default auto: the library where it can)")
    add("--device", help="host or cuda:N (default: host)")
    add("--dtype", default="float32", choices=("float32", "bfloat16", "float16", "auto"),
        help="of weights and arithmetic (default float32; auto: the checkpoint's)")
    add("--step-tokens", type=int, default=1024, metavar="N",
        help="most tokens paged for at once (default 1024)")
    add("--threads", type=int, default=0, help="of the kernels; 0 = one per CPU (default 0)")
    add("--quiet", action="store_true", help="no progress: one line at the end")
    options = parser.parse_args(arguments)
    if not options.model.is_dir():
        parser.error("%s is not a directory" % options.model)
    return options


def byte_tokenizer(config):
    """Token = byte. What is above 255 are the model's special tokens, without text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    # The byte-level alphabet of GPT-2: a printable character for every byte.
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in shown}
    others = (byte for byte in range(BYTES) if byte not in letters)
    letters.update((byte, chr(BYTES + i)) for i, byte in enumerate(others))
    vocabulary = {letters[byte]: byte for byte in range(BYTES)}
    vocabulary.update({"<%d>" % i: i for i in range(BYTES, config.vocab_size)})
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, clean_up_tokenization_spaces=False,
        extra_special_tokens=["<%d>" % i for i in range(BYTES, config.vocab_size)])


def load_tokenizer(folder, config):
    from transformers import AutoTokenizer
    if any((folder / name).exists() for name in
           ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")):
        return AutoTokenizer.from_pretrained(folder)
    if BYTES <= config.vocab_size <= 320:
        return byte_tokenizer(config)
    raise SystemExit("generate.py: %s has no tokenizer, and is no byte-level model" % folder)


def load(folder, dtype, quiet):
    """The model, with transformers' progress bar on a terminal meanwhile."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging
    logging.set_verbosity_error()
    if quiet or not sys.stderr.isatty():
        logging.disable_progress_bar()
    config = AutoConfig.from_pretrained(folder)
    tokenizer = load_tokenizer(folder, config)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval(), tokenizer


def mebibytes(n):
    return "%.1f MiB" % (n / 2**20)


def paging(paged):
    """How paging has fared so far; nothing where there is none."""
    if paged is None:
        return ""
    return ", hit rate %.1f %%, %s moved" % (100 * paged.hit_rate,
                                             mebibytes(paged.stats().demand_bytes))


def clocks():
    """Seconds that have passed, and that CPUs were busy for this process."""
    return time.perf_counter(), time.process_time()


class StatusLine:
    """The last line of the terminal that standard error is, kept out of what scrolls above it."""

    def __init__(self, wanted):
        self._rows = os.get_terminal_size(2).lines if wanted and sys.stderr.isatty() else 0

    def __enter__(self):
        if self._rows > 1:  # room below the cursor, then a scrolling region without the last line
            self._write("\n\0337\033[1;%dr\0338\033[A" % (self._rows - 1))
        return self

    def show(self, text):
        if self._rows > 1:
            self._write("\0337\033[%d;1H\033[2K%s\0338" % (self._rows, text))

    def __exit__(self, *error):
        if self._rows > 1:
            self.show("")
            self._write("\0337\033[r\0338")

    @staticmethod
    def _write(text):
        sys.stderr.write(text)
        sys.stderr.flush()


class Progress:
    """A streamer: text as it comes, and the hit rate so far."""

    def __init__(self, tokenizer, paged, status):
        from transformers import TextStreamer
        self._paged, self._status = paged, status
        self._text = TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self.generated, self.first, self._prompt = 0, None, True

    def put(self, value):
        self._text.put(value)
        if self._prompt:
            self._prompt = False
            return
        self.generated += value.numel()
        self.first = self.first or clocks()
        self._status.show("%d tokens%s" % (self.generated, paging(self._paged)))

    def end(self):
        self._text.end()


def generate(model, tokenizer, text, paged, options):
    import torch
    inputs = tokenizer(text, return_tensors="pt", return_token_type_ids=False).to(model.device)
    if not inputs["input_ids"].numel():
        raise SystemExit("generate.py: the prompt is empty")
    began = clocks()
    with torch.inference_mode(), StatusLine(not options.quiet) as status:
        progress = Progress(tokenizer, paged, status)
        model.generate(**inputs, max_new_tokens=options.max_tokens, do_sample=False,
                       streamer=progress, pad_token_id=model.config.pad_token_id or 0)
    return progress, began, clocks()


def report(progress, began, ended, paged):
    """One line at the end. Decoding is what comes after the first token."""
    first, decoded = progress.first or ended, progress.generated - 1
    line = "%d tokens: first after %.0f ms" % (progress.generated, 1000 * (first[0] - began[0]))
    if decoded > 0:
        line += ", then %.1f tokens/s at %.1f ms of CPU" % (
            decoded / (ended[0] - first[0]), 1000 * (ended[1] - first[1]) / decoded)
    line += paging(paged)
    if paged is not None:
        line += "; %d of %d experts in slots, %s" % (paged.slots, paged.experts,
                                                     mebibytes(paged.device_bytes))
    print(line, file=sys.stderr)


def page(model, options):
    """The paged experts, in a context that ends with them; of None where none are wanted."""
    from moepage.transformers import page_experts
    if options.budget == "none":
        model.to("cpu" if options.device in (None, "host") else options.device)
        return contextlib.nullcontext()
    return page_experts(model, options.budget, options.device, policy=options.policy,
                        prefetch=options.prefetch, compute=options.compute,
                        max_tokens=options.step_tokens, threads=options.threads)


def main(arguments=None):
    options = parse(arguments)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # --model is a directory
    from moepage import Error
    try:
        text = options.prompt_file.read_bytes().decode() if options.prompt_file else options.prompt
        model, tokenizer = load(options.model, options.dtype, options.quiet)
        with page(model, options) as paged:
            if paged is not None and not options.quiet:
                print(paged, file=sys.stderr)
            report(*generate(model, tokenizer, text, paged, options), paged)
    except (Error, ValueError, OverflowError, OSError) as error:
        raise SystemExit("generate.py: %s" % error) from error
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
