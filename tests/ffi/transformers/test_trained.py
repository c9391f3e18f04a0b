"""The trained model: the tokens of moepage-generate, and of the reference that came with it."""
import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import tempfile
import termios
import unittest
from pathlib import Path

import small_models as small
import torch
import transformers
from moepage.transformers import page_experts

SOURCE = Path(os.environ["MOEPAGE_SOURCE"])
MODEL = SOURCE / "examples/models/tiny-qwen3moe"
TOOL = Path(os.environ.get("BUILD", "build"), "bin/moepage-generate")
SCRIPT = SOURCE / "examples/python/generate.py"


def tool(prompts, budget, regime="auto"):
    """What moepage-generate makes of prompts, 64 tokens each, and its stats."""
    flags = [flag for prompt in prompts for flag in ("--tokens", ",".join(map(str, prompt)))]
    flags += ["--regime", regime]
    run = subprocess.run([SOURCE / TOOL, "--model", MODEL, "--budget", budget, "--threads", "1",
                          "--json", *flags], check=True, capture_output=True)
    report = json.loads(run.stdout)
    return [output["tokens"] for output in report["outputs"]], report["stats"]


class Trained(small.OneThread, unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        reference = json.loads((MODEL / "reference/reference.json").read_text())
        cls.prompts = [each["prompt_bytes"] for each in reference]
        cls.greedy = [each["greedy"] for each in reference]
        cls.model = transformers.AutoModelForCausalLM.from_pretrained(
            MODEL, dtype=torch.float32).eval()

    def test_tokens_are_those_of_moepage_generate_and_of_the_reference(self):
        ids = torch.tensor(self.prompts)
        tokens, _ = tool(self.prompts, "25%")
        self.assertEqual(tokens, self.greedy)
        for compute in ("library", "torch"):
            for budget in ("100%", "25%") if compute == "library" else ("25%",):
                with self.subTest(compute=compute, budget=budget):
                    with page_experts(self.model, budget, compute=compute, threads=1) as paged:
                        self.assertEqual(small.greedy(self.model, ids, 64).tolist(), tokens)
                        self.assertEqual(paged.slots, 512 * int(budget[:-1]) // 100)

    def test_one_sequence_alone_has_the_tokens_and_the_hits_of_the_tool(self):
        ids = torch.tensor(self.prompts[:1])
        _, want = tool(self.prompts[:1], "25%", "cache")
        with page_experts(self.model, "25%", regime="cache", threads=1) as paged:
            self.assertEqual(small.greedy(self.model, ids, 64).tolist(), self.greedy[:1])
            stats = paged.stats()
            self.assertEqual((stats.steps, stats.tokens), (64, 96 + 63))
            self.assertEqual((stats.routed, stats.hits, stats.misses),
                             tuple(want[name] for name in ("routed", "hits", "misses")))
            self.assertEqual(paged.hit_rate, want["hits"] / want["routed"])
            text = paged.stats_text({"model": "tiny"})
            self.assertIn('model="tiny"', text)
            self.assertIn("\n# TYPE moepage_", text)


class Script(unittest.TestCase):
    """generate.py, as it is called."""

    def run_script(self, *arguments):
        environment = dict(os.environ, OMP_NUM_THREADS="1", COLUMNS="80")
        return subprocess.run([sys.executable, SCRIPT, *map(str, arguments)], env=environment,
                              capture_output=True, timeout=250)

    def test_its_text_is_the_tools_and_its_last_line_says_how_it_went(self):
        prompt = bytes(json.loads((MODEL / "reference/reference.json").read_text())[5]
                       ["prompt_bytes"])
        with tempfile.NamedTemporaryFile() as file:
            file.write(prompt)
            file.flush()
            ran = self.run_script("--model", MODEL, "--prompt-file", file.name, "--threads", 1)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        want = bytes(tool([list(prompt)], "25%")[0][0])
        self.assertEqual(ran.stdout, want + b"\n")
        last = ran.stderr.decode().splitlines()[-1]
        self.assertRegex(last, r"^64 tokens: first after \d+ ms, then [\d.]+ tokens/s at [\d.]+ ms "
                               r"of CPU, hit rate [\d.]+ %, [\d.]+ MiB moved; 128 of 512 experts "
                               r"in slots, ")

    def test_a_terminal_shows_the_hit_rate_and_is_given_back(self):
        try:
            terminal, program = pty.openpty()
        except OSError as error:
            self.skipTest("no pseudo-terminal on this machine: %s" % error)
        fcntl.ioctl(program, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        ran = subprocess.Popen([sys.executable, SCRIPT, "--model", MODEL, "--prompt", "int main(",
                                "--max-tokens", "4", "--threads", "1"], stdout=program,
                               stderr=program, env=dict(os.environ, OMP_NUM_THREADS="1"))
        os.close(program)
        shown = bytearray()
        while True:
            try:
                shown += os.read(terminal, 4096)
            except OSError:  # the other end is closed
                break
        os.close(terminal)
        self.assertEqual(ran.wait(), 0, shown)
        for token in range(1, 5):
            self.assertRegex(bytes(shown), rb"\033\[2K%d tokens, hit rate \d" % token)
        self.assertIn(b"\033[r", shown)

    def test_what_it_cannot_do_is_one_line(self):
        for wrong, text in ((("--budget", "0.1%"), "no room for one expert"),
                            (("--threads", -1), "threads is -1"),
                            (("--model", MODEL / "reference"), "Unrecognized model")):
            with self.subTest(text):
                ran = self.run_script("--model", MODEL, "--prompt", "a", *wrong)
                self.assertEqual(ran.returncode, 1)
                self.assertEqual(ran.stderr.decode().count("\n"), 1, ran.stderr)
                self.assertIn(text, ran.stderr.decode())
        ran = self.run_script("--model", MODEL / "nowhere", "--prompt", "a")
        self.assertEqual(ran.returncode, 2)
        self.assertIn("nowhere is not a directory", ran.stderr.decode())


if __name__ == "__main__":
    unittest.main()
