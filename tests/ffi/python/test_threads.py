"""Threads: what is for one at a time raises for the second, what may be shared works shared."""
import ctypes
import sys
import threading
import unittest
from unittest import mock

import moepage
from support import (EXPERTS, HIDDEN, INNER, LAYERS, TOP_K, Numbers, World, close_to, host)


class Slow:
    """A reader that stops in its first read until it is let go."""

    def __init__(self, numbers):
        self.banks = numbers.banks()
        self.reached, self.go = threading.Event(), threading.Event()
        self.model = moepage.Model.from_reader(
            self.read, tensors=[("gate_up", "f32", (2 * INNER, HIDDEN)),
                                ("down", "f32", (HIDDEN, INNER))],
            moe_layers=LAYERS, experts=EXPERTS, top_k=TOP_K)

    def read(self, layer, expert, tensor, offset, out):
        self.reached.set()
        self.go.wait(30)
        whole = self.banks[layer][("gate_up", "down")[tensor]][expert].memoryview().cast("B")
        out[:] = whole[offset:offset + len(out)]
        return out


class Threads(unittest.TestCase):
    def in_thread(self, call):
        """Runs a call in another thread: (thread, what it raised and returned)."""
        outcome = {}

        def body():
            try:
                outcome["result"] = call()
            except BaseException as error:
                outcome["error"] = error
        thread = threading.Thread(target=body)
        thread.start()
        return thread, outcome

    def test_a_session_in_use_raises_for_a_second_thread(self):
        numbers = Numbers()
        slow = Slow(numbers)
        with World(model=slow.model, numbers=numbers) as world:
            step = world.step()
            thread, outcome = self.in_thread(lambda: step.route(0, *numbers.routing()))
            slow.reached.wait(30)  # the other thread is inside route
            for call in (lambda: world.session.stats, step.cancel, lambda: step.retire(0),
                         lambda: step.route(1, *numbers.routing()), world.session.close,
                         lambda: step.ffn(0, moepage.tensor(numbers.x))):
                with self.assertRaisesRegex(moepage.ConcurrentUse, "session is in use"):
                    call()
            self.assertGreaterEqual(world.experts.info.loading, 1)  # the pool is for all
            slow.go.set()
            thread.join()
            self.assertEqual(outcome["result"].layer, 0)
            step.retire(0)
            step.end()

    def test_closing_what_another_thread_is_in_raises(self):
        numbers = Numbers()
        slow = Slow(numbers)
        world = World(model=slow.model, numbers=numbers)
        world.session.close()
        thread, outcome = self.in_thread(lambda: world.experts.pin(0, 3))
        slow.reached.wait(30)
        with self.assertRaisesRegex(moepage.ConcurrentUse, "pool is in use"):
            world.experts.close()
        slow.go.set()
        thread.join()
        self.assertNotIn("error", outcome)
        self.assertEqual(world.experts.lookup(0, 3).state, moepage.ExpertState.RESIDENT)
        world.__exit__()

    def test_sessions_of_one_pool_run_in_parallel(self):
        numbers = Numbers()
        with World(slots=8, numbers=numbers) as world:
            second = moepage.Session(world.experts, max_tokens=8)
            want = [numbers.moe(layer) for layer in range(LAYERS)]
            threads = []

            def serve(session):
                for _ in range(20):
                    with session.step(numbers.tokens) as step:
                        for layer in range(LAYERS):
                            y = step.run(layer, *numbers.routing(), moepage.tensor(numbers.x))
                            close_to(self, y.tolist(), want[layer])
            for session in (world.session, second):
                threads.append(self.in_thread(lambda session=session: serve(session)))
            for thread, outcome in threads:
                thread.join()
                self.assertNotIn("error", outcome)
            second.close()
            self.assertEqual(world.session.stats.steps, 20)

    def test_a_table_is_read_while_nobody_moves_the_split(self):
        with host() as device, moepage.KVPool(device, [16]) as pool, pool.create() as sequence:
            sequence.append(3)
            real, lock = pool._state.library.moepage_kv_get_table, device._state.locks[0]

            def get(*arguments):
                thread, outcome = self.in_thread(lambda: lock.acquire(blocking=False))
                thread.join()
                self.assertFalse(outcome["result"])
                return real(*arguments)
            with mock.patch.object(pool._state.library, "moepage_kv_get_table", get):
                self.assertEqual(len(sequence.table().blocks), 1)

    def test_pools_are_made_and_closed_by_many_threads(self):
        device = host("4MiB")

        def work():
            for _ in range(20):
                try:
                    with moepage.KVPool(device, [16], blocks=4) as pool:
                        with pool.create() as sequence:
                            sequence.append(5)
                except moepage.Busy:
                    pass  # one KV pool at a time
        for thread, outcome in [self.in_thread(work) for _ in range(4)]:
            thread.join()
            self.assertNotIn("error", outcome)
        device.close()


class Callbacks(unittest.TestCase):
    def reader(self, read, **more):
        return moepage.Model.from_reader(
            read, tensors=[("gate_up", "f32", (2 * INNER, HIDDEN)), ("down", "f32",
                                                                     (HIDDEN, INNER))],
            moe_layers=LAYERS, experts=EXPERTS, top_k=TOP_K, **more)

    def test_what_a_reader_raises_is_the_cause_of_the_error(self):
        class Mine(Exception):
            pass
        fail = [True]

        def read(layer, expert, tensor, offset, out):
            if fail[0]:
                raise Mine("expert %d" % expert)
            return out
        with World(model=self.reader(read)) as world:
            numbers = world.numbers
            for plan in (True, False):
                with self.assertRaises(moepage.CallbackError) as caught:
                    with world.step() as step:
                        step.route(0, *numbers.routing(), plan=plan)
                        step.ffn(0, moepage.tensor(numbers.x))
                self.assertIsInstance(caught.exception.__cause__, Mine)
                self.assertEqual(caught.exception.status, -13)
            with self.assertRaises(moepage.CallbackError) as caught:
                world.model.read_expert(0, 0)
            self.assertEqual(str(caught.exception.__cause__), "expert 0")
            with self.assertRaises(moepage.CallbackError):
                world.experts.pin(0, 0)
            self.assertGreater(world.experts.info.failed_loads, 0)
            fail[0] = False
            with world.step() as step:  # and everything goes on
                step.run(0, *numbers.routing(), moepage.tensor(numbers.x))

    def test_an_interrupt_in_a_callback_stays_one(self):
        def read(*_):
            raise KeyboardInterrupt
        with self.reader(read) as model, self.assertRaises(KeyboardInterrupt):
            model.read_expert(0, 0)

    def test_a_reader_of_too_few_bytes_fails_its_load(self):
        with self.reader(lambda *_: b"too few") as model:
            with self.assertRaises(moepage.CallbackError) as caught:
                model.read_expert(0, 0)
            self.assertIsInstance(caught.exception.__cause__, ValueError)

    def test_a_reader_that_forgets_to_return_fails_its_load(self):
        with self.reader(lambda *_: None) as model:
            with self.assertRaises(moepage.CallbackError) as caught:
                model.read_expert(0, 0)
            self.assertIn("not None", str(caught.exception.__cause__))

    def test_a_reader_may_keep_its_buffer(self):
        kept = []
        with self.reader(lambda *call: kept.append(call[-1]) or call[-1]) as model:
            model.read_expert(0, 0)
        self.assertGreater(sum(len(bytes(each)) for each in kept), 0)

    def test_calling_the_library_from_a_callback_raises(self):
        models = []

        def read(*_):
            models[0].form("dense")
        with self.reader(read) as model:
            models.append(model)
            with self.assertRaises(moepage.CallbackError) as caught:
                model.read_expert(0, 0)
            self.assertIsInstance(caught.exception.__cause__, moepage.StateError)

    def test_handles_that_a_callback_forgets_are_closed_later(self):
        import gc
        made = [World()]

        def read(layer, expert, tensor, offset, out):
            if made:
                made.clear()
                gc.collect()
            return out
        device = made[0].device._state
        with self.reader(read) as model:
            model.read_expert(0, 0)
            self.assertIsNotNone(device.raw)
        host().close()
        self.assertIsNone(device.raw)

    def test_progress_can_end_a_pack(self):
        import os
        import tempfile
        with tempfile.TemporaryDirectory() as folder, World() as world:
            path = os.path.join(folder, "m.moepack")

            class Enough(Exception):
                pass

            def stop(done, total):
                raise Enough
            with self.assertRaises(Enough):
                moepage.write_pack(world.model, path, progress=stop, forms=["dense"])
            self.assertFalse(os.path.exists(path))
            seen = []
            stats = moepage.write_pack(world.model, path, forms=["dense"], verify=True,
                                       progress=lambda done, total: seen.append((done, total)))
            self.assertEqual(stats.file_bytes, os.path.getsize(path))
            self.assertEqual(seen[-1][0], seen[-1][1])
            with moepage.Model(path) as packed:
                for theirs, ours in zip(packed.read_expert(1, 2), world.model.read_expert(1, 2)):
                    self.assertEqual(theirs.tobytes(), ours.tobytes())

    def test_integers_are_rounded_for_the_moments_given(self):
        import os
        import tempfile
        with tempfile.TemporaryDirectory() as folder, World() as world:
            def pack(name, moments):
                path = os.path.join(folder, name)
                moepage.write_pack(world.model, path, forms=["dense", "int2"], moments=moments)
                with open(path, "rb") as file:
                    return file.read()

            tensors = [world.model.layer_tensors(layer) for layer in range(LAYERS)]

            def even(layer, expert, tensor, slot, columns):
                of = tensors[layer][tensor]
                self.assertEqual(columns, of.shape[1])
                self.assertGreaterEqual(len(slot), of.offset + of.bytes)
                return values(columns, lambda row, column: 3.0 if row == column else 0.0)

            def values(columns, of):
                flat = (ctypes.c_float * (columns * columns))(
                    *(of(i // columns, i % columns) for i in range(columns * columns)))
                return memoryview(flat).cast("B").cast("f", [columns, columns])
            plain = pack("plain", None)
            self.assertEqual(pack("even", even), plain)
            self.assertNotEqual(pack("along", lambda layer, expert, tensor, slot, columns:
                                     values(columns, lambda row, column: 1.0)), plain)
            with self.assertRaises(ValueError):
                pack("lost", lambda layer, expert, tensor, slot, columns: values(columns - 1, max))
            with self.assertRaises(ZeroDivisionError):
                pack("lost", lambda *about: 1 // 0)
            self.assertFalse(os.path.exists(os.path.join(folder, "lost")))

    def test_the_log_goes_where_it_is_told(self):
        lines = []
        with host(log=lambda level, text: lines.append((level, text))):
            pass
        for level, text in lines:
            self.assertIsInstance(level, moepage.LogLevel)
        from moepage.device import log_callback

        def bad(level, text):
            raise RuntimeError("the logger's own")
        seen = []
        with mock.patch.object(sys, "unraisablehook", seen.append):
            log_callback(bad)(None, 2, b"said")
        self.assertIs(seen[0].exc_type, RuntimeError)
        log_callback(lambda level, text: lines.append((level, text)))(None, 2, b"said")
        self.assertEqual(lines[-1], (moepage.LogLevel.WARNING, "said"))
        with self.assertLogs("moepage", "WARNING") as logged:
            log_callback(moepage.device.logger)(None, 2, b"100 %s")
        self.assertEqual(logged.records[0].getMessage(), "100 %s")


if __name__ == "__main__":
    unittest.main()
