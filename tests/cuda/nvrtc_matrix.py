#!/usr/bin/env python3
"""Compiles every family of cuda/kernels with a runtime compiler, for every architecture that it has.

    tests/cuda/nvrtc_matrix.py LIBNVRTC [ARCH...]

LIBNVRTC is a libnvrtc.so of any toolkit from 12.0 on, with its builtins library beside it. ARCH is
80, 86 ...; without any, those of 80, 86, 89, 90, 100 and 120 that the compiler knows. One line per
family; a log for what does not compile. Exit status 1 if anything does not.

Kernels that compile here use nothing of the system's headers, and nothing that an older toolkit
lacks.
"""
import ctypes
import glob
import os
import sys

WANTED = (80, 86, 89, 90, 100, 120)


class Nvrtc:
    def __init__(self, path):
        builtins = glob.glob(os.path.join(os.path.dirname(os.path.abspath(path)),
                                          "libnvrtc-builtins.so*"))
        for name in builtins:  # found by name alone once it is loaded
            ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        self.lib = ctypes.CDLL(path)

    def call(self, name, *args):
        result = getattr(self.lib, name)(*args)
        if result:
            self.lib.nvrtcGetErrorString.restype = ctypes.c_char_p
            text = self.lib.nvrtcGetErrorString(result).decode()
            raise RuntimeError(f"{name}: {text}")

    def version(self):
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        return f"{major.value}.{minor.value}"

    def architectures(self):
        count = ctypes.c_int()
        self.call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        found = (ctypes.c_int * count.value)()
        self.call("nvrtcGetSupportedArchs", found)
        return set(found)

    def compile(self, path, options):
        """Bytes of machine code, and the log."""
        with open(path, "rb") as source:
            text = source.read()
        program = ctypes.c_void_p()
        self.call("nvrtcCreateProgram", ctypes.byref(program), text, path.encode(), 0, None, None)
        try:
            given = (ctypes.c_char_p * len(options))(*[o.encode() for o in options])
            failed = self.lib.nvrtcCompileProgram(program, len(options), given)
            size = ctypes.c_size_t()
            self.call("nvrtcGetProgramLogSize", program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value + 1)
            self.call("nvrtcGetProgramLog", program, log)
            if not failed:
                self.call("nvrtcGetCUBINSize", program, ctypes.byref(size))
            return 0 if failed else size.value, log.value.decode(errors="replace").strip()
        finally:
            self.call("nvrtcDestroyProgram", ctypes.byref(program))


def main(arguments):
    if not arguments:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    root = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
    nvrtc = Nvrtc(arguments[0])
    known = nvrtc.architectures()
    archs = [int(a) for a in arguments[1:]] or [a for a in WANTED if a in known]
    print(f"NVRTC {nvrtc.version()}: " + " ".join(f"sm_{a}" for a in archs))
    families = sorted(glob.glob(os.path.join(root, "cuda", "kernels", "*.cu")))
    wrong = 0
    for path in families:
        cells, logs = [], []
        for arch in archs:
            size, log = nvrtc.compile(path, [f"--gpu-architecture=sm_{arch}", "--std=c++17",
                                             f"-I{root}/cuda", f"-I{root}/cuda/kernels", f"-I{root}/src"])
            cells.append(f"{size:>8}" if size else "  FAILED")
            if not size:
                wrong += 1
                logs.append(f"--- {os.path.basename(path)}, sm_{arch}\n{log}")
        print(f"{os.path.basename(path)[:-3]:<14}" + "".join(cells), flush=True)
        for log in logs[:1]:
            print(log, flush=True)
    print(f"{len(families) * len(archs) - wrong} compiled, {wrong} failed")
    return 1 if wrong or not families or not archs else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
