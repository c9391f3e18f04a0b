"""What can be paged is told from what cannot, in words."""
import unittest

import moepage
import small_models as small
import torch
import transformers
from moepage.transformers import page_experts
from moepage.transformers import recognise
from torch import nn


class Recognition(small.OneThread, unittest.TestCase):

    def refused(self, model, text, **how):
        with self.assertRaisesRegex(moepage.Unsupported, text):
            page_experts(model, **how)

    def test_every_architecture_is_recognised_with_its_layout(self):
        self.assertEqual(sorted(small.ARCHITECTURES), sorted(recognise.ARCHITECTURES))
        for architecture in small.ARCHITECTURES:
            model = small.build(architecture)
            banks, layout = recognise.find(model)
            config = model.config
            with self.subTest(architecture):
                self.assertEqual(layout.architecture, architecture)
                self.assertEqual([bank.module for bank in banks], small.banks(model))
                self.assertEqual(layout.top_k, config.num_experts_per_tok)
                self.assertEqual(layout.hidden, 48)
                self.assertEqual(layout.intermediate,
                                 getattr(config, "moe_intermediate_size", None)
                                 or config.intermediate_size)
                self.assertEqual(layout.swiglu, architecture != "gpt_oss")
                self.assertEqual(len(layout.parts), 4 if architecture == "gpt_oss" else 2)

    def test_a_model_without_experts_is_refused(self):
        config = transformers.LlamaConfig(hidden_size=16, intermediate_size=16, vocab_size=8,
                                          num_hidden_layers=1, num_attention_heads=2)
        self.refused(transformers.LlamaForCausalLM(config), "LlamaForCausalLM has no expert banks")

    def test_an_unknown_architecture_is_refused_by_name(self):
        config = transformers.Glm4MoeConfig(
            vocab_size=32, hidden_size=16, intermediate_size=16, moe_intermediate_size=8,
            num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, n_routed_experts=4,
            n_group=1, topk_group=1, num_experts_per_tok=2, first_k_dense_replace=1, head_dim=8)
        self.refused(transformers.Glm4MoeForCausalLM(config),
                     r"layers\.1\.mlp\.experts is a .*Glm4Moe.*qwen3_moe")

    def test_quantised_experts_are_refused_with_what_to_load_instead(self):
        from transformers.integrations.mxfp4 import Mxfp4GptOssExperts
        model = small.build("gpt_oss")
        model.model.layers[1].mlp.experts = Mxfp4GptOssExperts(model.config)
        self.refused(model, r"layers\.1\..*Mxfp4GptOssExperts: quantised .*dequantize=True")

    def test_a_class_of_ones_own_is_refused_even_where_its_weights_look_right(self):
        model = small.build("mixtral")
        kind = type(small.banks(model)[0])
        small.banks(model)[1].__class__ = type("MixtralExperts", (kind,), {})
        self.refused(model, "test_recognition.MixtralExperts, whose experts cannot be paged")

    def test_experts_in_lists_are_refused(self):
        class Old(nn.Module):
            def __init__(self):
                super().__init__()
                self.experts = nn.ModuleList([nn.Linear(2, 2)])
        self.refused(Old(), "experts is a .*ModuleList")

    def test_other_activations_are_for_torch(self):
        model = small.build("mixtral")
        for bank in small.banks(model):
            bank.act_fn = nn.GELU()
        model.set_experts_implementation("eager")
        ids = small.tokens(2, 5)
        want = small.logits(model, ids)
        self.refused(model, "SwiGLU", compute="library")
        with page_experts(model, "25%", threads=1) as paged:
            self.assertEqual(paged.compute, "torch")
            self.assertTrue(torch.equal(small.logits(model, ids), want))
        self.refused(small.build("gpt_oss"), "SwiGLU", compute="library")

    def test_what_does_not_fit_its_architecture_is_refused(self):
        def meta(bank):
            bank.to("meta")

        def shape(bank):
            bank.down_proj = nn.Parameter(torch.zeros(8, 48, 41))

        def dtype(bank):
            bank.down_proj.data = bank.down_proj.data.half()

        def all_double(bank):
            bank.double()

        def gaps(bank):
            bank.down_proj.data = bank.down_proj.data.mT.contiguous().mT

        def extra(bank):
            bank.lora = nn.Parameter(torch.zeros(1))

        def hook(bank):
            bank.register_forward_pre_hook(lambda *args: None)

        def patched(bank):
            bank.forward = bank.forward

        def parallel(bank):
            bank._is_expert_parallel = True
        for spoil, text in ((meta, "on meta"), (shape, r"expected \(8, 48, 40\)"),
                            (dtype, "float16"), (all_double, "float64"), (gaps, "contiguous"),
                            (extra, "parameters"), (hook, "hooks"), (patched, "a forward of"),
                            (parallel, "parallel")):
            with self.subTest(text):
                model = small.build("mixtral")
                spoil(small.banks(model)[1])
                self.refused(model, text)

    def test_banks_that_differ_are_refused(self):
        model = small.build("mixtral")
        small.banks(model)[2].half()
        self.refused(model, r"layers\.2\.mlp\.experts and .*layers\.0.* differ")

    def test_experts_of_two_layers_are_refused_and_layers_used_twice_are_not(self):
        model, ids = small.build("mixtral"), small.tokens(2, 5)
        layers = model.model.layers
        own, layers[2].mlp.experts = layers[2].mlp.experts, layers[0].mlp.experts
        self.refused(model, r"layers\.0\..* and .*layers\.2\..* are one module")
        layers[2].mlp.experts = own
        layers[2] = layers[0]
        want = small.logits(model, ids)
        with page_experts(model, "25%", threads=1) as paged:
            self.assertEqual(paged.experts, 16)
            torch.testing.assert_close(small.logits(model, ids), want, rtol=0, atol=1e-5)

    def test_the_bare_decoder_and_one_layer_can_be_paged(self):
        model, ids = small.build("mixtral", experts="eager"), small.tokens(2, 5)
        for part in (model.model, model.model.layers[1], model.model.layers[1].mlp):
            want = small.logits(model, ids)
            with page_experts(part, "50%", compute="torch", threads=1) as paged:
                self.assertTrue(torch.equal(small.logits(model, ids), want))
                self.assertEqual(paged.forwards, 1)
                self.assertEqual(paged.stats().steps, 1)

    def test_prefill_and_decode_are_told_apart(self):
        model, ids = small.build("mixtral"), small.tokens(3, 5)
        with page_experts(model, "50%", threads=1) as paged:
            seen, begin = [], paged._steps._session.step

            def step(*args, **how):
                seen.append((how["phase"], how["sequences"]))
                return begin(*args, **how)
            paged._steps._session.step = step
            small.greedy(model, ids, 2)
        self.assertEqual(seen, [("prefill", [(None, 5)] * 3), ("decode", [(None, 1)] * 3)])


if __name__ == "__main__":
    unittest.main()
