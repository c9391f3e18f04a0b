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
    static const char *const names[] = {NULL,          "SHAPE",
                                        "CONFIG",      "DENSE DIRECTORY",
                                        "DENSE DATA",  "EXPERT INDEX",
                                        "EXPERT DATA", "METADATA"};
    mp_pack_section_text name;
    if (type == 0 || type > MP_PACK_METADATA)
        snprintf(name.text, sizeof name.text, "of type %u", type);
    else if (type != MP_PACK_EXPERT_INDEX && type != MP_PACK_EXPERT_DATA)
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

mp_pack_version mp_pack_version_of(bool mixed, bool metadata)
{
    if (mixed)
        return (mp_pack_version){MP_PACK_MIXED, 0};
    return (mp_pack_version){MP_PACK_ALIKE, metadata ? MP_PACK_METADATA_MINOR : 0};
}

uint32_t mp_pack_newest_minor(uint32_t major)
{
    return major == MP_PACK_ALIKE ? MP_PACK_METADATA_MINOR : 0;
}

bool mp_pack_section_is_known(const mp_pack_section *section, mp_pack_version version)
{
    if (section->type == MP_PACK_EXPERT_INDEX || section->type == MP_PACK_EXPERT_DATA)
        return section->form >= MOEPAGE_FORM_DENSE && section->form <= MOEPAGE_FORM_INT2;
    bool metadata = version.major > MP_PACK_ALIKE || version.minor >= MP_PACK_METADATA_MINOR;
    uint32_t last = metadata ? MP_PACK_METADATA : MP_PACK_DENSE_DATA;
    return section->type >= MP_PACK_SHAPE && section->type <= last && section->form == 0;
}

void mp_pack_header_encode(mp_pack_version version, uint64_t file_bytes, uint32_t n_sections,
                           uint64_t table_xxh3, unsigned char *out)
{
    memset(out, 0, MP_PACK_HEADER_BYTES);
    memcpy(out, MP_PACK_MAGIC, 8);
    mp_put32(out + 8, version.major | version.minor << 16);
    mp_put32(out + 12, MP_PACK_HEADER_BYTES);
    mp_put64(out + 16, file_bytes);
    mp_put64(out + 24, MP_PACK_HEADER_BYTES);
    mp_put32(out + 32, n_sections);
    mp_put64(out + 40, table_xxh3);
    mp_put64(out + 120, XXH3_64bits(out, 120));
}
