"""`moepage.Engine`: everything opened together, and closed as one."""
import gc
import unittest
import weakref

import moepage
from support import EXPERTS, HIDDEN, LAYERS, TOP_K, Numbers, World, close_to, run


def engine(numbers, budget="50%", **config):
    model = moepage.Model.from_banks(numbers.banks(), top_k=TOP_K)
    return moepage.Engine(model, budget, max_tokens=8, threads=1, **config)


def results(step, numbers):
    ids, weights = numbers.routing()
    return [step.run(layer, ids, weights, moepage.tensor(numbers.x)).tolist()
            for layer in range(LAYERS)]


class Engines(unittest.TestCase):
    def test_computes_what_the_parts_opened_one_by_one_do(self):
        numbers = Numbers()
        with World(slots=LAYERS * EXPERTS, numbers=numbers) as world:
            with world.step() as step:
                want = results(step, numbers)
        close_to(self, want[0], numbers.moe(0))
        for budget, more in (("100%", {}), ("50%", {"policy": "cycle"}), ("9%", {}),
                             ("1MiB", {}), (None, {"slots": 3}), (None, {"options": "budget=30%"})):
            with engine(numbers, budget, **more) as opened, opened.step(numbers.tokens) as step:
                self.assertEqual(results(step, numbers), want)
            self.assertTrue(opened.closed)

    def test_parts_are_those_of_the_library(self):
        numbers = Numbers()
        kv = {"bytes_per_token": [16, 0], "blocks": 5}
        with engine(numbers, kv=kv, predictor="hit-count", host_tier="1MiB") as opened:
            self.assertEqual(opened.layers, LAYERS)
            self.assertEqual(opened.experts.info.slots, LAYERS * EXPERTS // 2)
            self.assertGreater(opened.experts.info.host_tier_bytes, 0)
            self.assertEqual(opened.kv.info.blocks, 5)
            self.assertEqual(opened.kv.bytes_per_token, (16, 0))
            self.assertEqual(opened.device.info.arena_kv_bytes, moepage.KVPool.sizes(**kv))
            self.assertEqual(opened.predictor.info.name, "hit-count")
            self.assertEqual(opened.device.info.threads, 1)
            self.assertIs(opened.session.experts, opened.experts)
            self.assertEqual(opened.model.info.hidden, HIDDEN)
            with opened.kv.create() as sequence:
                sequence.append(3)
                with opened.step(sequences=[(sequence, numbers.tokens)]) as step:
                    results(step, numbers)
            self.assertEqual(opened.stats.steps, 1)
            self.assertIn('moepage_expert_slots{model="x"} %d' % (LAYERS * EXPERTS // 2),
                          opened.stats_text({"model": "x"}))
        for part in (opened.session, opened.experts, opened.kv, opened.device, opened.predictor):
            self.assertTrue(part.closed)
        self.assertFalse(opened.model.closed)  # which was not its own
        with self.assertRaises(moepage.Closed):
            opened.step(1)
        opened.close()

    def test_a_budget_is_all_of_the_device(self):
        with engine(Numbers(), 40000) as opened:
            info = opened.device.info
            self.assertLessEqual(info.budget_bytes, 40000)
            self.assertEqual(info.workspace_bytes,
                             moepage.Session.workspace(opened.model, max_tokens=8))
        with self.assertRaisesRegex(moepage.BudgetError, "at least [0-9]+ are needed"):
            engine(Numbers(), 1000)
        with self.assertRaisesRegex(moepage.BudgetError, "budget=8G"):
            engine(Numbers(), None)

    def test_closing_is_busy_while_a_guest_uses_a_part(self):
        opened = engine(Numbers(), sessions=2)
        with moepage.Session(opened.experts, max_tokens=8):
            with self.assertRaisesRegex(moepage.Busy, "session uses the engine's expert pool"):
                opened.close()
            self.assertFalse(opened.session.closed)
        ids, weights = Numbers().routing()
        step = opened.step(5)
        view = step.route(0, ids, weights).experts[0].tensors["down"].memoryview()
        with self.assertRaises(moepage.ExportsAlive):
            opened.close()
        self.assertFalse(opened.session.closed)
        self.assertEqual(len(view.tolist()), HIDDEN)
        del view
        opened.close()
        self.assertFalse(step.open)

    def test_refusals_name_what_is_wrong(self):
        numbers = Numbers()
        for kind, word, budget, config in (
                (TypeError, "no 'polcy'", "50%", {"polcy": "lru"}),
                (moepage.NotFound, "abc", "50%", {"policy": "abc"}),
                (moepage.ArgumentError, 'there is no "polcy"', "50%", {"options": "polcy=lru"}),
                (ValueError, "2Q", "2Q", {}),
                (moepage.ArgumentError, "101", "101%", {}),
                (ValueError, "NUL", "50%", {"options": "a\0"}),
                (moepage.ArgumentError, "give one of them", "50%", {"slots": 3})):
            with self.assertRaisesRegex(kind, word):
                engine(numbers, budget, **config)
        with self.assertRaises(moepage.NotFound):
            moepage.Engine("no-such-model", "1GiB")

    def test_a_forgotten_one_closes_itself(self):
        opened = engine(Numbers())
        gone, state = weakref.ref(opened), opened._state
        step = opened.step(2)
        del opened, step
        gc.collect()
        self.assertIsNone(gone())
        self.assertIsNone(state.raw)

    def test_a_part_keeps_it_open(self):
        session = engine(Numbers()).session
        gc.collect()
        with session.step(2):
            pass
        self.assertFalse(session.closed)

    def test_a_process_ends_with_one_open(self):
        status, output = run("""
import moepage, support
numbers = support.Numbers()
engine = moepage.Engine(moepage.Model.from_banks(numbers.banks(), top_k=2), "50%", max_tokens=8)
step = engine.step(5)
step.route(0, *numbers.routing())
print("done")""")
        self.assertEqual((status, output), (0, "done\n"))
