"""Experts of banks give what plain arithmetic gives, whoever runs them."""
import math
import os
import pathlib
import random
import struct
import tempfile
import unittest

import moepage
from support import (EXPERTS, HIDDEN, INNER, LAYERS, TOP_K, Numbers, World, close_to, host,
                     needs_numpy, needs_torch)


def high_half(value):
    """The bits of a number as bfloat16, which has it exactly."""
    return struct.unpack("<I", struct.pack("<f", value))[0] >> 16


def bfloat16s(values):
    """Experts' matrices as an array."""
    out = moepage.empty((len(values), len(values[0]), len(values[0][0])), "bf16")
    bits = out.bits().memoryview()
    for i, matrix in enumerate(values):
        for j, row in enumerate(matrix):
            for k, value in enumerate(row):
                bits[i, j, k] = high_half(value)
    return out


class Compute(unittest.TestCase):
    def test_the_library_runs_experts_of_plain_tensors(self):
        with World() as world:
            numbers = world.numbers
            x = moepage.tensor(numbers.x)
            with world.step() as step:
                for layer in range(LAYERS):
                    y = step.run(layer, *numbers.routing(), x)
                    close_to(self, y.tolist(), numbers.moe(layer))
            self.assertEqual(step.stats.tokens, numbers.tokens)
            self.assertEqual(step.stats.layers, LAYERS)
            self.assertEqual(world.session.stats.steps, 1)

    def test_ffn_adds_to_what_is_there(self):
        with World() as world:
            numbers = world.numbers
            y = moepage.tensor([[1.0] * HIDDEN] * numbers.tokens)
            with world.step() as step:
                step.run(0, *numbers.routing(), moepage.tensor(numbers.x), y, accumulate=True)
            close_to(self, [[v - 1 for v in row] for row in y.tolist()], numbers.moe(0))

    def test_a_caller_runs_experts_by_the_plan(self):
        with World(slots=3) as world:
            numbers, out = world.numbers, [[0.0] * HIDDEN for _ in range(world.numbers.tokens)]
            groups = 0
            with world.step() as step:
                for plan in step.groups(1, *numbers.routing()):
                    groups += 1
                    weights = plan.weights.tolist()
                    for expert in plan.experts:
                        gate_up = expert.tensors["gate_up"].tolist()
                        self.assertEqual(gate_up, numbers.gate_up[1][expert.expert])
                        down = expert.tensors["down"].tolist()
                        self.assertEqual(down, numbers.down[1][expert.expert])
                        for row in expert.rows.tolist():
                            token, k = divmod(row, TOP_K)
                            self.assertEqual(plan.ids.tolist()[token][k], expert.expert)
                            part = numbers.expert(1, expert.expert, numbers.x[token])
                            for i in range(HIDDEN):
                                out[token][i] += weights[token][k] * part[i]
            self.assertGreater(groups, 1)
            close_to(self, out, numbers.moe(1))

    def test_a_reader_brings_the_same_experts(self):
        numbers = Numbers()
        banks, asked = numbers.banks(), []

        def read(layer, expert, tensor, offset, out):
            asked.append((layer, expert, tensor))
            whole = banks[layer][("gate_up", "down")[tensor]][expert].memoryview().cast("B")
            if tensor:
                return whole[offset:offset + len(out)]
            out[:] = whole[offset:offset + len(out)]
            return out
        model = moepage.Model.from_reader(
            read, tensors=[("gate_up", "f32", (2 * INNER, HIDDEN)), ("down", "f32",
                                                                     (HIDDEN, INNER))],
            moe_layers=LAYERS, experts=EXPERTS, top_k=TOP_K)
        with World(model=model, numbers=numbers) as world:
            with world.step() as step:
                for layer in range(LAYERS):
                    y = step.run(layer, *numbers.routing(), moepage.tensor(numbers.x))
                    close_to(self, y.tolist(), numbers.moe(layer))
        self.assertTrue({0, 1} <= {layer for layer, _, _ in asked})

    def test_layers_may_have_other_dtypes(self):
        numbers = Numbers()
        banks = numbers.banks()
        banks[1] = {"gate_up": bfloat16s(numbers.gate_up[1]), "down": bfloat16s(numbers.down[1])}
        model = moepage.Model.from_banks(banks, top_k=TOP_K)
        self.assertEqual(model.info.layouts, 2)
        with World(model=model, numbers=numbers) as world, world.step() as step:
            for layer, kind in enumerate([moepage.float32, moepage.bfloat16]):
                self.assertEqual([each.dtype for each in model.layer_tensors(layer)], [kind] * 2)
                for plan in step.groups(layer, *numbers.routing()):
                    for expert in plan.experts:
                        down = expert.tensors["down"]
                        want = numbers.down[layer][expert.expert]
                        self.assertEqual(down.bits().tolist() if layer else down.tolist(),
                                         [[high_half(value) for value in row] for row in want]
                                         if layer else want)
                y = step.run(layer, *numbers.routing(), moepage.tensor(numbers.x))
                close_to(self, y.tolist(), numbers.moe(layer))

    def test_a_reader_may_bring_blocks(self):
        rng, width = random.Random(11), 32
        eighths = {(layer, expert, tensor): [[rng.randrange(-8, 9) for _ in range(width)]
                                             for _ in range((2 * width, width)[tensor])]
                   for layer in range(2) for expert in range(2) for tensor in range(2)}

        def stored(layer, expert, tensor):
            return b"".join(struct.pack("<e32b", 0.125, *row) if layer else
                            struct.pack("<32f", *(value / 8 for value in row))
                            for row in eighths[layer, expert, tensor])
        kinds = ["f32", "Q8_0"]
        model = moepage.Model.from_reader(
            lambda layer, expert, tensor, offset, out:
            stored(layer, expert, tensor)[offset:offset + len(out)],
            layer_tensors=[[("gate_up", kind, (2 * width, width)), ("down", kind, (width, width))]
                           for kind in kinds],
            moe_layers=2, experts=2, top_k=1)
        x = [rng.randrange(-8, 9) / 8 for _ in range(width)]
        routing = moepage.tensor([[1]], "i32"), moepage.tensor([[1.0]])
        with World(model=model) as world, world.session.step(1) as step:
            for layer, kind in enumerate(["float32", "q8_0"]):
                down = model.layer_tensors(layer)[1]
                self.assertEqual((str(down.dtype), down.bytes), (kind, len(stored(layer, 1, 1))))
                for plan in step.groups(layer, *routing):
                    view = plan.experts[0].tensors["down"].memoryview()
                    self.assertEqual(bytes(view), stored(layer, 1, 1))
                    del view
                y = step.run(layer, *routing, moepage.tensor([x]))
                both = [sum(w / 8 * v for w, v in zip(row, x)) for row in eighths[layer, 1, 0]]
                inner = [g / (1 + math.exp(-g)) * u for g, u in zip(both[:width], both[width:])]
                want = [sum(w / 8 * v for w, v in zip(row, inner)) for row in eighths[layer, 1, 1]]
                close_to(self, y.tolist(), [want])

    def test_places_in_files_bring_the_same_experts(self):
        numbers = Numbers()
        shapes = {"gate_up": (2 * INNER, HIDDEN), "down": (HIDDEN, INNER)}
        tensors = [(role, "f32", shape) for role, shape in shapes.items()]
        with tempfile.TemporaryDirectory() as folder:
            files = [pathlib.Path(folder, "a.bin"), os.path.join(folder, "b.bin")]
            places = [[[None] * 2 for _ in range(EXPERTS)] for _ in range(LAYERS)]
            with open(files[0], "wb") as a, open(files[1], "wb") as b:
                for layer, bank in reversed(list(enumerate(numbers.banks()))):
                    for expert in range(EXPERTS):
                        for tensor, role in enumerate(shapes):
                            file = (expert + tensor) % 2
                            to = (a, b)[file]
                            to.write(b"?" * (expert + 1))
                            places[layer][expert][tensor] = file, to.tell()
                            to.write(bank[role][expert].memoryview().cast("B"))
            model = moepage.Model.from_files(files, places, tensors=tensors, top_k=TOP_K)
            with World(model=model, numbers=numbers) as world:
                with world.step() as step:
                    for plan in step.groups(1, moepage.tensor(numbers.ids, "i32")):
                        self.assertEqual(plan.weights.tolist(), [[1.0] * TOP_K] * numbers.tokens)
                        for expert in plan.experts:
                            down = expert.tensors["down"].tolist()
                            self.assertEqual(down, numbers.down[1][expert.expert])
                    for layer in range(LAYERS):
                        y = step.run(layer, *numbers.routing(), moepage.tensor(numbers.x))
                        close_to(self, y.tolist(), numbers.moe(layer))
                    with self.assertRaisesRegex(moepage.ArgumentError, "weights are NULL"):
                        step.route(0, moepage.tensor(numbers.ids, "i32"), plan=False)
            about = dict(layer_tensors=[tensors] * LAYERS, top_k=TOP_K)
            moepage.Model.from_files(files, places, **about).close()
            for wrong in (places[:1] + [places[1][:-1]], [[each[:1] for each in places[0]]] * LAYERS,
                          places[:1], []):
                with self.assertRaises(ValueError):
                    moepage.Model.from_files(files, wrong, **about)
            with self.assertRaisesRegex(TypeError, "a list of paths"):
                moepage.Model.from_files(str(files[0]), places, **about)
            with self.assertRaisesRegex(moepage.ArgumentError, "it lies in file 1 of 1"):
                moepage.Model.from_files(files[:1], places, **about)
            with self.assertRaisesRegex(moepage.NotFound, "c.bin"):
                moepage.Model.from_files([files[0], os.path.join(folder, "c.bin")], places, **about)
            os.truncate(files[1], 99)
            with self.assertRaisesRegex(moepage.FormatError, "b.bin, which has 99"):
                moepage.Model.from_files(files, places, **about)

    def test_layers_that_contradict_themselves_are_refused(self):
        down = ("down", "f32", (4, 4))
        about = dict(moe_layers=2, experts=1, top_k=1)
        for wrong in (dict(), dict(tensors=[down], layer_tensors=[[down]] * 2)):
            with self.assertRaises(TypeError):
                moepage.Model.from_reader(print, **wrong, **about)
        for layers in ([], [[down]], [[down], []]):
            with self.assertRaises(ValueError):
                moepage.Model.from_reader(print, layer_tensors=layers, **about)
        with self.assertRaises(moepage.ArgumentError):
            moepage.Model.from_reader(print, layer_tensors=[[down], [("down", "Q8_0", (4, 4))]],
                                      **about)

    @needs_numpy
    def test_numpy_banks_and_activations_are_used_where_they_lie(self):
        import numpy as np
        numbers = Numbers()
        banks = [{"gate_up": np.array(numbers.gate_up[i], np.float32),
                  "down": np.array(numbers.down[i], np.float32)} for i in range(LAYERS)]
        model = moepage.Model.from_banks(banks, top_k=TOP_K)
        ids, weights = np.array(numbers.ids, np.int32), np.array(numbers.weights, np.float32)
        x = np.array(numbers.x, np.float32)
        wide = np.zeros((numbers.tokens, HIDDEN + 3), np.float32)
        with World(model=model, numbers=numbers) as world, world.step() as step:
            self.assertIsInstance(step.run(0, ids, weights, x), np.ndarray)
            step.run(1, ids, weights, x, wide[:, :HIDDEN])
        both = np.einsum("eoh,th->teo", banks[1]["gate_up"].astype(np.float64), x)
        gate, up = both[..., :INNER], both[..., INNER:]
        each = np.einsum("ehi,tei->teh", banks[1]["down"], gate / (1 + np.exp(-gate)) * up)
        want = sum(weights[:, k, None] * each[np.arange(len(x)), ids[:, k]]
                   for k in range(TOP_K))
        np.testing.assert_allclose(wide[:, :HIDDEN], want, rtol=1e-4, atol=1e-4)
        self.assertTrue((wide[:, HIDDEN:] == 0).all())

    @needs_torch
    def test_torch_banks_in_bfloat16_give_torchs_own_numbers(self):
        import torch
        numbers = Numbers()
        banks = [{"gate_up": torch.tensor(numbers.gate_up[i], dtype=torch.bfloat16),
                  "down": torch.tensor(numbers.down[i], dtype=torch.bfloat16)}
                 for i in range(LAYERS)]
        model = moepage.Model.from_banks(banks, top_k=TOP_K)
        self.assertEqual(model.expert_tensors[0].dtype, moepage.bfloat16)
        x = torch.tensor(numbers.x, dtype=torch.bfloat16)
        ids = torch.tensor(numbers.ids, dtype=torch.int32)
        weights = torch.tensor(numbers.weights)
        with World(model=model, numbers=numbers) as world, world.step() as step:
            y = step.run(0, ids, weights, x.view(1, -1, HIDDEN))
            self.assertEqual(y.shape, (1, numbers.tokens, HIDDEN))
        want = torch.tensor(numbers.moe(0))
        # y is rounded to bfloat16 once: 8 bits
        torch.testing.assert_close(y[0].float(), want, rtol=2 ** -8, atol=1e-2)

    def test_results_do_not_depend_on_what_is_resident(self):
        numbers, seen = Numbers(), set()
        for slots in (2, 3, EXPERTS * LAYERS):
            with World(slots=slots, numbers=numbers) as world:
                with world.step() as step:
                    y = step.run(0, *numbers.routing(), moepage.tensor(numbers.x))
                seen.add(y.tobytes())
        self.assertEqual(len(seen), 1)

    def test_a_checkpoint_opens_and_reads(self):
        import os
        folder = os.path.join(os.environ.get("MOEPAGE_SOURCE", "../../.."),
                              "examples/models/tiny-qwen3moe")
        with moepage.Model(folder) as model:
            self.assertEqual(model.config["model_type"], model.info.architecture)
            names = set(model.tensor_names())
            self.assertIn("model.embed_tokens.weight", names)
            embedding = model.tensor("model.embed_tokens.weight")
            self.assertEqual(embedding.shape, (model.info.vocabulary, model.info.hidden))
            row = 2 * model.info.hidden
            self.assertEqual(bytes(model.read_tensor("model.embed_tokens.weight", 5 * row, row).memoryview().cast("B")),
                             bytes(embedding.memoryview().cast("B"))[5 * row:6 * row])
            last = model.read_tensor("model.embed_tokens.weight", 259 * row)
            self.assertEqual(bytes(last.memoryview().cast("B")), bytes(embedding.memoryview().cast("B"))[259 * row:])
            with self.assertRaises(moepage.ArgumentError):
                model.read_tensor("model.embed_tokens.weight", 0, 260 * row + 1)
            with self.assertRaises(moepage.NotFound):
                model.tensor("no.such.tensor")
            tensors = model.read_expert(0, 0)
            self.assertEqual([each.shape for each in tensors],
                             [each.shape for each in model.expert_tensors])
            self.assertEqual(sum(each.nbytes for each in tensors), model.info.expert_bytes)
            self.assertGreaterEqual(model.layer_index(0), 0)
            self.assertEqual(model.form("dense").present, 1)
        with host() as device:
            self.assertEqual(device.info.budget_bytes, 2 << 20)


if __name__ == "__main__":
    unittest.main()
