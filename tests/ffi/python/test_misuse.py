"""Whatever is done wrong raises, with a sentence, and never crashes."""
import array
import copy
import gc
import os
import pickle
import unittest

import moepage
from support import (EXPERTS, HIDDEN, TOP_K, Numbers, World, host, needs_numpy,
                     needs_torch)


class Arguments(unittest.TestCase):
    """What the package refuses before the library is reached."""

    def setUp(self):
        self.world = World()
        self.addCleanup(self.world.__exit__)
        self.x = moepage.tensor(self.world.numbers.x)
        self.ids, self.weights = self.world.numbers.routing()

    def test_a_wrong_dtype_is_a_type_error(self):
        with self.world.step() as step:
            tokens = self.world.numbers.tokens
            longs = moepage.empty((tokens, TOP_K), "i64")
            with self.assertRaisesRegex(TypeError, "ids is int64, and not int32"):
                step.route(0, longs, self.weights)
            with self.assertRaisesRegex(TypeError, "weights is int32, and not float32"):
                step.route(0, self.ids, self.ids)
            step.route(0, self.ids, self.weights)
            with self.assertRaisesRegex(TypeError, "x is int32"):
                step.ffn(0, moepage.empty((tokens, HIDDEN), "i32"))
            with self.assertRaisesRegex(TypeError, "y is float16, and not float32"):
                step.ffn(0, self.x, moepage.empty((tokens, HIDDEN), "f16"))
            with self.assertRaisesRegex(TypeError, "an array is needed"):
                step.ffn(0, 3.5)
            with self.assertRaises(TypeError):
                step.route(0, None, self.weights)
            step.retire(0)

    def test_a_wrong_shape_is_a_value_error(self):
        with self.world.step() as step:
            tokens = self.world.numbers.tokens
            with self.assertRaisesRegex(ValueError, "ids has shape"):
                step.route(0, moepage.empty((tokens + 1, TOP_K), "i32"), self.weights)
            with self.assertRaisesRegex(ValueError, "weights has shape"):
                step.route(0, self.ids, moepage.empty((tokens, TOP_K + 1)))
            with self.assertRaisesRegex(ValueError, "logits has shape"):
                step.route(0, self.ids, self.weights, logits=moepage.empty((tokens, EXPERTS + 1)))
            step.route(0, self.ids, self.weights)
            with self.assertRaisesRegex(ValueError, "x has shape"):
                step.ffn(0, moepage.empty((tokens, HIDDEN + 1)))
            with self.assertRaisesRegex(ValueError, "y has shape"):
                step.ffn(0, self.x, moepage.empty((tokens - 1, HIDDEN)))
            step.retire(0)

    def test_gaps_and_overlaps_are_value_errors(self):
        with self.world.step() as step:
            tokens = self.world.numbers.tokens
            step.route(0, self.ids, self.weights)
            turned = moepage.Tensor(self.x.address, (tokens, HIDDEN), moepage.float32,
                                    strides=(1, tokens), keep=self.x)
            with self.assertRaisesRegex(ValueError, "not contiguous"):
                step.ffn(0, turned)
            with self.assertRaisesRegex(ValueError, "share memory"):
                step.ffn(0, self.x, self.x)
            with self.assertRaisesRegex(ValueError, "read-only"):
                step.ffn(0, self.x, memoryview(self.x.tobytes()).cast("f", [tokens, HIDDEN]))
            step.retire(0)

    @needs_torch
    def test_a_tensor_on_another_device_is_a_value_error(self):
        import torch
        elsewhere = torch.empty((self.world.numbers.tokens, HIDDEN), device="meta")
        with self.world.step() as step:
            step.route(0, self.ids, self.weights)
            with self.assertRaisesRegex(ValueError, "meta"):
                step.ffn(0, elsewhere)
            step.retire(0)

    def test_a_dlpack_array_on_another_device_is_a_value_error(self):
        class OnGpu:
            def __dlpack__(self):
                from moepage import dlpack
                return dlpack.export(4096, (5, HIDDEN), (HIDDEN, 1), moepage.float32, (2, 0),
                                     False, False, self)
        with self.world.step() as step:
            step.route(0, self.ids, self.weights)
            with self.assertRaisesRegex(ValueError, "x is on cuda:0, and not on cpu"):
                step.ffn(0, OnGpu())
            step.retire(0)

    @needs_numpy
    def test_numpy_arrays_that_do_not_fit_are_refused(self):
        import numpy as np
        tokens = self.world.numbers.tokens
        with self.world.step() as step:
            step.route(0, self.ids, self.weights)
            with self.assertRaisesRegex(TypeError, "float64"):
                step.ffn(0, np.zeros((tokens, HIDDEN)))
            with self.assertRaisesRegex(ValueError, "contiguous"):
                step.ffn(0, np.zeros((tokens, 2 * HIDDEN), np.float32)[:, ::2])
            with self.assertRaises(TypeError):
                step.ffn(0, np.zeros((tokens, HIDDEN), ">f4"))
            y = np.zeros((tokens, HIDDEN), np.float32)
            y.flags.writeable = False
            with self.assertRaisesRegex(ValueError, "read-only"):
                step.ffn(0, self.x, y)
            step.retire(0)

    def test_numbers_that_c_would_cut_are_refused(self):
        with self.assertRaises(OverflowError):
            host(budget=1 << 64)
        with self.assertRaises(OverflowError):
            moepage.Session(self.world.experts, max_tokens=(1 << 32) + 1)
        with self.assertRaises(OverflowError):
            moepage.Session(self.world.experts, max_tokens=-1)
        with self.assertRaises(TypeError):
            moepage.Session(self.world.experts, max_tokens=1.5)
        for call in (lambda: self.world.experts.pin(1 << 32, 0),
                     lambda: self.world.experts.lookup(0, -1 - (1 << 32)),
                     lambda: self.world.session.hint(0, [1 << 32])):
            with self.assertRaises(OverflowError):
                call()

    def test_a_wrong_choice_names_the_right_ones(self):
        with self.assertRaisesRegex(ValueError, "math is 'fp64', and not one of fp32, bf16"):
            moepage.Session(self.world.experts, math="fp64")
        with self.assertRaisesRegex(ValueError, "decode, prefill"):
            self.world.session.step(1, phase=7)
        with self.assertRaisesRegex(TypeError, "unexpected keyword"):
            moepage.Session(self.world.experts, maximum=1)
        with self.assertRaisesRegex(ValueError, "2GiB"):
            host(budget="much")

    def test_banks_that_contradict_themselves_are_refused(self):
        banks = Numbers().banks()
        with self.assertRaisesRegex(ValueError, "gate_up"):
            moepage.Model.from_banks([{"no_such_role": banks[0]["down"]}], top_k=1)
        with self.assertRaisesRegex(ValueError, "other tensors than layer 0"):
            moepage.Model.from_banks([banks[0], {"down": banks[1]["down"]}], top_k=1)
        with self.assertRaisesRegex(ValueError, "down of layer 1"):
            moepage.Model.from_banks([banks[0], dict(banks[1], down=banks[1]["gate_up"])],
                                     top_k=1)
        with self.assertRaisesRegex(TypeError, "float64"):
            moepage.Model.from_banks([{"down": moepage.empty((2, 2, 2), "float64")}], top_k=1)
        with self.assertRaises(ValueError):
            moepage.Model.from_banks([], top_k=1)
        with self.assertRaises(moepage.ArgumentError):
            moepage.Model.from_banks(banks, top_k=EXPERTS + 1)


class Errors(unittest.TestCase):
    """What the library refuses carries its status and its sentence."""

    def test_each_status_has_an_exception_and_its_builtin(self):
        from moepage import _abi, errors
        codes = {name: value for name, value in vars(_abi).items()
                 if name.startswith("MOEPAGE_E_")}
        self.assertGreater(len(codes), 10)
        for name, status in codes.items():
            error = errors.from_status(status, "why")
            self.assertIsNot(type(error), moepage.Error, name)
            self.assertEqual((error.status, error.text, str(error)), (status, "why", "why"))
        self.assertTrue(issubclass(moepage.ArgumentError, ValueError))
        self.assertTrue(issubclass(moepage.NotFound, LookupError))
        self.assertTrue(issubclass(moepage.NoMemory, MemoryError))

    def test_the_librarys_sentence_arrives(self):
        with self.assertRaisesRegex(moepage.NotFound, "/no/such/model") as caught:
            moepage.Model("/no/such/model")
        self.assertEqual(caught.exception.status, -8)
        with self.assertRaises(moepage.NotFound):
            moepage.Device("no-such-device", budget=1 << 20)
        with self.assertRaises(moepage.BudgetError):
            moepage.Device("host", budget=0)
        with World() as world:
            with self.assertRaisesRegex(moepage.NotFound, "no-such-policy"):
                world.session.close()
                world.experts.close()
                moepage.ExpertPool(world.device, world.model, policy="no-such-policy")

    def test_calls_out_of_order_are_state_errors(self):
        with World() as world:
            ids, weights = world.numbers.routing()
            with world.step() as step:
                with self.assertRaises(moepage.StateError):
                    world.step()
                with self.assertRaises(moepage.StateError):
                    step.ffn(0, moepage.tensor(world.numbers.x))
                with self.assertRaises(moepage.StateError):
                    step.next_group(0)
                with self.assertRaises(moepage.StateError):
                    step.retire(0)
                for make in (lambda: moepage.Session(world.experts),
                             lambda: moepage.KVPool(world.device, [16]),
                             lambda: moepage.ExpertPool(world.device, world.model)):
                    with self.assertRaisesRegex(moepage.StateError, "a step is open on the"):
                        make()
                step.route(0, ids, weights)
                with self.assertRaises(moepage.StateError):
                    step.end()
                step.retire(0)
            with self.assertRaisesRegex(moepage.StateError, "the step has ended"):
                step.route(0, ids, weights)
            with self.assertRaises(moepage.StateError):
                step.end()
            with self.assertRaises(moepage.StateError):
                world.session.hint(0, [1])

    def test_an_exception_cancels_the_step(self):
        with World() as world:
            with self.assertRaises(KeyError):
                with world.step() as step:
                    step.route(0, *world.numbers.routing())
                    raise KeyError("the host's own")
            self.assertFalse(step.open)
            with world.step() as step:  # the session goes on
                pass
            with self.assertRaises(moepage.StateError):
                with world.step() as step:
                    step.route(0, *world.numbers.routing())  # never retired
            self.assertFalse(step.open)
            moepage.Session(world.experts).close()  # no step counts as open


class Closing(unittest.TestCase):
    def handles(self, world, folder):
        yield world.session
        yield moepage.Controller(world.experts, mode="observe")
        yield moepage.Predictor(world.model, "previous")
        yield moepage.Trace.create(os.path.join(folder, "t"), moe_layers=1, experts=2, max_top_k=1)
        kv = moepage.KVPool(host(), [16])
        yield kv.create()
        yield kv
        yield kv.device
        yield world.experts
        yield world.model
        yield world.device

    def test_copying_and_pickling_are_refused(self):
        with World() as world:
            for handle in (world.device, world.model, world.experts, world.session):
                for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
                    with self.assertRaisesRegex(TypeError, "%s cannot be copied or pickled"
                                                % type(handle).__name__):
                        attempt(handle)

    def test_closing_twice_does_nothing_and_use_after_it_raises(self):
        import tempfile
        with tempfile.TemporaryDirectory() as folder:
            world = World()
            for handle in self.handles(world, folder):
                handle.close()
                handle.close()
                self.assertTrue(handle.closed)
                with self.assertRaises(moepage.Closed):
                    handle.handle
                with self.assertRaises(moepage.Closed):
                    with handle:
                        pass
                self.assertIn("closed", repr(handle))
        calls = [
            lambda: world.device.info, lambda: world.device.cuda_info,
            lambda: world.model.tensor("x"), lambda: world.model.config,
            lambda: world.model.read_tensor("x"),
            lambda: world.model.read_expert(0, 0), lambda: list(world.model.tensor_names()),
            lambda: world.experts.info, lambda: world.experts.pin(0, 0),
            lambda: world.session.step(1), lambda: world.session.stats,
            lambda: world.session.hint(0, [0]), lambda: world.session.record(None),
            lambda: moepage.Session(world.experts), lambda: moepage.KVPool(world.device, [4]),
            lambda: moepage.ExpertPool(world.device, world.model),
            lambda: moepage.set_split(world.experts, expert_slots=1),
            lambda: world.device.set_budget(1), world.device.follow_memory,
            lambda: moepage.Predictor(world.model), lambda: moepage.write_pack(world.model, "x"),
        ]
        for call in calls:
            with self.assertRaises(moepage.Closed):
                call()

    def test_parents_are_busy_while_children_live(self):
        world = World()
        for parent in (world.device, world.model, world.experts):
            with self.assertRaises(moepage.Busy) as caught:
                parent.close()
            self.assertEqual(caught.exception.status, -4)
            self.assertFalse(parent.closed)
        world.__exit__()
        self.assertTrue(world.device.closed)

    def test_children_keep_their_parents(self):
        session = World().session
        gc.collect()
        numbers = Numbers()
        with session.step(numbers.tokens) as step:
            step.run(0, *numbers.routing(), moepage.tensor(numbers.x))
        del session, step
        gc.collect()

    def test_closing_a_session_ends_its_step(self):
        world = World()
        step = world.step()
        plan = step.route(0, *world.numbers.routing())
        world.session.close()
        with self.assertRaises(moepage.StateError):
            step.retire(0)
        with self.assertRaises(moepage.Closed):
            plan.experts[0].tensors
        world.__exit__()

    def test_a_forgotten_step_is_nobodys(self):
        with World() as world:
            second = moepage.Session(world.experts)
            second.step(1)
            with self.assertRaises(moepage.StateError):
                moepage.Session(world.experts)
            del second
            gc.collect()
            moepage.Session(world.experts).close()

    def test_handles_of_two_libraries_do_not_mix(self):
        from moepage import library
        first = library.get()
        with World() as world:
            try:
                moepage.use(first.path)
                with host() as other:
                    with self.assertRaisesRegex(ValueError, "different libraries"):
                        moepage.ExpertPool(other, world.model)
            finally:
                library._loaded = first

    def test_a_pool_that_is_refused_leaves_nothing_behind(self):
        device = host()
        model = moepage.Model.from_banks(Numbers().banks(), top_k=TOP_K)
        with moepage.KVPool(device, [16]):
            for _ in range(3):
                with self.assertRaises(moepage.BudgetError):
                    moepage.ExpertPool(device, model)
                with self.assertRaises(moepage.Busy):
                    moepage.KVPool(device, [16])
        for _ in range(3):
            with self.assertRaises(moepage.Error):
                moepage.ExpertPool([device, device], model)
        with self.assertRaises(TypeError):
            moepage.ExpertPool([], model)
        with self.assertRaises(TypeError):
            moepage.ExpertPool(model, device)
        model.close()
        device.close()


class Exports(unittest.TestCase):
    def test_a_plan_cannot_end_while_arrays_show_it(self):
        with World() as world:
            with world.step() as step:
                plan = step.route(0, *world.numbers.routing())
                view = plan.experts[0].tensors["down"].memoryview()
                for _ in range(2):
                    with self.assertRaisesRegex(moepage.ExportsAlive, "1 arrays .* layer 0"):
                        step.retire(0)
                self.assertIsInstance(view[0, 0], float)
                with self.assertRaises(BufferError):
                    step.retire(0)
                del view
                step.retire(0)
            self.assertEqual(world.device._state.exports, set())

    def test_an_ended_plan_shows_nothing(self):
        with World() as world:
            with world.step() as step:
                plan = step.route(0, *world.numbers.routing())
                tensor = plan.experts[0].tensors["down"]
                self.assertEqual(len(plan.rows.tolist()), plan.n_rows)
                step.retire(0)
            for call in (tensor.memoryview, lambda: tensor.address, lambda: tensor.tolist(),
                         tensor.__dlpack__, lambda: tensor.__array_interface__,
                         lambda: tensor[0].tolist(), lambda: plan.experts[0].tensors,
                         lambda: plan.experts[0].addresses, lambda: plan.experts[0].rows,
                         lambda: plan.rows, lambda: plan.ids, lambda: plan.slot_base):
                with self.assertRaises(moepage.Closed):
                    call()

    def test_a_plan_of_several_groups_ends_with_each(self):
        with World(slots=2) as world, world.step() as step:
            plan = step.route(0, *world.numbers.routing())
            self.assertGreater(plan.n_groups, 1)
            view = plan.experts[0].tensors["down"].memoryview()
            for call in (lambda: step.next_group(0),
                         lambda: step.ffn(0, moepage.tensor(world.numbers.x))):
                with self.assertRaises(moepage.ExportsAlive):
                    call()
            del view
            old, plan = plan, step.next_group(0)
            with self.assertRaises(moepage.Closed):
                old.rows
            for _ in range(2, plan.n_groups):
                plan = step.next_group(0)
            with self.assertRaises(moepage.StateError):
                step.next_group(0)  # there is none, and the last one is there still
            self.assertEqual(len(plan.rows), plan.n_rows)
            step.retire(0)
            with self.assertRaises(moepage.StateError):
                step.retire(0)
            with self.assertRaises(moepage.Closed):
                plan.rows

    def test_what_outlives_a_cancelled_step_keeps_the_device(self):
        world = World()
        with self.assertRaises(KeyError):
            with world.step() as step:
                view = step.route(0, *world.numbers.routing()).experts[0].tensors[
                    "gate_up"].memoryview()
                raise KeyError
        del step
        world.session.close()
        world.experts.close()
        with self.assertRaisesRegex(moepage.ExportsAlive, "of the device"):
            world.device.close()
        view.tolist()  # still there
        del view
        world.device.close()
        world.model.close()

    def test_slots_cannot_be_written_through_a_view(self):
        with World() as world, world.step() as step:
            view = step.route(0, *world.numbers.routing()).experts[0].tensors["down"].memoryview()
            with self.assertRaises(TypeError):
                view[0, 0] = 1.0
            del view
            step.retire(0)

    @needs_numpy
    def test_numpy_arrays_are_counted_and_read_only(self):
        import numpy as np
        with World() as world, world.step() as step:
            tensor = step.route(0, *world.numbers.routing()).experts[0].tensors["down"]
            arrays = [tensor.numpy(), np.asarray(tensor), np.from_dlpack(tensor)]
            derived = arrays[0][1:][::2]
            self.assertEqual(arrays[0].ctypes.data, tensor.address)
            for each in arrays:
                self.assertFalse(each.flags.writeable)
                with self.assertRaises(ValueError):
                    each.flags.writeable = True
            del arrays, each
            with self.assertRaises(moepage.ExportsAlive):
                step.retire(0)  # `derived` holds the memory
            del derived
            step.retire(0)

    @needs_numpy
    def test_numpy_makes_no_arrays_of_objects(self):
        import numpy as np
        with self.assertRaisesRegex(TypeError, "NumPy has no bfloat16"):
            np.asarray(moepage.empty((2, 2), "bf16"))
        with self.assertRaisesRegex(TypeError, "bits"):
            moepage.empty((2, 2), "bf16").numpy()

    @needs_torch
    def test_torch_tensors_are_counted(self):
        import torch
        with World() as world, world.step() as step:
            plan = step.route(0, *world.numbers.routing())
            tensor = plan.experts[0].tensors["down"]
            both = [tensor.torch(), torch.from_dlpack(tensor)]
            self.assertEqual([each.data_ptr() for each in both], [tensor.address] * 2)
            self.assertEqual(both[0].tolist(), tensor.tolist())
            copy = tensor.torch(copy=True)
            with self.assertRaises(moepage.ExportsAlive):
                step.retire(0)
            del both
            step.retire(0)
            self.assertEqual(tuple(copy.shape), tensor.shape)

    def test_unused_capsules_are_not_counted_for_ever(self):
        from moepage import dlpack
        before = len(dlpack._out)
        for version in (None, (1, 0)):
            tensor = moepage.empty((2, 3))
            capsule = tensor.__dlpack__(max_version=version)
            self.assertEqual(len(dlpack._out), before + 1)
            self.assertEqual(dlpack.read(capsule).shape, (2, 3))
            dlpack.forget_unused()
            self.assertEqual(len(dlpack._out), before + 1)
            del capsule
            dlpack.forget_unused()
            self.assertEqual(len(dlpack._out), before)
            self.assertEqual(tensor._scope.exports, set())

    def test_a_checkpoints_tensors_hold_the_model_and_cannot_fault(self):
        folder = os.path.join(os.environ["MOEPAGE_SOURCE"], "examples/models/tiny-qwen3moe")
        model = moepage.Model(folder)
        tensor = model.tensor("model.norm.weight")
        with self.assertRaises(BufferError):
            tensor.__dlpack__(max_version=(1, 0))
        shown = tensor.memoryview()
        self.assertTrue(shown.readonly)
        with self.assertRaises(moepage.ExportsAlive):
            model.close()
        del shown
        model.close()
        with self.assertRaises(moepage.Closed):
            tensor.memoryview()

    @needs_torch
    def test_torch_gets_copies_of_what_cannot_be_written(self):
        import torch
        folder = os.path.join(os.environ["MOEPAGE_SOURCE"], "examples/models/tiny-qwen3moe")
        with moepage.Model(folder) as model:
            tensor = model.tensor("model.norm.weight")
            with self.assertRaisesRegex(BufferError, "copy=True"):
                tensor.torch()
            for take in (torch.from_dlpack, torch.asarray, torch.as_tensor):
                with self.assertRaises((BufferError, TypeError, RuntimeError, ValueError)):
                    take(tensor)
            copy = tensor.torch(copy=True)
            copy.zero_()
        self.assertEqual(tuple(copy.shape), tensor.shape)

    def test_a_pool_of_kv_is_held_by_its_blocks(self):
        with host() as device, moepage.KVPool(device, [16, 8]) as pool:
            with pool.create() as sequence:
                sequence.append(20)
                block = sequence.table().blocks.tolist()[0]
                view = pool.layer(1).block(block, "f32", (16, 2)).memoryview()
                view[3, 1] = 2.5
                self.assertEqual(pool.layer(1).block(block, "f32").tolist()[7], 2.5)
                with self.assertRaises(moepage.ExportsAlive):
                    pool.close()
                with self.assertRaises(ValueError):
                    pool.layer(1).block(block, "f32", (17, 2))
                for bad in (-1, 1 << 30):
                    with self.assertRaises(IndexError):
                        pool.layer(1).block(bad)
                del view


class Odd(unittest.TestCase):
    def test_buffers_of_the_standard_library_do(self):
        numbers = Numbers()
        flat = array.array("i", [i for row in numbers.ids for i in row])
        ids = memoryview(flat).cast("B").cast("i", [numbers.tokens, TOP_K])
        with World(numbers=numbers) as world, world.step() as step:
            y = step.run(0, ids, moepage.tensor(numbers.weights), moepage.tensor(numbers.x))
            self.assertEqual(y.shape, (numbers.tokens, HIDDEN))

    def test_dtypes_have_many_names(self):
        for name in ("bf16", "bfloat16", "BF16", "torch.bfloat16", 3, moepage.bfloat16):
            self.assertIs(moepage.dtype(name), moepage.bfloat16)
        for name in ("complex64", 99, object()):
            with self.assertRaisesRegex(TypeError, "float32"):
                moepage.dtype(name)


if __name__ == "__main__":
    unittest.main()
