"""What can be said of CUDA tensors without a GPU: nothing is computed, but every tensor knows its
device, operations across devices fail, and what the library would be given is looked at."""
import types
import unittest
from unittest import mock

import small_models as small
import torch
from moepage.transformers import compute, recognise, storage
from torch._subclasses.fake_tensor import FakeTensorMode

CUDA = torch.device("cuda:0")
STREAM = types.SimpleNamespace(cuda_stream=0x5EED)


class Expert:
    """One expert of a plan, with all rows, in slots of the GPU."""

    def __init__(self, layout, n_rows):
        self.rows = types.SimpleNamespace(torch=lambda: torch.arange(n_rows, dtype=torch.int32))
        names = {"gate_up_proj": "gate_up", "down_proj": "down",
                 "gate_up_proj_bias": "gate_up_bias", "down_proj_bias": "down_bias"}
        self.tensors = {
            names[part.name]: types.SimpleNamespace(torch=lambda part=part: torch.empty(
                part.shape, dtype=layout.dtype, device=CUDA)) for part in layout.parts}


class Step:
    """Records what it is given."""

    def __init__(self, layout=None):
        self._layout = layout

    def run(self, layer, ids, weights, x, y, *, stream):
        self.given = dict(ids=ids, weights=weights, x=x, y=y, stream=stream)
        return y

    def groups(self, layer, ids, weights, *, stream):
        self.given = dict(ids=ids, weights=weights, stream=stream)
        yield types.SimpleNamespace(experts=[Expert(self._layout, ids.numel())])


@mock.patch.object(torch.cuda, "current_stream", lambda device: STREAM)
class Cuda(small.OneThread, unittest.TestCase):

    def check(self, given, n):
        self.assertIs(given["stream"], STREAM)
        for name, dtype in (("ids", torch.int32), ("weights", torch.float32)):
            self.assertEqual((given[name].device.type, given[name].dtype), ("cpu", dtype))

    def batch(self, dtype, n=3, k=2):
        return (torch.empty(n, 48, dtype=dtype, device=CUDA),
                torch.zeros(n, k, dtype=torch.int32), torch.empty(n, k, device=CUDA, dtype=dtype))

    def test_the_library_gets_the_callers_stream_device_rows_and_host_routing(self):
        with FakeTensorMode():
            step, (x, ids, weights) = Step(), self.batch(torch.bfloat16)
            y = compute.LibraryCompute().run(step, 0, None, x, ids, weights)
            self.check(step.given, 3)
            self.assertIs(step.given["x"], x)
            self.assertEqual((y.device, y.dtype, y.shape), (CUDA, torch.bfloat16, x.shape))

    def test_torch_computes_on_the_device_and_in_the_callers_stream(self):
        for architecture in ("mixtral", "gpt_oss"):
            for experts in ("eager", "grouped_mm"):
                with self.subTest(architecture, experts=experts):
                    model = small.build(architecture, torch.bfloat16, experts)
                    layout, bank = recognise.find(model)[1], small.banks(model)[0]
                    with FakeTensorMode():
                        step, (x, ids, weights) = Step(layout), self.batch(torch.bfloat16)
                        y = compute.TorchCompute(layout).run(step, 0, bank, x, ids, weights)
                        self.check(step.given, 3)
                        self.assertEqual((y.device, y.dtype, y.shape),
                                         (CUDA, torch.bfloat16, x.shape))

    def test_weights_of_a_gpu_are_paged_from_the_host_and_given_back(self):
        model = small.build("mixtral")
        banks, layout = recognise.find(model)
        with FakeTensorMode():
            stubs = [bank._replace(module=types.SimpleNamespace(
                **{part.name: Parameter(torch.empty(2, *part.shape, device=CUDA))
                   for part in layout.parts})) for bank in banks]
            held = storage.Storage(stubs, layout._replace(device=CUDA))
            parameters = [each for bank in stubs for each in vars(bank.module).values()]
            self.assertEqual({each.device.type for each in parameters}, {"cpu"})
            self.assertEqual({fused.device.type for bank in held.weights for fused in bank},
                             {"cpu"})
            held.give_back()
            self.assertEqual({each.device for each in parameters}, {CUDA})


    def test_weights_that_cannot_all_be_moved_stay_where_they_were(self):
        banks, layout = recognise.find(small.build("mixtral"))
        with FakeTensorMode():
            stubs = [bank._replace(module=types.SimpleNamespace(
                **{part.name: kind(torch.empty(2, *part.shape, device=CUDA))
                   for part in layout.parts})) for bank, kind in zip(banks, (Parameter, Stuck))]
            with self.assertRaises(MemoryError):
                storage.Storage(stubs, layout._replace(device=CUDA))
            self.assertEqual({each.device for bank in stubs for each in vars(bank.module).values()},
                             {CUDA})


class Parameter:
    """A parameter's data, which can be exchanged for data on another device."""

    def __init__(self, data):
        self.data = data

    @property
    def device(self):
        return self.data.device

    def detach(self):
        return self.data


class Stuck(Parameter):
    """Has no room on the host."""

    def __setattr__(self, name, value):
        if value.device.type == "cpu":
            raise MemoryError
        super().__setattr__(name, value)


if __name__ == "__main__":
    unittest.main()
