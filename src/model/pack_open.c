/* Opens a .moepack file and checks all of it but the experts' records. Afterwards every location in
 * the file is known to lie inside it, and every byte outside the records to be as written. */
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "base/alloc.h"
#include "base/status.h"
#include "model/file.h"
#include "model/pack.h"

typedef struct opening {
    struct moepage_model *model;
    mp_pack *pack;
    mp_pack_version version;
    uint32_t n_sections;
    mp_pack_section sections[MP_PACK_MAX_SECTIONS];
} opening;

/* ---- the file ---- */

static moepage_status open_file(const char *path, mp_pack *pack)
{
    moepage_status status = mp_model_file_open(path, &pack->file);
    if (status)
        return status;
    if (pack->file.bytes < MP_PACK_PAGE)
        return mp_fail(MOEPAGE_E_FORMAT,
                       "header: the file has %llu bytes, a .moepack has at least %d (for a "
                       "checkpoint, name the directory)",
                       (unsigned long long)pack->file.bytes, MP_PACK_PAGE);
    return MOEPAGE_OK;
}

static void close_pack(struct moepage_model *model)
{
    mp_pack *pack = model->pack;
    for (uint32_t form = 0; form < MP_FORMS; form++) {
        mp_free(pack->forms[form].index);
        mp_free((void *)pack->forms[form].checked);
    }
    mp_pack_dense_free(pack);
    mp_bounce_free(&pack->desk);
    pthread_mutex_destroy(&pack->desk_lock);
    mp_free(pack->directory);
    mp_free(pack->config_text);
    mp_gguf_metadata_free(&pack->metadata);
    mp_free(pack->metadata_section);
    mp_model_file_close(&pack->file);
    mp_free(pack);
}

/* ---- header and table ---- */

/* Checks magic and major version, whose places are fixed in every version, before the checksum. */
static moepage_status check_version(const unsigned char *header)
{
    if (memcmp(header, MP_PACK_MAGIC, 8) != 0)
        return mp_fail(MOEPAGE_E_FORMAT,
                       "header: it does not begin with \"%s\", so it is not a .moepack (for a "
                       "checkpoint, name the directory)",
                       MP_PACK_MAGIC);
    uint32_t major = mp_get32(header + 8) & 0xffff;
    if (major > MP_PACK_MIXED)
        return mp_fail(MOEPAGE_E_VERSION,
                       "header: the file is of format version %u, this library (%s) reads versions "
                       "%d and %d: update it, or pack the model again",
                       major, moepage_version_text(), MP_PACK_ALIKE, MP_PACK_MIXED);
    if (major < MP_PACK_ALIKE)
        return mp_fail(MOEPAGE_E_FORMAT, "header: there is no format version %u", major);
    return MOEPAGE_OK;
}

/* Checks that bytes[from .. to) are 0; bytes[0] is at `at` of what `where` names. */
static moepage_status check_zeros(const unsigned char *bytes, uint64_t from, uint64_t to,
                                  uint64_t at, const char *where)
{
    if (from == to || (bytes[from] == 0 && !memcmp(bytes + from, bytes + from + 1, to - from - 1)))
        return MOEPAGE_OK;
    while (from < to - 1 && !bytes[from])
        from++;
    return mp_fail(MOEPAGE_E_FORMAT, "%s: byte %llu is %#x, it must be 0", where,
                   (unsigned long long)(at + from), bytes[from]);
}

static bool is_newer(const opening *o)
{
    return o->version.minor > mp_pack_newest_minor(o->version.major);
}

static moepage_status check_header(opening *o, const unsigned char *header)
{
    moepage_status status = check_version(header);
    if (status)
        return status;
    if (mp_get64(header + 120) != XXH3_64bits(header, 120))
        return mp_fail(MOEPAGE_E_FORMAT, "header: its bytes do not match their checksum");
    o->version = (mp_pack_version){mp_get32(header + 8) & 0xffff, mp_get32(header + 8) >> 16};
    o->n_sections = mp_get32(header + 32);
    if (mp_get64(header + 16) != o->pack->file.bytes || o->pack->file.bytes % MP_PACK_PAGE)
        return mp_fail(MOEPAGE_E_FORMAT,
                       "header: it describes a file of %llu bytes, this one has %llu (a multiple "
                       "of %d)",
                       (unsigned long long)mp_get64(header + 16),
                       (unsigned long long)o->pack->file.bytes, MP_PACK_PAGE);
    if (mp_get32(header + 12) != MP_PACK_HEADER_BYTES ||
        mp_get64(header + 24) != MP_PACK_HEADER_BYTES || o->n_sections > MP_PACK_MAX_SECTIONS)
        return mp_fail(MOEPAGE_E_FORMAT,
                       "header: %u bytes and %u sections in a table at %llu: they must be %d, at "
                       "most %d, and %d",
                       mp_get32(header + 12), o->n_sections,
                       (unsigned long long)mp_get64(header + 24), MP_PACK_HEADER_BYTES,
                       MP_PACK_MAX_SECTIONS, MP_PACK_HEADER_BYTES);
    if (is_newer(o))
        return MOEPAGE_OK; /* a later minor version may use the reserved bytes */
    status = check_zeros(header, 36, 40, 0, "header");
    return status ? status : check_zeros(header, 48, 120, 0, "header");
}

static bool is_data(uint32_t type)
{
    return type == MP_PACK_DENSE_DATA || type == MP_PACK_EXPERT_DATA;
}

/* Checks a section entry: sections lie back to back at page boundaries, each type and form once. */
static moepage_status check_section(const opening *o, uint32_t i, uint64_t at)
{
    const mp_pack_section *section = &o->sections[i];
    mp_pack_section_text text = mp_pack_section_name(section->type, section->form);
    const char *name = text.text;
    uint64_t end = o->pack->file.bytes;
    if (section->offset != at || section->bytes > end - at)
        return mp_fail(MOEPAGE_E_FORMAT,
                       "section table: section %s has %llu bytes at %llu: it must start at %llu "
                       "and end within the file's %llu",
                       name, (unsigned long long)section->bytes,
                       (unsigned long long)section->offset, (unsigned long long)at,
                       (unsigned long long)end);
    if (!mp_pack_section_is_known(section, o->version) && !is_newer(o))
        return mp_fail(MOEPAGE_E_FORMAT, "section table: version %u.%u has no section %s, form %u",
                       o->version.major, o->version.minor, name, section->form);
    if (is_data(section->type) && section->xxh3)
        return mp_fail(MOEPAGE_E_FORMAT,
                       "section table: section %s has a checksum, but its pieces have their own",
                       name);
    for (uint32_t k = 0; k < i; k++)
        if (o->sections[k].type == section->type && o->sections[k].form == section->form)
            return mp_fail(MOEPAGE_E_FORMAT, "section table: section %s occurs twice", name);
    return MOEPAGE_OK;
}

static moepage_status read_table(opening *o)
{
    unsigned char table[MP_PACK_PAGE];
    moepage_status status = mp_model_file_read(&o->pack->file, 0, MP_PACK_PAGE, table);
    if (!status)
        status = check_header(o, table);
    if (status)
        return status;
    uint64_t n_bytes = (uint64_t)o->n_sections * MP_PACK_ENTRY_BYTES;
    const unsigned char *entries = table + MP_PACK_HEADER_BYTES;
    if (XXH3_64bits(entries, n_bytes) != mp_get64(table + 40))
        return mp_fail(MOEPAGE_E_FORMAT, "section table: its bytes do not match their checksum");
    status = check_zeros(table, MP_PACK_HEADER_BYTES + n_bytes, MP_PACK_PAGE, 0, "section table");
    uint64_t at = MP_PACK_PAGE;
    for (uint32_t i = 0; !status && i < o->n_sections; i++) {
        mp_pack_section_decode(entries + (uint64_t)i * MP_PACK_ENTRY_BYTES, &o->sections[i]);
        status = check_section(o, i, at);
        at = mp_pack_round_up(at + o->sections[i].bytes, MP_PACK_PAGE);
    }
    if (!status && at != o->pack->file.bytes)
        status =
            mp_fail(MOEPAGE_E_FORMAT, "section table: its sections end at %llu, the file at %llu",
                    (unsigned long long)at, (unsigned long long)o->pack->file.bytes);
    return status;
}

/* ---- sections ---- */

/* Copies a section to memory, appends a NUL, and checks the copy against its checksum. */
static moepage_status read_section(const opening *o, const mp_pack_section *section,
                                   unsigned char **out)
{
    mp_pack_section_text name = mp_pack_section_name(section->type, section->form);
    *out = mp_alloc(section->bytes + 1);
    if (!*out)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "section %s: no memory for its %llu bytes", name.text,
                       (unsigned long long)section->bytes);
    moepage_status status =
        mp_model_file_read(&o->pack->file, section->offset, section->bytes, *out);
    if (status)
        return status;
    if (XXH3_64bits(*out, section->bytes) != section->xxh3)
        return mp_fail(MOEPAGE_E_FORMAT, "section %s: its bytes do not match their checksum",
                       name.text);
    return MOEPAGE_OK;
}

/* Checks that only zeros follow a section, up to the end of its page. */
static moepage_status check_padding(const opening *o, const mp_pack_section *section)
{
    unsigned char page[MP_PACK_PAGE];
    mp_pack_section_text name = mp_pack_section_name(section->type, section->form);
    char where[64];
    snprintf(where, sizeof where, "padding after section %s", name.text);
    uint64_t end = section->offset + section->bytes, from = end % MP_PACK_PAGE;
    uint64_t to = from ? MP_PACK_PAGE : 0;
    moepage_status status = mp_model_file_read(&o->pack->file, end, to - from, page + from);
    return status ? status : check_zeros(page, from, to, end - from, where);
}

/* Checks a section's padding and, if it is of a newer minor version and unknown here, its bytes. */
static moepage_status check_section_bytes(const opening *o, const mp_pack_section *section)
{
    unsigned char *bytes = NULL;
    moepage_status status = check_padding(o, section);
    if (!status && !mp_pack_section_is_known(section, o->version) && !is_data(section->type))
        status = read_section(o, section, &bytes);
    mp_free(bytes);
    return status;
}

static const mp_pack_section *find_section(const opening *o, uint32_t type, uint32_t form)
{
    for (uint32_t i = 0; i < o->n_sections; i++)
        if (o->sections[i].type == type && o->sections[i].form == form)
            return &o->sections[i];
    return NULL;
}

static moepage_status require_section(const opening *o, uint32_t type, uint32_t form,
                                      const mp_pack_section **out)
{
    *out = find_section(o, type, form);
    if (*out)
        return MOEPAGE_OK;
    return mp_fail(MOEPAGE_E_FORMAT, "section table: there is no section %s",
                   mp_pack_section_name(type, form).text);
}

static moepage_status read_shape(const opening *o)
{
    const mp_pack_section *section;
    unsigned char *bytes = NULL;
    moepage_status status = require_section(o, MP_PACK_SHAPE, 0, &section);
    if (!status)
        status = read_section(o, section, &bytes);
    if (!status) {
        status = mp_pack_shape_decode(bytes, section->bytes, o->version.major, o->model);
        if (status)
            mp_fail_within(status, "section SHAPE");
    }
    mp_free(bytes);
    return status;
}

static moepage_status read_config(const opening *o)
{
    const mp_pack_section *section = find_section(o, MP_PACK_CONFIG, 0);
    if (!section)
        return MOEPAGE_OK;
    moepage_status status = read_section(o, section, (unsigned char **)&o->pack->config_text);
    if (!status && strlen(o->pack->config_text) != section->bytes)
        status = mp_fail(MOEPAGE_E_FORMAT, "section CONFIG: its text has a NUL at byte %zu",
                         strlen(o->pack->config_text));
    return status;
}

static moepage_status read_metadata(const opening *o)
{
    const mp_pack_section *section = find_section(o, MP_PACK_METADATA, 0);
    if (!section)
        return MOEPAGE_OK;
    moepage_status status = read_section(o, section, &o->pack->metadata_section);
    if (status)
        return status;
    status = mp_pack_metadata_decode(o->pack->metadata_section, section->bytes, &o->pack->metadata);
    return status ? mp_fail_within(status, "section METADATA") : MOEPAGE_OK;
}

static moepage_status read_dense(const opening *o)
{
    const mp_pack_section *directory, *data;
    moepage_status status = require_section(o, MP_PACK_DENSE_DIRECTORY, 0, &directory);
    if (!status)
        status = require_section(o, MP_PACK_DENSE_DATA, 0, &data);
    if (!status)
        status = read_section(o, directory, &o->pack->directory);
    if (status)
        return status;
    o->pack->dense_data = data->offset;
    return mp_pack_dense_check(o->pack, directory->bytes, data->bytes, &o->model->info.dense_bytes);
}

static moepage_status read_form(const opening *o, uint32_t form)
{
    const mp_pack_section *index = find_section(o, MP_PACK_EXPERT_INDEX, form);
    const mp_pack_section *data = find_section(o, MP_PACK_EXPERT_DATA, form);
    if (!index && !data)
        return MOEPAGE_OK;
    moepage_status status = require_section(o, MP_PACK_EXPERT_INDEX, form, &index);
    if (!status)
        status = require_section(o, MP_PACK_EXPERT_DATA, form, &data);
    if (!status)
        status = read_section(o, index, &o->pack->forms[form].index);
    if (status)
        return status;
    status = mp_pack_index_check(o->model, form, index->bytes, data);
    if (status)
        return mp_fail_within(status, "section %s",
                              mp_pack_section_name(MP_PACK_EXPERT_INDEX, form).text);
    return MOEPAGE_OK;
}

static moepage_status read_sections(const opening *o)
{
    moepage_status status = MOEPAGE_OK;
    for (uint32_t i = 0; !status && i < o->n_sections; i++)
        status = check_section_bytes(o, &o->sections[i]);
    if (!status)
        status = read_shape(o);
    if (!status)
        status = read_config(o);
    if (!status)
        status = read_metadata(o);
    if (!status)
        status = read_dense(o);
    for (uint32_t form = MOEPAGE_FORM_DENSE; !status && form < MP_FORMS; form++)
        status = read_form(o, form);
    if (!status && !o->pack->forms[MOEPAGE_FORM_DENSE].present &&
        !o->pack->forms[MOEPAGE_FORM_EXPH].present)
        status = mp_fail(MOEPAGE_E_FORMAT, "section table: the experts have no lossless form");
    return status;
}

moepage_status mp_model_open_pack(const char *path, const mp_log *log, struct moepage_model **out)
{
    struct moepage_model *model = mp_model_alloc();
    mp_pack *pack = mp_alloc(sizeof *pack);
    if (!model || !pack) {
        mp_free(pack);
        mp_free(model);
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a model");
    }
    pthread_mutex_init(&pack->desk_lock, NULL);
    model->pack = pack;
    model->close = close_pack;
    model->log = *log;
    opening o = {.model = model, .pack = pack};
    moepage_status status = open_file(path, pack);
    if (!status)
        status = read_table(&o);
    if (!status)
        status = read_sections(&o);
    if (!status)
        status = mp_direct_open(path, &pack->file);
    if (status) {
        mp_model_free(model);
        return mp_path_fail_within(status, path);
    }
    mp_handle_open(&model->handle, MP_KIND_MODEL);
    *out = model;
    return MOEPAGE_OK;
}
