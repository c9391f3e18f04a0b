/* The simulated machine: opening and closing it, counting and failing calls, GPUs and contexts. */
#include "sim_cuda.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim_inside.h"
#include "testing.h"

sim_machine sim;
pthread_mutex_t sim_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t sim_progress = PTHREAD_COND_INITIALIZER;

/* ---- What each call is ------------------------------------------------------------------ */

enum { NEEDS_INIT = 1, NEEDS_CONTEXT = 2, MEMORY = 4, UNSAFE = 8, ALWAYS = 16 };

/* The rest take a context and may be called during a capture. ALWAYS: needs nothing at all. */
static const uint8_t traits[SIM_CALLS] = {
    [SIM_init] = ALWAYS,
    [SIM_driver_version] = ALWAYS,
    [SIM_error_name] = ALWAYS,
    [SIM_error_string] = ALWAYS,
    [SIM_device_count] = NEEDS_INIT,
    [SIM_device_get] = NEEDS_INIT,
    [SIM_device_name] = NEEDS_INIT,
    [SIM_device_attribute] = NEEDS_INIT,
    [SIM_device_bytes] = NEEDS_INIT,
    [SIM_context_retain] = NEEDS_INIT,
    [SIM_context_release] = NEEDS_INIT,
    [SIM_context_push] = NEEDS_INIT,
    [SIM_context_pop] = NEEDS_INIT,
    [SIM_can_access_peer] = NEEDS_INIT,
    [SIM_capture_mode] = NEEDS_INIT,
    [SIM_mem_info] = NEEDS_CONTEXT | MEMORY,
    [SIM_mem_alloc] = NEEDS_CONTEXT | MEMORY | UNSAFE,
    [SIM_mem_free] = NEEDS_CONTEXT | MEMORY | UNSAFE,
    [SIM_address_reserve] = NEEDS_CONTEXT | MEMORY | UNSAFE,
    [SIM_address_free] = NEEDS_CONTEXT | MEMORY | UNSAFE,
    [SIM_mem_create] = NEEDS_CONTEXT | MEMORY | UNSAFE,
    [SIM_mem_release] = NEEDS_CONTEXT | MEMORY | UNSAFE,
    [SIM_mem_map] = NEEDS_CONTEXT | MEMORY | UNSAFE,
    [SIM_mem_unmap] = NEEDS_CONTEXT | MEMORY | UNSAFE,
    [SIM_mem_set_access] = NEEDS_CONTEXT | MEMORY | UNSAFE,
    [SIM_host_alloc] = NEEDS_CONTEXT | MEMORY | UNSAFE,
    [SIM_host_free] = NEEDS_CONTEXT | MEMORY | UNSAFE,
    [SIM_host_register] = NEEDS_CONTEXT | MEMORY | UNSAFE,
    [SIM_host_unregister] = NEEDS_CONTEXT | MEMORY | UNSAFE,
    [SIM_stream_query] = NEEDS_CONTEXT | UNSAFE,
    [SIM_stream_sync] = NEEDS_CONTEXT | UNSAFE,
    [SIM_event_query] = NEEDS_CONTEXT | UNSAFE,
    [SIM_event_sync] = NEEDS_CONTEXT | UNSAFE,
    [SIM_module_load] = NEEDS_CONTEXT | UNSAFE,
    [SIM_module_unload] = NEEDS_CONTEXT | UNSAFE,
};

static unsigned traits_of(sim_cuda_call call)
{
    return traits[call] ? traits[call] : NEEDS_CONTEXT;
}

const char *sim_cuda_call_name(sim_cuda_call call)
{
    static const char *const names[SIM_CALLS] = {
#define NAME(field, symbol, parameters) #field,
        MP_CU_FUNCTIONS(NAME)
#undef NAME
#define NAME(field, symbol, version, parameters) #field,
            MP_CU_OPTIONAL(NAME)
#undef NAME
    };
    return names[call];
}

/* ---- Threads: contexts, capture modes --------------------------------------------------- */

#define MAX_PUSHED 64

/* What a thread has of its own. */
static _Thread_local struct {
    uint64_t generation;
    uint32_t n;
    mp_cu_context contexts[MAX_PUSHED];
    sim_capture_mode mode;
} pushed;

static void pushed_refresh(void)
{
    if (pushed.generation != sim.generation) {
        pushed.generation = sim.generation;
        pushed.n = 0;
        pushed.mode = SIM_CAPTURE_GLOBAL;
    }
}

sim_capture_mode sim_thread_mode(void)
{
    pushed_refresh();
    return pushed.mode;
}

mp_cu_result sim_do_capture_mode(int *mode)
{
    SIM_BEGIN(SIM_capture_mode);
    sim_capture_mode old = sim_thread_mode();
    if (*mode < SIM_CAPTURE_GLOBAL || *mode > SIM_CAPTURE_RELAXED)
        return MP_CU_INVALID_VALUE;
    pushed.mode = (sim_capture_mode)*mode;
    sim.modes -= old != SIM_CAPTURE_GLOBAL;
    sim.modes += pushed.mode != SIM_CAPTURE_GLOBAL;
    *mode = (int)old;
    return MP_CU_SUCCESS;
}

mp_cu_context sim_current(void)
{
    pushed_refresh();
    return pushed.n ? pushed.contexts[pushed.n - 1] : NULL;
}

mp_cu_result sim_do_context_push(mp_cu_context context)
{
    SIM_BEGIN(SIM_context_push);
    pushed_refresh();
    if (!context || !context->retained || pushed.n == MAX_PUSHED) {
        sim_misuse("push of a context that is not retained, or of too many");
        return MP_CU_INVALID_CONTEXT;
    }
    pushed.contexts[pushed.n++] = context;
    sim.pushed++;
    return MP_CU_SUCCESS;
}

mp_cu_result sim_do_context_pop(mp_cu_context *out)
{
    SIM_BEGIN(SIM_context_pop);
    pushed_refresh();
    if (!pushed.n) {
        sim_misuse("pop where no context is pushed");
        return MP_CU_INVALID_CONTEXT;
    }
    mp_cu_context context = pushed.contexts[--pushed.n];
    if (out)
        *out = context;
    sim.pushed--;
    return MP_CU_SUCCESS;
}

/* ---- The beginning of every call ------------------------------------------------------- */

static bool sticks(mp_cu_result result)
{
    return result == MP_CU_ILLEGAL_ADDRESS || result == MP_CU_LAUNCH_FAILED;
}

static mp_cu_result injected(sim_fault *fault)
{
    if (!fault->countdown)
        return MP_CU_SUCCESS;
    if (fault->countdown > 1) {
        fault->countdown--;
        return MP_CU_SUCCESS;
    }
    if (!fault->for_ever)
        fault->countdown = 0;
    return fault->result;
}

mp_cu_result sim_check(sim_cuda_call call)
{
    const unsigned which = traits_of(call);
    if (!sim.open)
        return MP_CU_DEINITIALIZED;
    sim.stats.calls[call]++;
    sim.stats.memory_calls += !!(which & MEMORY);
    if (!(which & ALWAYS) && !sim.initialized)
        return MP_CU_NOT_INITIALIZED;
    mp_cu_context context = sim_current();
    mp_cu_result result = injected(&sim.faults[call]);
    if (!result && which & NEEDS_CONTEXT)
        result = injected(&sim.faults[SIM_CALLS]);
    if (context && sticks(result))
        sim_poison(context, result);
    if (result || !(which & NEEDS_CONTEXT))
        return result;
    if (!context || !context->retained)
        return MP_CU_INVALID_CONTEXT;
    if (context->sticky)
        return context->sticky;
    return which & UNSAFE ? sim_capture_refuse() : MP_CU_SUCCESS;
}

void sim_poison(mp_cu_context context, mp_cu_result result)
{
    if (!context->sticky)
        context->sticky = result;
    sim_wake_all();
}

void sim_misuse(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("simulated driver: ", stderr);
    vfprintf(stderr, format, args);
    fputs("\n", stderr);
    va_end(args);
    sim.misuse++;
}

uint64_t sim_random(uint64_t *state)
{
    uint64_t x = *state += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

void *sim_new(size_t bytes)
{
    void *memory = calloc(1, bytes ? bytes : 1);
    if (!memory)
        abort();
    return memory;
}

bool sim_lies_within(uint64_t at, uint64_t bytes, uint64_t outer, uint64_t outer_bytes)
{
    return at >= outer && bytes <= outer_bytes && at - outer <= outer_bytes - bytes;
}

/* ---- Open and close --------------------------------------------------------------------- */

static void fill_table(mp_cuda_driver *table)
{
#define FILL(field, symbol, parameters) table->field = sim_do_##field;
    MP_CU_FUNCTIONS(FILL)
#undef FILL
    table->function_load = sim.config.driver_version >= 12040 ? sim_do_function_load : NULL;
    table->copy_batch = sim.config.copy_batch ? sim_do_copy_batch : NULL;
}

static void apply_defaults(sim_cuda_config *config)
{
    if (!config->n_gpus)
        config->n_gpus = 1;
    if (config->n_gpus == SIM_NO_GPU)
        config->n_gpus = 0;
    if (!config->driver_version)
        config->driver_version = 13000;
    for (uint32_t i = 0; i < config->n_gpus; i++) {
        sim_cuda_gpu *gpu = &config->gpus[i];
        gpu->name = gpu->name ? gpu->name : "Simulated GPU";
        gpu->bytes = gpu->bytes ? gpu->bytes : 1ull << 30;
        gpu->multiprocessors = gpu->multiprocessors ? gpu->multiprocessors : 4;
        gpu->major = gpu->major ? gpu->major : 9;
        gpu->shared_optin = gpu->shared_optin ? gpu->shared_optin : 227 << 10;
    }
}

const mp_cuda_driver *sim_cuda_open(const sim_cuda_config *config)
{
    pthread_mutex_lock(&sim_lock);
    bool twice =
        sim.open || (config && config->n_gpus > SIM_MAX_GPUS && config->n_gpus != SIM_NO_GPU);
    uint64_t generation = sim.generation + 1;
    if (!twice) {
        memset(&sim, 0, sizeof sim);
        sim.open = true;
        sim.generation = generation;
        if (config)
            sim.config = *config;
        apply_defaults(&sim.config);
        sim.random = sim.config.seed;
        sim.last_stream = &sim.streams;
        sim.file = -1;
        for (int i = 0; i < SIM_MAX_GPUS; i++)
            sim.contexts[i].gpu = i;
        fill_table(&sim.table);
    }
    pthread_mutex_unlock(&sim_lock);
    if (twice)
        fail_msg("a simulated machine is open, or one of too many GPUs is asked for");
    return &sim.table;
}

/* "2 streams" into a sentence that grows. */
static void say(char *text, size_t bytes, uint64_t n, const char *what)
{
    size_t at = strlen(text);
    if (n)
        snprintf(text + at, bytes - at, "%s%llu %s", at ? ", " : "", (unsigned long long)n, what);
}

static void describe_left(char *text, size_t bytes)
{
    uint64_t ranges[SIM_RANGE_FREED + 1] = {0}, contexts = 0, streams = 0, events = 0, modules = 0;
    uint64_t handles = 0, mappings = 0, captures = 0;
    for (uint32_t i = 0; i < SIM_MAX_GPUS; i++)
        contexts += sim.contexts[i].retained;
    for (mp_cu_stream s = sim.streams; s; s = s->next)
        streams += !s->destroyed && !s->legacy;
    for (mp_cu_event e = sim.events; e; e = e->next)
        events++;
    for (mp_cu_module m = sim.modules; m; m = m->next)
        modules++;
    for (sim_range *r = sim.ranges; r; r = r->next)
        ranges[r->kind]++;
    for (sim_handle *h = sim.handles; h; h = h->next)
        handles += !h->released;
    for (sim_mapping *m = sim.mappings; m; m = m->next)
        mappings++;
    for (sim_capture *c = sim.captures; c; c = c->next)
        captures++;
    text[0] = 0;
    say(text, bytes, sim.pushed, "pushed contexts");
    say(text, bytes, contexts, "retained contexts");
    say(text, bytes, sim.modes, "threads with a capture mode of their own");
    say(text, bytes, streams, "streams");
    say(text, bytes, events, "events");
    say(text, bytes, modules, "modules");
    say(text, bytes, captures, "captures");
    say(text, bytes, sim.n_graphs, "graphs");
    say(text, bytes, ranges[SIM_RANGE_DEVICE], "device allocations");
    say(text, bytes, ranges[SIM_RANGE_RESERVED], "address reservations");
    say(text, bytes, handles, "memory handles");
    say(text, bytes, mappings, "mappings");
    say(text, bytes, ranges[SIM_RANGE_HOST], "host allocations");
    say(text, bytes, ranges[SIM_RANGE_REGISTERED], "registrations");
    say(text, bytes, sim.misuse, "misuses");
}

const char *sim_cuda_left(void)
{
    static char text[512];
    SIM_LOCKED();
    describe_left(text, sizeof text);
    return text;
}

void sim_cuda_close(void)
{
    char text[512];
    pthread_mutex_lock(&sim_lock);
    sim.closing = true;
    for (mp_cu_stream s = sim.streams; s; s = s->next)
        pthread_cond_broadcast(&s->wake);
    while (sim.threads)
        pthread_cond_wait(&sim_progress, &sim_lock);
    describe_left(text, sizeof text);
    sim_captures_drop();
    sim_streams_drop(-1);
    sim_streams_free();
    sim_modules_drop(-1);
    sim_virtual_drop(-1);
    sim_memory_drop(-1);
    if (sim.file >= 0)
        close(sim.file);
    sim.open = false;
    sim.generation++;
    pthread_mutex_unlock(&sim_lock);
    if (text[0])
        fail_msg("left on the simulated machine: %s", text);
}

/* ---- For tests -------------------------------------------------------------------------- */

uint32_t sim_cuda_take_misuse(void)
{
    SIM_LOCKED();
    uint32_t misuse = sim.misuse;
    sim.misuse = 0;
    return misuse;
}

void sim_cuda_complain(const char *text)
{
    SIM_LOCKED();
    if (sim.open)
        sim_misuse("%s", text);
}

static void set_fault(uint32_t which, uint64_t nth, mp_cu_result result, bool for_ever)
{
    SIM_LOCKED();
    sim.faults[which] = (sim_fault){nth, result, for_ever};
}

void sim_cuda_fail(sim_cuda_call call, uint64_t nth, mp_cu_result result, bool for_ever)
{
    set_fault(call, nth, result, for_ever);
}

void sim_cuda_fail_any(uint64_t nth, mp_cu_result result, bool for_ever)
{
    set_fault(SIM_CALLS, nth, result, for_ever);
}

void sim_cuda_fail_none(void)
{
    SIM_LOCKED();
    memset(sim.faults, 0, sizeof sim.faults);
}

void sim_cuda_break(uint32_t gpu, mp_cu_result result)
{
    SIM_LOCKED();
    sim_poison(&sim.contexts[gpu], result);
}

sim_cuda_stats sim_cuda_get_stats(void)
{
    SIM_LOCKED();
    sim_cuda_stats stats = sim.stats;
    for (int i = 0; i < SIM_MAX_GPUS; i++)
        stats.allocated += sim.used[i];
    return stats;
}
