/* old.h — what the program in this folder checks with, and where it puts its structs. */
#ifndef OLD_H
#define OLD_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "moepage.h"

#define MODEL_LAYERS 2u
#define MODEL_EXPERTS 8u
#define MODEL_TOP_K 2u
#define MODEL_HIDDEN 16u
#define MODEL_INNER 8u

/* What is being checked, for who ends up in a page that nobody may touch. */
extern const char *volatile doing;

#define CHECK(what)                                                                              \
    do {                                                                                         \
        doing = #what;                                                                           \
        if (!(what)) {                                                                           \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #what, moepage_last_error()); \
            exit(1);                                                                             \
        }                                                                                        \
    } while (0)

#define OK(call) CHECK((call) == MOEPAGE_OK)

/* `bytes` zeros of which the last is followed by a page that must not be touched: a library that
 * reads or writes a struct by its own idea of the size ends the program here. */
void *guarded(size_t bytes);

/* A guarded struct with its struct_size set. */
#define NEW(type, name)                 \
    type *name = guarded(sizeof(type)); \
    name->struct_size = (uint32_t)sizeof(type)

/* A device, a model whose weights the program holds, and a KV pool for it. */
moepage_device *open_host(void);
moepage_model *open_banks(void);
moepage_kv_pool *open_kv(moepage_device *device);

/* One step of every layer by moepage_session_ffn, compared with plain arithmetic. */
void run_step(moepage_session *session, uint64_t step);

/* What headers after the oldest added. */
void use_packs(const char *folder);
void use_codec(void);
void use_paged(void);
void use_controllers(void);
void use_predictors(const char *folder);
void use_stats(void);
void use_engine(const char *checkpoint);

#endif
