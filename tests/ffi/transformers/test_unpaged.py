"""A paged model against the same model as transformers runs it."""
import unittest

import rounding
import small_models as small
import torch
import transformers
from moepage.transformers import page_experts

SWIGLU = [name for name in small.ARCHITECTURES if name != "gpt_oss"]


class Unpaged(small.OneThread, unittest.TestCase):

    def test_torch_and_eager_experts_give_the_same_bits(self):
        # The same operations on the same rows in the same order: no tolerance is due.
        ids = small.tokens(2, 9)
        for architecture in small.ARCHITECTURES:
            for dtype in rounding.UNIT:
                with self.subTest(architecture, dtype=dtype):
                    model = small.build(architecture, dtype, experts="eager")
                    want, tokens = small.logits(model, ids), small.greedy(model, ids)
                    with page_experts(model, "25%", compute="torch", threads=1):
                        self.assertTrue(torch.equal(small.logits(model, ids), want))
                        self.assertEqual(small.greedy(model, ids).tolist(), tokens.tolist())

    def test_torch_and_eager_experts_give_the_same_bits_under_autocast(self):
        ids = small.tokens(2, 9)
        for architecture in ("qwen3_moe", "deepseek_v3", "gpt_oss"):
            with self.subTest(architecture), torch.autocast("cpu", torch.bfloat16):
                model = small.build(architecture, experts="eager")
                want = small.logits(model, ids)
                with page_experts(model, "25%", compute="torch", threads=1):
                    self.assertTrue(torch.equal(small.logits(model, ids), want))

    def test_padding_and_eager_experts_give_the_same_bits_everywhere(self):
        ids, mask = small.padded((9, 4, 7))
        model = small.build("qwen3_moe", experts="eager")
        want, tokens = small.logits(model, ids, mask), small.greedy(model, ids, mask=mask)
        with page_experts(model, "25%", compute="torch", threads=1):
            self.assertTrue(torch.equal(small.logits(model, ids, mask), want))
            self.assertEqual(small.greedy(model, ids, mask=mask).tolist(), tokens.tolist())

    def test_skipped_padding_leaves_real_tokens_within_rounding(self):
        ids, mask = small.padded((9, 4, 7))
        real = mask.bool()
        for compute in ("torch", "library"):
            model = small.build("qwen3_moe")
            want = small.logits(model, ids, mask)
            tokens = small.greedy(model, ids, mask=mask)
            with page_experts(model, "25%", compute=compute, skip_padding=True, threads=1):
                got = small.logits(model, ids, mask)
                self.assertLess((got - want)[real].abs().max(), 1e-5)
                self.assertGreater((got - want)[~real].abs().max(), 1e-3)  # it did skip them
                self.assertEqual(small.greedy(model, ids, mask=mask).tolist(), tokens.tolist())

    def test_a_mask_that_does_not_end_with_the_tokens_skips_none(self):
        ids, mask = small.padded((9, 4, 7))
        longer = torch.nn.functional.pad(mask, (0, 7))  # as long as a static cache is
        model = small.build("qwen3_moe", experts="eager")

        def both_passes():
            cache = transformers.StaticCache(config=model.config, max_cache_len=16)
            with torch.no_grad():
                return [model(ids[:, part], attention_mask=longer, past_key_values=cache).logits
                        for part in (slice(0, 5), slice(5, 9))]
        want = both_passes()
        with page_experts(model, "25%", compute="torch", skip_padding=True, threads=1):
            for got, expected in zip(both_passes(), want):
                self.assertTrue(torch.equal(got, expected))

    def test_a_bank_stays_within_the_bound_of_its_roundings(self):
        generator = torch.Generator().manual_seed(11)
        for architecture in ("qwen3_moe", "mixtral"):
            for dtype in rounding.UNIT:
                model = small.build(architecture, dtype)
                module, name = small.banks(model)[1], rounding.bank_names(model)[1]
                x = torch.randn(11, 48, generator=generator).to(dtype)
                scores = torch.randn(11, module.num_experts, generator=generator).softmax(-1)
                weights, ids = scores.topk(module.config.num_experts_per_tok)
                exact, bound = rounding.bank_exact(module, x, ids, weights)
                with torch.no_grad():
                    unpaged = module(x, ids, weights).double()
                self.assertTrue(((unpaged - exact).abs() <= bound).all())
                self.assertTrue(((1.25 * exact - exact).abs() > bound).any())  # it excludes some
                for compute in ("torch", "library"):
                    with self.subTest(architecture, dtype=dtype, compute=compute):
                        with page_experts(model, "25%", compute=compute, threads=1):
                            with torch.no_grad():
                                paged = model.get_submodule(name)(x, ids, weights).double()
                        self.assertTrue(((paged - exact).abs() <= bound).all())

    def whole_model(self, architecture, dtype, compute):
        """Both against float64: paging must not be further from the truth than twice what
        transformers' own rounding is; then they are within three times that of each other."""
        model, ids = small.build(architecture, dtype), small.tokens(6, 10)
        exact, exact_routes = rounding.routed_logits(rounding.exact_model(model), ids)
        unpaged, unpaged_routes = rounding.routed_logits(model, ids)
        with page_experts(model, "25%", compute=compute, threads=1):
            paged, paged_routes = rounding.routed_logits(model, ids)
            tokens = small.greedy(model, ids)
        where = rounding.comparable(exact_routes, unpaged_routes, paged_routes)
        self.assertGreaterEqual(int(where.sum()), 60 if dtype == torch.float32 else 30)
        tolerance = 2 * (unpaged - exact)[where].abs().max()
        self.assertLessEqual((paged - exact)[where].abs().max(), tolerance)
        # phimoe's weights jump where a score passes its threshold
        units = 128 if architecture == "phimoe" else 64 if dtype == torch.float32 else 16
        self.assertLess(tolerance, units * rounding.UNIT[dtype] * exact.abs().max())
        if dtype == torch.float32:
            self.assertEqual(tokens.tolist(), small.greedy(model, ids).tolist())


def _each_architecture():
    for architecture in small.ARCHITECTURES:
        for dtype in (torch.float32, torch.bfloat16):
            for compute in ("torch", "library") if architecture in SWIGLU else ("torch",):
                def test(self, architecture=architecture, dtype=dtype, compute=compute):
                    self.whole_model(architecture, dtype, compute)
                name = "test_%s_in_%s_by_%s_is_as_exact_as_unpaged" % (
                    architecture, str(dtype).rpartition(".")[2], compute)
                setattr(Unpaged, name, test)


_each_architecture()

if __name__ == "__main__":
    unittest.main()
