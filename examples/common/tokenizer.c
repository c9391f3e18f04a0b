/* Byte-level text. */
#include "common/tokenizer.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

bool tokenizer_is_bytes(const char *directory, uint32_t vocabulary)
{
    static const char *const files[] = {"tokenizer.json", "tokenizer.model", "vocab.json"};
    if (vocabulary < 256 || vocabulary > 256 + TOKENIZER_MAX_SPECIAL)
        return false;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[4096];
        int length = snprintf(path, sizeof path, "%s/%s", directory, files[i]);
        if (length < 0 || (size_t)length >= sizeof path || access(path, F_OK) == 0)
            return false;
    }
    return true;
}

int tokenizer_byte(uint32_t token)
{
    return token < 256 ? (int)token : -1;
}

/* Returns the length of a well-formed sequence that starts with `lead`, and the range of its second
 * byte (Unicode, table 3-7); 0 if no sequence starts with it. */
static size_t sequence_length(unsigned char lead, unsigned char *low, unsigned char *high)
{
    *low = 0x80;
    *high = 0xbf;
    if (lead < 0x80)
        return 1;
    if (lead >= 0xc2 && lead <= 0xdf)
        return 2;
    if (lead >= 0xe0 && lead <= 0xef) {
        *low = lead == 0xe0 ? 0xa0 : 0x80;
        *high = lead == 0xed ? 0x9f : 0xbf;
        return 3;
    }
    if (lead >= 0xf0 && lead <= 0xf4) {
        *low = lead == 0xf0 ? 0x90 : 0x80;
        *high = lead == 0xf4 ? 0x8f : 0xbf;
        return 4;
    }
    return 0;
}

size_t tokenizer_to_utf8(const unsigned char *bytes, size_t n, char *out)
{
    size_t length = 0;
    for (size_t i = 0; i < n;) {
        unsigned char low, high;
        size_t whole = sequence_length(bytes[i], &low, &high);
        size_t good = 1;
        while (good < whole && i + good < n && bytes[i + good] >= low && bytes[i + good] <= high) {
            good++;
            low = 0x80;
            high = 0xbf;
        }
        bool valid = good == whole;
        memcpy(out + length, valid ? (const char *)bytes + i : "\xef\xbf\xbd", valid ? good : 3);
        length += valid ? good : 3;
        i += good;
    }
    return length;
}
