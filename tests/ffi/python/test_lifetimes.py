"""However a process ends, and whatever it forgets, it ends well."""
import gc
import os
import unittest

import moepage
from support import TOP_K, Numbers, World, has, host, needs_numpy, needs_torch, run

PROLOGUE = """
import moepage, support
world = support.World()
numbers = world.numbers
ids, weights = numbers.routing()
"""


class Exit(unittest.TestCase):
    def ends_well(self, script, *flags, status=0):
        got, output = run(PROLOGUE + script, *flags)
        self.assertEqual(got, status, output)
        for bad in ("Fatal", "Traceback", "Exception ignored", "Segmentation"):
            if not status:
                self.assertNotIn(bad, output)
        return output

    def test_with_everything_open(self):
        for flags in ((), ("-X", "dev"), ("-OO",)):
            self.ends_well("""
kv = moepage.KVPool(support.host(), [16])
sequence = kv.create(); sequence.append(40)
controller = moepage.Controller(world.experts, mode="observe")
step = world.step()
plan = step.route(0, ids, weights)
tensor = plan.experts[0].tensors["down"]
print("done")""", *flags)

    def test_with_arrays_of_the_library_alive(self):
        self.ends_well("""
step = world.step()
view = step.route(0, ids, weights).experts[0].tensors["down"].memoryview()
capsule = moepage.empty((2, 3)).__dlpack__()
class Late:
    def __del__(self, view=view):
        assert len(view.tolist()) == support.HIDDEN
late = Late()
import sys
sys.late = late""")

    @needs_torch
    def test_with_torch_tensors_alive(self):
        self.ends_well("""
import torch, sys
step = world.step()
sys.kept = step.route(0, ids, weights).experts[0].tensors["down"].torch()
class Late:
    def __del__(self, kept=sys.kept):
        kept.sum()
sys.late = Late()""")

    @needs_numpy
    def test_with_numpy_arrays_alive(self):
        self.ends_well("""
import numpy, sys
step = world.step()
tensor = step.route(0, ids, weights).experts[0].tensors["down"]
sys.kept = [tensor.numpy(), numpy.from_dlpack(tensor)]""")

    def test_by_an_uncaught_exception_inside_a_step(self):
        output = self.ends_well("""
with world.step() as step:
    plan = step.route(0, ids, weights)
    view = plan.experts[0].tensors["down"].memoryview()
    raise KeyError("the host's own")""", status=1)
        self.assertIn("the host's own", output)
        self.assertNotIn("Fatal", output)

    def test_while_a_daemon_thread_is_in_the_library(self):
        self.ends_well("""
import threading, time
inside, never = threading.Event(), threading.Event()
def read(*_):
    inside.set()
    never.wait()
model = moepage.Model.from_reader(read, tensors=[("down", "f32", (4, 4))], moe_layers=1,
                                  experts=2, top_k=1)
device = support.host()
pool = moepage.ExpertPool(device, model)
threading.Thread(target=lambda: pool.pin(0, 1), daemon=True).start()
inside.wait()""")

    def test_with_handles_in_a_cycle(self):
        self.ends_well("""
import gc
world.cycle = [world]
world.session.cycle = world.experts.cycle = world.device.cycle = world
device, session = world.device._state, world.session._state
del world
gc.collect()
assert device.raw is None and session.raw is None""")

    def test_with_a_trace_that_was_begun_last(self):
        import tempfile
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "a.trace")
            self.ends_well("""
trace = moepage.Trace.create(%r, moe_layers=support.LAYERS, experts=support.EXPERTS,
                             max_top_k=support.TOP_K)
world.session.record(trace)
with world.step() as step:
    step.run(0, ids, weights, moepage.tensor(numbers.x))""" % path)
            with moepage.Trace(path) as trace:
                self.assertEqual([each.ids.tolist()[0] for each in trace], [Numbers().ids])

    def test_deleters_are_gone_before_the_interpreter_is(self):
        got, output = run("""
import atexit
def late():  # registered first: runs last
    from moepage import dlpack
    print([managed.deleter for managed, _, _ in dlpack._out.values()])
atexit.register(late)
import moepage
capsule = moepage.empty((2, 3)).__dlpack__()""")
        self.assertEqual((got, output), (0, "[None]\n"))

    def test_in_a_child_that_was_forked(self):
        self.ends_well("""
import os, sys, threading
held, let_go = threading.Event(), threading.Event()
step = world.step()
def hold():  # the child has the locks of threads that it has not
    device, session, pool = (each._state for each in (world.device, world.session, world.experts))
    with device.locks[0], session.lock, pool.lock:
        held.set()
        let_go.wait()
thread = threading.Thread(target=hold)
thread.start()
held.wait()
pid = os.fork()
if pid == 0:
    refused = 0
    for call in (lambda: world.device.info, lambda: world.session.stats, world.step,
                 lambda: moepage.KVPool(world.device, [16])):
        try:
            call()
        except moepage.StateError:
            refused += 1
    world.session.close()
    del world, call
    os._exit(0 if refused == 4 else 3)
let_go.set()
thread.join()
assert os.waitpid(pid, 0)[1] == 0
world.experts.info
world.__exit__()""")


class Forgetting(unittest.TestCase):
    def test_forgotten_handles_give_everything_back(self):
        device = host()
        before = device.info.used_bytes
        for _ in range(3):
            world = World(device=device)
            with world.step() as step:
                step.run(0, *world.numbers.routing(), moepage.tensor(world.numbers.x))
            kv = moepage.KVPool(device, [16])
            kv.create().append(3)  # the sequence is forgotten
            gc.collect()
            self.assertEqual(kv.info.sequences, 0)
            self.assertGreater(device.info.used_bytes, before)
            del world, kv, step
            gc.collect()
            self.assertEqual(device.info.used_bytes, before)
        device.close()

    def test_nothing_is_counted_that_is_gone(self):
        from moepage import dlpack
        gc.collect()
        dlpack.forget_unused()
        self.assertEqual(len(dlpack._out), 0)
        with World() as world:
            for _ in range(50):
                with world.step() as step:
                    for plan in step.groups(0, *world.numbers.routing()):
                        for expert in plan.experts:
                            for tensor in expert.tensors.values():
                                tensor.__dlpack__()
                                tensor.memoryview()
                                if has("torch"):
                                    tensor.torch()
                                if has("numpy"):
                                    tensor.numpy()
            gc.collect()
            dlpack.forget_unused()
            self.assertEqual(world.device._state.exports, set())
            self.assertEqual(len(dlpack._out), 0)

    def test_banks_are_kept_as_long_as_their_model(self):
        import weakref
        banks = Numbers().banks()
        alive = weakref.ref(banks[0]["down"])
        model = moepage.Model.from_banks(banks, top_k=TOP_K)
        del banks
        gc.collect()
        self.assertIsNotNone(alive())
        model.close()
        gc.collect()
        self.assertIsNone(alive())


if __name__ == "__main__":
    unittest.main()
