/* maps.h — a store of expert maps (FineMoE section 4), in a few bits per value, and the search for
 * the one most like a sequence's open iteration.
 *
 * An expert map is the router's output in one iteration of one sequence: for each layer the
 * probabilities of its experts. It is stored with the embedding of the iteration's input. The store
 * keeps `capacity` of them; when it is full, a new map replaces the one that it makes most
 * redundant.
 *
 * How many suffice: to cover the sphere of all maps with L layers and J experts, 2 L J maps
 * guarantee a similarity of 75 % to any iteration, and 1/2 L J ln(L J) of 98 % (FineMoE 4.4). For
 * 48 x 128 that is 12,288 and 26,793. These bound the worst case; real routing keeps to a small
 * part of the sphere, and 1024 maps give most of the benefit of a larger store (FineMoE 6.7).
 *
 * Layout, layer by layer, since a search reads one layer of all maps. 64 maps form a tile, in which
 * four experts take three lines of 64 bytes:
 *
 *     codes [layer][tile][four experts][3 lines][64 maps]
 *     line k = 0, 1, 2: the code of expert k in the low six bits, two bits of the fourth's in the
 *     high ones, the lowest in line 0
 *
 * A code c, 0..63, stands for the probability peak * (c / 63)^2, where `peak` is the layer's
 * largest one, rounded up to BF16: small steps for small values, and the square of a code is exact
 * in integers. A layer of a map costs 6 bits per expert and 6 bytes. Embeddings are rotated and
 * stored in 4 bits per coordinate (maps_sketch.h). docs/expert-maps.md has the figures.
 *
 * Functions of numbers, like predictor.h: one thread at a time, no allocation. */
#ifndef MP_POLICY_MAPS_H
#define MP_POLICY_MAPS_H

#include <stdbool.h>
#include <stdint.h>

#include "moepage.h"

enum {
    MP_MAPS_TILE = 64,
    MP_MAPS_TOP_CODE = 63,
    MP_MAPS_TOP_LEVEL = 63 * 63,
    MP_MAPS_CAPACITY = 1024 /* unless a capacity is given */
};

#define MP_MAPS_NONE UINT32_MAX

typedef struct mp_maps_shape {
    uint32_t layers, experts;
    uint32_t capacity;
    uint32_t semantic_dim; /* 0 = no embeddings */
    uint32_t distance;     /* weight of semantic similarity in redundancy: distance / layers */
} mp_maps_shape;

struct mp_maps_kernels;

typedef struct mp_maps {
    mp_maps_shape shape;
    uint32_t quads;   /* groups of four experts */
    uint32_t tiles;   /* of a layer */
    uint32_t coords;  /* of a sketch; 0 = none */
    uint32_t used;    /* used slots, numbered from 0 */
    uint64_t changes; /* number of maps ever put */
    const struct mp_maps_kernels *kernels;
    uint8_t *codes;
    uint16_t *peaks; /* [layers][tiles * 64] BF16; 0 = layer absent from the map */
    float *powers;   /* [layers][tiles * 64] sum of squares of the decoded probabilities */
    uint64_t *born;  /* [capacity] value of `changes` when the slot was last written */
    uint8_t *heads;  /* [capacity] a sketch's first coordinates */
    uint8_t *tails;  /* [capacity] the others */
    float *gains;    /* [capacity] gains of the sketches; 0 = put without an embedding */
} mp_maps;

/* The iteration being observed, and the results of comparing it with the store. */
typedef struct mp_maps_query {
    uint64_t since;    /* value of `changes` at its start: slots written later are not searched */
    uint32_t observed; /* number of layers */
    uint32_t last;     /* the layer observed last */
    bool open;
    bool embedded;           /* the iteration has an embedding */
    double power;            /* sum of squares of the observed probabilities */
    uint64_t found_at;       /* `changes` at the search for `found`; 0 = none yet */
    uint32_t found;          /* slot found */
    float score;             /* its similarity */
    int32_t sketch_sum;      /* sum over the sketch's coordinates */
    int32_t sketch_head_sum; /* sum over its first coordinates */
    float sketch_norm;
    float *dots;       /* [tiles * 64] inner products with the slots over the observed layers */
    float *powers;     /* [tiles * 64] the slots' sums of squares over the same layers */
    float *map;        /* [layers][experts]: the map to put; 0 for absent layers */
    int16_t *weights;  /* [quads * 4] one layer's probabilities as integers */
    uint8_t *codes;    /* [experts] one layer of the found map */
    float *turned;     /* [coords] the rotated embedding */
    int8_t *sketch;    /* [coords] the rotated embedding as integers */
    uint16_t *buckets; /* [capacity] coarse estimates of the slots' semantic similarity */
} mp_maps_query;

/* Returns the bytes of a store: its mp_maps and all arrays, in one block aligned to 64. */
uint64_t mp_maps_bytes(const mp_maps_shape *shape);

/* Initialises a store in zero-filled memory of that size. */
void mp_maps_init(mp_maps *maps, const mp_maps_shape *shape);

/* Returns the bytes of a query, in a block of the same kind. */
uint64_t mp_maps_query_bytes(const mp_maps_shape *shape);

/* Begins a new iteration and discards the previous one; `semantic` [semantic_dim] or NULL. */
void mp_maps_begin(const mp_maps *maps, mp_maps_query *query, const float *semantic);

/* ---- Search (maps_search.c) ---- */

/* Adds a layer's probabilities [experts]: one pass over that layer of the store. */
void mp_maps_observe(const mp_maps *maps, mp_maps_query *query, uint32_t layer,
                     const float *probabilities);

/* Finds the slot whose map is most similar to the observed layers (eq. 5) or, before any is
 * observed, whose embedding is most similar to the query's (eq. 4), and that similarity; ties go to
 * the lower slot. MP_MAPS_NONE: nothing to compare, or no slot has anything in common. */
uint32_t mp_maps_find(const mp_maps *maps, mp_maps_query *query, float *score);

/* ---- Learning (maps_replace.c) ---- */

/* Puts the query's map into a free slot, or into that of the map which it makes most redundant; returns the slot. */
uint32_t mp_maps_learn(mp_maps *maps, mp_maps_query *query);

/* ---- Packing (maps_pack.c) ---- */

/* Puts a layer's probabilities into a slot. Non-finite, negative or tiny ones count as 0, those
 * above 1 as 1. */
void mp_maps_pack(mp_maps *maps, uint32_t slot, uint32_t layer, const float *probabilities);

uint32_t mp_maps_code(const mp_maps *maps, uint32_t slot, uint32_t layer, uint32_t expert);

/* Writes the codes of a slot's layer to codes[experts]. */
void mp_maps_unpack(const mp_maps *maps, uint32_t slot, uint32_t layer, uint8_t *codes);

/* Puts a layer that is already packed: its bytes [quads * 3] of the lines, and its peak. */
void mp_maps_set_lines(mp_maps *maps, uint32_t slot, uint32_t layer, const uint8_t *bytes,
                       uint16_t peak);

/* Returns the value that a probability counts as; see mp_maps_pack. */
float mp_maps_clean(float probability);

static inline uint64_t mp_maps_at(const mp_maps *maps, uint32_t layer, uint32_t slot)
{
    return (uint64_t)layer * maps->tiles * MP_MAPS_TILE + slot;
}

/* Returns the three lines of a tile's first four experts. */
static inline const uint8_t *mp_maps_tile(const mp_maps *maps, uint32_t layer, uint32_t tile)
{
    return maps->codes + ((uint64_t)layer * maps->tiles + tile) * maps->quads * 3 * MP_MAPS_TILE;
}

/* ---- Saving and loading (maps_file.c) ---- */

uint64_t mp_maps_save_bytes(const mp_maps *maps);
void mp_maps_save(const mp_maps *maps, unsigned char *out);

/* Replaces the store's contents. A store of a smaller capacity takes as many maps as fit. FORMAT
 * leaves it unchanged. */
moepage_status mp_maps_load(mp_maps *maps, const unsigned char *in, uint64_t bytes);

#endif
