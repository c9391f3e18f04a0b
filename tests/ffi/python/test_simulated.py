"""Simulated devices, which have no bytes to show. Runs with a library that has such devices."""
import os
import unittest

import moepage
from support import TOP_K, Numbers


class Simulated(unittest.TestCase):
    def test_memory_of_a_simulation_is_not_shown(self):
        machines = os.path.join(os.environ["MOEPAGE_SOURCE"], "examples/machines")
        path = os.path.join(machines, sorted(os.listdir(machines))[0])
        numbers = Numbers()
        model = moepage.Model.from_banks(numbers.banks(), top_k=TOP_K)
        with moepage.Device("sim:" + path, budget="64MiB") as device:
            self.assertFalse(device.has_bytes)
            with moepage.ExpertPool(device, model) as pool, moepage.Session(pool) as session:
                with session.step(numbers.tokens) as step:
                    plan = step.route(0, *numbers.routing())
                    tensor = plan.experts[0].tensors["down"]
                    for call in (tensor.memoryview, tensor.__dlpack__, lambda: tensor.address,
                                 lambda: tensor.__array_interface__):
                        with self.assertRaises(moepage.Unsupported):
                            call()
                    step.retire(0)


if __name__ == "__main__":
    unittest.main()
