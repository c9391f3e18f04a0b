/* The kernels' fat binary as a constant of the plug-in: "dense.fatbin", looked for in the
 * assembler's include directories. */
    .section .rodata
    .balign 64
    .globl dense_fatbin
    .hidden dense_fatbin
    .type dense_fatbin, %object
dense_fatbin:
    .incbin "dense.fatbin"
    .size dense_fatbin, . - dense_fatbin

    .section .note.GNU-stack, "", %progbits
