#!/usr/bin/env python3
"""Writes the raw Rust bindings of the ABI that lib/abi/*.txt record.

    python3 lib/abi/bindings/rust.py           writes what examples/rust/moepage-sys holds of it
    python3 lib/abi/bindings/rust.py --check   says whether that is what would be written

Two files: src/bindings.rs, all constants, types and functions; and tests/layout/table.rs, the names
of all fields, with which a test asks the compiler where it put them.
"""
import argparse
import sys
import textwrap
from pathlib import Path
from typing import Iterable, Iterator, List

import abi
from abi import Array, Function, Named, Pointer, Struct, Type

CRATE = abi.FOLDER.parent.parent / "examples" / "rust" / "moepage-sys"
COMMAND = "python3 lib/abi/bindings/rust.py"
WIDTH = 100

SCALARS = {
    "void": "c_void", "char": "c_char", "float": "f32", "double": "f64", "size_t": "usize",
    "int8_t": "i8", "int16_t": "i16", "int32_t": "i32", "int64_t": "i64",
    "uint8_t": "u8", "uint16_t": "u16", "uint32_t": "u32", "uint64_t": "u64",
}
ALIASES = {"moepage_status": "i32", "moepage_seq": "u64"}
KEYWORDS = {"as", "box", "const", "fn", "in", "loop", "match", "mod", "move", "ref", "self", "type",
            "use", "where"}


def name_of(name: str) -> str:
    return name + "_" if name in KEYWORDS else name


def rust_type(of: Type) -> str:
    if isinstance(of, Array):
        return "[%s; %d]" % (rust_type(of.of), of.length)
    if isinstance(of, Pointer):
        target = of.to
        return ("*const " if target_is_const(target) else "*mut ") + rust_type(target)
    return SCALARS.get(of.name, of.name)


def target_is_const(target: Type) -> bool:
    return not isinstance(target, Array) and target.const


def constant_type(name: str, value: int) -> str:
    """C's enumerators are ints; these are the types of the fields and results that hold them."""
    if name == "MOEPAGE_OK" or name.startswith("MOEPAGE_E_"):
        return "moepage_status"
    if value < 0 or name.startswith("MOEPAGE_LOG_"):
        return "i32"
    if name.startswith("MOEPAGE_MAX_") or name.endswith("_BYTES"):
        return "usize"
    return "u32" if value < 1 << 32 else "u64"


def signature(of: Function) -> List[str]:
    return ["%s: %s" % (name_of(each.name), rust_type(each.type)) for each in of.parameters]


def result(of: Function) -> str:
    return "" if of.result == Named("void") else " -> " + rust_type(of.result)


def wrapped(head: str, items: List[str], tail: str, indent: str) -> str:
    """One line if it fits, else one item a line."""
    line = indent + head + ", ".join(items) + tail
    if len(line) <= WIDTH:
        return line + "\n"
    inner = "".join("%s    %s,\n" % (indent, item) for item in items)
    return "%s%s\n%s%s%s\n" % (indent, head.rstrip(), inner, indent, tail)


def header(what: str) -> str:
    return ("//! %s\n//!\n//! Generated from lib/abi by `%s`; do not edit.\n" % (what, COMMAND))


def callback(of: Function) -> str:
    """NULL is None, so that a zeroed struct has none."""
    return wrapped("pub type %s = Option<unsafe extern \"C\" fn(" % of.name, signature(of),
                   ")%s>;" % result(of), "")


def opaque(name: str) -> str:
    return ("#[repr(C)]\n"
            "pub struct %s {\n"
            "    _bytes: [u8; 0],\n"
            "    _marker: PhantomData<(*mut u8, PhantomPinned)>,\n"
            "}\n" % name)


def struct(of: Struct) -> str:
    fields = "".join("    pub %s: %s,\n" % (name_of(field.name), rust_type(field.type))
                     for field in of.fields)
    sized = ", struct_size" if of.fields[0].name == "struct_size" else ""
    return ("#[repr(C)]\n#[derive(Clone, Copy, Debug)]\n"
            "pub struct %s {\n%s}\nplain!(%s, %d%s);\n"
            % (of.name, fields, of.name, of.size, sized))


def bindings(whole: abi.Abi) -> Iterator[str]:
    yield header("The C interface of libmoepage, as its ABI tables record it.")
    yield "use std::marker::{PhantomData, PhantomPinned};\nuse std::os::raw::{c_char, c_void};\n"
    yield "".join("pub type %s = %s;\n" % (name, ALIASES[name]) for name in whole.aliases)
    yield "".join("pub const %s: %s = %d;\n" % (name, constant_type(name, value), value)
                  for name, value in whole.constants.items())
    yield from (opaque(name) for name in whole.opaque)
    yield from (callback(each) for each in whole.callbacks)
    yield from (struct(each) for each in whole.structs)
    functions = "".join(wrapped("pub fn %s(" % each.name, signature(each),
                                ")%s;" % result(each), "    ") for each in whole.functions)
    yield "extern \"C\" {\n%s}\n" % functions


def filled(opening: str, names: Iterable[str]) -> str:
    """A statement with a list of names, as many on a line as it holds."""
    return textwrap.fill(opening + ", ".join(names) + ");", WIDTH, initial_indent="    ",
                         subsequent_indent="        ") + "\n"


def table(whole: abi.Abi) -> Iterator[str]:
    yield header("The names of all fields and constants, for the test beside it.")
    yield "use moepage_sys::*;\n"
    structs = "".join(filled("fields!(tell, %s, " % each.name,
                             [name_of(field.name) for field in each.fields])
                      for each in whole.structs)
    yield "pub fn structs(tell: &mut dyn FnMut(String)) {\n%s}\n" % structs
    yield ("pub fn constants(tell: &mut dyn FnMut(&str, i64)) {\n%s}\n"
           % filled("constants!(tell, ", whole.constants))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    check = parser.parse_args().check
    whole = abi.load()
    stale = False
    for path, emit in ((CRATE / "src" / "bindings.rs", bindings),
                       (CRATE / "tests" / "layout" / "table.rs", table)):
        text = "\n".join(emit(whole))
        if not check:
            path.write_text(text)
        elif not path.is_file() or path.read_text() != text:
            stale = True
            print("%s is not what lib/abi says: run %s" % (path, COMMAND), file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
