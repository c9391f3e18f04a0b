/* Views: what is written to the arena shows at the addresses where it is mapped a second time, and
 * nothing else does. */
#include <stdlib.h>
#include <string.h>

#include "rig.h"

enum { PAGES = 12, PLACES = 7, NOWHERE = UINT32_MAX };

/* An arena whose first PAGES granules are each full of a number of its own, and a range for PLACES
 * of them. */
typedef struct views {
    rig r;
    uint64_t granule;
    unsigned char *arena, *base;
    uint32_t number[PAGES];
    uint32_t shown[PLACES]; /* the granule of the arena */
} views;

static void open_views(views *v)
{
    const uint64_t arena_bytes = 64u << 20;
    void *memory = NULL;
    memset(v, 0, sizeof *v);
    rig_open(&v->r, 2, 0);
    v->arena = rig_alloc(&v->r, MP_MEMORY_ARENA, arena_bytes);
    v->granule = v->r.device->view_bytes;
    if (!v->granule) {
        rig_close(&v->r);
        print_message("skipped: %s has no views\n", subject->name);
        skip();
    }
    assert_int_equal(v->granule & (v->granule - 1), 0);
    assert_true(PAGES * v->granule <= arena_bytes);
    MUST(v->r.ops->view_reserve(v->r.device, PLACES * v->granule, &memory));
    assert_int_equal((uintptr_t)memory % v->granule, 0);
    v->base = memory;
    memset(v->shown, 0xff, sizeof v->shown);
}

static unsigned char *place(const views *v, uint32_t at)
{
    return v->base + at * v->granule;
}

/* Through the arena's own addresses. */
static void write_granule(views *v, uint32_t page, uint32_t number)
{
    uint32_t *words = malloc(v->granule);
    assert_non_null(words);
    for (uint64_t i = 0; i < v->granule / 4; i++)
        words[i] = number * 100003u + (uint32_t)i;
    rig_write(&v->r, v->arena + page * v->granule, words, v->granule);
    v->number[page] = number;
    free(words);
}

static void check_place(views *v, uint32_t at)
{
    uint32_t *words = malloc(v->granule), number = v->number[v->shown[at]];
    assert_non_null(words);
    rig_read(&v->r, place(v, at), words, v->granule);
    for (uint64_t i = 0; i < v->granule / 4; i++) {
        if (words[i] != number * 100003u + (uint32_t)i)
            fail_msg("place %u, word %llu: not granule %u's", at, (unsigned long long)i,
                     v->shown[at]);
    }
    free(words);
}

static void show(views *v, uint32_t at, uint32_t page, uint32_t n)
{
    MUST(v->r.ops->view_map(v->r.device, place(v, at), page * v->granule, n * v->granule));
    for (uint32_t i = 0; i < n; i++)
        v->shown[at + i] = page + i;
}

static void hide(views *v, uint32_t at, uint32_t n)
{
    v->r.ops->view_unmap(v->r.device, place(v, at), n * v->granule);
    for (uint32_t i = 0; i < n; i++)
        v->shown[at + i] = NOWHERE;
}

static void close_views(views *v)
{
    v->r.ops->view_release(v->r.device, v->base, PLACES * v->granule);
    rig_close(&v->r);
}

void test_views_show_the_arena(void **state)
{
    (void)state;
    NEEDS(holds_bytes);
    views v;
    open_views(&v);
    for (uint32_t page = 0; page < PAGES; page++)
        write_granule(&v, page, page + 1);
    show(&v, 0, 3, 1);
    show(&v, 1, 3, 1); /* the same twice */
    show(&v, 3, 8, 4); /* several at once, with a gap before */
    for (uint32_t at = 0; at < PLACES; at++) {
        if (v.shown[at] != NOWHERE)
            check_place(&v, at);
    }
    write_granule(&v, 3, 77); /* while it is shown */
    write_granule(&v, 9, 78);
    for (uint32_t at = 0; at < PLACES; at++) {
        if (v.shown[at] != NOWHERE)
            check_place(&v, at);
    }
    hide(&v, 0, 1);
    check_place(&v, 1);
    hide(&v, 1, 1);
    hide(&v, 3, 4);
    close_views(&v);
}

/* Granules come and go at random; what stays is left alone. */
void test_views_move(void **state)
{
    (void)state;
    NEEDS(holds_bytes);
    views v;
    uint64_t seed = 61;
    open_views(&v);
    for (uint32_t page = 0; page < PAGES; page++)
        write_granule(&v, page, page + 1);
    for (uint32_t round = 0; round < rounds(40); round++) {
        uint32_t at = random_below(&seed, PLACES), page = random_below(&seed, PAGES);
        if (v.shown[at] != NOWHERE)
            hide(&v, at, 1);
        else
            show(&v, at, page, 1);
        if (round % 8 == 7)
            write_granule(&v, page, 1000 + round);
        for (uint32_t i = 0; i < PLACES && round % 4 == 3; i++) {
            if (v.shown[i] != NOWHERE)
                check_place(&v, i);
        }
    }
    for (uint32_t at = 0; at < PLACES; at++) {
        if (v.shown[at] != NOWHERE)
            hide(&v, at, 1);
    }
    close_views(&v);
}

/* Two granules that lie apart in the arena are one range to a kernel. */
void test_views_are_read_by_kernels(void **state)
{
    (void)state;
    NEEDS(holds_bytes);
    enum { FLOATS = 256 };
    float numbers[2 * FLOATS], got[2 * FLOATS];
    views v;
    open_views(&v);
    mp_stream *stream = rig_stream(&v.r, MP_STREAM_COMPUTE);
    const uint64_t half = sizeof numbers / 2;
    for (uint32_t i = 0; i < 2 * FLOATS; i++)
        numbers[i] = (float)i / 4;
    float *out = rig_alloc(&v.r, MP_MEMORY_WORKSPACE, sizeof numbers);
    rig_write(&v.r, v.arena + 8 * v.granule - half, numbers, half);
    rig_write(&v.r, v.arena + 2 * v.granule, numbers + FLOATS, half);
    show(&v, 4, 7, 1);
    show(&v, 5, 2, 1);
    mp_tick tick = rig_launch_copy(&v.r, stream, out, place(&v, 5) - half, 2 * FLOATS);
    MUST(v.r.ops->sync(stream, tick));
    rig_read(&v.r, out, got, sizeof got);
    assert_memory_equal(got, numbers, sizeof numbers);
    hide(&v, 4, 1);
    hide(&v, 5, 1);
    close_views(&v);
}
