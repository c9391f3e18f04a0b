"""Misuse is an exception that says what would be right, and the model works afterwards."""
import copy
import itertools
import pickle
import sys
import threading
import unittest

import moepage
import small_models as small
import torch
from moepage.transformers import page_experts, stepping


class Misuse(small.OneThread, unittest.TestCase):

    def setUp(self):
        self.model, self.ids = small.build("mixtral"), small.tokens(2, 5)
        self.want = small.logits(self.model, self.ids)

    def works(self):
        torch.testing.assert_close(small.logits(self.model, self.ids), self.want, rtol=0,
                                   atol=1e-5)

    def test_restoring_gives_the_same_modules_back_once(self):
        before = small.banks(self.model)
        paged = page_experts(self.model, "50%", threads=1)
        self.assertEqual(small.banks(self.model), [])
        self.assertIs(paged.restore(), self.model)
        self.assertTrue(all(a is b for a, b in zip(small.banks(self.model), before)))
        self.assertTrue(torch.equal(small.logits(self.model, self.ids), self.want))
        self.assertNotIn("_apply", vars(self.model))
        self.assertNotIn("forward", vars(self.model.model))
        with self.assertRaisesRegex(moepage.StateError, "restored already"):
            paged.restore()
        paged.close()
        paged.close()
        self.assertTrue(paged.closed)

    def test_use_after_close_is_refused(self):
        with page_experts(self.model, "50%", threads=1) as paged:
            bank = self.model.model.layers[0].mlp.experts
            self.works()
        with self.assertRaises(moepage.Closed):
            bank(torch.zeros(1, 48), torch.zeros(1, 2, dtype=torch.long), torch.ones(1, 2))
        for use in (paged.stats, paged.stats_text, lambda: paged.hit_rate, lambda: paged.slots):
            with self.assertRaises(moepage.Closed):
                use()
        self.assertIn("closed", repr(paged))

    def test_paging_twice_is_refused_and_again_after_restoring_is_not(self):
        with page_experts(self.model, "50%", threads=1):
            with self.assertRaisesRegex(moepage.StateError, "paged already"):
                page_experts(self.model, "25%")
            self.works()
        with page_experts(self.model, "25%", threads=1):
            self.works()

    def test_converting_the_model_is_refused_before_anything_is_converted(self):
        with page_experts(self.model, "50%", threads=1):
            for convert in (self.model.half, self.model.double, self.model.bfloat16,
                            lambda: self.model.to(torch.bfloat16), lambda: self.model.to("meta"),
                            self.model.model.half):
                with self.assertRaisesRegex(moepage.StateError, "cannot become"):
                    convert()
            self.assertEqual({each.dtype for each in self.model.lm_head.parameters()},
                             {torch.float32})
            self.model.to("cpu").float().eval()  # which change nothing
            self.model.to(torch.float32)

    def test_the_rest_of_the_model_is_not_half_converted(self):
        with page_experts(self.model, "50%", threads=1):
            for part in (self.model, self.model.model, self.model.model.layers[0]):
                with self.assertRaises(moepage.StateError):
                    part.half()
            self.assertEqual({each.dtype for each in self.model.parameters()}, {torch.float32})
            self.works()

    def test_activations_of_another_dtype_are_refused(self):
        with page_experts(self.model, "50%", threads=1):
            bank = self.model.model.layers[0].mlp.experts
            with self.assertRaisesRegex(moepage.StateError, "float16"):
                bank(torch.zeros(1, 48).half(), torch.zeros(1, 2, dtype=torch.long),
                     torch.ones(1, 2))
            self.works()

    def test_copying_and_pickling_are_refused(self):
        with page_experts(self.model, "50%", threads=1):
            for attempt in (copy.deepcopy, pickle.dumps, copy.copy):
                with self.assertRaisesRegex(moepage.Unsupported, "restore"):
                    attempt(self.model.model.layers[0].mlp.experts)
            with self.assertRaisesRegex(moepage.Unsupported, "restore"):
                copy.deepcopy(self.model)
            self.works()
        copy.deepcopy(self.model)

    def test_loading_weights_is_refused_before_anything_is_loaded(self):
        with page_experts(self.model, "50%", threads=1):
            for part in (self.model, self.model.model, self.model.model.layers[0]):
                other = {name: tensor + 1 for name, tensor in part.state_dict().items()}
                with self.assertRaisesRegex(moepage.StateError, "cannot be loaded"):
                    part.load_state_dict(other)
                self.works()
        self.model.load_state_dict(self.model.state_dict())

    def test_gradients_are_refused(self):
        with page_experts(self.model, "50%", threads=1):
            with self.assertRaisesRegex(moepage.Unsupported, "no_grad"):
                self.model(self.ids)
            self.works()
            self.model.requires_grad_(False)
            self.model(self.ids)

    def test_an_exception_inside_a_forward_leaves_the_model_usable(self):
        with page_experts(self.model, "25%", threads=1) as paged:
            self.works()
            steps = paged.stats().steps
            for when in (KeyError, KeyboardInterrupt):
                def fail(*args, when=when):
                    raise when("stop")
                hook = self.model.model.layers[1].register_forward_pre_hook(fail)
                with self.assertRaises(when):
                    small.logits(self.model, self.ids)
                hook.remove()
                self.works()
            self.assertEqual(paged.forwards, 3)
            self.assertEqual(paged.stats().steps, steps + 4)  # cancelled ones count

    def test_a_wrong_id_is_an_error_and_the_next_forward_works(self):
        with page_experts(self.model, "25%", threads=1):
            bank = self.model.model.layers[0].mlp.experts
            x, weights = torch.zeros(1, 48), torch.ones(1, 2)
            for ids in ([[0, 8]], [[-2, 0]], [[2**32, 1]], [[1, -2**32]]):
                with self.assertRaises(moepage.ArgumentError):
                    bank(x, torch.tensor(ids), weights)
                self.works()

    def test_no_rows_and_rows_of_any_layout_are_computed(self):
        bank = self.model.model.layers[0].mlp.experts
        x, ids = torch.randn(48, 3).t(), torch.tensor([[0, 1]] * 3)
        with torch.no_grad():
            want = bank(x, ids, torch.ones(3, 2))
        for compute in ("library", "torch"):
            with page_experts(self.model, "25%", compute=compute, threads=1), torch.no_grad():
                bank = self.model.model.layers[0].mlp.experts
                torch.testing.assert_close(bank(x, ids, torch.ones(3, 2)), want, rtol=0, atol=1e-5)
                self.assertEqual(bank(x[:0], ids[:0], torch.ones(0, 2)).shape, (0, 48))

    def test_two_threads_in_one_model_are_refused(self):
        failures, results = [], []
        with page_experts(self.model, "25%", threads=1) as paged:
            def other():
                try:
                    small.logits(self.model, self.ids)
                except Exception as error:
                    failures.append(error)
                try:
                    paged.restore()
                except Exception as error:
                    failures.append(error)

            def meanwhile(*args):
                thread = threading.Thread(target=other)
                thread.start()
                thread.join()
            hook = self.model.model.layers[1].register_forward_pre_hook(meanwhile)
            results.append(small.logits(self.model, self.ids))
            hook.remove()
            self.works()
            thread = threading.Thread(target=self.works)  # one after the other is fine
            thread.start()
            thread.join()
            self.assertEqual(paged.forwards, 3)
        torch.testing.assert_close(results[0], self.want, rtol=0, atol=1e-5)
        self.assertEqual([type(each) for each in failures], [moepage.ConcurrentUse] * 2)
        self.assertIn("one thread at a time", str(failures[0]))

    def test_an_activation_that_raises_leaves_nothing_behind(self):
        class Fails(torch.nn.Module):
            def forward(self, gate):
                raise KeyError("act")
        banks = small.banks(self.model)
        right = banks[0].act_fn
        for bank in banks:
            bank.act_fn = Fails()
        with self.assertRaises(KeyError):
            with page_experts(self.model, "25%", compute="torch", threads=1) as paged:
                small.logits(self.model, self.ids)
        self.assertTrue(paged.closed)
        for bank in banks:
            bank.act_fn = right
        self.assertTrue(torch.equal(small.logits(self.model, self.ids), self.want))

    def test_an_interrupted_model_can_be_restored_at_once(self):
        def interrupt(*args):
            raise KeyboardInterrupt
        with self.assertRaises(KeyboardInterrupt):
            with page_experts(self.model, "25%", threads=1) as paged:
                hook = self.model.model.layers[1].register_forward_pre_hook(interrupt)
                small.logits(self.model, self.ids)
        hook.remove()
        self.assertTrue(paged.closed)
        self.assertTrue(torch.equal(small.logits(self.model, self.ids), self.want))

    def test_an_interrupt_at_any_call_that_opens_or_closes_steps_leaves_none_open(self):
        own = stepping.__file__

        def interrupted_at(moment):
            """The forward, interrupted at that entry into or exit from a function of stepping."""
            left = itertools.count(moment, -1)

            def look(frame, event, what):
                if frame.f_code.co_filename == own and next(left) == 0:
                    raise KeyboardInterrupt
            sys.setprofile(look)
            try:
                small.logits(self.model, self.ids)
            except KeyboardInterrupt:
                return True
            finally:
                sys.setprofile(None)
            return False
        moments = 0
        with page_experts(self.model, "25%", threads=1) as paged:
            while interrupted_at(moments):
                self.assertFalse(paged._steps.busy, moments)
                self.works()
                moments += 1
        self.assertGreater(moments, 20)

    def test_restoring_inside_a_forward_is_refused(self):
        with page_experts(self.model, "25%", threads=1) as paged:
            hook = self.model.model.layers[1].register_forward_pre_hook(
                lambda *args: paged.restore() and None)
            with self.assertRaisesRegex(moepage.ConcurrentUse, "under way"):
                small.logits(self.model, self.ids)
            hook.remove()
            self.works()

    def test_arguments_are_checked_and_nothing_is_replaced(self):
        before = small.banks(self.model)
        for wrong in (dict(budget="0%"), dict(budget="101%"), dict(budget="much"),
                      dict(budget=1.5), dict(budget="1%"), dict(budget=100),
                      dict(compute="fast"), dict(policy="none"), dict(device="tpu"),
                      dict(device="cuda:99"), dict(prefetch="always"), dict(math="exact"),
                      dict(max_tokens=-1), dict(max_tokens=0), dict(nonsense=1),
                      dict(slots=3)):
            with self.subTest(**wrong), self.assertRaises((moepage.Error, ValueError, TypeError,
                                                           OverflowError)):
                page_experts(self.model, **wrong)
            self.assertTrue(all(a is b for a, b in zip(small.banks(self.model), before)))
        with self.assertRaises(TypeError):
            page_experts("model")
        self.works()

    def test_budgets_count_slots_as_the_tools_do(self):
        for budget, slots in (("100%", 24), ("50%", 12), ("33.4%", 8), (" 25 %", 6), ("1GiB", 24),
                              (23040 * 3 + 1, 3), ("46k", 2)):
            with self.subTest(budget), page_experts(self.model, budget, threads=1) as paged:
                self.assertEqual(paged.slots, slots)
                self.assertGreaterEqual(paged.device_bytes, slots * 23040)


if __name__ == "__main__":
    unittest.main()
