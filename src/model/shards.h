/* shards.h — which files of a directory form the checkpoint, and whether they match its index. */
#ifndef MP_MODEL_SHARDS_H
#define MP_MODEL_SHARDS_H

#include "base/json.h"
#include "moepage.h"

typedef struct mp_shards {
    char **names; /* [n_names] sorted, distinct, owned; plain names within the directory */
    uint32_t n_names;
    char *index_text;
    mp_json index; /* root is NULL if no index is used */
} mp_shards;

/* Lists the files: at least one, or a failure. */
moepage_status mp_shards_list(const char *dir, mp_shards *out);

/* Frees the lists; safe on a zero-filled struct. */
void mp_shards_free(mp_shards *shards);

#endif
