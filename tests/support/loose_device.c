/* The loose device: streams of operations, one event at a time. */
#include "loose_device.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bank_model.h"
#include "base/status.h"
#include "device/host_decode.h"

typedef enum op_kind { COPY, DECODE, MARK, WAIT, READ, WRITE } op_kind;

typedef struct span {
    const unsigned char *at;
    uint64_t bytes;
} span;

#define MAX_SPANS 96
#define MAX_STREAMS 64

/* An operation in a stream. Only WAIT takes no tick. */
typedef struct op {
    struct op *next;
    op_kind kind;
    mp_side side;
    bool begun;
    loose_stream *other; /* WAIT; NULL: over */
    mp_tick tick;        /* WAIT: of the other; else its own */
    mp_copy copy;        /* COPY; READ and WRITE: dst is what src is compared with, or goes to */
    mp_decode_job jobs[MAX_SPANS];
    mp_kernel_decode_args decode;
    span reads[MAX_SPANS], writes[MAX_SPANS];
    uint32_t n_reads, n_writes;
} op;

struct loose_stream {
    loose_device *loose;
    loose_stream *next;
    mp_side side;
    op *first, **last;
    mp_tick submitted, completed;
};

static loose_device *loose_of(mp_device *device)
{
    return (loose_device *)device;
}

static loose_stream *stream_of(const mp_stream *stream)
{
    return (loose_stream *)(uintptr_t)stream;
}

static void fail(loose_device *loose, const char *what, uint64_t a, uint64_t b)
{
    if (!*loose->failure)
        snprintf(loose->failure, sizeof loose->failure, "%s (%llu, %llu) at event %llu", what,
                 (unsigned long long)a, (unsigned long long)b, (unsigned long long)loose->events);
}

/* ---- watching ---- */

static bool overlap(span a, span b)
{
    return a.at < b.at + b.bytes && b.at < a.at + a.bytes;
}

static bool has_memory(const loose_device *loose, uint64_t at, uint64_t bytes)
{
    uint64_t part = loose->device.part_bytes;
    for (uint64_t i = at / part; bytes && i <= (at + bytes - 1) / part; i++)
        if (!loose->there[i])
            return false;
    return true;
}

/* What the sides own has memory. */
static void check_memory(loose_device *loose)
{
    const mp_arena *arena = &loose->home->arena;
    uint64_t experts = arena->claimed[MP_SIDE_EXPERTS], kv = arena->claimed[MP_SIDE_KV], n = 0;
    if (!has_memory(loose, 0, experts) || !has_memory(loose, arena->bytes - kv, kv))
        fail(loose, "a side owns bytes without memory", experts, kv);
    for (uint32_t i = 0; i < LOOSE_PARTS; i++)
        n += loose->there[i] ? loose->device.part_bytes : 0;
    if (n + atomic_load(&loose->home->workspace.limit) > atomic_load(&loose->home->ledger.limit))
        fail(loose, "memory past the budget", n, atomic_load(&loose->home->ledger.limit));
}

/* What lies in the arena lies in what the side owns of it. */
static void check_owned(loose_device *loose, mp_side side, span touched)
{
    const mp_arena *arena = &loose->home->arena;
    span all = {arena->base, arena->bytes};
    if (!overlap(touched, all))
        return;
    uint64_t own = arena->claimed[side], at = (uint64_t)(touched.at - arena->base);
    uint64_t from = side == MP_SIDE_EXPERTS ? 0 : arena->bytes - own;
    if (at < from || at + touched.bytes > from + own)
        fail(loose,
             side == MP_SIDE_EXPERTS ? "bytes touched that experts do not own"
                                     : "bytes touched that KV does not own",
             at, touched.bytes);
    else if (!has_memory(loose, at, touched.bytes))
        fail(loose, "bytes touched that have no memory", at, touched.bytes);
}

static void check_op(loose_device *loose, const op *o)
{
    for (uint32_t i = 0; i < o->n_reads; i++)
        check_owned(loose, o->side, o->reads[i]);
    for (uint32_t i = 0; i < o->n_writes; i++)
        check_owned(loose, o->side, o->writes[i]);
}

/* Does a write of `a` meet anything of `b`? */
static bool disturbs(const op *a, const op *b)
{
    for (uint32_t w = 0; w < a->n_writes; w++) {
        for (uint32_t i = 0; i < b->n_reads; i++)
            if (overlap(a->writes[w], b->reads[i]))
                return true;
        for (uint32_t i = 0; i < b->n_writes; i++)
            if (overlap(a->writes[w], b->writes[i]))
                return true;
    }
    return false;
}

static bool is_under_way(const loose_stream *stream)
{
    return stream->first && stream->first->begun;
}

static void check_alone(loose_device *loose, const op *o)
{
    bool others = false;
    for (const loose_stream *s = loose->streams; s; s = s->next) {
        if (!is_under_way(s) || s->first == o)
            continue;
        others = true;
        if (disturbs(o, s->first) || disturbs(s->first, o))
            fail(loose, "bytes written while they are in use by operations of kinds", o->kind,
                 s->first->kind);
    }
    loose->overlaps += others;
}

void loose_check(loose_device *loose)
{
    struct moepage_device *home = loose->home;
    uint64_t arena = home->arena.claimed[MP_SIDE_EXPERTS] + home->arena.claimed[MP_SIDE_KV];
    uint64_t used = atomic_load(&home->ledger.used);
    if (arena > home->arena.bytes)
        fail(loose, "the sides overlap", arena, home->arena.bytes);
    if (used != arena + atomic_load(&home->workspace.used))
        fail(loose, "the ledger is wrong", used, arena + atomic_load(&home->workspace.used));
    if (used > home->ledger.limit || atomic_load(&home->ledger.peak) > home->ledger.limit)
        fail(loose, "past the budget", used, atomic_load(&home->ledger.peak));
    check_memory(loose);
    for (const loose_stream *s = loose->streams; s; s = s->next)
        if (is_under_way(s))
            check_op(loose, s->first);
}

/* ---- doing ---- */

static void add(span *spans, uint32_t *n, const void *at, uint64_t bytes)
{
    assert(*n < MAX_SPANS);
    spans[(*n)++] = (span){at, bytes};
}

static void look(loose_device *loose, const op *o)
{
    if (o->kind == READ && memcmp(o->copy.src, o->copy.dst, o->copy.bytes) != 0)
        fail(loose, "wrong bytes read (side, bytes)", o->side, o->copy.bytes);
}

static void begin(loose_device *loose, op *o)
{
    o->begun = true;
    check_alone(loose, o);
    look(loose, o);
}

static void copy_now(const mp_copy *copy)
{
    moepage_status status = MOEPAGE_OK;
    if (copy->fill)
        status = copy->fill(copy, copy->dst);
    else
        memcpy(copy->dst, copy->src, copy->bytes);
    if (status)
        atomic_store(copy->result, status);
}

static void end(loose_device *loose, op *o)
{
    switch (o->kind) {
    case COPY: copy_now(&o->copy); break;
    case DECODE: mp_host_decode(mp_exph_decoder_best(), &o->decode, 0, 1); break;
    case WRITE: memcpy(o->copy.dst, o->copy.src, o->copy.bytes); break;
    default: look(loose, o); break;
    }
}

static void free_op(op *o)
{
    if (o->kind == READ)
        free(o->copy.dst);
    if (o->kind == WRITE)
        free((void *)(uintptr_t)o->copy.src);
    free(o);
}

static void pop(loose_stream *stream)
{
    op *o = stream->first;
    stream->first = o->next;
    if (!stream->first)
        stream->last = &stream->first;
    if (o->kind != WAIT)
        stream->completed = o->tick;
    free_op(o);
}

/* Waits that are over take no event. */
static void skip_waits(loose_stream *stream)
{
    while (stream->first && stream->first->kind == WAIT &&
           (!stream->first->other || stream->first->other->completed >= stream->first->tick))
        pop(stream);
}

static bool can_go_on(loose_stream *stream)
{
    skip_waits(stream);
    return stream->first && stream->first->kind != WAIT;
}

static void go_on(loose_stream *stream)
{
    loose_device *loose = stream->loose;
    op *o = stream->first;
    if (!o->begun && o->kind != MARK) {
        begin(loose, o);
        return;
    }
    end(loose, o);
    check_op(loose, o);
    pop(stream);
}

/* A task whose time has come and whose lock is free; n_tasks if there is none. */
static uint32_t due_task(const loose_device *loose)
{
    for (uint32_t i = 0; i < loose->n_tasks; i++) {
        const loose_task *due = &loose->tasks[i];
        if (due->stream && due->stream->completed < due->tick)
            continue;
        if (due->task->lock && pthread_mutex_trylock(due->task->lock))
            continue;
        if (due->task->lock)
            pthread_mutex_unlock(due->task->lock);
        return i;
    }
    return loose->n_tasks;
}

static void run_task(loose_device *loose, uint32_t i)
{
    mp_task *task = loose->tasks[i].task;
    loose->tasks[i] = loose->tasks[--loose->n_tasks];
    task->run(task);
}

static bool event(loose_device *loose)
{
    loose_stream *ready[MAX_STREAMS];
    uint32_t n = 0;
    for (loose_stream *s = loose->streams; s; s = s->next)
        if (can_go_on(s))
            ready[n++] = s;
    uint32_t task = due_task(loose), choices = n + (task < loose->n_tasks);
    if (choices == 0)
        return false;
    loose->events++;
    uint32_t choice = bank_below(&loose->random, choices);
    if (choice < n)
        go_on(ready[choice]);
    else
        run_task(loose, task);
    loose_check(loose);
    return true;
}

uint32_t loose_run(loose_device *loose, uint32_t n)
{
    uint32_t done = 0;
    while (done < n && event(loose))
        done++;
    return done;
}

void loose_seed(loose_device *loose, uint64_t seed)
{
    loose->random = seed;
}

/* ---- submitting ---- */

static op *submit(loose_stream *stream, op_kind what, mp_side side)
{
    op *o = calloc(1, sizeof *o);
    assert(o);
    o->kind = what;
    o->side = side;
    if (what != WAIT)
        o->tick = ++stream->submitted;
    *stream->last = o;
    stream->last = &o->next;
    return o;
}

void loose_read(mp_stream *stream, mp_side side, const void *at, const void *expected,
                uint64_t bytes)
{
    op *o = submit(stream_of(stream), READ, side);
    o->copy = (mp_copy){.dst = malloc(bytes), .src = at, .bytes = bytes};
    memcpy(o->copy.dst, expected, bytes);
    add(o->reads, &o->n_reads, at, bytes);
}

void loose_write(mp_stream *stream, mp_side side, void *at, const void *data, uint64_t bytes)
{
    op *o = submit(stream_of(stream), WRITE, side);
    void *own = malloc(bytes);
    memcpy(own, data, bytes);
    o->copy = (mp_copy){.dst = at, .src = own, .bytes = bytes};
    add(o->writes, &o->n_writes, at, bytes);
}

/* ---- the vtable ---- */

static moepage_status loose_copy(mp_stream *stream, const mp_copy *copies, uint32_t n, mp_tick *out)
{
    loose_stream *s = stream_of(stream);
    for (uint32_t i = 0; i < n; i++) {
        op *o = submit(s, COPY, s->side);
        o->copy = copies[i];
        if (!copies[i].fill)
            add(o->reads, &o->n_reads, copies[i].src, copies[i].bytes);
        add(o->writes, &o->n_writes, copies[i].dst, copies[i].bytes);
    }
    *out = s->submitted;
    return MOEPAGE_OK;
}

static moepage_status loose_launch(mp_stream *stream, mp_kernel kernel, const void *args,
                                   mp_tick *out)
{
    loose_stream *s = stream_of(stream);
    if (kernel != MP_KERNEL_DECODE)
        return mp_fail(MOEPAGE_E_UNSUPPORTED, "the loose device has no kernel %d", (int)kernel);
    op *o = submit(s, DECODE, s->side);
    o->decode = *(const mp_kernel_decode_args *)args;
    assert(o->decode.n_jobs <= MAX_SPANS);
    memcpy(o->jobs, o->decode.jobs, o->decode.n_jobs * sizeof *o->jobs);
    o->decode.jobs = o->jobs;
    for (uint32_t i = 0; i < o->decode.n_jobs; i++) {
        add(o->reads, &o->n_reads, o->jobs[i].src, o->jobs[i].src_bytes);
        uint64_t element = o->jobs[i].dtype == MOEPAGE_DTYPE_F32 ? 4 : 2;
        add(o->writes, &o->n_writes, o->jobs[i].dst, o->jobs[i].elements * element);
    }
    *out = s->submitted;
    return MOEPAGE_OK;
}

static moepage_status loose_wait(mp_stream *stream, mp_stream *other, mp_tick tick)
{
    assert(tick <= stream_of(other)->submitted);
    if (stream == other || stream_of(other)->completed >= tick)
        return MOEPAGE_OK;
    op *o = submit(stream_of(stream), WAIT, stream_of(stream)->side);
    o->other = stream_of(other);
    o->tick = tick;
    return MOEPAGE_OK;
}

static moepage_status loose_mark(mp_stream *stream, mp_tick *out)
{
    *out = submit(stream_of(stream), MARK, stream_of(stream)->side)->tick;
    return MOEPAGE_OK;
}

static moepage_status loose_enter(mp_stream *stream, void *native)
{
    return native ? loose_wait(stream, native, stream_of(native)->submitted) : MOEPAGE_OK;
}

static moepage_status loose_follow(void *native, mp_stream *stream, mp_tick tick)
{
    return native ? loose_wait(native, stream, tick) : MOEPAGE_OK;
}

static mp_tick loose_completed(const mp_stream *stream)
{
    return stream_of(stream)->completed;
}

static moepage_status loose_sync(mp_stream *stream, mp_tick tick)
{
    loose_stream *s = stream_of(stream);
    assert(tick <= s->submitted);
    while (s->completed < tick)
        if (!event(s->loose)) {
            fail(s->loose, "nothing can go on, and somebody waits (tick, completed)", tick,
                 s->completed);
            return mp_fail(MOEPAGE_E_DEVICE, "the loose device stands still");
        }
    return MOEPAGE_OK;
}

/* Fills run with their transfers. */
static moepage_status loose_settle(mp_stream *stream, mp_tick tick)
{
    mp_tick fill = 0;
    for (const op *o = stream_of(stream)->first; o; o = o->next)
        if (o->kind == COPY && o->copy.fill && o->tick <= tick)
            fill = o->tick;
    return fill ? loose_sync(stream, fill) : MOEPAGE_OK;
}

static void loose_post(mp_device *device, mp_stream *stream, mp_tick tick, mp_task *task)
{
    loose_device *loose = loose_of(device);
    assert(loose->n_tasks < LOOSE_TASKS);
    loose->tasks[loose->n_tasks++] = (loose_task){task, stream ? stream_of(stream) : NULL, tick};
}

static uint64_t loose_now_ns(mp_device *device)
{
    return loose_of(device)->events * 100;
}

static moepage_status loose_stream_create(mp_device *device, mp_stream_class cls, mp_stream **out)
{
    (void)cls;
    loose_device *loose = loose_of(device);
    loose_stream *stream = calloc(1, sizeof *stream);
    assert(stream);
    *stream = (loose_stream){.loose = loose, .next = loose->streams, .side = loose->side};
    stream->last = &stream->first;
    loose->streams = stream;
    assert(++loose->n_streams <= MAX_STREAMS);
    *out = (mp_stream *)stream;
    return MOEPAGE_OK;
}

/* With what waits for it: its tasks run. */
static void loose_stream_destroy(mp_stream *stream)
{
    loose_stream *s = stream_of(stream);
    loose_device *loose = s->loose;
    (void)loose_sync(stream, s->submitted);
    for (loose_stream *other = loose->streams; other; other = other->next) {
        for (op *o = other->first; o; o = o->next)
            if (o->kind == WAIT && o->other == s)
                o->other = NULL;
        skip_waits(other);
    }
    for (uint32_t task = due_task(loose); task < loose->n_tasks; task = due_task(loose))
        run_task(loose, task);
    loose_stream **at = &loose->streams;
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    loose->n_streams--;
    assert(!s->first || *loose->failure);
    free(s);
}

static void take_memory(void **out, uint64_t bytes, size_t align)
{
    *out = aligned_alloc(align, (bytes + align - 1) / align * align);
    assert(*out);
    memset(*out, 0xa5, bytes);
}

static moepage_status loose_reserve(mp_device *device, uint64_t bytes, void **out)
{
    loose_device *loose = loose_of(device);
    take_memory(out, bytes, 4096);
    loose->arena = *out;
    loose->arena_bytes = bytes;
    assert(bytes <= LOOSE_PARTS * device->part_bytes && bytes % device->part_bytes == 0);
    return MOEPAGE_OK;
}

static moepage_status loose_back(mp_device *device, uint64_t offset, uint64_t bytes)
{
    loose_device *loose = loose_of(device);
    uint64_t part = device->part_bytes, n = bytes;
    if (loose->refusals && loose->refusals--)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "the loose device was told to refuse this");
    for (uint32_t i = 0; i < LOOSE_PARTS; i++)
        n += loose->there[i] ? part : 0;
    if (n > loose->most || offset % part || bytes % part || !bytes)
        fail(loose, "too much memory (bytes, most)", n, loose->most);
    for (uint64_t i = offset / part; i < (offset + bytes) / part; i++) {
        if (loose->there[i])
            fail(loose, "memory for what has it (part, offset)", i, offset);
        loose->there[i] = true;
        loose->backed++;
    }
    memset(loose->arena + offset, 0x5a, bytes);
    return MOEPAGE_OK;
}

static void loose_unback(mp_device *device, uint64_t offset, uint64_t bytes)
{
    loose_device *loose = loose_of(device);
    const mp_arena *arena = &loose->home->arena;
    uint64_t part = device->part_bytes;
    if (offset < arena->claimed[MP_SIDE_EXPERTS] ||
        offset + bytes > arena->bytes - arena->claimed[MP_SIDE_KV])
        fail(loose, "memory taken from a side", offset, bytes);
    for (uint64_t i = offset / part; i < (offset + bytes) / part; i++) {
        if (!loose->there[i])
            fail(loose, "memory taken that is not there (part, offset)", i, offset);
        loose->there[i] = false;
        loose->unbacked++;
    }
    memset(loose->arena + offset, 0xee, bytes);
}

static moepage_status loose_alloc(mp_device *device, mp_memory_kind kind, uint64_t bytes,
                                  void **out)
{
    if (kind != MP_MEMORY_ARENA) {
        take_memory(out, bytes, 64);
        return MOEPAGE_OK;
    }
    moepage_status status = loose_reserve(device, bytes, out);
    return status ? status : loose_back(device, 0, bytes);
}

static void loose_free(mp_device *device, mp_memory_kind kind, void *memory, uint64_t bytes)
{
    (void)device, (void)kind, (void)bytes;
    free(memory);
}

static void loose_device_close(mp_device *device)
{
    (void)device;
}

static const mp_device_ops loose_ops = {
    .version = MP_DEVICE_OPS_VERSION,
    .close = loose_device_close,
    .alloc = loose_alloc,
    .free = loose_free,
    .reserve = loose_reserve,
    .back = loose_back,
    .unback = loose_unback,
    .stream_create = loose_stream_create,
    .stream_destroy = loose_stream_destroy,
    .copy = loose_copy,
    .launch = loose_launch,
    .wait = loose_wait,
    .mark = loose_mark,
    .enter = loose_enter,
    .follow = loose_follow,
    .completed = loose_completed,
    .settle = loose_settle,
    .sync = loose_sync,
    .post = loose_post,
    .now_ns = loose_now_ns,
};

struct moepage_device *loose_open_parts(loose_device *loose, uint64_t max_arena_bytes,
                                        uint64_t part_bytes, uint64_t arena_bytes,
                                        uint64_t workspace_bytes)
{
    *loose = (loose_device){.most = arena_bytes,
                            .device = {.ops = &loose_ops,
                                       .arena_align = 4096,
                                       .part_bytes = part_bytes,
                                       .name = "loose",
                                       .kernels = "none",
                                       .threads = 1,
                                       .io_threads = 1}};
    moepage_device_config config = {.budget_bytes = arena_bytes + workspace_bytes,
                                    .max_budget_bytes = max_arena_bytes + workspace_bytes,
                                    .workspace_bytes = workspace_bytes};
    moepage_status status = mp_home_open(&loose->device, &config, &loose->home);
    assert(!status);
    (void)status;
    return loose->home;
}

struct moepage_device *loose_open(loose_device *loose, uint64_t arena_bytes,
                                  uint64_t workspace_bytes)
{
    return loose_open_parts(loose, arena_bytes, 4096, arena_bytes, workspace_bytes);
}

void loose_close(loose_device *loose)
{
    assert(!loose->streams && !loose->n_tasks);
    mp_home_close(loose->home);
}
