#!/bin/sh
# Gathers all that first.sh, check.sh and bench.sh need into a folder, for a machine that has an NVIDIA driver and
# nothing else of what the build needs.
#
#   tests/gpu/pack.sh DIR       then, there: DIR/first.sh [OUT_DIR], or its parts, DIR/check.sh [OUT_DIR] and
#                               DIR/bench.sh [OUT_DIR [PART...]]
#
# Programs are stripped; libraries that they need come along, but for those of the C library, whose
# oldest version that will do is printed. The simulated driver is in DIR/sim, for GPU_SIM=1.
set -eu
cd "$(dirname "$0")/../.."
: "${GPU_PROGRAMS:=build/release}" "${GPU_TOOLS:=build/bin}" "${GPU_LIB:=lib}"
: "${GPU_SIM_LIB:=build/release/sim}"
dir=${1:?usage: tests/gpu/pack.sh DIR}

rm -rf "$dir"
mkdir -p "$dir/bin" "$dir/lib" "$dir/sim" "$dir/suites" "$dir/tests/data" "$dir/tests/gpu"
for program in suites/unit suites/property suites/conformance suites/gpu \
    tests/gpu/bench_info tests/gpu/bench_decoder tests/gpu/bench_dequant tests/gpu/bench_transfer \
    tests/gpu/bench_experts tests/gpu/bench_residency tests/gpu/bench_generation; do
    strip -o "$dir/$program" "$GPU_PROGRAMS/$program"
done
for tool in "$GPU_TOOLS"/*; do
    strip -o "$dir/bin/${tool##*/}" "$tool"
done
for library in "$GPU_LIB/libmoepage.so.0" "$GPU_LIB/libmoepage-cuda.so"; do
    # Without nvcc there is no module: then the pack is good for the simulated driver alone.
    [ ! -f "$library" ] || strip --strip-unneeded -o "$dir/lib/${library##*/}" "$library"
done
ln -s libmoepage.so.0 "$dir/lib/libmoepage.so"
for library in $(cd "$GPU_SIM_LIB" && find . -name '*.so*'); do
    mkdir -p "$dir/sim/${library%/*}"
    strip --strip-unneeded -o "$dir/sim/$library" "$GPU_SIM_LIB/$library"
done

# What is needed at run time, and not a part of the C library.
needed=$(find "$dir/bin" "$dir/suites" "$dir/tests" "$dir/lib" "$dir/sim" -type f -exec ldd {} + 2>/dev/null |
    sed -n 's/.*=> \(\/[^ ]*\) .*/\1/p' | sort -u)
for library in $needed; do
    case ${library##*/} in
    libc.so.* | libm.so.* | libpthread.so.* | libdl.so.* | librt.so.* | ld-linux*) ;;
    libmoepage*) ;;
    *) cp -L "$library" "$dir/lib/" ;;
    esac
done

cp tests/run.sh "$dir/tests/"
cp tests/gpu/common.sh tests/gpu/check.sh tests/gpu/bench.sh tests/gpu/first.sh tests/gpu/run_tool.sh \
    tests/gpu/peers.py "$dir/tests/gpu/"
cp tests/data/gpt-oss-20b-20requests.u8 "$dir/tests/data/"
for script in check bench first; do
    printf '#!/bin/sh\nexec "$(dirname "$0")/tests/gpu/%s.sh" "$@"\n' $script >"$dir/$script.sh"
    chmod +x "$dir/$script.sh"
done

oldest=$(find "$dir" -type f \( -perm -1 -o -name '*.so*' \) -exec objdump -T {} + 2>/dev/null |
    grep -o 'GLIBC_2\.[0-9]*' | sort -t. -k2 -n | tail -1)
du -sm "$dir" | awk -v glibc="$oldest" '{ print $2 ": " $1 " MB, needs " glibc }'
