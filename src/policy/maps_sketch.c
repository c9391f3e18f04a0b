/* Embeddings in four bits per coordinate: rotation, storage, and semantic search
 * (FineMoE eq. 4). */
#include "policy/maps_sketch.h"

#include <math.h>
#include <string.h>

#include "policy/maps_kernels.h"

/* Coordinates have a root mean square of 1. Codes represent odd multiples of a sixth from -15/6 to
 * 15/6, which is within a hundredth of the best even quantiser for normal ones; a query's integers
 * clip at 5.3. */
#define CODE_STEPS 3.0f
#define QUERY_STEPS 24.0f

enum { TOP_CODE = 15, CODES = 16, BUCKETS = 2048 };

/* ---- Rotation ---- */

uint32_t mp_sketch_coords(uint32_t semantic_dim)
{
    if (!semantic_dim)
        return 0;
    const uint32_t once = (semantic_dim + MP_SKETCH_GROUP - 1) / MP_SKETCH_GROUP * MP_SKETCH_GROUP;
    return once * ((MP_SKETCH_LEAST + once - 1) / once);
}

/* Returns a sign without any pattern over the coordinates (the finaliser of SplitMix64). */
static bool negative(uint64_t turn, uint32_t coordinate)
{
    uint64_t bits = (turn << 32 | coordinate) * UINT64_C(0x9e3779b97f4a7c15);
    bits = (bits ^ bits >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    bits = (bits ^ bits >> 27) * UINT64_C(0x94d049bb133111eb);
    return (bits ^ bits >> 31) & 1;
}

static void flip(float *values, uint32_t n, uint64_t turn)
{
    for (uint32_t i = 0; i < n; i++)
        values[i] = negative(turn, i) ? -values[i] : values[i];
}

/* Applies an orthonormal Hadamard transform; n is a power of two. */
static void hadamard(float *values, uint32_t n)
{
    for (uint32_t half = 1; half < n; half *= 2) {
        for (uint32_t i = 0; i < n; i += 2 * half) {
            for (uint32_t k = i; k < i + half; k++) {
                const float a = values[k], b = values[k + half];
                values[k] = a + b;
                values[k + half] = a - b;
            }
        }
    }
    const float scale = 1 / sqrtf((float)n);
    for (uint32_t i = 0; i < n; i++)
        values[i] *= scale;
}

/* Rotates once. If n is not a power of two, transforms the last part and then the first, which
 * overlaps it. The second round makes coordinates of any embedding look normal; the first alone
 * does so only for dense ones. */
static void turn_once(float *values, uint32_t n, uint32_t turn)
{
    uint32_t power = 1;
    while (power <= n / 2)
        power *= 2;
    for (uint32_t round = 0; round < 2; round++) {
        flip(values, n, 4 * (uint64_t)turn + 2 * round);
        hadamard(values + (n - power), power);
        if (power < n) {
            flip(values, n, 4 * (uint64_t)turn + 2 * round + 1);
            hadamard(values, power);
        }
    }
}

bool mp_sketch_turn(const float *embedding, uint32_t semantic_dim, float *out)
{
    const uint32_t coords = mp_sketch_coords(semantic_dim);
    const uint32_t once = (semantic_dim + MP_SKETCH_GROUP - 1) / MP_SKETCH_GROUP * MP_SKETCH_GROUP;
    double power = 0;
    for (uint32_t i = 0; i < semantic_dim; i++)
        power += (double)embedding[i] * embedding[i];
    if (!(power > 0) || !isfinite(power))
        return false;
    const double scale = sqrt(once / power);
    for (uint32_t start = 0; start < coords; start += once) {
        for (uint32_t i = 0; i < once; i++)
            out[start + i] = i < semantic_dim ? (float)(embedding[i] * scale) : 0;
        turn_once(out + start, once, start / once);
    }
    return true;
}

/* ---- Storage ---- */

static uint32_t code_of(float coordinate)
{
    const float code = floorf(coordinate * CODE_STEPS) + CODES / 2.0f;
    return code > 0 ? code < TOP_CODE ? (uint32_t)code : TOP_CODE : 0;
}

/* Returns the byte that holds coordinates c and c + 32, c < 32 within its group. */
static uint8_t *byte_of(const mp_maps *maps, uint32_t slot, uint32_t c)
{
    const uint32_t tail = c < MP_SKETCH_HEAD ? 0 : c - MP_SKETCH_HEAD;
    uint8_t *codes = c < MP_SKETCH_HEAD ? maps->heads + (uint64_t)slot * (MP_SKETCH_HEAD / 2)
                                        : maps->tails + (uint64_t)slot * mp_sketch_tail_bytes(maps);
    const uint32_t at = c < MP_SKETCH_HEAD ? c : tail;
    return codes + at / MP_SKETCH_GROUP * (MP_SKETCH_GROUP / 2) + at % MP_SKETCH_GROUP;
}

void mp_sketch_put(mp_maps *maps, uint32_t slot, const float *turned)
{
    const uint32_t half = MP_SKETCH_GROUP / 2;
    double product = 0;
    if (!maps->coords)
        return;
    for (uint32_t c = 0; c < maps->coords; c += c % half == half - 1 ? half + 1 : 1) {
        const uint32_t low = turned ? code_of(turned[c]) : 0;
        const uint32_t high = turned ? code_of(turned[c + half]) : 0;
        *byte_of(maps, slot, c) = (uint8_t)(low | high << 4);
        if (turned)
            product += (double)turned[c] * (2 * (int32_t)low - TOP_CODE) +
                       (double)turned[c + half] * (2 * (int32_t)high - TOP_CODE);
    }
    maps->gains[slot] = product > 0 ? (float)(sqrt(maps->coords) / product) : 0;
}

/* ---- Searching ---- */

void mp_sketch_query(const mp_maps *maps, mp_maps_query *query)
{
    int64_t power = 0;
    int32_t head = 0;
    for (uint32_t c = 0; c < maps->coords; c++) {
        const float value = roundf(query->turned[c] * QUERY_STEPS);
        query->sketch[c] = (int8_t)(value > 127 ? 127 : value < -127 ? -127 : value);
        power += query->sketch[c] * query->sketch[c];
        head += c < MP_SKETCH_HEAD ? query->sketch[c] : 0;
        query->sketch_sum += query->sketch[c];
    }
    query->sketch_head_sum = head;
    query->sketch_norm = (float)sqrt((double)power);
}

float mp_sketch_score(const mp_maps *maps, const mp_maps_query *query, uint32_t slot)
{
    int32_t head, tail;
    if (!query->embedded || maps->gains[slot] <= 0)
        return 0;
    maps->kernels->sketch(maps->heads + (uint64_t)slot * (MP_SKETCH_HEAD / 2), 0, 1, query->sketch,
                          MP_SKETCH_HEAD, &head);
    maps->kernels->sketch(maps->tails + (uint64_t)slot * mp_sketch_tail_bytes(maps), 0, 1,
                          query->sketch + MP_SKETCH_HEAD, maps->coords - MP_SKETCH_HEAD, &tail);
    const int64_t product = 2 * ((int64_t)head + tail) - (int64_t)TOP_CODE * query->sketch_sum;
    const float score = (float)product * maps->gains[slot] / query->sketch_norm;
    return score > 1 ? 1 : score < -1 ? -1 : score;
}

/* Returns the coarse bucket of an estimated similarity, in 1/1024; 0 = not searched. */
static uint16_t bucket_of(float estimate)
{
    const float bucket = (estimate + 1) * (BUCKETS / 2.0f);
    return (uint16_t)(bucket > 1 ? bucket < BUCKETS - 1 ? bucket : BUCKETS - 1 : 1);
}

static void estimate_all(const mp_maps *maps, mp_maps_query *query, uint32_t counts[BUCKETS])
{
    const uint32_t bytes = MP_SKETCH_HEAD / 2;
    const float unit = (float)maps->coords / (MP_SKETCH_HEAD * query->sketch_norm);
    memset(counts, 0, BUCKETS * sizeof *counts);
    for (uint32_t first = 0; first < maps->used; first += MP_MAPS_TILE) {
        const uint32_t slots =
            maps->used - first < MP_MAPS_TILE ? maps->used - first : MP_MAPS_TILE;
        int32_t dots[MP_MAPS_TILE];
        maps->kernels->sketch(maps->heads + (uint64_t)first * bytes, bytes, slots, query->sketch,
                              MP_SKETCH_HEAD, dots);
        for (uint32_t i = 0; i < slots; i++) {
            const uint32_t slot = first + i;
            const int32_t product = 2 * dots[i] - TOP_CODE * query->sketch_head_sum;
            const bool searched = maps->gains[slot] > 0 && maps->born[slot] <= query->since;
            const float estimate = (float)product * maps->gains[slot] * unit;
            query->buckets[slot] = searched ? bucket_of(estimate) : 0;
            counts[query->buckets[slot]]++;
        }
    }
}

/* Chooses as many slots as there is room for, from the top bucket down; the lower slots of
 * the last one. */
static uint32_t choose_finalists(const mp_maps *maps, mp_maps_query *query, uint32_t *slots)
{
    uint32_t counts[BUCKETS], bucket = BUCKETS - 1, room = MP_SKETCH_FINALISTS, n = 0;
    estimate_all(maps, query, counts);
    while (bucket > 1 && counts[bucket] < room)
        room -= counts[bucket--];
    for (uint32_t slot = 0; slot < maps->used; slot++) {
        if (query->buckets[slot] > bucket || (query->buckets[slot] == bucket && room && room--))
            slots[n++] = slot;
    }
    return n;
}

/* Prefetches a finalist's tail: finalists are scattered over the store. */
static void fetch_tail(const mp_maps *maps, uint32_t slot)
{
    const uint32_t bytes = mp_sketch_tail_bytes(maps);
    for (uint32_t at = 0; at < bytes; at += 64)
        __builtin_prefetch(maps->tails + (uint64_t)slot * bytes + at);
}

uint32_t mp_sketch_find(const mp_maps *maps, mp_maps_query *query, float *score)
{
    uint32_t slots[MP_SKETCH_FINALISTS], best = MP_MAPS_NONE;
    const uint32_t n = choose_finalists(maps, query, slots);
    for (uint32_t i = 0; i < n; i++) {
        if (i + 2 < n)
            fetch_tail(maps, slots[i + 2]);
        const float one = mp_sketch_score(maps, query, slots[i]);
        if (best == MP_MAPS_NONE || one > *score) {
            best = slots[i];
            *score = one;
        }
    }
    return best;
}
