#!/usr/bin/env python3
"""Writes letters_table.h and compose_table.h: what letters.c and compose.c know of characters.

Run from the repository root where unicodedata2 16.0.0 of PyPI is installed, which has the data of
Unicode 16.0: the version by which Hugging Face's tokenizers 0.23.3 cuts, as
tests/data/tokenizer/compare_random.py finds on every character.
"""
import unicodedata2

VERSION = "16.0.0"
ALL = 0x110000
NAMES = ["Lu", "Ll", "Lt", "Lm", "Lo", "M", "N", "P", "S"]
TURNS = len(NAMES) + 1
LETTERS = "where a run of characters of one kind begins, times 16, and its\n" \
          " * kind: 0 none of these, 1 Lu, 2 Ll, 3 Lt, 4 Lm, 5 Lo, 6 M, 7 N, 8 P, 9 S, 10 Lu and Ll in turns."
COMPOSE = "canonical decompositions and combining classes."


def kind(c):
    name = unicodedata2.category(chr(c))
    for i, prefix in enumerate(NAMES):
        if name.startswith(prefix):
            return i + 1
    return 0


def letters():
    """(start, kind), turns of upper and lower letters taken together."""
    kinds = [kind(c) for c in range(ALL)]
    out, c = [], 0
    while c < ALL:
        end = c
        while kinds[end:end + 2] == [1, 2]:
            end += 2
        turns = end - c >= 4
        end = end if turns else c
        while not turns and end < ALL and kinds[end] == kinds[c] and \
                (end == c or kinds[end:end + 4] != [1, 2, 1, 2]):
            end += 1
        out.append((c, TURNS if turns else kinds[c]))
        c = max(end, c + 1)
    return out


def decompositions():
    """[(character, what it becomes)] of one character and of two."""
    singles, pairs = [], []
    for c in range(ALL):
        parts = unicodedata2.decomposition(chr(c))
        if parts and not parts.startswith("<"):
            parts = [int(part, 16) for part in parts.split()]
            (singles if len(parts) == 1 else pairs).append((c, *parts))
    return singles, pairs


def classes():
    """(start, combining class)."""
    of = [unicodedata2.combining(chr(c)) for c in range(ALL)]
    return [(c, of[c]) for c in range(ALL) if c == 0 or of[c] != of[c - 1]]


def composed(pairs):
    """The places of the pairs that become one character again, in the order of their halves."""
    kept = [(a, b, i) for i, (c, a, b) in enumerate(pairs)
            if unicodedata2.normalize("NFC", chr(a) + chr(b)) == chr(c)]
    return [i for _, _, i in sorted(kept)]


def array(declaration, numbers, form="0x%x,"):
    lines, line = [], "   "
    for number in numbers:
        word = " " + form % number
        if len(line) + len(word) > 100:
            lines.append(line)
            line = "   "
        line += word
    return "static const %s = {\n" % declaration + "\n".join(lines + [line]) + "\n};\n"


def write(name, what, arrays):
    guard = "EXAMPLE_%s_TABLE_H" % name.upper()
    with open("examples/common/%s_table.h" % name, "w", encoding="ascii", newline="\n") as out:
        out.write("/* Unicode %s, written by unicode_tables.py: %s */\n" % (VERSION, what))
        out.write("#ifndef %s\n#define %s\n\n#include <stdint.h>\n\n" % (guard, guard))
        out.write("/* clang-format off */\n%s/* clang-format on */\n\n#endif\n" % "".join(arrays))


def main():
    assert unicodedata2.unidata_version == VERSION
    write("letters", LETTERS, [array("uint32_t letters_runs[]",
                                     (start << 4 | kind for start, kind in letters()))])
    singles, pairs = decompositions()
    write("compose", COMPOSE, [
        "/* A character, and the one that it becomes. */\n",
        array("uint32_t compose_singles[][2]", ("{0x%x,0x%x}" % pair for pair in singles), "%s,"),
        "/* A character, and the two that it becomes. */\n",
        array("uint32_t compose_pairs[][3]", ("{0x%x,0x%x,0x%x}" % three for three in pairs), "%s,"),
        "/* Pairs that become one again: places in the array above, in the order of the two. */\n",
        array("uint16_t compose_order[]", composed(pairs), "%d,"),
        "/* Where a run of characters of one combining class begins, times 256, and the class. */\n",
        array("uint32_t compose_classes[]", (start << 8 | of for start, of in classes()))])


if __name__ == "__main__":
    main()
