/* gguf_sound.h — claims that hold of every GGUF model that opens, whatever its bytes are. */
#ifndef GGUF_SOUND_H
#define GGUF_SOUND_H

#include "model/gguf.h"

/* Returns NULL, or the claim that does not hold. Reads every value and every byte of the tensors. */
const char *gguf_unsound(const mp_gguf *gguf);

/* The bytes of a tensor in its file; of one that is computed those of the tensor in whose place it is. */
uint64_t gguf_stored_bytes(const mp_gguf_tensor *tensor);

#endif
