"""CUDA devices: whose memory arrays show, and what is refused. Runs on a simulated GPU, whose
memory this process can reach."""
import ctypes
import unittest

import moepage
from support import HIDDEN, TOP_K, Numbers, close_to


class Cuda(unittest.TestCase):
    def setUp(self):
        self.numbers = Numbers()
        self.device = moepage.Device("cuda:0", budget="64MiB", workspace="8MiB")
        self.model = moepage.Model.from_banks(self.numbers.banks(), top_k=TOP_K)
        self.experts = moepage.ExpertPool(self.device, self.model, slots=4)
        self.kv = moepage.KVPool(self.device, [64])
        self.session = moepage.Session(self.experts, self.kv)
        for each in (self.device, self.model, self.experts, self.kv, self.session):
            self.addCleanup(each.close)

    def step(self):
        return self.session.step(self.numbers.tokens)

    def test_a_gpu_describes_itself(self):
        self.assertEqual(self.device.cuda_info.ordinal, 0)
        self.assertTrue(self.device.cuda_info.name)

    def test_experts_run_on_arrays_of_the_gpu(self):
        shape = (self.numbers.tokens, HIDDEN)
        source = moepage.tensor(self.numbers.x)
        with self.kv.create() as sequence:  # blocks serve as memory for x and y
            sequence.append(32)
            blocks = sequence.table().blocks.tolist()
            x, y = (self.kv.layer(0).block(each, "f32", shape) for each in blocks)
            self.assertEqual((x.device, x.__dlpack_device__()), ("cuda:0", (2, 0)))
            ctypes.memmove(x.address, source.address, source.nbytes)
            with self.step() as step:
                step.run(0, *self.numbers.routing(), x, y)
            sequence.swap_out()  # waits for what the stream has
            sequence.swap_in()
            out = moepage.empty(shape)
            there = self.kv.layer(0).block(sequence.table().blocks.tolist()[1], "f32", shape)
            ctypes.memmove(out.address, there.address, out.nbytes)
            close_to(self, out.tolist(), self.numbers.moe(0))

    def test_arrays_of_the_host_are_refused(self):
        x = moepage.tensor(self.numbers.x)
        with self.step() as step:
            step.route(0, *self.numbers.routing())
            with self.assertRaisesRegex(ValueError, "x is on cpu, and not on cuda:0"):
                step.ffn(0, x, moepage.empty(x.shape))
            step.retire(0)

    def test_what_is_on_the_gpu_is_not_given_out_as_host_memory(self):
        with self.step() as step:
            tensor = step.route(0, *self.numbers.routing()).experts[0].tensors["down"]
            for call in (tensor.memoryview, tensor.tobytes, tensor.numpy,
                         lambda: tensor.__dlpack__(dl_device=(1, 0))):
                with self.assertRaises(BufferError):
                    call()
            step.retire(0)

    def test_a_plan_is_exported_to_its_own_stream_alone(self):
        from moepage import dlpack
        with self.step() as step:
            tensor = step.route(0, *self.numbers.routing()).experts[0].tensors["down"]
            with self.assertRaisesRegex(BufferError, "stream"):
                tensor.__dlpack__(stream=7)
            for stream in (None, 1, -1):
                self.assertEqual(dlpack.read(tensor.__dlpack__(stream=stream)).device, (2, 0))
            step.retire(0)


if __name__ == "__main__":
    unittest.main()
