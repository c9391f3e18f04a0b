"""The library's ABI as data: what lib/abi/structs.txt and lib/abi/symbols.txt say, parsed.

    import abi
    for struct in abi.load().structs: ...

An emitter of bindings (python.py, rust.py) walks one `Abi`:

    constants   NAME -> value, in the order of the headers: enumerators and macros
    aliases     scalar types: moepage_status, moepage_seq, with their size in bytes
    opaque      handles: structs that callers only hold pointers to
    callbacks   pointers to functions that callers pass
    structs     with size, and fields with offset, size and type
    functions   everything that the library exports

A C type is a tree: `Pointer(to, const)` and `Array(of, length)` over a `Named(name, const)`.
`const` says of each what it says in C: `const void *const *p` is
Pointer(Pointer(Named("void", const=True), const=True), const=False).

`kind(type)` tells what a Named one is: "scalar", "alias", "struct", "opaque" or "callback". Types
print as C. Input that is not understood is a ValueError that quotes it; the tables are checked for
fields that do not fill their struct, as they would if one had been missed.
"""
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Tuple, Union

FOLDER = Path(__file__).resolve().parent.parent

# sizeof, on every platform that the library runs on (64-bit, LP64)
SCALARS = {
    "void": 0, "char": 1, "float": 4, "double": 8, "size_t": 8,
    "int8_t": 1, "int16_t": 2, "int32_t": 4, "int64_t": 8,
    "uint8_t": 1, "uint16_t": 2, "uint32_t": 4, "uint64_t": 8,
}
POINTER_BYTES = 8


@dataclass(frozen=True)
class Named:
    name: str
    const: bool = False

    def __str__(self) -> str:
        return ("const " if self.const else "") + self.name


@dataclass(frozen=True)
class Pointer:
    to: "Type"
    const: bool = False

    def __str__(self) -> str:
        inner = str(self.to)
        return inner + ("*" if inner.endswith("*") else " *") + ("const " if self.const else "")


@dataclass(frozen=True)
class Array:
    of: "Type"
    length: int

    def __str__(self) -> str:
        return "%s[%d]" % (self.of, self.length)


Type = Union[Named, Pointer, Array]


@dataclass(frozen=True)
class Parameter:
    name: str
    type: Type


@dataclass(frozen=True)
class Function:
    name: str
    result: Type
    parameters: Tuple[Parameter, ...]


@dataclass(frozen=True)
class Field:
    name: str
    offset: int
    size: int
    type: Type


@dataclass(frozen=True)
class Struct:
    name: str
    size: int
    fields: Tuple[Field, ...]


@dataclass(frozen=True)
class Abi:
    constants: Dict[str, int]
    aliases: Dict[str, int]
    opaque: Tuple[str, ...]
    callbacks: Tuple[Function, ...]
    structs: Tuple[Struct, ...]
    functions: Tuple[Function, ...]

    def kind(self, named: Named) -> str:
        """What a Named type is: "scalar", "alias", "struct", "opaque" or "callback"."""
        if named.name in SCALARS:
            return "scalar"
        if named.name in self.aliases:
            return "alias"
        if named.name in self.opaque:
            return "opaque"
        if any(named.name == each.name for each in self.callbacks):
            return "callback"
        if any(named.name == each.name for each in self.structs):
            return "struct"
        raise ValueError("unknown type %r" % named.name)

    def size(self, of: Type) -> int:
        """sizeof a type."""
        if isinstance(of, Pointer):
            return POINTER_BYTES
        if isinstance(of, Array):
            return of.length * self.size(of.of)
        kind = self.kind(of)
        if kind == "callback":
            return POINTER_BYTES
        if kind == "struct":
            return next(each.size for each in self.structs if each.name == of.name)
        return {**SCALARS, **self.aliases}[of.name]


def parse_type(text: str) -> Type:
    """Parses a C type without a declared name: "const void *const *", "uint64_t[4]"."""
    body, bounds = re.fullmatch(r"(.*?)((?:\s*\[\d+\])*)", text.strip()).groups()
    tokens = re.findall(r"\w+|\*", body)
    names = [token for token in tokens[:_first(tokens, "*")] if token not in ("const", "struct")]
    if len(names) != 1 or "".join(tokens) != re.sub(r"\s", "", body):
        raise ValueError("not a C type: %r" % text)
    result: Type = Named(names[0], "const" in tokens[:_first(tokens, "*")])
    for token in tokens[_first(tokens, "*"):]:
        if token == "*":
            result = Pointer(result)
        elif token == "const" and isinstance(result, Pointer):
            result = Pointer(result.to, const=True)
        else:
            raise ValueError("not a C type: %r" % text)
    for bound in reversed(re.findall(r"\d+", bounds)):
        result = Array(result, int(bound))
    return result


def parse_function(text: str) -> Function:
    """Parses a prototype, or the type of a callback: "int32_t (*name)(void *user, ...)"."""
    match = re.fullmatch(r"(.+?)(?:\(\*(\w+)\)|(\w+))\((.*)\)", text.strip())
    if not match:
        raise ValueError("not a prototype: %r" % text)
    result, callback, name, inside = match.groups()
    parameters = []
    if inside.strip() not in ("", "void"):
        for each in inside.split(","):
            declared = re.fullmatch(r"(.*?)(\w+)", each.strip())
            if not declared or not declared.group(1):
                raise ValueError("not a parameter: %r in %r" % (each, text))
            parameters.append(Parameter(declared.group(2), parse_type(declared.group(1))))
    return Function(callback or name, parse_type(result), tuple(parameters))


def load(folder: Path = FOLDER) -> Abi:
    """Reads structs.txt and symbols.txt in `folder`."""
    constants: Dict[str, int] = {}
    aliases: Dict[str, int] = {}
    callbacks: List[Function] = []
    structs: List[Tuple[str, int, List[Field]]] = []
    for line in (Path(folder) / "structs.txt").read_text().splitlines():
        kind, _, rest = line.partition(" ")
        if kind == "constant":
            name, value = rest.split()
            constants[name] = int(value)
        elif kind == "type":
            name, size = rest.split()
            aliases[name] = int(size)
        elif kind == "callback":
            callbacks.append(parse_function(rest))
        elif kind == "struct":
            name, size = rest.split()
            structs.append((name, int(size), []))
        elif kind == "field":
            path, offset, size, text = rest.split(" ", 3)
            owner, name = path.split(".")
            if not structs or structs[-1][0] != owner:
                raise ValueError("field outside its struct: %r" % line)
            structs[-1][2].append(Field(name, int(offset), int(size), parse_type(text)))
        else:
            raise ValueError("not a line of structs.txt: %r" % line)
    functions = tuple(parse_function(line.split("\t")[1])
                      for line in (Path(folder) / "symbols.txt").read_text().splitlines())
    whole = tuple(Struct(name, size, tuple(fields)) for name, size, fields in structs)
    abi = Abi(constants, aliases, _opaque(aliases, callbacks, whole, functions), tuple(callbacks),
              whole, functions)
    _check(abi)
    return abi


def root(of: Type) -> Named:
    """The Named type at the root of a tree."""
    while not isinstance(of, Named):
        of = of.to if isinstance(of, Pointer) else of.of
    return of


def _first(tokens: List[str], token: str) -> int:
    return tokens.index(token) if token in tokens else len(tokens)


def _opaque(aliases, callbacks, structs, functions) -> Tuple[str, ...]:
    """What is named somewhere and defined nowhere: handles."""
    named = [root(parameter.type).name for each in functions for parameter in each.parameters]
    named += [root(field.type).name for struct in structs for field in struct.fields]
    known = set(SCALARS) | set(aliases)
    known |= {each.name for each in callbacks} | {each.name for each in structs}
    return tuple(sorted(set(named) - known))


def _check(abi: Abi) -> None:
    for struct in abi.structs:
        end = 0
        for field in struct.fields:
            if field.offset != end:
                raise ValueError("%s: a gap before %s" % (struct.name, field.name))
            if abi.size(field.type) != field.size:
                raise ValueError("%s.%s: %s is not %d bytes"
                                 % (struct.name, field.name, field.type, field.size))
            end += field.size
        if end != struct.size:
            raise ValueError("%s: its fields end at %d of %d" % (struct.name, end, struct.size))
