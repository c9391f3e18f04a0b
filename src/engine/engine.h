/* engine.h — the easy door: one object that opens a model, a device, pools and a session together.
 *
 * It uses the library's public functions alone, so that a program can do all of it by itself. The
 * parts: engine_settings.c reads the config struct, engine_options.c the options text,
 * engine_budget.c divides the budget, engine.c opens, steps and closes. */
#ifndef MP_ENGINE_ENGINE_H
#define MP_ENGINE_ENGINE_H

#include <stdbool.h>

#include "base/handle.h"
#include "moepage.h"

#define MP_ENGINE_MAX_SESSIONS 64u /* that an expert pool takes */

struct moepage_engine {
    mp_handle handle;
    uint32_t layers; /* MoE layers of the model */
    uint32_t dtype;  /* of x and y */
    bool owns_model;
    bool follows;      /* free memory, with its budget */
    bool follows_soon; /* something was in the way */
    uint32_t steps;    /* since it last did */
    void *stream;
    moepage_model *model;
    moepage_device *device;
    moepage_expert_pool *experts;
    moepage_kv_pool *kv;          /* NULL without one */
    moepage_predictor *predictor; /* NULL unless the engine made one */
    moepage_session *session;     /* NULL once a close has begun */
};

/* Everything that an engine is opened with: the config struct's values, with those of the options
 * text over them. budget_bytes may be MOEPAGE_BUDGET_AUTO. Exactly one of budget_bytes and budget_percent may be set; with neither, the pool
 * configs say what is wanted and the budget is their sum. */
typedef struct mp_engine_settings {
    uint64_t budget_bytes;
    double budget_percent;
    const char *device_name;
    uint64_t extra_workspace_bytes, extra_arena_bytes;
    uint32_t sessions; /* that share the expert pool: 1 or more */
    uint32_t dtype;
    void *stream;
    moepage_model *model; /* the caller's, or NULL */
    moepage_device_config device;
    moepage_expert_pool_config experts;
    moepage_kv_pool_config kv;
    moepage_session_config session;
    moepage_predictor_config predictor;
    bool has_kv, has_predictor;
    char *text; /* copy of the options that names above point into */
} mp_engine_settings;

/* Fills *out from the config (NULL: all defaults) and the text (NULL: none), which is read last.
 * Refuses what contradicts itself. *out is safe to free after a failure, too. */
moepage_status mp_engine_settings_read(const moepage_engine_config *config, const char *options,
                                       mp_engine_settings *out);
void mp_engine_settings_free(mp_engine_settings *settings);

/* Reads "key=value key=value ..." over *settings; settings->text is set. */
moepage_status mp_engine_options_read(const char *options, mp_engine_settings *settings);

/* Divides the budget for the model: sets the device's budget_bytes and workspace_bytes, and the
 * expert slots that a percentage means. BUDGET, naming what would be needed, if it is too small. */
moepage_status mp_engine_divide(const moepage_model *model, mp_engine_settings *settings);

#endif
