#!/bin/sh
# What the assembler says of each kernel on each architecture: registers, spills, shared memory and
# stack, as a table on standard output.
#
#   cuda/ptxas-report.sh >docs/ptxas-report.txt     from the project's root, after a kernel changed
#
# ARCHS="80 90" and FAMILIES="decode rows" choose less than everything; NVCC names the compiler.
set -eu
NVCC=${NVCC:-nvcc} ARCHS=${ARCHS:-80 86 89 90}
FAMILIES=${FAMILIES:-$(ls cuda/kernels/*.cu | sed 's|.*/||; s|\.cu$||')}

version=$($NVCC --version | sed -n 's/.*release [0-9.]*, V//p')
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

gencode=
for arch in $ARCHS; do
    gencode="$gencode -gencode arch=compute_$arch,code=sm_$arch"
done

for family in $FAMILIES; do
    if ! $NVCC -O3 -fmad=false -std=c++17 -Icuda -Isrc -Iinclude $gencode -fatbin -Xptxas -v \
        "cuda/kernels/$family.cu" -o "$scratch/fatbin" >"$scratch/log" 2>&1; then
        cat "$scratch/log" >&2
        exit 1
    fi
    cat "$scratch/log" >>"$scratch/all"
done

echo "# nvcc $version, -O3; written by cuda/ptxas-report.sh. Bytes; spills are stores + loads, and"
echo "# shared memory is static: what a launch asks for comes on top."
printf '%-36s %5s %9s %6s %6s %6s\n' '# kernel' arch registers spills shared stack
awk '
    function number_before(word,   i) { # "62 registers," -> 62
        for (i = 2; i <= NF; i++)
            if ($i ~ "^" word) return $(i - 1)
        return 0
    }
    /Compiling entry function/ {
        split($0, part, "\047"); kernel = part[2]; arch = part[4]
        sub(/^sm_/, "", arch)
        stack = spills = 0; open = 1 }
    /bytes stack frame/ && open { stack = $1; spills = $5 + $9 }
    /Used [0-9]+ registers/ && open {
        open = 0
        printf "%-36s %5s %9d %6d %6d %6d\n", kernel, arch, number_before("registers"), spills,
               /bytes smem/ ? shared_of($0) : 0, stack }
    function shared_of(line) { # "..., 1024 bytes smem" -> 1024
        sub(/ bytes smem.*/, "", line); sub(/.*[ ,]/, "", line); return line + 0 }
' "$scratch/all" | sort -k1,1 -k2,2n
