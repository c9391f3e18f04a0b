"""An interrupt that comes when a call has done its work, or before, leaves everything usable, and
nothing that shows other bytes than it says."""
import contextlib
import gc
import itertools
import os
import sys
import threading
import unittest
from unittest import mock

import moepage
from moepage import handles, library
from support import TOP_K, Numbers, World, host

LIB = library.get()
PACKAGE = os.path.dirname(moepage.__file__)


@contextlib.contextmanager
def interrupted(name, after=True):
    """The function does its work, and then, or instead, an interrupt comes: the first time."""
    real, calls = getattr(LIB, name), []

    def call(*arguments):
        calls.append(name)
        if len(calls) > 1:
            return real(*arguments)
        if after:
            with contextlib.suppress(moepage.Error):
                real(*arguments)
        raise KeyboardInterrupt
    with mock.patch.object(LIB, name, call):
        yield


def interrupted_at(moment, work):
    """Interrupts it when it enters that function of the package, or returns from one of C's there:
    where the interpreter looks for interrupts. Whether it got that far."""
    left = itertools.count(moment, -1)
    came = []

    def look(frame, event, what):
        code = frame.f_code
        if (event in ("call", "c_return") and code.co_filename.startswith(PACKAGE)
                and code.co_name != "<genexpr>"  # dropped half-way, it could only be told
                and next(left) == 0):
            came.append(moment)
            raise KeyboardInterrupt
    gc.disable()  # an interrupt in a finaliser of other tests would be told, and lost
    sys.setprofile(look)
    try:
        work()
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(None)
        gc.enable()
    return bool(came)


class Bookkeeping(unittest.TestCase):
    def everywhere(self, work):
        """Interrupted at every moment of `work`, everything can be used at once, and closed."""
        with World(slots=3) as world:
            for moment in itertools.count():
                came = interrupted_at(moment, lambda: work(world))
                if world.session._open is not None:
                    world.session._open.cancel()
                work(world)
                if not came:
                    break
            moepage.Session(world.experts).close()  # no step counts as open
        self.assertGreater(moment, 20)
        self.assertFalse(handles._in_call())

    def test_an_interrupted_report_leaves_nothing_in_use(self):
        def work(world):
            world.session.stats
            world.device.info
        self.everywhere(work)

    def test_an_interrupted_step_leaves_nothing_in_use(self):
        def work(world):
            with world.step() as step:
                step.route(0, *world.numbers.routing())
                step.retire(0)
        self.everywhere(work)

    def test_an_interrupted_closing_closes_or_does_not(self):
        closed = []  # an interrupt in a finaliser could only be told

        def work(world):
            world.session.close()
            closed.append(world.session)
            world.session = moepage.Session(world.experts, max_tokens=8)
        self.everywhere(work)

    def test_who_is_in_a_call_is_refused_to_others(self):
        with World() as world:
            inside, go = threading.Event(), threading.Event()

            def hold():
                real = LIB.moepage_session_get_stats

                def call(*arguments):
                    inside.set()
                    go.wait(30)
                    return real(*arguments)
                with mock.patch.object(LIB, "moepage_session_get_stats", call):
                    world.session.stats
            thread = threading.Thread(target=hold)
            thread.start()
            inside.wait(30)
            for refused in (world.session.close, world.step, lambda: world.session.hint(0, [1])):
                with self.assertRaises(moepage.ConcurrentUse):
                    refused()
            go.set()
            thread.join()
            # what a thread that is no more, or is elsewhere, has left is nobody's
            for ident in (thread.ident, threading.get_ident()):
                world.session._state.users.append(ident)
                with world.step():
                    pass

    def test_a_signal_handler_in_a_call_is_refused(self):
        with World() as world:
            real, seen = LIB.moepage_session_get_stats, []

            def call(*arguments):
                for refused in (world.session.close, world.step):
                    with self.assertRaises(moepage.ConcurrentUse) as caught:
                        refused()
                    seen.append(caught.exception)
                return real(*arguments)
            with mock.patch.object(LIB, "moepage_session_get_stats", call):
                world.session.stats
            self.assertEqual(len(seen), 2)


class Steps(unittest.TestCase):
    def test_a_plan_that_may_have_ended_shows_nothing(self):
        for after in (True, False):
            for name, end in (("retire", lambda step, world: step.retire(0)),
                              ("next_group", lambda step, world: step.next_group(0)),
                              ("cancel", lambda step, world: step.cancel()),
                              ("ffn", lambda step, world: step.ffn(
                                  0, moepage.tensor(world.numbers.x)))):
                with self.subTest(name, after=after), World(slots=3) as world:
                    step = world.step()
                    plan = step.route(0, *world.numbers.routing())
                    tensor = plan.experts[0].tensors["down"]
                    with interrupted("moepage_session_" + name, after):
                        with self.assertRaises(KeyboardInterrupt):
                            end(step, world)
                    for call in (tensor.memoryview, lambda: plan.rows):
                        with self.assertRaises(moepage.Closed):
                            call()
                    if step.open:
                        step.cancel()
                    with world.step() as step:
                        step.run(0, *world.numbers.routing(), moepage.tensor(world.numbers.x))

    def test_a_step_that_may_have_begun_or_ended_is_over(self):
        for after in (True, False):
            for name in ("begin", "end"):
                with self.subTest(name, after=after), World() as world:
                    with interrupted("moepage_session_" + name, after):
                        with self.assertRaises(KeyboardInterrupt):
                            with world.step():
                                pass
                    with world.step() as step:
                        self.assertTrue(step.open)
                    moepage.Session(world.experts).close()  # no step counts as open

    def test_a_run_that_fails_leaves_no_layer_behind(self):
        with World() as world, world.step() as step:
            ids, weights = world.numbers.routing()
            with self.assertRaises(TypeError):
                step.run(0, ids, weights, 3.5)
            step.run(0, ids, weights, moepage.tensor(world.numbers.x))


class Objects(unittest.TestCase):
    def test_what_was_made_is_given_back(self):
        device = host()
        model = moepage.Model.from_banks(Numbers().banks(), top_k=TOP_K)
        experts = moepage.ExpertPool(device, model, slots=4)
        kv = moepage.KVPool(device, [16], blocks=4)
        with kv.create() as sequence:
            for name, make in (
                    ("session", lambda: moepage.Session(experts, kv)),
                    ("controller", lambda: moepage.Controller(experts, mode="observe")),
                    ("kv", kv.create)):
                with interrupted("moepage_%s_create" % name):
                    with self.assertRaises(KeyboardInterrupt):
                        make()
                make().close()
            with interrupted("moepage_kv_fork"), self.assertRaises(KeyboardInterrupt):
                sequence.fork()
            self.assertEqual(kv.info.sequences, 1)
        for each, name, make in (
                (experts, "expert_pool", lambda: moepage.ExpertPool(device, model, slots=4)),
                (kv, "kv_pool", lambda: moepage.KVPool(device, [16], blocks=4))):
            each.close()
            with interrupted("moepage_%s_create" % name), self.assertRaises(KeyboardInterrupt):
                make()
            make().close()
        with interrupted("moepage_paged_create"), self.assertRaises(KeyboardInterrupt):
            moepage.PagedTensor(device, model)
        model.close()
        self.assertEqual(device.info.used_bytes, 0)
        device.close()

    def test_what_may_be_gone_is_not_destroyed_again(self):
        device = host()
        state, calls = device._state, []
        real = state.destroy

        def destroy(raw):
            calls.append(raw)
            real(raw)
            raise KeyboardInterrupt
        state.destroy = destroy
        with self.assertRaises(KeyboardInterrupt):
            device.close()
        self.assertTrue(device.closed)
        device.close()
        del device
        gc.collect()
        self.assertEqual(len(calls), 1)

    def test_no_array_is_made_of_what_is_being_closed(self):
        with World() as world:
            pool = moepage.KVPool(world.device, [16], blocks=4)
            block = pool.layer(0).block(pool._end() and 0)
            state, seen = pool._state, []
            real = state.destroy

            def destroy(raw):
                with self.assertRaises(moepage.Closed):
                    seen.append(block.memoryview())
                real(raw)
            state.destroy = destroy
            pool.close()
            self.assertEqual(seen, [])


class Finalisers(unittest.TestCase):
    def test_an_interrupted_one_runs_again(self):
        world = World()
        state = world.session._state
        with mock.patch.object(type(state), "close", side_effect=KeyboardInterrupt), \
                mock.patch.object(sys, "unraisablehook", lambda hooked: None):
            world.session = None
            gc.collect()
        self.assertIsNotNone(state.raw)
        host().close()
        self.assertIsNone(state.raw)
        for each in (world.experts, world.model, world.device):
            each.close()

    def test_one_that_comes_up_inside_a_call_waits(self):
        world = World()
        device = world.device._state
        with host() as other:
            real = LIB.moepage_last_error

            def last():  # between the failure and the reading of its sentence
                nonlocal world
                world = None
                gc.collect()
                self.assertIsNotNone(device.raw)
                return real()
            with mock.patch.object(LIB, "moepage_last_error", last):
                with self.assertRaisesRegex(moepage.Unsupported, "host"):
                    other.cuda_info
        self.assertIsNone(device.raw)  # closing sets up, and runs what waits

    def test_parents_wait_for_children_that_wait(self):
        world = World()
        model, device = world.model._state, world.device
        held, go = threading.Event(), threading.Event()

        def hold():
            with device._state.locks[0]:
                held.set()
                go.wait(30)
        thread = threading.Thread(target=hold)
        thread.start()
        held.wait(30)
        del world
        gc.collect()
        self.assertIsNotNone(model.raw)
        go.set()
        thread.join()
        device.close()
        self.assertIsNone(model.raw)


if __name__ == "__main__":
    unittest.main()
