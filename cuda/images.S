/* The kernels' fat binaries as constants of the module: "<family>.fatbin", looked for in the
 * assembler's include directories. */
#include "images.h"

.macro image family
    .balign 64
    .globl mp_cuda_fatbin_\family
    .hidden mp_cuda_fatbin_\family
    .type mp_cuda_fatbin_\family, %object
mp_cuda_fatbin_\family:
    .incbin "\family\().fatbin"
    .size mp_cuda_fatbin_\family, . - mp_cuda_fatbin_\family
.endm

#define IMAGE(family) image family;

    .section .rodata
    MP_CUDA_FAMILIES(IMAGE)

    .section .note.GNU-stack, "", %progbits
