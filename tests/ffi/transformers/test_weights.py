"""The experts that compute are the model's own: every one, of every layer, in every matrix."""
import tempfile
import unittest

import moepage
import small_models as small
import torch
from moepage.transformers import page_experts


def computes(architecture):
    return ("torch",) if architecture == "gpt_oss" else ("torch", "library")


class Weights(small.OneThread, unittest.TestCase):

    def by_bank(self, model, compute, x, weights, experts):
        """[layer][expert]: what each expert of each bank makes of x, alone, from 2 slots."""
        names = [name for name, _ in model.named_modules() if name.endswith(".experts")]
        with page_experts(model, 10**9 if experts is None else "%.4f%%" % experts,
                          compute=compute, threads=1) as paged, torch.no_grad():
            self.assertEqual(paged.slots, 2)
            return [[bank(x, torch.full((1, 1), expert), weights).clone()
                     for expert in range(bank.num_experts)]
                    for bank in map(model.get_submodule, names)]

    def test_every_expert_of_every_layer_is_the_right_one(self):
        generator = torch.Generator().manual_seed(5)
        x, weights = torch.randn(1, 48, generator=generator), torch.ones(1, 1)
        for architecture in small.ARCHITECTURES:
            model = small.build(architecture, experts="eager")
            banks, n = small.banks(model), small.banks(model)[0].num_experts
            with torch.no_grad():
                want = [[bank(x, torch.full((1, 1), expert), weights) for expert in range(n)]
                        for bank in banks]
            for compute in computes(architecture):
                with self.subTest(architecture, compute=compute):
                    got = self.by_bank(model, compute, x, weights, 200.5 / (n * len(banks)))
                    for i in range(len(banks)):
                        for expert in range(n):
                            torch.testing.assert_close(got[i][expert], want[i][expert],
                                                       rtol=1e-4, atol=1e-5)
                    flat = torch.cat([each for bank in want for each in bank])
                    apart = torch.cdist(flat, flat) + torch.eye(len(flat)) * 9
                    self.assertGreater(apart.min(), 0.1)  # no two could be taken for one another

    def test_one_changed_number_shows_in_tokens_of_its_expert_alone(self):
        ids = small.tokens(4, 9)
        for architecture, parameter in (("qwen3_moe", "gate_up_proj"), ("mixtral", "down_proj"),
                                        ("gpt_oss", "gate_up_proj_bias"),
                                        ("gpt_oss", "down_proj_bias"),
                                        ("gpt_oss", "gate_up_proj"), ("olmoe", "down_proj")):
            for compute in computes(architecture):
                with self.subTest(architecture, parameter=parameter, compute=compute):
                    self.perturb(architecture, parameter, compute, ids)

    def perturb(self, architecture, parameter, compute, ids):
        model = small.build(architecture)
        bank = small.banks(model)[-1]
        chosen = []
        hook = bank.register_forward_pre_hook(lambda module, args: chosen.append(args[1]))
        small.logits(model, ids)
        hook.remove()
        expert = int(chosen[0][-1, 0])
        uses = (chosen[0] == expert).any(dim=1)
        self.assertFalse(uses.all())
        with page_experts(model, "25%", compute=compute, threads=1):
            before = small.logits(model, ids).flatten(0, 1)
        with torch.no_grad():
            getattr(bank, parameter)[expert].view(-1)[-1] += 2.0
        with page_experts(model, "25%", compute=compute, threads=1):
            after = small.logits(model, ids).flatten(0, 1)
        changed = (before != after).any(dim=1)
        self.assertTrue(changed[uses].all())
        self.assertFalse(changed[~uses].any())

    def test_no_weight_is_copied(self):
        model = small.build("qwen3_moe")
        banks = small.banks(model)
        before = [each.gate_up_proj.data_ptr() for each in banks]
        with page_experts(model, "25%", threads=1) as paged:
            self.assertEqual([fused[0].data_ptr() for fused in paged._storage.weights], before)
        self.assertEqual([each.gate_up_proj.data_ptr() for each in banks], before)

    def test_writing_a_weight_after_paging_is_noticed(self):
        model, ids = small.build("mixtral"), small.tokens(1, 4)
        bank = small.banks(model)[1]
        for spoil in (lambda: bank.down_proj[0].fill_(1),
                      lambda: setattr(bank, "down_proj", torch.nn.Parameter(bank.down_proj + 1)),
                      lambda: setattr(bank.down_proj, "data", bank.down_proj.data.clone()),
                      # moves the memory of all who share it, and frees what the library reads
                      lambda: bank.down_proj.untyped_storage().resize_(1 << 20)):
            with page_experts(model, "25%", threads=1):
                small.logits(model, ids)
                with torch.no_grad():
                    spoil()
                with self.assertRaisesRegex(moepage.StateError, "layer 1 were changed"):
                    small.logits(model, ids)
            small.logits(model, ids)

    def test_a_saved_model_has_all_its_experts(self):
        model, ids = small.build("gpt_oss"), small.tokens(1, 4)
        want = small.logits(model, ids)
        with tempfile.TemporaryDirectory() as folder:
            with page_experts(model, "25%", threads=1):
                model.save_pretrained(folder)
            again = type(model).from_pretrained(folder).eval()
        self.assertTrue(torch.equal(small.logits(again, ids), want))

    def test_state_dict_is_the_original_model_s(self):
        model = small.build("gpt_oss")
        want = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        with page_experts(model, "25%", threads=1):
            got = model.state_dict()
            self.assertEqual(list(got), list(want))
            for name in want:
                self.assertTrue(torch.equal(got[name], want[name]), name)


if __name__ == "__main__":
    unittest.main()
