/* An arena in parts: memory comes and goes at its addresses part by part, and what stays keeps its bytes. */
#include <stdlib.h>
#include <string.h>

#include "rig.h"

enum { PARTS = 12, ARENA_BYTES = 64 << 20, NONE = 0 };

/* The number that a part is full of; NONE: it has no memory. */
typedef struct parts {
    rig r;
    uint64_t part;
    unsigned char *arena;
    uint32_t number[PARTS];
    uint32_t *words;
} parts;

static void open_parts(parts *p)
{
    void *base = NULL;
    memset(p, 0, sizeof *p);
    rig_open(&p->r, 2, 0);
    moepage_status status = p->r.ops->reserve ? p->r.ops->reserve(p->r.device, ARENA_BYTES, &base)
                                              : MOEPAGE_E_UNSUPPORTED;
    if (status == MOEPAGE_E_UNSUPPORTED) {
        rig_close(&p->r);
        print_message("skipped: %s has all of its arena at once\n", subject->name);
        skip();
    }
    must(status, "reserve");
    p->arena = base;
    p->part = p->r.device->part_bytes;
    assert_true(p->part > 0 && PARTS * p->part < ARENA_BYTES);
    p->words = malloc(p->part);
    assert_non_null(p->words);
}

static void close_parts(parts *p)
{
    p->r.ops->free(p->r.device, MP_MEMORY_ARENA, p->arena, ARENA_BYTES);
    assert_int_equal(p->r.device->part_bytes, 0);
    free(p->words);
    rig_close(&p->r);
}

static void fill(parts *p, uint32_t i, uint32_t number)
{
    for (uint64_t w = 0; w < p->part / 4; w++)
        p->words[w] = number * 100003u + (uint32_t)w;
    rig_write(&p->r, p->arena + i * p->part, p->words, p->part);
    p->number[i] = number;
}

static void check(parts *p, uint32_t i)
{
    rig_read(&p->r, p->arena + i * p->part, p->words, p->part);
    for (uint64_t w = 0; w < p->part / 4; w++)
        if (p->words[w] != p->number[i] * 100003u + (uint32_t)w)
            fail_msg("part %u, word %llu: not what was written", i, (unsigned long long)w);
}

/* The longest run from `first` on whose parts all have memory, or all have none. */
static uint32_t run_from(const parts *p, uint32_t first)
{
    uint32_t n = 1;
    while (first + n < PARTS && !p->number[first + n] == !p->number[first])
        n++;
    return n;
}

void test_parts_keep_their_bytes_while_others_come_and_go(void **state)
{
    (void)state;
    NEEDS(holds_bytes);
    uint64_t random = 7;
    parts p;
    open_parts(&p);
    for (uint32_t round = 1; round <= 60; round++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        uint32_t first = (uint32_t)(random >> 33) % PARTS;
        uint32_t n = 1 + (uint32_t)(random >> 48) % run_from(&p, first);
        if (p.number[first] == NONE) {
            MUST(p.r.ops->back(p.r.device, first * p.part, n * p.part));
            for (uint32_t i = first; i < first + n; i++)
                fill(&p, i, round * PARTS + i);
        } else {
            p.r.ops->unback(p.r.device, first * p.part, n * p.part);
            memset(&p.number[first], NONE, n * sizeof *p.number);
        }
        for (uint32_t i = 0; i < PARTS; i++)
            if (p.number[i] != NONE && (round % 8 == 0 || i + 1 == first || i == first + n))
                check(&p, i);
    }
    close_parts(&p); /* with what memory it has */
}

/* The last part may end with the arena; a device has one arena, in parts or not. */
void test_parts_end_with_the_arena(void **state)
{
    (void)state;
    parts p;
    void *second = NULL;
    open_parts(&p);
    const mp_device_ops *ops = p.r.ops;
    uint64_t last = (ARENA_BYTES - 1) / p.part * p.part;
    assert_int_equal(ops->reserve(p.r.device, ARENA_BYTES, &second), MOEPAGE_E_STATE);
    assert_int_equal(ops->alloc(p.r.device, MP_MEMORY_ARENA, ARENA_BYTES, &second),
                     MOEPAGE_E_STATE);
    MUST(ops->back(p.r.device, last, ARENA_BYTES - last));
    ops->unback(p.r.device, last, ARENA_BYTES - last);
    MUST(ops->back(p.r.device, 0, ARENA_BYTES));
    ops->unback(p.r.device, p.part, ARENA_BYTES - p.part);
    uint64_t available = 0;
    if (ops->available)
        MUST(ops->available(p.r.device, &available));
    close_parts(&p);
}
