/* images.h — the fat binaries of cuda/kernels/<family>.cu inside the module. images.S places them,
 * entry.c lists them; the list of families is this one. */
#ifndef MP_CUDA_IMAGES_H
#define MP_CUDA_IMAGES_H

#define MP_CUDA_FAMILIES(X) \
    X(decode) X(experts) X(elementwise) X(quant) X(rows) X(topk) X(remap) X(path) X(fast)

#ifndef __ASSEMBLER__
#define MP_CUDA_FATBIN(family) extern const unsigned char mp_cuda_fatbin_##family[];
MP_CUDA_FAMILIES(MP_CUDA_FATBIN)
#undef MP_CUDA_FATBIN
#endif

#endif
