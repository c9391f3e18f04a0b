/* The METADATA section of a .moepack file: the keys and values of the GGUF file that it was made of, byte
 * for byte. */
#include <string.h>

#include "base/status.h"
#include "model/pack.h"
#include "model/pack_sections.h"

uint64_t mp_pack_metadata_bytes(const mp_gguf_metadata *metadata)
{
    return MP_PACK_METADATA_HEAD_BYTES + metadata->stored_bytes;
}

void mp_pack_metadata_encode(const mp_gguf_metadata *metadata, unsigned char *out)
{
    mp_put64(out, metadata->n_values);
    memcpy(out + MP_PACK_METADATA_HEAD_BYTES, metadata->stored, metadata->stored_bytes);
}

moepage_status mp_pack_metadata_decode(const unsigned char *section, uint64_t bytes,
                                       mp_gguf_metadata *out)
{
    uint64_t n = 0;
    mp_gguf_cursor from = {.at = section, .left = bytes, .held = bytes};
    moepage_status status = mp_gguf_take64(&from, &n);
    if (!status)
        status = mp_gguf_metadata_read(&from, n, out);
    if (!status && from.left)
        status = mp_fail(MOEPAGE_E_FORMAT, "its %llu keys end %llu bytes before it does",
                         (unsigned long long)n, (unsigned long long)from.left);
    return status;
}
