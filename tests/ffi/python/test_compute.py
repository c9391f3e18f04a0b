"""Experts of banks give what plain arithmetic gives, whoever runs them."""
import unittest

import moepage
from support import (EXPERTS, HIDDEN, INNER, LAYERS, TOP_K, Numbers, World, close_to, host,
                     needs_numpy, needs_torch)


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
