/* The path, its caller, and what a session makes of the same steps. */
#include "path_rig.h"

#include <stdlib.h>
#include <string.h>

#include "arena/home.h"
#include "device_rig.h"
#include "gpu.h"
#include "testing.h"

#define IDS_BYTES (PATH_LAYERS * PATH_ROWS * sizeof(int32_t))
#define X_BYTES (PATH_Y * sizeof(float))
#define Y_BYTES (PATH_LAYERS * X_BYTES)

/* ---- steps ---- */

static void make_step(const bank_model *bank, uint64_t *random, uint32_t n_tokens, path_step *out)
{
    memset(out, 0, sizeof *out);
    out->n_tokens = n_tokens;
    for (uint32_t i = 0; i < n_tokens * PATH_HIDDEN; i++)
        out->x[i] = (float)((int)bank_below(random, 20001) - 10000) / 7919.0f;
    for (uint32_t l = 0; l < PATH_LAYERS; l++)
        bank_model_route(bank, random, n_tokens, PATH_TOP_K, true, out->ids[l], out->weights[l]);
}

uint32_t path_step_distinct(const path_step *step, uint32_t layer, bool seen[PATH_EXPERTS])
{
    uint32_t n = 0;
    memset(seen, 0, PATH_EXPERTS * sizeof *seen);
    for (uint32_t r = 0; r < step->n_tokens * PATH_TOP_K; r++) {
        int32_t id = step->ids[layer][r];
        n += id >= 0 && !seen[id];
        if (id >= 0)
            seen[id] = true;
    }
    return n;
}

/* ---- the caller ---- */

void path_caller_open(path_caller *caller, moepage_device *home)
{
    mp_cuda *cuda = mp_cuda_of(home->device);
    *caller = (path_caller){.home = home, .driver = cuda->driver};
    assert_int_equal(mp_cuda_enter(cuda), MOEPAGE_OK);
    assert_int_equal(caller->driver->stream_create(&caller->stream, MP_CU_STREAM_NON_BLOCKING, 0),
                     MP_CU_SUCCESS);
    mp_cuda_leave(cuda);
    caller->ids = device_rig_alloc(home, IDS_BYTES);
    caller->weights = device_rig_alloc(home, IDS_BYTES);
    caller->x = device_rig_alloc(home, X_BYTES);
    caller->y = device_rig_alloc(home, Y_BYTES);
}

void path_caller_sync(path_caller *caller)
{
    mp_cuda *cuda = mp_cuda_of(caller->home->device);
    assert_int_equal(mp_cuda_enter(cuda), MOEPAGE_OK);
    assert_int_equal(caller->driver->stream_sync(caller->stream), MP_CU_SUCCESS);
    mp_cuda_leave(cuda);
}

void path_caller_close(path_caller *caller)
{
    mp_cuda *cuda = mp_cuda_of(caller->home->device);
    assert_int_equal(mp_cuda_enter(cuda), MOEPAGE_OK);
    assert_int_equal(caller->driver->stream_destroy(caller->stream), MP_CU_SUCCESS);
    mp_cuda_leave(cuda);
    device_rig_free(caller->home, caller->ids, IDS_BYTES);
    device_rig_free(caller->home, caller->weights, IDS_BYTES);
    device_rig_free(caller->home, caller->x, X_BYTES);
    device_rig_free(caller->home, caller->y, Y_BYTES);
}

/* The simulation's memory is the test's, and may be touched while streams are held still. */
static void put(path_caller *caller, void *to, const void *from, uint64_t bytes)
{
    if (device_rig_is_simulated())
        memcpy(to, from, bytes);
    else
        device_rig_write(caller->home, to, from, bytes);
}

void path_caller_write(path_caller *caller, const path_step *step)
{
    static const float garbage[PATH_LAYERS * PATH_Y] = {[0 ... PATH_LAYERS * PATH_Y - 1] = 5e33f};
    put(caller, caller->ids, step->ids, IDS_BYTES);
    put(caller, caller->weights, step->weights, IDS_BYTES);
    put(caller, caller->x, step->x, X_BYTES);
    put(caller, caller->y, garbage, Y_BYTES);
}

void path_caller_read(path_caller *caller, float (*y)[PATH_Y])
{
    if (device_rig_is_simulated())
        memcpy(y, caller->y, Y_BYTES);
    else
        device_rig_read(caller->home, caller->y, y, Y_BYTES);
}

/* ---- what is right ---- */

static void session_step(path_caller *caller, moepage_session *session, path_step *step)
{
    path_caller_write(caller, step);
    pool_rig_begin(session, step->n_tokens, MOEPAGE_PHASE_DECODE);
    for (uint32_t l = 0; l < PATH_LAYERS; l++) {
        moepage_routing routing = {.struct_size = sizeof routing, .top_k = PATH_TOP_K};
        routing.ids = step->ids[l];
        routing.weights = step->weights[l];
        moepage_ffn ffn = {.struct_size = sizeof ffn, .dtype = MOEPAGE_DTYPE_F32};
        ffn.x = caller->x;
        ffn.y = caller->y + l * PATH_Y;
        ffn.stream = caller->stream;
        assert_int_equal(moepage_session_route(session, l, &routing, NULL), MOEPAGE_OK);
        assert_int_equal(moepage_session_ffn(session, l, &ffn), MOEPAGE_OK);
        assert_int_equal(moepage_session_retire(session, l), MOEPAGE_OK);
    }
    assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
    path_caller_sync(caller);
    path_caller_read(caller, step->y);
}

/* On a device of its own, with every expert resident. */
static void find_right_results(path_rig *rig, const path_rig_config *config)
{
    pool_rig pool;
    path_caller caller;
    pool_rig_open(&pool, &rig->bank, &(pool_rig_config){.slot_form = config->pool.slot_form});
    path_caller_open(&caller, pool.devices[0]);
    moepage_session *session =
        pool_rig_session(&pool, &(moepage_session_config){.max_tokens = PATH_TOKENS,
                                                          .math = config->math});
    for (uint32_t i = 0; i < rig->n_steps; i++)
        session_step(&caller, session, &rig->steps[i]);
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    path_caller_close(&caller);
    pool_rig_close(&pool);
}

/* ---- the rig ---- */

static void make_steps(path_rig *rig, uint32_t most_tokens)
{
    uint64_t random = 99;
    rig->steps = calloc(rig->n_steps, sizeof *rig->steps);
    assert_non_null(rig->steps);
    for (uint32_t i = 0; i < rig->n_steps; i++)
        make_step(&rig->bank, &random, 1 + bank_below(&random, most_tokens), &rig->steps[i]);
}

moepage_cuda_path *path_rig_create(path_rig *rig, uint32_t slots)
{
    moepage_cuda_path *path = NULL;
    moepage_cuda_path_config config = {.struct_size = sizeof config,
                                       .slots = slots,
                                       .timeout_ms = PATH_TIMEOUT_MS};
    if (moepage_cuda_path_create(rig->session, &config, &path))
        fail_msg("%s", moepage_last_error());
    return path;
}

void path_rig_open(path_rig *rig, const path_rig_config *config, uint32_t n_steps)
{
    bank_shape shape = {.layers = PATH_LAYERS,
                        .experts = PATH_EXPERTS,
                        .top_k = PATH_TOP_K,
                        .hidden = PATH_HIDDEN,
                        .intermediate = PATH_INTERMEDIATE,
                        .dtype = config->dtype ? config->dtype : MOEPAGE_DTYPE_F32,
                        .bias = true,
                        .callback = config->callback,
                        .clamped = config->clamped,
                        .pack_forms = config->pack_forms,
                        .seed = 7};
    moepage_session_config session = {.math = config->math};
    session.max_tokens = config->max_tokens ? config->max_tokens : PATH_TOKENS;
    *rig = (path_rig){.n_steps = n_steps};
    bank_model_open(&rig->bank, &shape);
    make_steps(rig, session.max_tokens);
    find_right_results(rig, config);
    pool_rig_open(&rig->pool, &rig->bank, &config->pool);
    path_caller_open(&rig->caller, rig->pool.devices[0]);
    rig->session = pool_rig_session(&rig->pool, &session);
    rig->path = path_rig_create(rig, config->slots);
}

void path_rig_close(path_rig *rig)
{
    path_caller_sync(&rig->caller);
    assert_int_equal(moepage_cuda_path_destroy(rig->path), MOEPAGE_OK);
    assert_int_equal(moepage_session_destroy(rig->session), MOEPAGE_OK);
    path_caller_close(&rig->caller);
    pool_rig_close(&rig->pool);
    bank_model_close(&rig->bank);
    free(rig->steps);
}

moepage_status path_rig_try(path_rig *rig, uint32_t n_tokens)
{
    const path_caller *caller = &rig->caller;
    moepage_status status = MOEPAGE_OK;
    for (uint32_t l = 0; l < PATH_LAYERS && !status; l++) {
        moepage_cuda_layer layer = {
            .struct_size = sizeof layer,
            .layer = l,
            .n_tokens = n_tokens,
            .top_k = PATH_TOP_K,
            .dtype = MOEPAGE_DTYPE_F32,
            .ids = caller->ids + l * PATH_ROWS,
            .weights = caller->weights + l * PATH_ROWS,
            .x = caller->x,
            .y = caller->y + l * PATH_Y,
        };
        status = moepage_cuda_path_layer(rig->path, &layer, caller->stream);
    }
    return status;
}

void path_rig_submit(path_rig *rig, uint32_t n_tokens)
{
    if (path_rig_try(rig, n_tokens))
        fail_msg("%s", moepage_last_error());
}

void path_rig_expect(path_rig *rig, const path_step *step, uint32_t right)
{
    float y[PATH_LAYERS][PATH_Y];
    path_caller_read(&rig->caller, y);
    for (uint32_t l = 0; l < PATH_LAYERS; l++)
        for (uint32_t i = 0; i < step->n_tokens * PATH_HIDDEN; i++) {
            bool good = l < right ? memcmp(&y[l][i], &step->y[l][i], sizeof(float)) == 0
                                  : y[l][i] != y[l][i];
            if (!good)
                fail_msg("layer %u, element %u is %g, the session's is %g", l, i, (double)y[l][i],
                         (double)step->y[l][i]);
        }
}

void path_rig_run(path_rig *rig, const path_step *step, uint32_t right)
{
    path_caller_write(&rig->caller, step);
    path_rig_submit(rig, step->n_tokens);
    path_caller_sync(&rig->caller);
    path_rig_expect(rig, step, right);
}

moepage_cuda_path_stats path_rig_stats(path_rig *rig)
{
    moepage_cuda_path_stats stats = {.struct_size = sizeof stats};
    moepage_status status = moepage_cuda_path_check(rig->path, &stats);
    assert_int_equal(stats.status, status);
    return stats;
}
