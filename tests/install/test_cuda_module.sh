#!/bin/sh
# How "cuda:N" finds its module, the driver and cuBLAS, and what it says when one of them is missing,
# too old, or of another build. Fakes stand in for all three.
set -u
. tests/support/tap.sh
CC=${CC:-cc} lib=${LIB:-lib}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
beside=$work/beside elsewhere=$work/elsewhere
mkdir -p "$beside" "$elsewhere"
cp "$lib/libmoepage.so.0" "$beside" && ln -s libmoepage.so.0 "$beside/libmoepage.so" || exit 1
flags="-std=gnu11 -D_GNU_SOURCE -pthread -Iinclude -Isrc -Icuda"
# shellcheck disable=SC2086
libs="$(pkg-config --static --libs ${PKGS:-jansson libxxhash libzstd numa}) -lm -ldl"

# ---- The module --------------------------------------------------------------------------

cat >"$work/program.c" <<'EOF'
#include <moepage.h>
#include <stdio.h>

int main(void)
{
    moepage_device_config config = {.struct_size = sizeof config, .budget_bytes = 32 << 20};
    moepage_device *device = NULL;
    moepage_status status = moepage_device_open("cuda:3", &config, &device);
    printf("%s: %s\n", moepage_status_text(status), status ? moepage_last_error() : "");
    return moepage_device_close(device);
}
EOF
# Modules that go wrong in one way each, and one that does not.
cat >"$work/module.c" <<'EOF'
#include <stdio.h>
#include <stdlib.h>
#include "device/module.h"

static moepage_status fail(const mp_module_services *services, moepage_status status,
                           const char *format, ...)
{
    va_list args;
    va_start(args, format);
    services->error_set(format, args);
    va_end(args);
    return status;
}

static void close_device(mp_device *device)
{
    (void)device;
    puts("closed");
}

static moepage_status alloc(mp_device *device, mp_memory_kind kind, uint64_t bytes, void **out)
{
    (void)device, (void)kind;
    return (*out = malloc(bytes)) ? MOEPAGE_OK : MOEPAGE_E_NO_MEMORY;
}

static void give_back(mp_device *device, mp_memory_kind kind, void *memory, uint64_t bytes)
{
    (void)device, (void)kind, (void)bytes;
    free(memory);
}

#ifndef OPS
#define OPS MP_DEVICE_OPS_VERSION
#endif
static const mp_device_ops ops = {
    .version = OPS, .close = close_device, .alloc = alloc, .free = give_back};
static mp_device device = {
    .ops = &ops, .name = "cuda:3", .kernels = "none", .arena_align = 4096};

#ifndef NAMELESS
mp_module_open_fn mp_cuda_module_open;
moepage_status mp_cuda_module_open(const mp_module_services *services, uint32_t ordinal,
                                   const moepage_device_config *config, mp_device **out)
{
#ifdef WORDLESS
    return MOEPAGE_E_VERSION;
#endif
#ifdef REFUSAL
    return fail(services, MOEPAGE_E_NOT_FOUND, "module %s has no GPU %u", REFUSAL, ordinal);
#endif
    if (services->version != MP_MODULE_VERSION || services->ops != MP_DEVICE_OPS_VERSION ||
        config->budget_bytes != 32 << 20 || ordinal != 3 || !services->last_error())
        return fail(services, MOEPAGE_E_DEVICE, "what came in is wrong");
    *out = &device;
    return MOEPAGE_OK;
}
#endif
EOF

module() { # module DIRECTORY FLAGS...
    to=$1; shift
    $CC $flags -w "$@" -shared -fPIC "$work/module.c" -o "$to/libmoepage-cuda.so"
}
no_modules() { rm -f "$beside/libmoepage-cuda.so" "$elsewhere/libmoepage-cuda.so"; }

opens() { # opens PROGRAM WORDS...: what opening cuda:3 prints has all of the words
    program=$1; shift
    printed=$(LD_LIBRARY_PATH=$elsewhere "$work/$program") || { echo "$printed"; return 1; }
    for words; do
        case $printed in *"$words"*) ;; *) echo "no '$words' in: $printed"; return 1 ;; esac
    done
}

$CC $flags "$work/program.c" -L"$beside" -Wl,-rpath,"$beside" -lmoepage -o "$work/shared" || exit 1
$CC $flags "$work/program.c" "$lib/libmoepage.a" $libs -o "$work/archive" || exit 1

check "without a module, the places where it was looked for are named" \
    opens shared "not supported: cuda:3: there is no CUDA module $beside/libmoepage-cuda.so" \
    "libmoepage-cuda.so: cannot open shared object file"
check "a program with the static library has no place beside it" \
    opens archive "not supported: cuda:3: there is no CUDA module, nor" "libmoepage-cuda.so: cannot open"

module "$elsewhere" '-DREFUSAL="elsewhere"'
check "the dynamic linker's search path is used, and the module's sentence arrives" \
    opens shared "not found: module elsewhere has no GPU 3"
check "by a program with the static library too" \
    opens archive "not found: module elsewhere has no GPU 3"
module "$beside" '-DREFUSAL="beside"'
check "the module beside the library comes first" opens shared "module beside has no GPU 3"
echo "this is no module" >"$beside/libmoepage-cuda.so"
check "one beside the library that does not load is not passed over" \
    opens shared "not supported: cuda:3: the CUDA module $beside/libmoepage-cuda.so does not load: "

no_modules; module "$beside" -DNAMELESS
check "a library that is no module is refused" \
    opens shared "incompatible version: cuda:3: $beside/libmoepage-cuda.so is not the module of"
module "$beside" -DWORDLESS
check "a module that does not know these services is refused" \
    opens shared "incompatible version: cuda:3: $beside/libmoepage-cuda.so is not the module of"
module "$beside" -DOPS=2
check "a device of another version is closed and refused" \
    opens shared "closed" "incompatible version: cuda:3: the module" "has devices of version 2"
if $CC $flags -static "$work/program.c" "$lib/libmoepage.a" $libs -o "$work/static" 2>/dev/null; then
    check "a program without a dynamic linker is told so" \
        opens static "not supported: cuda:3: this program is linked statically"
else
    skip "a program without a dynamic linker is told so" "no static C library"
fi
module "$beside"
check "a module of this build opens a device" opens shared "success: " "closed"
no_modules

# ---- The driver and cuBLAS ---------------------------------------------------------------

cat >"$work/driver.c" <<'EOF'
#include <stdio.h>
#include "blas.h"

int main(void)
{
    const mp_cuda_driver *driver = NULL, *again = NULL;
    const char *why = NULL;
    int version = 0;
    moepage_status status = mp_cuda_driver_load(&driver);
    printf("%s: %s\n", moepage_status_text(status), status ? moepage_last_error() : "");
    if (!status && !driver->driver_version(&version) && !mp_cuda_driver_load(&again))
        printf("version %d, once %d, batch %d, launch %d\n", version, driver == again,
               driver->copy_batch != NULL,
               driver->launch(NULL, 0, 0, 0, 0, 0, 0, 0, NULL, NULL, NULL));
    const mp_cuda_blas *blas = mp_cuda_blas_load(&why);
    printf("blas %u: %s\n", blas ? blas->loaded_version : 0, why);
    return 0;
}
EOF
$CC $flags "$work/driver.c" cuda/driver.c cuda/blas.c "$lib/libmoepage.a" $libs \
    -o "$work/driver" || exit 1

symbols() { # symbols FILE TABLE: those that a table of functions names
    sed -n "/define $2(/,/^\$/p" "$1" | grep -o '"[a-zA-Z0-9_]*"' | tr -d '"'
}

# A driver whose functions do nothing and return 0, for CUDA 12.4 but where DRIVER_VERSION says
# otherwise. It has copies in batches, under a version, as drivers do.
cat >"$work/fake.c" <<'EOF'
#include <stdint.h>
#include <string.h>
#ifndef DRIVER_VERSION
#define DRIVER_VERSION 12040
#endif
int cuDriverGetVersion(int *version)
{
    *version = DRIVER_VERSION;
    return 0;
}
static int copy_batch(void)
{
    return 0;
}
int cuGetProcAddress_v2(const char *symbol, void **out, int version, uint64_t flags, void *status)
{
    *out = !strcmp(symbol, "cuMemcpyBatchAsync") && version == 12080 && !flags && !status
               ? (void *)copy_batch
               : NULL;
    return *out ? 0 : 500;
}
EOF
symbols cuda/driver.h MP_CU_FUNCTIONS | grep -vx cuDriverGetVersion >"$work/symbols"
driver() { # driver FLAGS...: all functions but the one that $without names
    grep -vx "${without:-nothing}" "$work/symbols" |
        sed 's/.*/int &(void) { return sizeof "&" == sizeof "cuLaunchKernel" ? 77 : 0; }/' \
            >"$work/functions.c"
    $CC -w "$@" -shared -fPIC "$work/fake.c" "$work/functions.c" -o "$elsewhere/libcuda.so.1"
}
blas() { # blas FILE MAJOR MINOR
    symbols cuda/blas.h MP_BLAS_FUNCTIONS | grep -vx "${without:-nothing}" |
        sed 's/.*/int &(void) { return 0; }/' >"$work/functions.c"
    echo "int cublasGetProperty(int which, int *out)
          { *out = which == 0 ? $2 : which == 1 ? $3 : 0; return 0; }" >>"$work/functions.c"
    $CC -w -shared -fPIC "$work/functions.c" -o "$elsewhere/$1"
}

check "the table of the driver's functions is not empty" test "$(wc -l <"$work/symbols")" -gt 40

no_driver='there is no NVIDIA driver (libcuda.so.1: cannot open shared object file'
if ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1'; then
    skip "without a driver, that is said" "there is one"
else
    check "without a driver, that is said" opens driver "not found: $no_driver"
fi
driver
check "a driver is loaded, once" opens driver "version 12040, once 1, batch 0, launch 77"
driver -DDRIVER_VERSION=12080
check "and what newer ones have besides" opens driver "version 12080, once 1, batch 1"
driver -DDRIVER_VERSION=11040
check "a driver too old is told by its version" \
    opens driver "not supported: the NVIDIA driver is one for CUDA 11.4, and CUDA 12.0 is the oldest"
for without in cuMemMap cuLaunchKernel; do
    driver
    check "a driver without $without is refused by that name" \
        opens driver "not supported: libcuda.so.1 has no function $without"
done
without=nothing
driver -DcuDriverGetVersion=other
check "something else of the driver's name is refused" opens driver "it is no NVIDIA driver"
rm -f "$elsewhere/libcuda.so.1"

if ldconfig -p 2>/dev/null | grep -q 'libcublas\.so\.1[23]'; then
    skip "without cuBLAS, both names are named" "there is one"
else
    check "without cuBLAS, both names are named" \
        opens driver "blas 0: libcublas.so.13: cannot open" "; libcublas.so.12: cannot open"
fi
blas libcublas.so.13 13 1
check "cuBLAS 13 is found" opens driver "blas 130100: "
blas libcublas.so.13 11 9
blas libcublas.so.12 12 6
check "one too old is passed over" opens driver "blas 120600: "
without=cublasGemmBatchedEx
blas libcublas.so.13 13 0
check "and one that lacks a function" opens driver "blas 120600: "
blas libcublas.so.12 12 5
check "and both are named when neither will do" \
    opens driver "blas 0: libcublas.so.13 has no function cublasGemmBatchedEx; libcublas.so.12 has"
rm -f "$elsewhere"/libcublas*

# ---- All of it ---------------------------------------------------------------------------

# The module as it is built, over a driver that sees no GPU.
if [ -f "$lib/libmoepage-cuda.so" ]; then
    cp "$lib/libmoepage-cuda.so" "$beside"
    without=nothing; driver
    check "the module that was built reports what its driver says" \
        opens shared "not found: cuda:3: the NVIDIA driver sees no GPU"
    driver -DDRIVER_VERSION=11040
    check "and passes the driver's own refusal on" \
        opens shared "not supported: cuda:3: the NVIDIA driver is one for CUDA 11.4"
else
    skip "the module that was built reports what its driver says" "no nvcc"
fi
finish
