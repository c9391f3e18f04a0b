#!/usr/bin/env python3
"""The library beside others on one GPU: same tensors, same clock, one JSON file.

    peers.py --lib DIR [--out FILE] [--dfloat11 DIR] [--dietgpu FILE.so] [--device cuda:0] [--tiny]

--lib has libmoepage.so and libmoepage-cuda.so. --dfloat11 is the folder of the package (with
decode.ptx and dfloat11_utils.py; it needs cupy and dahuffman), --dietgpu its library of PyTorch
operators. Both are built elsewhere. What is not there, or does not work, is named in the file and
left out; everything needs PyTorch.

Decoders are given weights like trained ones and have to give them back bit for bit. Rates are bytes
of BF16 that come out, by CUDA events, medians of 7 after a warm-up.
"""
import argparse
import ctypes as C
import importlib.util
import json
import math
import os
import statistics
import sys

SAMPLES = 7
MB = 1 << 20
BF16, EXPH = 3, 2


def fields(*pairs):
    return [(name, {"4": C.c_uint32, "8": C.c_uint64, "p": C.c_void_p, "s": C.c_char_p}[kind])
            for name, kind in pairs]


class DeviceConfig(C.Structure):
    _fields_ = fields(("struct_size", "4"), ("threads", "4"), ("budget", "8"), ("workspace", "8"),
                      ("bus", "8"), ("log", "p"), ("log_user", "p"), ("io_threads", "4"),
                      ("reserved", "4"))


class DecodeJob(C.Structure):
    _fields_ = fields(("src", "p"), ("src_bytes", "8"), ("dst", "p"), ("elements", "8"),
                      ("form", "4"), ("dtype", "4"))


class Decode(C.Structure):
    _fields_ = fields(("struct_size", "4"), ("n_jobs", "4"), ("jobs", "p"), ("total", "8"))


class ExpertTensor(C.Structure):
    _fields_ = fields(("role", "4"), ("dtype", "4"), ("rank", "4"), ("reserved", "4")) + [
        ("shape", C.c_uint64 * 4)] + fields(("bytes", "8"), ("offset", "8"))


class Banks(C.Structure):
    _fields_ = fields(("struct_size", "4"), ("moe_layers", "4"), ("experts", "4"), ("top_k", "4"),
                      ("hidden", "4"), ("intermediate", "4"), ("n_tensors", "4"), ("reserved", "4"),
                      ("tensors", "p"), ("data", "p"), ("read", "p"), ("read_user", "p"),
                      ("architecture", "s"), ("config_json", "s"), ("layer_index", "p"),
                      ("layers", "4"), ("shared_experts", "4"), ("vocabulary", "4"),
                      ("n_dense", "4"), ("dense", "p"))


class SessionConfig(C.Structure):
    _fields_ = fields(("struct_size", "4"), ("max_tokens", "4"), ("max_sequences", "4"),
                      ("max_top_k", "4"), ("math", "4"), ("prefetch", "4"), ("prefetch_depth", "4"),
                      ("grouping", "4"), ("max_group_experts", "4"), ("reserved", "4"))


class Step(C.Structure):
    _fields_ = fields(("struct_size", "4"), ("n_tokens", "4"), ("n_sequences", "4"), ("phase", "4"),
                      ("sequences", "p"), ("semantic", "p"), ("semantic_dim", "4"),
                      ("reserved", "4"))


class Routing(C.Structure):
    _fields_ = fields(("struct_size", "4"), ("top_k", "4"), ("ids", "p"), ("weights", "p"),
                      ("probabilities", "p"), ("stream", "p"))


class Ffn(C.Structure):
    _fields_ = fields(("struct_size", "4"), ("dtype", "4"), ("x", "p"), ("y", "p"),
                      ("x_stride", "8"), ("y_stride", "8"), ("accumulate", "4"), ("reserved", "4"),
                      ("stream", "p"))


class Library:
    """libmoepage by its public interface."""

    def __init__(self, folder):
        self.c = C.CDLL(os.path.join(folder, "libmoepage.so"))
        self.c.moepage_last_error.restype = C.c_char_p
        self.c.moepage_exph_bound.restype = C.c_uint64
        self.c.moepage_exph_bound.argtypes = [C.c_uint32, C.c_uint64]

    def __call__(self, name, *args):
        if getattr(self.c, "moepage_" + name)(*args):
            raise RuntimeError(f"{name}: {self.c.moepage_last_error().decode()}")

    def open(self, device, budget, workspace):
        config = DeviceConfig(struct_size=C.sizeof(DeviceConfig), budget=budget,
                              workspace=workspace)
        out = C.c_void_p()
        self("device_open", device.encode(), C.byref(config), C.byref(out))
        return out


class Run:
    def __init__(self, options):
        self.options, self.rows, self.skipped = options, [], []

    def skip(self, name, why):
        self.skipped.append({"name": name, "why": str(why)})
        print(f"skipped: {name} ({why})")

    def row(self, name, case, value, unit, **more):
        self.rows.append({"name": name, "case": case, "median": value, "unit": unit, **more})
        print(f"  {name:12} {case:44} {value:12.5g} {unit}")

    def attempt(self, name, case, work):
        """One that fails is named, and does not end the others."""
        try:
            work()
        except Exception as error:  # whatever another project raises
            self.skip(f"{name}, {case}", f"{type(error).__name__}: {error}")


def seconds_of(torch, work, inner):
    """Median seconds of one call, by events around `inner` of them."""
    values = []
    for _ in range(1 + SAMPLES):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(inner):
            work()
        end.record()
        end.synchronize()
        values.append(start.elapsed_time(end) * 1e-3 / inner)
    return statistics.median(values[1:])


def weights(torch, n, count):
    generator = torch.Generator(device="cuda").manual_seed(7)
    return [(torch.randn(n, device="cuda", generator=generator) * 0.02).to(torch.bfloat16)
            for _ in range(count)]


# ---- Decoders ----------------------------------------------------------------------------------


def aligned(torch, n_bytes):
    """Device memory at a multiple of 256."""
    memory = torch.empty(n_bytes + 256, dtype=torch.uint8, device="cuda")
    skip = -memory.data_ptr() % 256
    return memory[skip:skip + n_bytes]


def ours(run, torch, library, device, tensors, case):
    import numpy
    n = tensors[0].numel()
    room = library.c.moepage_exph_bound(BF16, n)
    outputs, streams, total = [], [], 0
    jobs = (DecodeJob * len(tensors))()
    for i, tensor in enumerate(tensors):
        host = tensor.cpu().view(torch.int16).numpy()
        coded, size = numpy.empty(room, numpy.uint8), C.c_uint64()
        library("exph_encode", BF16, host.ctypes.data_as(C.c_void_p), C.c_uint64(n),
                coded.ctypes.data_as(C.c_void_p), C.c_uint64(room), C.byref(size))
        stream = aligned(torch, size.value)
        stream.copy_(torch.from_numpy(coded[:size.value]))
        streams.append(stream)
        outputs.append(aligned(torch, 2 * n))
        total += size.value
        jobs[i] = DecodeJob(stream.data_ptr(), size.value, outputs[i].data_ptr(), n, EXPH, BF16)
    table = aligned(torch, C.sizeof(jobs))
    table.copy_(torch.frombuffer(bytearray(jobs), dtype=torch.uint8))
    args = Decode(C.sizeof(Decode), len(tensors), table.data_ptr(), n * len(tensors))
    native = C.c_void_p(torch.cuda.current_stream().cuda_stream)
    time = seconds_of(torch, lambda: library("cuda_exph_decode", device, C.byref(args), native), 10)
    for tensor, output in zip(tensors, outputs):
        if not torch.equal(output.view(torch.int16), tensor.view(torch.int16)):
            raise RuntimeError("decoded wrongly")
    out_bytes = 2 * n * len(tensors)
    run.row("libmoepage", case, out_bytes / time / 1e9, "GB/s", ratio=total / out_bytes)


def dietgpu(run, torch, tensors, case):
    ops = torch.ops.dietgpu
    room = torch.empty(768 * MB, dtype=torch.uint8, device="cuda")
    rows, columns = ops.max_float_compressed_output_size(tensors)
    coded = torch.empty([rows, columns], dtype=torch.uint8, device="cuda")
    sizes = torch.zeros([len(tensors)], dtype=torch.int, device="cuda")
    more = []  # versions differ in a flag for checksums
    try:
        coded, sizes, _ = ops.compress_data(True, tensors, room, coded, sizes)
    except (RuntimeError, TypeError):
        more = [False]
        coded, sizes, _ = ops.compress_data(True, tensors, *more, room, coded, sizes)
    torch.cuda.synchronize()
    parts = [coded[i, :int(size)].clone() for i, size in enumerate(sizes.tolist())]
    outputs = [torch.empty_like(t) for t in tensors]
    status = torch.empty([len(tensors)], dtype=torch.uint8, device="cuda")
    out_sizes = torch.empty([len(tensors)], dtype=torch.int32, device="cuda")

    def work():
        # Arguments in the order of the version that took the call above.
        ops.decompress_data(True, parts, outputs, *more, room, status, out_sizes)

    time = seconds_of(torch, work, 5)
    for tensor, output in zip(tensors, outputs):
        if not torch.equal(output.view(torch.int16), tensor.view(torch.int16)):
            raise RuntimeError("decoded wrongly")
    out_bytes = sum(2 * t.numel() for t in tensors)
    run.row("DietGPU", case, out_bytes / time / 1e9, "GB/s", ratio=int(sizes.sum()) / out_bytes)


class DFloat11:
    """Its kernel and its code; the encoder is ours, for theirs takes a Python loop per weight."""
    THREADS, BYTES = 512, 8  # as in its published models

    def __init__(self, folder):
        import cupy
        spec = importlib.util.spec_from_file_location(
            "dfloat11_utils", os.path.join(folder, "dfloat11_utils.py"))
        self.utils = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.utils)
        self.kernel = cupy.RawModule(path=os.path.join(folder, "decode.ptx")).get_function("decode")

    def encode(self, torch, tensor):
        bits = tensor.view(torch.int16).to(torch.int32) & 0xffff
        symbols, rest = (bits >> 7) & 0xff, ((bits >> 8) & 0x80 | (bits & 0x7f)).to(torch.uint8)
        counts = torch.bincount(symbols, minlength=256).tolist()
        codec, _, table = self.utils.get_32bit_codec({s: c for s, c in enumerate(counts) if c})
        lengths, codes = torch.zeros(256, dtype=torch.int64), torch.zeros(256, dtype=torch.int64)
        for symbol, (length, code) in table.items():
            if isinstance(symbol, int):
                lengths[symbol], codes[symbol] = length, code
        length, code = lengths.cuda()[symbols], codes.cuda()[symbols]
        ends = torch.cumsum(length, 0)
        starts, total = ends - length, int(ends[-1])
        n_bytes = -(-total // 8)
        stream = torch.zeros(n_bytes * 8, dtype=torch.uint8, device="cuda")
        for i in range(int(lengths.max())):
            has = length > i
            stream[starts[has] + i] = ((code[has] >> (length[has] - 1 - i)) & 1).to(torch.uint8)
        tail, eof = n_bytes * 8 - total, table[codec._eof]
        for i in range(min(tail, eof[0])):
            stream[total + i] = (eof[1] >> (eof[0] - 1 - i)) & 1
        powers = torch.tensor([128, 64, 32, 16, 8, 4, 2, 1], dtype=torch.int32, device="cuda")
        packed = (stream.view(-1, 8).to(torch.int32) * powers).sum(1).to(torch.uint8)
        window = 8 * self.BYTES
        blocks = -(-n_bytes // (self.THREADS * self.BYTES))
        # A thread begins at the first code that starts in its window; a block at its symbol's place.
        edges = torch.arange(blocks * self.THREADS, device="cuda") * window
        first = torch.searchsorted(starts, edges)
        inside = first < starts.numel()
        gaps = torch.zeros_like(edges)
        gaps[inside] = starts[first[inside]] - edges[inside]
        gaps.clamp_(max=31)
        five = torch.tensor([16, 8, 4, 2, 1], device="cuda")
        gap_bits = ((gaps[:, None] & five) > 0).to(torch.int32).view(-1)
        pad = -gap_bits.numel() % 8
        gap_bits = torch.cat([gap_bits, gap_bits.new_zeros(pad)]).view(-1, 8)
        positions = torch.cat([first[::self.THREADS], first.new_tensor([starts.numel()])])
        widest = int((positions[1:] - positions[:-1]).max())
        return {"luts": self.utils.get_luts(table).cuda(), "coded": packed, "rest": rest,
                "positions": positions.to(torch.int32), "n": tensor.numel(), "blocks": blocks,
                "gaps": (gap_bits * powers).sum(1).to(torch.uint8),
                "shared": self.THREADS * 4 + 4 + widest * 2}

    def launch(self, e, output):
        self.kernel(grid=(e["blocks"],), block=(self.THREADS,), shared_mem=e["shared"],
                    args=[e["luts"].data_ptr(), e["coded"].data_ptr(), e["rest"].data_ptr(),
                          e["positions"].data_ptr(), e["gaps"].data_ptr(), output.data_ptr(),
                          e["luts"].shape[0], e["coded"].numel(), e["n"]])


def dfloat11(run, torch, peer, tensors, case):
    import cupy
    coded = [peer.encode(torch, t) for t in tensors]
    outputs = [torch.empty_like(t) for t in tensors]

    def work():  # its launches are one per tensor
        for e, output in zip(coded, outputs):
            peer.launch(e, output)

    with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
        time = seconds_of(torch, work, 5)
    for tensor, output in zip(tensors, outputs):
        if not torch.equal(output.view(torch.int16), tensor.view(torch.int16)):
            raise RuntimeError("decoded wrongly")
    out_bytes = sum(2 * t.numel() for t in tensors)
    size = sum(e["coded"].numel() + e["rest"].numel() + e["gaps"].numel() for e in coded)
    run.row("DFloat11", case, out_bytes / time / 1e9, "GB/s", ratio=size / out_bytes)


def run_decoders(run, torch, library):
    device = library.open(run.options.device, 256 * MB, 64 * MB)
    shrink = 64 if run.options.tiny else 1
    cases = [("512 MB: one tensor", 512 * MB, 1), ("512 MB: 64 tensors of 8 MB", 8 * MB, 64),
             ("16 tensors of 3 MB", 3 * MB, 16), ("one tensor of 3 MB", 3 * MB, 1)]
    peer = None
    if not run.options.dfloat11:
        run.skip("dfloat11", "--dfloat11 not given")
    else:
        try:
            peer = DFloat11(run.options.dfloat11)
        except Exception as error:
            run.skip("dfloat11", f"{type(error).__name__}: {error}")
    have_diet = False
    if not run.options.dietgpu:
        run.skip("dietgpu", "--dietgpu not given")
    else:
        try:
            torch.ops.load_library(run.options.dietgpu)
            have_diet = True
        except Exception as error:
            run.skip("dietgpu", error)
    for case, size, count in cases:
        tensors = weights(torch, size // shrink // 2, count)
        run.attempt("libmoepage", case,
                    lambda: ours(run, torch, library, device, tensors, case))
        if have_diet:
            run.attempt("dietgpu", case, lambda: dietgpu(run, torch, tensors, case))
        if peer:
            run.attempt("dfloat11", case, lambda: dfloat11(run, torch, peer, tensors, case))
        del tensors
        torch.cuda.empty_cache()
    library("device_close", device)


# ---- Copies ------------------------------------------------------------------------------------


def run_copies(run, torch):
    for size in (64 << 10, 256 << 10, MB, 4 * MB, 16 * MB, 64 * MB):
        host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        device = torch.empty(size, dtype=torch.uint8, device="cuda")
        inner = max(2, (64 * MB) // size)
        time = seconds_of(torch, lambda: device.copy_(host, non_blocking=True), inner)
        run.row("torch copy_", f"pinned to device, {size >> 10} KB", size / time / 1e9, "GB/s",
                bytes=size)


# ---- Experts -----------------------------------------------------------------------------------


def torch_experts(torch, experts, x, ids, scale):
    """The loop of the transformers library: expert by expert, over the rows that chose it."""
    y = torch.zeros_like(x, dtype=torch.float32)
    for e in torch.unique(ids).tolist():
        rows, _ = torch.where(ids == e)
        gate_up, down = experts[e]
        gate, up = (x[rows] @ gate_up.T).chunk(2, dim=-1)
        y.index_add_(0, rows, ((torch.nn.functional.silu(gate) * up) @ down.T).float() * scale)
    return y


def session_of(library, torch, device, host, hidden, width, top_k, batch):
    tensors = (ExpertTensor * 2)(
        ExpertTensor(1, BF16, 2, 0, (C.c_uint64 * 4)(2 * width, hidden, 0, 0)),
        ExpertTensor(4, BF16, 2, 0, (C.c_uint64 * 4)(hidden, width, 0, 0)))
    data = (C.c_void_p * (2 * len(host)))()
    for e, (gate_up, down) in enumerate(host):
        data[2 * e], data[2 * e + 1] = gate_up.data_ptr(), down.data_ptr()
    banks = Banks(struct_size=C.sizeof(Banks), moe_layers=1, experts=len(host), top_k=top_k,
                  hidden=hidden, intermediate=width, n_tensors=2,
                  tensors=C.cast(tensors, C.c_void_p), data=C.cast(data, C.c_void_p))
    model, pool, session = C.c_void_p(), C.c_void_p(), C.c_void_p()
    library("model_open_banks", C.byref(banks), None, C.byref(model))
    library("expert_pool_create", C.byref(device), 1, model, None, C.byref(pool))
    config = SessionConfig(struct_size=C.sizeof(SessionConfig), max_tokens=batch, math=1)
    library("session_create", pool, None, C.byref(config), C.byref(session))
    return model, pool, session


def run_experts(run, torch, library):
    tiny = run.options.tiny
    hidden, width, n, top_k = (128, 64, 8, 2) if tiny else (2048, 768, 128, 8)
    shape = "tiny" if tiny else "qwen3-30b-a3b"
    pool = weights(torch, 3 * hidden * width, n)
    experts = [(w[:2 * width * hidden].view(2 * width, hidden),
                w[2 * width * hidden:].view(hidden, width)) for w in pool]
    host = [tuple(t.cpu().pin_memory() for t in pair) for pair in experts]
    device = library.open(run.options.device, 6 * n * hidden * width + 512 * MB, 256 * MB)
    native = torch.cuda.current_stream().cuda_stream
    for batch in (1, 8, 64):
        case = f"{shape}, one layer, batch {batch}"
        x = weights(torch, batch * hidden, 1)[0].view(batch, hidden)
        ids = torch.stack([torch.randperm(n, device="cuda")[:top_k] for _ in range(batch)])
        want = torch_experts(torch, experts, x, ids, 1 / top_k)
        time = seconds_of(torch, lambda: torch_experts(torch, experts, x, ids, 1 / top_k), 3)
        run.row("torch loop", case, time * 1e6, "us")
        model, experts_pool, session = session_of(library, torch, device, host, hidden, width,
                                                  top_k, batch)
        y = torch.empty(batch, hidden, dtype=torch.float32, device="cuda")
        x32 = x.float().contiguous()
        ids32 = ids.to(torch.int32).cpu().contiguous()
        scale = torch.full((batch, top_k), 1 / top_k)
        step = Step(struct_size=C.sizeof(Step), n_tokens=batch)
        routing = Routing(C.sizeof(Routing), top_k, ids32.data_ptr(), scale.data_ptr(), None, native)
        ffn = Ffn(C.sizeof(Ffn), 1, x32.data_ptr(), y.data_ptr(), 0, 0, 0, 0, native)

        def work():
            library("session_begin", session, C.byref(step))
            library("session_route", session, 0, C.byref(routing), None)
            library("session_ffn", session, 0, C.byref(ffn))
            library("session_retire", session, 0)
            library("session_end", session, None)

        time = seconds_of(torch, work, 20)
        off = float((y - want).abs().max() / want.abs().max())
        run.row("libmoepage", case, time * 1e6, "us", largest_difference=off)
        if not off < 0.05:
            raise RuntimeError(f"{case}: results differ by {off}")
        torch.cuda.synchronize()
        library("session_destroy", session)
        library("expert_pool_destroy", experts_pool)
        library("model_close", model)
    library("device_close", device)


def run_all(run):
    try:
        import torch
    except ImportError as error:
        for name in ("torch", "libmoepage", "dietgpu", "dfloat11"):
            run.skip(name, f"all of it needs PyTorch: {error}")
        return
    if not torch.cuda.is_available():
        for name in ("torch", "libmoepage", "dietgpu", "dfloat11"):
            run.skip(name, "PyTorch sees no GPU")
        return
    library = Library(run.options.lib)
    run.attempt("decoders", "all", lambda: run_decoders(run, torch, library))
    run.attempt("copies", "all", lambda: run_copies(run, torch))
    run.attempt("experts", "all", lambda: run_experts(run, torch, library))


def times(rows, ours_name, peer, case):
    found = {r["name"]: r["median"] for r in rows if r["case"] == case}
    if ours_name in found and peer in found and found[peer] > 0:
        return found[ours_name] / found[peer]
    return math.nan


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lib", required=True)
    parser.add_argument("--out")
    parser.add_argument("--dfloat11")
    parser.add_argument("--dietgpu")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--tiny", action="store_true")
    run = Run(parser.parse_args())
    run_all(run)
    for peer, aim in (("DFloat11", 3), ("DietGPU", 2)):
        ratio = times(run.rows, "libmoepage", peer, "512 MB: 64 tensors of 8 MB")
        if not math.isnan(ratio):
            verdict = "met" if ratio >= aim else "MISSED"
            print(f"  {ratio:.2f} times {peer}, at least {aim}: {verdict}")
    if run.options.out:
        with open(run.options.out, "w") as out:
            json.dump({"bench": "peers", "rows": run.rows, "skipped": run.skipped}, out, indent=1)
            out.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
