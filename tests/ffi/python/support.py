"""What the tests of the Python package share: a small model in plain numbers, its experts computed
in plain Python, and skips by name."""
import importlib.util
import math
import os
import random
import subprocess
import sys
import unittest

import moepage

LAYERS, EXPERTS, HIDDEN, INNER, TOP_K = 2, 6, 8, 12, 2


def has(module):
    return importlib.util.find_spec(module) is not None


needs_numpy = unittest.skipUnless(has("numpy"), "NumPy is not there")
needs_torch = unittest.skipUnless(has("torch"), "torch is not there")


class Numbers:
    """A model's experts as nested lists, and a batch that is routed to them."""

    def __init__(self, seed=7, tokens=5):
        rng = random.Random(seed)
        self.tokens = tokens

        def matrix(rows, columns):
            # quarters: exact in every float type
            return [[rng.randrange(-8, 9) / 4 for _ in range(columns)] for _ in range(rows)]
        self.gate_up = [[matrix(2 * INNER, HIDDEN) for _ in range(EXPERTS)]
                        for _ in range(LAYERS)]
        self.down = [[matrix(HIDDEN, INNER) for _ in range(EXPERTS)] for _ in range(LAYERS)]
        self.x = matrix(tokens, HIDDEN)
        self.ids = [rng.sample(range(EXPERTS), TOP_K) for _ in range(tokens)]
        self.weights = [[rng.randrange(1, 9) / 8 for _ in range(TOP_K)] for _ in range(tokens)]

    def banks(self):
        return [{"gate_up": moepage.tensor(self.gate_up[i]), "down": moepage.tensor(self.down[i])}
                for i in range(LAYERS)]

    def expert(self, layer, expert, x):
        """SwiGLU, written out."""
        both = [sum(w * v for w, v in zip(row, x)) for row in self.gate_up[layer][expert]]
        inner = [g / (1 + math.exp(-g)) * u for g, u in zip(both[:INNER], both[INNER:])]
        return [sum(w * v for w, v in zip(row, inner)) for row in self.down[layer][expert]]

    def moe(self, layer):
        out = []
        for x, ids, weights in zip(self.x, self.ids, self.weights):
            parts = [self.expert(layer, expert, x) for expert in ids]
            out.append([sum(w * part[i] for w, part in zip(weights, parts))
                        for i in range(HIDDEN)])
        return out

    def routing(self):
        return moepage.tensor(self.ids, "i32"), moepage.tensor(self.weights)


class World:
    """A device with a pool and a session; closes what is still open, in order."""

    def __init__(self, slots=4, model=None, device=None, numbers=None, **session):
        self.numbers = numbers or Numbers()
        self.device = device or host()
        self.model = model or moepage.Model.from_banks(self.numbers.banks(), top_k=TOP_K)
        self.experts = moepage.ExpertPool(self.device, self.model, slots=slots)
        self.session = moepage.Session(self.experts, max_tokens=8, **session)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for each in (self.session, self.experts, self.model, self.device):
            each.close()

    def step(self):
        return self.session.step(self.numbers.tokens)


def host(budget="2MiB", **config):
    return moepage.Device("host", budget=budget, workspace="1MiB", threads=1, **config)


def close_to(test, got, want, tolerance=1e-4):
    for row, wanted in zip(got, want):
        for a, b in zip(row, wanted):
            test.assertLessEqual(abs(a - b), tolerance * max(1.0, abs(b)))
    test.assertEqual(len(got), len(want))


def run(script, *flags):
    """Runs a script in a process of its own: (status, output)."""
    done = subprocess.run([sys.executable, "-X", "faulthandler", *flags, "-c", script],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60,
                          cwd=os.path.dirname(os.path.abspath(__file__)))
    return done.returncode, done.stdout
