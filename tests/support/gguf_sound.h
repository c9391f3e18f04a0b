/* gguf_sound.h — claims that hold of every GGUF model that opens, whatever its bytes are. */
#ifndef GGUF_SOUND_H
#define GGUF_SOUND_H

#include "model/gguf.h"

/* Returns NULL, or the claim that does not hold. Reads every value and every byte of the tensors. */
const char *gguf_unsound(const mp_gguf *gguf);

#endif
