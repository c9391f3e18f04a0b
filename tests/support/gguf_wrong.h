/* gguf_wrong.h — GGUF files that are wrong in one way: for the tests of the reader, and as seeds. */
#ifndef GGUF_WRONG_H
#define GGUF_WRONG_H

#include "gguf_writer.h"
#include "moepage.h"

typedef struct gguf_wrong {
    const char *name; /* the defect */
    void (*make)(gguf_writer *w);
    moepage_status status;
    const char *words; /* of the sentence, separated by '|' */
} gguf_wrong;

/* Ends with an entry whose name is NULL. */
extern const gguf_wrong gguf_wrongs[];

#endif
