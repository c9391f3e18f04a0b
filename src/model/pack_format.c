/* The header and the section table of a .moepack file. */
#include "model/pack_format.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

static const char *form_name(uint32_t form)
{
    static const char *const names[] = {"none", "dense", "exph", "int8", "int4", "int2"};
    return form < sizeof names / sizeof *names ? names[form] : "unknown";
}

mp_pack_section_text mp_pack_section_name(uint32_t type, uint32_t form)
{
    static const char *const names[] = {NULL,         "SHAPE",
                                        "CONFIG",     "DENSE DIRECTORY",
                                        "DENSE DATA", "EXPERT INDEX",
                                        "EXPERT DATA"};
    mp_pack_section_text name;
    if (type == 0 || type > MP_PACK_EXPERT_DATA)
        snprintf(name.text, sizeof name.text, "of type %u", type);
    else if (type < MP_PACK_EXPERT_INDEX)
        snprintf(name.text, sizeof name.text, "%s", names[type]);
    else
        snprintf(name.text, sizeof name.text, "%s (%s)", names[type], form_name(form));
    return name;
}

void mp_pack_section_encode(const mp_pack_section *section, unsigned char *out)
{
    mp_put32(out, section->type);
    mp_put32(out + 4, section->form);
    mp_put64(out + 8, section->offset);
    mp_put64(out + 16, section->bytes);
    mp_put64(out + 24, section->xxh3);
}

void mp_pack_section_decode(const unsigned char *in, mp_pack_section *out)
{
    out->type = mp_get32(in);
    out->form = mp_get32(in + 4);
    out->offset = mp_get64(in + 8);
    out->bytes = mp_get64(in + 16);
    out->xxh3 = mp_get64(in + 24);
}

void mp_pack_header_encode(uint64_t file_bytes, uint32_t n_sections, uint64_t table_xxh3,
                           unsigned char *out)
{
    memset(out, 0, MP_PACK_HEADER_BYTES);
    memcpy(out, MP_PACK_MAGIC, 8);
    mp_put32(out + 8, MP_PACK_MAJOR | (uint32_t)MP_PACK_MINOR << 16);
    mp_put32(out + 12, MP_PACK_HEADER_BYTES);
    mp_put64(out + 16, file_bytes);
    mp_put64(out + 24, MP_PACK_HEADER_BYTES);
    mp_put32(out + 32, n_sections);
    mp_put64(out + 40, table_xxh3);
    mp_put64(out + 120, XXH3_64bits(out, 120));
}
