/* Placement against every possible allocation, the divided stream's finishing time, and examples
 * worked by hand. */

#include "planning/placement.h"
#include "testing.h"

#define UNLIMITED UINT32_MAX

static uint64_t random_state = 3;

static uint32_t draw(uint32_t below)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 32) % below);
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static void expect_placed(mp_backend *backends, uint32_t n, uint32_t experts,
                          const uint32_t *expected, uint32_t homeless)
{
    assert_int_equal(mp_place(backends, n, experts), homeless);
    for (uint32_t k = 0; k < n; k++)
        assert_int_equal(backends[k].experts, expected[k]);
}

/* ---- By hand ---- */

static void test_placement_follows_equation_8(void **state)
{
    (void)state;
    /* x = 7/8 and 1/8: one expert in eight is offloaded when the compressed copies on the GPU are
     * decoded at seven times the bus. Mixtral has 8 experts a layer, Qwen3-Next 512. */
    mp_backend gpu_and_host[] = {{175000000000, UNLIMITED, 0}, {25000000000, UNLIMITED, 0}};
    expect_placed(gpu_and_host, 2, 8, (uint32_t[]){7, 1}, 0);
    expect_placed(gpu_and_host, 2, 512, (uint32_t[]){448, 64}, 0);
    /* 5/9, 3/9, 1/9 of 128 are 71.1, 42.7, 14.2: one is left for the largest remainder. */
    mp_backend three[] = {{500, UNLIMITED, 0}, {300, UNLIMITED, 0}, {100, UNLIMITED, 0}};
    expect_placed(three, 3, 128, (uint32_t[]){71, 43, 14}, 0);
    mp_backend one = {1, UNLIMITED, 0};
    expect_placed(&one, 1, 60, (uint32_t[]){60}, 0);
    /* The share of a slow backend may be less than one expert. */
    mp_backend uneven[] = {{1, UNLIMITED, 0}, {1000, UNLIMITED, 0}};
    expect_placed(uneven, 2, 8, (uint32_t[]){0, 8}, 0);
}

static void test_placement_gives_ties_to_the_first(void **state)
{
    (void)state;
    mp_backend even[] = {{5, UNLIMITED, 0}, {5, UNLIMITED, 0}, {5, UNLIMITED, 0}};
    expect_placed(even, 3, 4, (uint32_t[]){2, 1, 1}, 0);
    expect_placed(even, 3, 5, (uint32_t[]){2, 2, 1}, 0);
    expect_placed(even, 3, 6, (uint32_t[]){2, 2, 2}, 0);
}

static void test_placement_deals_what_a_full_backend_cannot_take(void **state)
{
    (void)state;
    /* 8:1:1 of 80 would be 64, 8, 8; the first holds 20, and 60 go to the others 1:1. */
    mp_backend full[] = {{8, 20, 0}, {1, UNLIMITED, 0}, {1, UNLIMITED, 0}};
    expect_placed(full, 3, 80, (uint32_t[]){20, 30, 30}, 0);
    /* The second is full only because the first is: 30 of 30, then 50 - 25 = 25. */
    mp_backend chain[] = {{8, 20, 0}, {1, 25, 0}, {1, UNLIMITED, 0}};
    expect_placed(chain, 3, 80, (uint32_t[]){20, 25, 35}, 0);
    /* Exactly its share is not too much. */
    mp_backend exact[] = {{3, 6, 0}, {1, 2, 0}};
    expect_placed(exact, 2, 8, (uint32_t[]){6, 2}, 0);
    expect_placed(exact, 2, 11, (uint32_t[]){6, 2}, 3);
}

static void test_placement_uses_no_backend_without_bandwidth_or_room(void **state)
{
    (void)state;
    mp_backend some[] = {{0, UNLIMITED, 9}, {4, UNLIMITED, 9}, {9, 0, 9}};
    expect_placed(some, 3, 10, (uint32_t[]){0, 10, 0}, 0);
    mp_backend none[] = {{0, UNLIMITED, 9}, {9, 0, 9}};
    expect_placed(none, 2, 10, (uint32_t[]){0, 0}, 10);
    expect_placed(some, 3, 0, (uint32_t[]){0, 0, 0}, 0);
    assert_int_equal(mp_place(NULL, 0, 10), 10);
}

static void test_placement_holds_for_the_largest_numbers(void **state)
{
    (void)state;
    mp_backend backends[8];
    for (uint32_t k = 0; k < 8; k++)
        backends[k] = (mp_backend){UINT64_MAX, UNLIMITED, 0};
    assert_int_equal(mp_place(backends, 8, UINT32_MAX), 0);
    for (uint32_t k = 0; k < 8; k++) /* 2^32 - 1 = 8 * (2^29 - 1) + 7 */
        assert_int_equal(backends[k].experts, (1u << 29) - (k == 7));
    mp_backend far_apart[] = {{UINT64_MAX, UNLIMITED, 0}, {1, UNLIMITED, 0}};
    expect_placed(far_apart, 2, UINT32_MAX, (uint32_t[]){UINT32_MAX, 0}, 0);
}

/* ---- Against every allocation ---- */

enum { MOST = 4 };

/* The exact, divisible optimum: every backend streams until the same moment, the full ones until
 * they are done. The moment is `top / bottom`. The set of full backends is found by trying all. */
typedef struct moment {
    uint64_t top, bottom;
} moment;

static int is_full(uint32_t set, uint32_t k)
{
    return (int)(set >> k & 1);
}

static int try_full_set(const mp_backend *b, uint32_t n, uint32_t experts, uint32_t set, moment *t)
{
    uint64_t held = 0;
    t->bottom = 0;
    for (uint32_t k = 0; k < n; k++) {
        if (is_full(set, k))
            held += b[k].bytes_per_s ? b[k].capacity : 0;
        else
            t->bottom += b[k].bytes_per_s;
    }
    if (held > experts || t->bottom == 0)
        return 0;
    t->top = experts - held;
    for (uint32_t k = 0; k < n; k++) {
        uint64_t by_then = b[k].bytes_per_s * t->top, most = b[k].capacity * t->bottom;
        if (is_full(set, k) ? by_then < most : by_then > most)
            return 0;
    }
    return 1;
}

/* The squared distance of an allocation from the exact shares, scaled to whole numbers. */
static uint64_t distance(const mp_backend *b, uint32_t n, const uint32_t *experts, moment t)
{
    uint64_t sum = 0;
    for (uint32_t k = 0; k < n; k++) {
        uint64_t share = b[k].bytes_per_s * t.top, most = b[k].capacity * t.bottom;
        share = b[k].bytes_per_s == 0 ? 0 : share < most ? share : most;
        int64_t off = (int64_t)(experts[k] * t.bottom) - (int64_t)share;
        sum += (uint64_t)(off * off);
    }
    return sum;
}

/* Is a / p later than b / q? */
static int later(uint64_t a, uint64_t p, uint64_t b, uint64_t q)
{
    return a * q > b * p;
}

typedef struct search {
    const mp_backend *backends;
    uint32_t n;
    moment exact;
    uint64_t nearest;
    uint64_t finish, finish_rate; /* the earliest finishing time, as a fraction */
    uint32_t experts[MOST];
} search;

static void judge(search *s)
{
    uint64_t at = 0, rate = 1;
    for (uint32_t k = 0; k < s->n; k++)
        if (s->experts[k] && later(s->experts[k], s->backends[k].bytes_per_s, at, rate)) {
            at = s->experts[k];
            rate = s->backends[k].bytes_per_s;
        }
    if (s->finish_rate == 0 || later(s->finish, s->finish_rate, at, rate)) {
        s->finish = at;
        s->finish_rate = rate;
    }
    uint64_t d = distance(s->backends, s->n, s->experts, s->exact);
    if (d < s->nearest)
        s->nearest = d;
}

static void search_all(search *s, uint32_t k, uint32_t left)
{
    if (k == s->n) {
        if (left == 0)
            judge(s);
        return;
    }
    uint32_t most = s->backends[k].bytes_per_s ? least(s->backends[k].capacity, left) : 0;
    for (s->experts[k] = 0; s->experts[k] <= most; s->experts[k]++)
        search_all(s, k + 1, left - s->experts[k]);
}

static void check_case(mp_backend *b, uint32_t n, uint32_t experts)
{
    uint32_t room = 0, placed = 0, got[MOST];
    for (uint32_t k = 0; k < n; k++)
        room += b[k].bytes_per_s ? least(b[k].capacity, experts) : 0;
    uint32_t homeless = mp_place(b, n, experts);
    for (uint32_t k = 0; k < n; k++) {
        placed += got[k] = b[k].experts;
        assert_true(got[k] <= (b[k].bytes_per_s ? b[k].capacity : 0));
    }
    assert_int_equal(placed, least(room, experts));
    assert_int_equal(placed + homeless, experts);
    if (homeless || placed == 0)
        return;

    search s = {.backends = b, .n = n, .nearest = UINT64_MAX};
    uint32_t set = 0;
    while (!try_full_set(b, n, experts, set, &s.exact)) {
        set++;
        if (set >> n) /* every backend exactly full: nothing to divide */
            return;
    }
    search_all(&s, 0, experts);
    assert_int_equal(distance(b, n, got, s.exact), s.nearest);
    for (uint32_t k = 0; k < n; k++) /* no backend is late by a whole expert of its own */
        if (got[k] > 0)
            assert_false(later(got[k] - 1, b[k].bytes_per_s, s.finish, s.finish_rate));
}

static void test_placement_is_the_nearest_whole_one_to_the_optimum(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < 4000; round++) {
        mp_backend backends[MOST];
        uint32_t n = 1 + draw(MOST), experts = draw(14);
        for (uint32_t k = 0; k < n; k++)
            backends[k] = (mp_backend){.bytes_per_s = draw(5) ? 1 + draw(40) : 0,
                                       .capacity = draw(2) ? draw(9) : 1000,
                                       .experts = 77};
        check_case(backends, n, experts);
    }
}

/* ---- where both pass the decoder ---- */

/* The time of a plan, times both rates. */
static unsigned __int128 decoded_time(uint32_t kept, uint32_t experts, uint64_t decode,
                                      uint64_t bus)
{
    unsigned __int128 crossing = (unsigned __int128)(experts - kept) * decode;
    unsigned __int128 decoding = (unsigned __int128)experts * bus;
    return crossing > decoding ? crossing : decoding;
}

/* Of all counts that there is room for, the fewest of those that are loaded soonest. */
static uint32_t fewest_soonest(uint32_t capacity, uint32_t experts, uint64_t decode, uint64_t bus)
{
    uint32_t best = 0;
    for (uint32_t kept = 1; kept <= least(capacity, experts); kept++)
        if (decoded_time(kept, experts, decode, bus) < decoded_time(best, experts, decode, bus))
            best = kept;
    return best;
}

static void test_placement_counts_what_the_decoder_has_from_the_bus(void **state)
{
    (void)state;
    /* 64 of 512 cross while the decoder has 512. */
    assert_int_equal(mp_place_decoded(200, 25, UNLIMITED, 512), 448);
    assert_int_equal(mp_place_decoded(175000000000, 25000000000, UNLIMITED, 512), 512 - 73);
    assert_int_equal(mp_place_decoded(175000000000, 25000000000, 100, 512), 100);
    assert_int_equal(mp_place_decoded(10, 10, UNLIMITED, 512), 0); /* the decoder is no faster */
    assert_int_equal(mp_place_decoded(0, 10, UNLIMITED, 512), 0);
    assert_int_equal(mp_place_decoded(10, 0, UNLIMITED, 512), 512);
    assert_int_equal(mp_place_decoded(UINT64_MAX, UINT64_MAX / 2, UNLIMITED, UINT32_MAX), 1u << 31);
    for (uint32_t round = 0; round < 4000; round++) {
        uint32_t experts = draw(40), capacity = draw(2) ? draw(30) : UNLIMITED;
        uint64_t decode = 1 + draw(60), bus = 1 + draw(40);
        assert_int_equal(mp_place_decoded(decode, bus, capacity, experts),
                         fewest_soonest(capacity, experts, decode, bus));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_placement_follows_equation_8),
        cmocka_unit_test(test_placement_gives_ties_to_the_first),
        cmocka_unit_test(test_placement_deals_what_a_full_backend_cannot_take),
        cmocka_unit_test(test_placement_uses_no_backend_without_bandwidth_or_room),
        cmocka_unit_test(test_placement_holds_for_the_largest_numbers),
        cmocka_unit_test(test_placement_is_the_nearest_whole_one_to_the_optimum),
        cmocka_unit_test(test_placement_counts_what_the_decoder_has_from_the_bus),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
