"""Budgets and policies change what is moved, never what comes out: tokens and logits have the
same bits."""
import unittest

import small_models as small
import torch
from moepage.transformers import page_experts

BUDGETS = ("100%", "50%", "25%")


def computes(architecture):
    return ("torch",) if architecture == "gpt_oss" else ("torch", "library")


class Budgets(small.OneThread, unittest.TestCase):

    def outcome(self, model, ids, mask, **how):
        with page_experts(model, threads=1, **how) as paged:
            first = small.logits(model, ids, mask)
            tokens = small.greedy(model, ids, mask=mask)
            again = small.logits(model, ids, mask)  # with what generation has left in the slots
            self.assertTrue(torch.equal(first, again))
            self.assertGreater(paged.stats().routed, 0)
            self.assertEqual(paged.forwards, 14)
        return first, tokens, paged

    def same_everywhere(self, architecture, dtype, ids, mask=None):
        model = small.build(architecture, dtype)
        for compute in computes(architecture):
            want = self.outcome(model, ids, mask, budget="100%", compute=compute)
            for budget in BUDGETS:
                for policy in ("lru", "lfu"):
                    with self.subTest(compute=compute, budget=budget, policy=policy):
                        got = self.outcome(model, ids, mask, budget=budget, policy=policy,
                                           compute=compute)
                        self.assertTrue(torch.equal(got[0], want[0]))
                        self.assertEqual(got[1].tolist(), want[1].tolist())

    def test_padding_changes_no_bit_between_budgets(self):
        ids, mask = small.padded((9, 4, 7))
        self.same_everywhere("qwen3_moe", torch.float32, ids, mask)

    def test_groups_of_few_slots_give_the_same_bits(self):
        ids = small.tokens(2, 9)
        for architecture in ("mixtral", "gpt_oss", "olmoe"):
            model = small.build(architecture)
            used = len(small.banks(model)) * small.banks(model)[0].num_experts
            for compute in computes(architecture):
                with self.subTest(architecture, compute=compute):
                    with page_experts(model, "100%", compute=compute, threads=1):
                        want = small.logits(model, ids)
                    with page_experts(model, "%.4f%%" % (200.5 / used), compute=compute,
                                      threads=1) as paged:
                        self.assertEqual(paged.slots, 2)
                        self.assertTrue(torch.equal(small.logits(model, ids), want))
                        stats = paged.stats()
                    self.assertGreater(stats.groups, stats.layers)

    def test_a_cache_of_a_smaller_budget_moves_more(self):
        model, ids = small.build("qwen3_moe"), small.tokens(2, 9)
        moved = []
        for budget in BUDGETS:
            with page_experts(model, budget, regime="cache", threads=1) as paged:
                small.greedy(model, ids)
                moved.append(paged.stats().demand_bytes)
                self.assertEqual(paged.slots, {"100%": 48, "50%": 24, "25%": 12}[budget])
        self.assertLess(moved[0], moved[1])
        self.assertLess(moved[1], moved[2])

    def test_prefetching_changes_no_bit(self):
        model, ids = small.build("qwen3_moe"), small.tokens(2, 9)
        with page_experts(model, "50%", threads=1):
            want = small.logits(model, ids), small.greedy(model, ids)
        with page_experts(model, "50%", prefetch="previous", threads=1) as paged:
            self.assertTrue(torch.equal(small.logits(model, ids), want[0]))
            self.assertEqual(small.greedy(model, ids).tolist(), want[1].tolist())
            self.assertGreater(paged.stats().hint_experts, 0)

    def test_chunks_of_a_long_forward_give_the_same_bits_at_every_budget(self):
        ids = small.tokens(3, 11)  # 33 tokens, in chunks of 7: four of 7 and one filled up
        for architecture in ("mixtral", "gpt_oss"):
            model = small.build(architecture)
            whole = small.logits(model, ids)
            for compute in computes(architecture):
                with self.subTest(architecture, compute=compute):
                    results = []
                    for budget in BUDGETS:
                        with page_experts(model, budget, max_tokens=7, compute=compute,
                                          threads=1) as paged:
                            results.append(small.logits(model, ids))
                            self.assertEqual(paged.stats().steps, 1)
                    self.assertTrue(all(torch.equal(each, results[0]) for each in results))
                    self.assertLess((results[0] - whole).abs().max(), 1e-5)

    def test_inference_mode_gives_the_same_bits(self):
        model, ids = small.build("mixtral"), small.tokens(2, 5)
        for compute in computes("mixtral"):
            with page_experts(model, "50%", compute=compute, threads=1):
                want = small.logits(model, ids)
                with torch.inference_mode():
                    self.assertTrue(torch.equal(model(ids, use_cache=False).logits, want))


def _each_architecture():
    for architecture in small.ARCHITECTURES:
        for dtype in (torch.float32, torch.bfloat16):
            def test(self, architecture=architecture, dtype=dtype):
                self.same_everywhere(architecture, dtype, small.tokens(2, 7))
            name = "test_%s_in_%s" % (architecture, str(dtype).rpartition(".")[2])
            setattr(Budgets, name, test)


_each_architecture()

if __name__ == "__main__":
    unittest.main()
