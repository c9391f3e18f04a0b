#!/bin/sh
# What cuda/driver.h, cuda/blas.h and examples/cuda/driver.h say of the driver and of cuBLAS is what the
# toolkit's headers say.
set -u
. tests/support/tap.sh
CXX=${CXX:-g++}
name="the driver's and cuBLAS's interfaces are those of the toolkit's headers"

nvcc=$(command -v "${NVCC:-nvcc}" 2>/dev/null || :)
for root in "${CUDA_HOME:-}" "${nvcc:+$(dirname "$(dirname "$nvcc")")}" /usr/local/cuda /usr; do
    [ -n "$root" ] && [ -f "$root/include/cuda.h" ] && [ -f "$root/include/cublas_v2.h" ] && break
    root=
done
if [ -n "$root" ]; then
    check "$name" "$CXX" -std=c++17 -fsyntax-only -Wall -Wextra -Werror -Iinclude -Icuda -Iexamples \
        -isystem "$root/include" tests/cuda/check_abi.cpp
else
    skip "$name" "no cuda.h and cublas_v2.h"
fi
finish
