"""Every object of the API does its work, and every function of the header is reachable."""
import array
import ctypes
import os
import tempfile
import unittest

import moepage
from moepage import _abi, library
from support import (EXPERTS, LAYERS, TOP_K, Numbers, World, host,
                     needs_torch)


def needs(name):
    """Skips where the library does not have a function yet."""
    try:
        getattr(library.get(), name)
        return lambda test: test
    except moepage.LibraryNotFound:
        return unittest.skip("the library has no %s" % name)


def floats(values, shape):
    return memoryview(array.array("f", values)).cast("B").cast("f", shape)


class Whole(unittest.TestCase):
    def test_every_function_of_moepage_h_is_used(self):
        folder = os.path.dirname(moepage.__file__)
        text = ""
        for name in os.listdir(folder):
            if name.endswith(".py") and name not in ("_abi.py", "_info.py"):
                with open(os.path.join(folder, name)) as file:
                    text += file.read()
        missing = [name for name in _abi.FUNCTIONS if not name.startswith("moepage_cuda_")
                   and name not in text and name != "moepage_status_text"]
        # an engine's session has steps already, which take arrays, sequences and streams; shares of a product are for
        # hosts with threads and operations of their own, in C
        self.assertEqual(missing, ["moepage_engine_begin", "moepage_engine_end",
                                   "moepage_engine_experts", "moepage_session_convert",
                                   "moepage_session_multiply"])
        self.assertIn("moepage_cuda_get_info", text)

    def test_every_choice_has_a_name(self):
        from enum import IntEnum
        named = set()
        for kind in vars(moepage).values():
            if isinstance(kind, type) and issubclass(kind, IntEnum) and kind is not IntEnum:
                named |= {member.name for member in kind}
        for name in _abi.__dict__:
            parts = name.split("_", 2)
            if name.startswith("MOEPAGE_") and parts[1] not in (
                    "E", "OK", "DTYPE", "CUDA", "MAX", "NO", "STATS", "ROWS") and "NONE" not in name:
                self.assertTrue(any(name.endswith("_" + each) for each in named), name)

    def test_the_version_is_the_librarys(self):
        major, minor, _ = moepage.version().split(".")
        self.assertGreaterEqual((int(major), int(minor)), library.HEADER_VERSION)

    def test_an_older_library_is_refused(self):
        from unittest import mock
        with mock.patch.object(library, "HEADER_VERSION", (0, 99)):
            with self.assertRaisesRegex(moepage.VersionError, r"needs 0\.99"):
                library.Library(library.get().path)

    def test_a_library_that_is_none_is_an_import_error(self):
        with self.assertRaises(ImportError):
            library.Library("/no/such/libmoepage.so.0")
        with self.assertRaises(moepage.LibraryNotFound):
            moepage.use("/dev/null")
        from unittest import mock
        with mock.patch.dict(_abi.FUNCTIONS, moepage_no_such=(None, (), "")):
            with self.assertRaisesRegex(moepage.LibraryNotFound, "has no moepage_no_such"):
                library.Library(library.get().path).moepage_no_such


class KV(unittest.TestCase):
    def test_sequences_grow_fork_swap_and_shrink(self):
        with host() as device, moepage.KVPool(device, [64, 64], blocks=8) as pool:
            self.assertEqual(pool.block_tokens, 16)
            self.assertTrue(pool.admit([16, 16]).fits)
            self.assertFalse(pool.admit([1 << 40]).fits)
            sequence = pool.create()
            sequence.append(40)
            self.assertEqual(len(sequence), 40)
            table = sequence.table()
            self.assertEqual((len(table.blocks), table.swapped), (3, False))
            other = sequence.fork()
            self.assertEqual(other.table().blocks.tolist(), table.blocks.tolist())
            other.append(1)  # a shared last block is copied first
            self.assertEqual(pool.info.copies_on_write, 1)
            self.assertNotEqual(other.table().blocks.tolist()[-1], table.blocks.tolist()[-1])
            sequence.swap_out()
            self.assertTrue(sequence.table().swapped)
            self.assertEqual(len(sequence.table().blocks), 0)
            sequence.swap_in()
            sequence.truncate(16)
            self.assertEqual(len(sequence.table().blocks), 1)
            with self.assertRaises(moepage.WouldNotFit):
                sequence.append(1 << 20)
            self.assertEqual(len(sequence), 16)
            other.close()
            sequence.close()
            self.assertEqual(pool.info.free_blocks, pool.info.blocks)

    def test_a_sequence_ends_with_its_pool(self):
        device = host()
        pool = moepage.KVPool(device, [16])
        sequence = pool.create()
        pool.close()
        with self.assertRaises(moepage.Closed):
            sequence.append(1)
        sequence.close()
        device.close()

    def test_layers_without_kv_say_so(self):
        with host() as device, moepage.KVPool(device, [0, 16]) as pool:
            self.assertIsNone(pool.layer(0).base)
            with self.assertRaises(ValueError):
                pool.layer(0).block(0)
            with self.assertRaises(moepage.ArgumentError):
                pool.layer(2)

    def test_the_budget_moves(self):
        with moepage.Device(threads=1, budget="2MiB", workspace="1MiB", max_budget="4MiB") as device:
            info = device.info
            self.assertEqual((info.budget_bytes, info.max_budget_bytes), (2 << 20, 4 << 20))
            self.assertEqual(info.reserve_bytes, (4 << 20) // 16)
            with moepage.KVPool(device, [64], blocks=8) as kv:
                with kv.create() as sequence:
                    sequence.append(5)
                    for budget in ("4MiB", (1 << 20) + 65536, "3MiB"):
                        device.set_budget(budget)
                    self.assertEqual(device.info.budget_bytes, 3 << 20)
                    self.assertEqual(device.info.budget_aim_bytes, 3 << 20)
                    self.assertEqual(len(sequence), 5)
                with self.assertRaises(moepage.BudgetError):
                    device.set_budget("5MiB")
                device.follow_memory()
                self.assertEqual(device.info.budget_bytes, 4 << 20)
        with moepage.Device(threads=1, budget="auto", workspace="1MiB", max_budget="4MiB") as device:
            self.assertEqual(device.info.budget_bytes, 4 << 20)

    def test_the_split_moves(self):
        with host() as device:
            numbers = Numbers()
            model = moepage.Model.from_banks(numbers.banks(), top_k=TOP_K)
            experts = moepage.ExpertPool(device, model, slots=6)
            with moepage.KVPool(device, [64]) as kv, moepage.Session(experts, kv) as session:
                before = kv.info.blocks
                moepage.set_split(experts, kv, kv_blocks=before // 2)
                self.assertLess(kv.info.blocks, before)
                with self.assertRaises(TypeError):
                    moepage.set_split()
                with kv.create() as one, kv.create() as two:
                    one.append(3)
                    two.append(2)
                    ids, weights = numbers.routing()
                    with session.step(sequences=[(one, 3, "prefill"), (two, 2)]) as step:
                        self.assertEqual(step.n_tokens, 5)
                        step.run(0, ids, weights, moepage.tensor(numbers.x))
                    with self.assertRaisesRegex(ValueError, "the sequences have 5"):
                        session.step(4, sequences=[(one, 3), (two, 2)])
            experts.close()
            model.close()


class Observing(unittest.TestCase):
    def test_a_controller_watches_and_ticks(self):
        with World() as world, moepage.KVPool(world.device, [64]) as kv:
            with moepage.Controller(world.experts, kv, mode="observe", burst_steps=1) as control:
                for _ in range(3):
                    with world.step() as step:
                        step.run(0, *world.numbers.routing(), moepage.tensor(world.numbers.x))
                    report = control.tick()
                self.assertEqual(report.expert_slots, world.experts.info.slots)
                control.kv_use(17, 40)
                self.assertEqual(control.info.steps, 3)
                curve = control.curve([1, EXPERTS * LAYERS])
                self.assertGreaterEqual(curve[0], curve[1])
                with self.assertRaises(moepage.Busy):
                    world.experts.close()

    def test_a_controller_sizes_users(self):
        with World() as world, moepage.Predictor(world.model, "coactivation", distance=1) as one, \
                moepage.Predictor(world.model, "maps", distance=1) as other:
            with moepage.Controller(world.experts, None, mode="observe") as control:
                with self.assertRaises(moepage.Unsupported):
                    control.rightsize([one, other])
                with self.assertRaises(TypeError):
                    control.rightsize([world.model])
                control.rightsize([one], 500)
                self.assertEqual((control.info.users, control.info.cap_slots), (1, 0))
                self.assertEqual((control.user(0).experts, control.user(0).coverage), (0, 0.5))
                with self.assertRaises(moepage.ArgumentError):
                    control.user(1)
                with self.assertRaises(moepage.Busy):
                    one.close()
                control.rightsize([])
                self.assertEqual(control.info.users, 0)

    def learnt(self, predictor):
        try:
            return predictor.rightsize(0.5).experts
        except moepage.StateError:
            return 0

    def test_a_predictor_learns_is_saved_and_loaded(self):
        with tempfile.TemporaryDirectory() as folder, World() as world:
            world.session.close()
            with moepage.Predictor(world.model, "coactivation", distance=1) as predictor:
                with self.assertRaises(moepage.StateError):
                    predictor.rightsize()
                session = moepage.Session(world.experts, prefetch="predictor",
                                          predictor=predictor)
                with self.assertRaises(moepage.Busy):
                    predictor.close()
                for _ in range(10000):  # it learns in the background, when it finds the time
                    if self.learnt(predictor):
                        break
                    with session.step(world.numbers.tokens) as step:
                        for layer in range(LAYERS):
                            step.run(layer, *world.numbers.routing(),
                                     moepage.tensor(world.numbers.x))
                self.assertEqual(session.prefetch_info(1).layer, 1)
                session.close()
                self.assertGreater(predictor.info.iterations, 0)
                self.assertEqual(predictor.info.name, "coactivation")
                self.assertGreaterEqual(self.learnt(predictor), 1)
                path = os.path.join(folder, "p")
                predictor.save(path)
                with moepage.Predictor(world.model, "coactivation", distance=1) as other:
                    other.load(path)
                    self.assertEqual(other.info.iterations, predictor.info.iterations)
            with self.assertRaises(moepage.NotFound):
                moepage.Predictor(world.model, "no-such-predictor")

    def test_a_trace_gives_back_what_was_routed(self):
        with tempfile.TemporaryDirectory() as folder, World() as world:
            path, numbers = os.path.join(folder, "t"), world.numbers
            trace = moepage.Trace.create(path, moe_layers=LAYERS, experts=EXPERTS,
                                         max_top_k=TOP_K, probabilities=True, model="mine")
            world.session.record(trace)
            probabilities = moepage.tensor([[1 / EXPERTS] * EXPERTS] * numbers.tokens)
            with world.session.step(numbers.tokens, phase="prefill") as step:
                step.run(1, *numbers.routing(), moepage.tensor(numbers.x),
                         probabilities=probabilities)
            with self.assertRaises(moepage.Busy):
                trace.close()
            world.session.record(None)
            trace.close()
            with moepage.Trace(path) as trace:
                self.assertEqual((trace.info.model, trace.info.experts), ("mine", EXPERTS))
                steps = list(trace)
            self.assertEqual(len(steps), 1)
            self.assertEqual(steps[0].layer_present.tolist(), [0, 1])
            self.assertEqual(steps[0].ids.tolist()[1], numbers.ids)
            self.assertEqual(steps[0].weights.tolist()[1], numbers.weights)
            self.assertEqual(steps[0].probabilities.tolist()[1], probabilities.tolist())
            self.assertEqual(steps[0].sequences[0].phase, moepage.Phase.PREFILL)

    def test_remapping_wants_logits(self):
        with World() as world:
            numbers = world.numbers
            world.session.set_remap(moepage.Remap(alpha=1.0, beta=2.0))
            x = moepage.tensor(numbers.x)
            with self.assertRaises(moepage.ArgumentError):
                with world.step() as step:
                    step.run(0, *numbers.routing(), x)
            logits = moepage.tensor([[float(e == t % EXPERTS) for e in range(EXPERTS)]
                                     for t in range(numbers.tokens)])
            with world.step() as step:
                step.run(0, *numbers.routing(), x, logits=logits)
            self.assertEqual(step.stats.remap_layers, 1)
            world.session.set_remap(moepage.Remap(alphas=[1.0] * LAYERS, betas=[2.0] * LAYERS))
            with self.assertRaises(ValueError):
                world.session.set_remap(moepage.Remap(alphas=[1.0], betas=[2.0]))
            world.session.set_remap(None)

    def test_hints_and_pins_bring_experts(self):
        with World(prefetch="hint") as world:
            world.session.hint(0, [3, 1])
            world.experts.pin(1, 2)
            place = world.experts.lookup(1, 2)
            self.assertEqual(place.state, moepage.ExpertState.RESIDENT)
            self.assertGreaterEqual(place.slot, 0)
            world.experts.unpin(1, 2)
            with self.assertRaises(moepage.StateError):
                world.experts.unpin(1, 2)
            self.assertEqual(world.experts.info.pinned, 0)

    @needs("moepage_expert_pool_get_stats")
    def test_a_pool_sums_its_sessions(self):
        with World() as world:
            with world.step() as step:
                step.run(0, *world.numbers.routing(), moepage.tensor(world.numbers.x))
            self.assertEqual(world.experts.stats.routed, step.stats.routed)
            self.assertEqual(world.experts.stats.steps, 1)

    @needs("moepage_stats_text")
    def test_metrics_are_text_with_labels(self):
        with World() as world:
            text = moepage.stats_text(device=world.device, experts=world.experts,
                                      labels={"model": 'a "b"\\'})
            samples = [line for line in text.splitlines() if not line.startswith("#")]
            self.assertTrue(samples)
            for line in samples:
                self.assertIn(r'model="a \"b\"\\"', line)
            with self.assertRaises(moepage.ArgumentError):
                moepage.stats_text(device=world.device, labels={"not a name": "x"})


class Memory(unittest.TestCase):
    def test_sizes_say_what_will_be_taken(self):
        with World() as world:
            before = world.device.info.used_bytes
            workspace, arena = moepage.ExpertPool.sizes(world.model, slots=4)
            self.assertGreaterEqual(arena, 4 * world.model.info.expert_bytes)
            need = moepage.Session.workspace(world.model, max_tokens=8)
            world.session.close()
            self.assertEqual(before - world.device.info.used_bytes, need)

    def test_budgets_may_be_written_as_people_do(self):
        from moepage.units import size
        self.assertEqual([size(each) for each in ("2GiB", "512M", "1.5GB", "7", 7, "0.5 KiB")],
                         [2 << 30, 512 << 20, 1500000000, 7, 7, 512])

    def test_paged_tensors_show_layers_at_one_address(self):
        numbers = Numbers()
        with host() as device, moepage.Model.from_banks(numbers.banks(), top_k=TOP_K) as model:
            self.assertGreater(moepage.PagedTensor.sizes(device, model)[1], 0)
            with moepage.PagedTensor(device, model) as paged:
                paged.materialise(0)
                with paged.acquired(0) as tensors:
                    self.assertEqual(tensors["down"].tolist(), numbers.down[0])
                    self.assertEqual(tensors["down"].address, paged.address(1, 0))
                    with self.assertRaises(BufferError):
                        tensors["down"].__dlpack__(max_version=(1, 0))
                    kept = tensors["down"]
                    view = kept.memoryview()
                    with self.assertRaises(moepage.ExportsAlive):
                        paged.release(0)
                    with self.assertRaises(TypeError):
                        view[0, 0, 0] = 0.0
                    del view
                with self.assertRaises(moepage.Closed):
                    kept.memoryview()
                self.assertEqual(paged.state(1), moepage.PagedState.UNMAPPED)
                with self.assertRaises(moepage.Busy):
                    moepage.ExpertPool(device, model)

    def test_paged_tensors_keep_compressed_experts_beside_kv(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "m.moepack")
            wide = moepage.Model.from_banks(
                [{"gate_up": moepage.empty((4, 128, 64), "bf16"),
                  "down": moepage.empty((4, 64, 64), "bf16")}] * 2, top_k=1)
            moepage.write_pack(wide, path, forms=["exph"])
            with host() as device, moepage.Model(path) as model:
                with moepage.PagedTensor(device, model, compressed_experts=3) as paged:
                    self.assertEqual(paged.info.compressed_experts, 3)
                    paged.materialise(0)
                    with paged.acquired(0):
                        self.assertEqual(paged.info.compressed_loads, 3)
                    paged.resize(1)
                    self.assertEqual(paged.info.compressed_target, 1)
                    with moepage.KVPool(device, [16], blocks=4) as kv:
                        report = paged.balance(kv)
                        self.assertEqual(report.compressed_experts, 4)
                        self.assertGreater(report.kv_blocks, 4)

    def test_a_second_version_is_shown_by_address_alone(self):
        Numbers()
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "m.moepack")
            wide = moepage.Model.from_banks(
                [{"gate_up": moepage.empty((4, 128, 64), "bf16"),
                  "down": moepage.empty((4, 64, 64), "bf16")}], top_k=1)
            moepage.write_pack(wide, path, forms=["dense", "int4"])
            with host() as device, moepage.Model(path) as model:
                pool = moepage.ExpertPool(device, model, precision=moepage.Precision(
                    "int4", serve="cache"), slots=2)
                self.assertEqual(pool.info.lo_form, moepage.Form.INT4)
                session = moepage.Session(pool, miss="low")
                with session.step(1) as step:
                    plan = step.route(0, moepage.tensor([[0]], "i32"), moepage.tensor([[1.0]]))
                    low = [each for each in plan.experts if each.slot < 0]
                    for each in low:
                        with self.assertRaises(moepage.Unsupported):
                            each.tensors
                        self.assertTrue(all(each.addresses))
                    step.retire(0)
                self.assertTrue(low)
                session.close()
                pool.close()

    def test_slots_may_hold_a_smaller_form(self):
        with tempfile.TemporaryDirectory() as folder:
            path, numbers = os.path.join(folder, "m.moepack"), Numbers()
            moepage.write_pack(moepage.Model.from_banks(numbers.banks(), top_k=TOP_K), path,
                               forms=["dense", "int8"])
            with host() as device, moepage.Model(path) as model:
                with self.assertRaises(moepage.Unsupported):
                    moepage.ExpertPool(device, model, slots=4, slot_form="int4")
                with moepage.ExpertPool(device, model, slots=4, slot_form="int8") as pool:
                    self.assertEqual(pool.info.slot_form, moepage.Form.INT8)
                    self.assertGreaterEqual(pool.info.slot_bytes, model.form("int8").most_bytes)
                    with moepage.Session(pool, max_tokens=8) as session, \
                            session.step(numbers.tokens) as step:
                        y = step.run(1, *numbers.routing(), moepage.tensor(numbers.x))
            want = numbers.moe(1)
            most = max(abs(value) for row in want for value in row)
            off = max(abs(a - b) for row, wanted in zip(y.tolist(), want)
                      for a, b in zip(row, wanted))
            self.assertTrue(1e-4 * most < off < 0.02 * most, (off, most))

    def test_the_codec_is_lossless(self):
        values = moepage.empty((3, 1000), "bf16")
        bits = values.bits().memoryview()
        for i in range(3):
            for j in range(1000):
                bits[i, j] = (j * 7919 + i) % 65536
        coded = moepage.exph_encode(values)
        for decoder in (None, "portable"):
            decoded = moepage.exph_decode(coded, "bf16", (3, 1000), decoder=decoder)
            self.assertEqual(decoded.tobytes(), values.tobytes())
        self.assertEqual(moepage.exph_encode(values.bits(), dtype="bf16"), coded)
        with self.assertRaises(moepage.FormatError):
            moepage.exph_decode(coded[:-1], "bf16", (3, 1000))
        with self.assertRaises(moepage.NotFound):
            moepage.exph_decode(coded, "bf16", 3000, decoder="none such")
        with self.assertRaises(TypeError):
            moepage.exph_encode(moepage.empty((3,), "f32"))

    def test_blocks_are_decoded(self):
        block = bytes([0x00, 0x38]) + bytes(i % 256 for i in range(-16, 16))  # 0.5 and 32 integers
        values = moepage.blocks_decode(block * 2, "Q8_0", (2, 32))
        self.assertEqual(values.tolist(), [[0.5 * i for i in range(-16, 16)]] * 2)
        with self.assertRaises(moepage.ArgumentError):
            moepage.blocks_decode(block, "Q8_0", 64)
        with self.assertRaises(moepage.ArgumentError):
            moepage.blocks_decode(block, "none such", 32)

    def test_a_device_multiplies_by_dense_weights(self):
        with moepage.Device(budget="2M", threads=2) as device:
            rows = floats([1, 2, 3, 4] * 16, (2, 32))
            w = floats([i - 1 for i in range(3) for _ in range(32)], (3, 32))
            bias = floats([0, 0, 0.5], (3,))
            for math in ("fp32", "bf16"):
                out = device.linear(rows, w, bias, math=math)
                self.assertEqual(out.tolist(), [[-80.0, 0.0, 80.5]] * 2)
            block = bytes([0x00, 0x38]) + bytes([2] * 32)  # 0.5 and 32 integers
            self.assertEqual(device.linear(rows, block * 5, format="q8_0").tolist(), [[80.0] * 5] * 2)
            eight = moepage.empty((3, 32), "f8_e4m3")
            ctypes.memset(eight.address, 0x38, eight.nbytes)  # ones
            scales = floats([2, 0.25, -1, 0.5], (2, 2))  # of 2 rows and 16 columns
            for math in ("fp32", "bf16"):
                out = device.linear(rows, eight, bias, math=math, scales=scales, block=(2, 16))
                self.assertEqual(out.tolist(), [[90.0, 90.0, -19.5]] * 2)
            for wrong in ({"scales": scales}, {"scales": scales, "block": (0, 16)},
                          {"scales": scales, "block": (16, 2)}):
                with self.assertRaises(ValueError):
                    device.linear(rows, eight, **wrong)
            with self.assertRaises(moepage.ArgumentError):
                device.linear(rows, eight)
            with self.assertRaises(moepage.ArgumentError):
                device.linear(rows, w, scales=scales, block=(2, 16))
            with self.assertRaises(ValueError):
                device.linear(rows, block[:-1], format="q8_0")
            with self.assertRaises(ValueError):
                device.linear(rows, w, w)
            with self.assertRaises(ValueError):
                device.linear(rows, floats([0] * 32, (32,)))
            with self.assertRaises(TypeError):
                device.linear(bytes(32), w)

    def test_a_gguf_file_has_metadata(self):
        source = os.environ["MOEPAGE_SOURCE"]
        with moepage.Model(os.path.join(source, "tests/data/gguf/whole.gguf")) as model:
            self.assertEqual(model.metadata("general.architecture"), "deepseek2")
            self.assertEqual(model.metadata("deepseek2.rope.freq_base"), 10000.5)
            self.assertEqual(model.metadata("deepseek2.expert_shared_count"), 1)
            self.assertIs(model.metadata("tokenizer.ggml.add_bos_token"), True)
            self.assertEqual(model.metadata("tokenizer.ggml.tokens"),
                             ["<s>", "\u0120the", "", b"\xff\xfe", "\u65e5"])
            self.assertEqual(model.metadata("tokenizer.ggml.token_type"), [3, 1, 1, 6, -1])
            with self.assertRaises(moepage.NotFound):
                model.metadata("none such")
            layers = [model.layer_tensors(i) for i in range(model.info.moe_layers)]
            self.assertEqual(layers[0], model.expert_tensors)
            self.assertEqual({len(each) for each in layers}, {model.info.expert_tensors})
            for layer, tensors in enumerate(layers):
                found = model.read_expert(layer, 1)
                self.assertEqual([each.nbytes for each in found], [each.bytes for each in tensors])

    @needs_torch
    def test_the_codec_takes_torch_tensors(self):
        import torch
        for kind in (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2):
            values = torch.randn(500, generator=torch.Generator().manual_seed(3)).to(kind)
            back = moepage.exph_decode(moepage.exph_encode(values), kind, 500).torch()
            self.assertEqual(back.dtype, kind)
            self.assertTrue(torch.equal(back.float(), values.float()))

    def test_tensors_index_and_reshape_in_place(self):
        whole = moepage.tensor([[1, 2, 3], [4, 5, 6]], "i32")
        self.assertEqual(whole[1].tolist(), [4, 5, 6])
        self.assertEqual(whole[-2].tolist(), [1, 2, 3])
        self.assertEqual(whole.reshape(3, 2).tolist(), [[1, 2], [3, 4], [5, 6]])
        whole[1].memoryview()[0] = 9
        self.assertEqual(whole.tolist(), [[1, 2, 3], [9, 5, 6]])
        with self.assertRaises(IndexError):
            whole[2]
        with self.assertRaises(ValueError):
            whole.reshape(4)
        with self.assertRaises(ValueError):
            moepage.tensor([[1, 2], [3]])
        self.assertEqual((len(whole), whole.nbytes, whole.device), (2, 24, "cpu"))

    def test_cuda_is_refused_where_there_is_none(self):
        with host() as device:
            with self.assertRaises(moepage.Unsupported):
                device.cuda_info


if __name__ == "__main__":
    unittest.main()
