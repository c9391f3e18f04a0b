"""Arrays, numbers and texts arrive as they are, or not at all."""
import copy
import gc
import pickle
import unittest
from unittest import mock

import moepage
from moepage import dlpack, library, tensors
from support import HIDDEN, LAYERS, TOP_K, Numbers, World, host, needs_numpy, needs_torch


class Cut(unittest.TestCase):
    """What C would see a part of."""

    def test_texts_with_a_nul_are_refused(self):
        with World() as world:
            for call in (lambda: moepage.Device("host\0junk", budget="2MiB"),
                         lambda: moepage.Model("/tmp\0junk"), lambda: world.model.tensor("x\0y"),
                         lambda: moepage.Predictor(world.model, "previous\0"),
                         lambda: moepage.ExpertPool.sizes(world.model, policy="lru\0"),
                         lambda: moepage.write_pack(world.model, "/tmp/x\0y"),
                         lambda: moepage.stats_text(device=world.device, labels={"a": "\0"}),
                         lambda: moepage.Trace.create("x", moe_layers=1, experts=2, max_top_k=1,
                                                      model="a\0b")):
                with self.assertRaisesRegex(ValueError, "NUL"):
                    call()
            with self.assertRaisesRegex(TypeError, "name is a text, not bytes"):
                moepage.Device(b"host", budget="2MiB")

    def test_a_copy_of_a_tensor_has_memory_that_lives(self):
        tensor = moepage.tensor([[1.0, 2.0], [3.0, 4.0]])
        shown, own = copy.copy(tensor), copy.deepcopy(tensor)
        memoryview(tensor.memoryview())[0, 0] = 9.0
        self.assertEqual(shown.tolist(), [[9.0, 2.0], [3.0, 4.0]])
        self.assertEqual(own.tolist(), [[1.0, 2.0], [3.0, 4.0]])
        self.assertNotEqual(own.address, tensor.address)
        with self.assertRaisesRegex(TypeError, "cannot be pickled"):
            pickle.dumps(tensor)

    def test_shapes_are_numbers(self):
        for shape in ((-1, 4), (1 << 64, 4)):
            with self.assertRaises(OverflowError):
                moepage.Model.from_reader(print, tensors=[("down", "f32", shape)], moe_layers=1,
                                          experts=2, top_k=1)
        with self.assertRaises(OverflowError):
            moepage.empty((-2, -3))
        with self.assertRaises(ValueError):
            moepage.empty((2, 3)).reshape(-2, -3)

    @needs_numpy
    def test_numbers_of_numpy_do_not_wrap_around(self):
        import numpy as np
        with World() as world, moepage.KVPool(world.device, [16]) as pool:
            self.assertEqual(world.experts.lookup(np.int64(0), np.uint8(1)).device, 0)
            with self.assertRaises(OverflowError):
                world.experts.lookup(np.int64(-1), 0)
            layer = pool.layer(0)
            layer.granule_bytes = 1 << 31
            self.assertEqual(layer.address(np.uint32(3 * layer.id_stride)),
                             layer.base + 3 * layer.granule_bytes)
            table = moepage.tensor([[1, 2], [3, 4]], "i32")
            self.assertEqual(table[np.uint8(1)].tolist(), [3, 4])

    def test_dtypes_that_python_lacks_are_refused(self):
        with self.assertRaisesRegex(TypeError, "bfloat16"):
            moepage.tensor([1, 2], "bf16")
        with self.assertRaisesRegex(TypeError, "bits"):
            moepage.empty(3, "bf16").tolist()
        self.assertEqual(moepage.empty(3, "bf16").bits().tolist(), [0, 0, 0])
        with self.assertRaises(TypeError):
            moepage.exph_encode(moepage.empty(3, "f16"), dtype="bf16")


class Memory(unittest.TestCase):
    def test_nothing_is_read_where_no_array_is(self):
        for address, why in ((0, "no memory"), (4098, "not aligned")):
            at = moepage.Tensor(address, (2, 4, 4), moepage.float32)
            with self.assertRaisesRegex(ValueError, why):
                moepage.Model.from_banks([{"down": at}], top_k=1)

    @needs_numpy
    def test_a_scalar_of_numpy_is_read_where_it_lies(self):
        import numpy as np
        found = tensors.array(np.float32(1.5))
        import ctypes
        self.assertEqual(ctypes.c_float.from_address(found.address).value, 1.5)
        self.assertIsInstance(found.keep, memoryview)

    def test_what_an_array_lends_is_kept_for_the_call(self):
        """A DLPack producer may make its memory for the capsule alone."""
        lib = library.get()

        class Producer:
            def __init__(self, values):
                self.values = values

            def __dlpack__(self):
                return moepage.tensor(self.values).__dlpack__()
        with World() as world, world.step() as step:
            numbers, seen = world.numbers, []
            real = lib.moepage_session_ffn

            def ffn(*arguments):
                gc.collect()
                dlpack.forget_unused()
                seen.append(len(dlpack._out))
                return real(*arguments)
            y = moepage.empty((numbers.tokens, HIDDEN))
            with mock.patch.object(lib, "moepage_session_ffn", ffn):
                step.run(0, *numbers.routing(), Producer(numbers.x), y)
            self.assertEqual(seen, [1])
            self.assertEqual(y.tobytes(), step.run(0, *numbers.routing(),
                                                   moepage.tensor(numbers.x)).tobytes())

    @needs_torch
    def test_banks_keep_their_memory_when_a_parameter_gets_another(self):
        import torch
        numbers = Numbers()
        banks = [{"gate_up": torch.nn.Parameter(torch.tensor(numbers.gate_up[i])),
                  "down": torch.nn.Parameter(torch.tensor(numbers.down[i]))}
                 for i in range(LAYERS)]
        model = moepage.Model.from_banks(banks, top_k=TOP_K)
        at = banks[1]["down"].data_ptr()
        for each in (each for bank in banks for each in bank.values()):
            each.data = torch.empty(0)
        held = [each for each in model._state.keep[0] if isinstance(each, torch.Tensor)]
        self.assertIn(at, [each.data_ptr() for each in held])
        self.assertEqual(model.read_expert(1, 2)[1].tolist(), numbers.down[1][2])
        model.close()

    @needs_torch
    def test_signs_that_are_not_in_memory_are_refused(self):
        import torch
        x = torch.complex(torch.zeros(5, HIDDEN), torch.ones(5, HIDDEN)).conj().imag
        self.assertTrue(x.is_neg())
        with self.assertRaisesRegex(TypeError, "resolve_neg"):
            tensors.array(x)


class Capsules(unittest.TestCase):
    """What goes wrong in a consumer is what it says, and no capsule's end hides it."""

    @needs_numpy
    def test_a_consumer_that_cannot_use_a_capsule_says_so(self):
        import numpy as np
        tensor = moepage.empty((2, 2), "bf16")
        with self.assertRaises((BufferError, RuntimeError)) as caught:
            np.from_dlpack(tensor)
        self.assertIn("dtype", str(caught.exception))
        dlpack.forget_unused()
        self.assertEqual(tensor._scope.exports, set())

    def test_a_capsule_of_another_major_version_is_refused(self):
        tensor = moepage.empty((2, 2))
        with mock.patch.object(dlpack, "_VERSION", (2, 0)):
            capsule = tensor.__dlpack__(max_version=(2, 0))
        with self.assertRaisesRegex(BufferError, "version 2.0"):
            dlpack.read(capsule)

    @needs_torch
    def test_an_error_that_a_tensor_dies_by_stays_itself(self):
        import torch
        for tensor in (moepage.tensor([[1.0, 2.0], [3.0, 4.0]]), moepage.empty((2, 2), "bf16"),
                       moepage.empty((2, 2), "f8_e4m3")):
            with self.assertRaisesRegex(RuntimeError, "shape|size"):
                torch.add(tensor.torch(), torch.zeros(3, dtype=tensor.torch().dtype))
            self.assertEqual(tensor._scope.exports, set())
        self.assertEqual(moepage.empty((0, 3), "bf16").torch().shape, (0, 3))


class Sequences(unittest.TestCase):
    def test_a_step_takes_sequences_of_its_own_pool_and_keeps_them(self):
        with World() as world, host() as device:
            other = moepage.KVPool(device, [16])
            kv = moepage.KVPool(world.device, [16])
            world.session.close()
            with moepage.Session(world.experts, kv) as session:
                with self.assertRaisesRegex(ValueError, "another KV pool"):
                    session.step(sequences=[(other.create(), 1)])
                with session.step(sequences=[(kv.create(), 1)]) as step:
                    gc.collect()
                    self.assertEqual(kv.info.sequences, 1)
                del step
                gc.collect()
                self.assertEqual(kv.info.sequences, 0)
            other.close()
            kv.close()


if __name__ == "__main__":
    unittest.main()
