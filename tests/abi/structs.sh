#!/bin/sh
# Prints what the compiler makes of every type and constant of the headers in include/, or in the
# folder given, of which moepage_cuda.h, where there is one, includes the other:
#
#   type NAME SIZE          a public scalar type
#   struct NAME SIZE        followed by its fields
#   field NAME.FIELD OFFSET SIZE TYPE
#   callback TYPE           a pointer to a function
#   constant NAME VALUE     enumerators and macros; the library's own version is left out
#
# The preprocessed header is turned into a C program of sizeof and offsetof. A field that the
# reader below missed shows as a gap, which test_abi.sh rejects.
set -eu
LC_ALL=C; export LC_ALL
CC=${CC:-cc}
include=${1:-include} header=moepage_cuda.h
[ -e "$include/$header" ] || header=moepage.h
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

{
    echo '#include <stdio.h>'
    echo "#include \"$header\""
    echo 'int main(void) {'
    "$CC" -std=c11 -E -P -include stddef.h -include stdint.h "$include/$header" | tr '\n' ' ' |
        awk '
        function constant(name) {
            printf "printf(\"constant %s %%lld\\n\", (long long)%s);\n", name, name }
        # The declared name is the last identifier in front of an array bound or the end.
        function field(type, text,    name, bounds) {
            gsub(/ +/, " ", text); gsub(/^ | $/, "", text); sub(/struct /, "", text)
            match(text, / ?([[][^]]*[]] ?)*$/); bounds = substr(text, RSTART)
            name = text = substr(text, 1, RSTART - 1); sub(/.*[^A-Za-z0-9_]/, "", name)
            sub(/ ?[A-Za-z0-9_]+$/, "", text); text = text bounds
            printf "printf(\"field %s.%s %%zu %%zu %s\\n\", ", type, name, text
            printf "offsetof(%s, %s), sizeof(((%s *)0)->%s));\n", type, name, type, name }
        BEGIN { declaration = "enum *[{][^}]*[}]|typedef struct moepage_[a-z_]* *[{][^}]*[}]|" \
                              "typedef [a-z0-9_]+ moepage_[a-z_]+;|" \
                              "typedef [a-z0-9_]+ [(][*]moepage_[^;]*;" }
        { gsub(/ +/, " ")
          while (match($0, declaration)) {
              part = substr($0, RSTART, RLENGTH); $0 = substr($0, RSTART + RLENGTH)
              body = part; sub(/^[^{]*\{/, "", body); sub(/ *\}$/, "", body)
              if (part ~ /^enum/) {
                  n = split(body, item, ",")
                  for (i = 1; i <= n; i++)
                      if (match(item[i], /[A-Z][A-Z0-9_]*/))
                          constant(substr(item[i], RSTART, RLENGTH))
              } else if (part ~ /\{/) {
                  name = part; sub(/^typedef struct /, "", name); sub(/ *\{.*/, "", name)
                  printf "printf(\"struct %s %%zu\\n\", sizeof(%s));\n", name, name
                  n = split(body, item, ";")
                  for (i = 1; i <= n; i++) if (item[i] ~ /[a-z]/) field(name, item[i])
              } else if (part ~ /\(/) {
                  sub(/^typedef /, "", part); sub(/;$/, "", part)
                  printf "puts(\"callback %s\");\n", part
              } else {
                  name = part; sub(/;$/, "", name); sub(/.* /, "", name)
                  printf "printf(\"type %s %%zu\\n\", sizeof(%s));\n", name, name
              } } }'
    sed -n 's/^#define \(MOEPAGE_[A-Z0-9_]*\) .*/\1/p' "$include"/*.h |
        grep -v -e '^MOEPAGE_VERSION' -e '^MOEPAGE_API$' |
        sed 's/.*/printf("constant & %lld\\n", (long long)&);/'
    echo 'return 0; }'
} >"$work/layout.c"
"$CC" -std=c11 "-I$include" "$work/layout.c" -o "$work/layout"
"$work/layout"
