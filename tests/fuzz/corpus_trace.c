/* Seeds of the trace target: whole files, and inputs that it compresses and seals itself (see
 * fuzz_trace.c), which may lie about anything but their checksums. */
#include <string.h>

#include "corpus.h"

#define TARGET "trace"

/* The header of a sealed input: 2 layers of 4 experts, top 2, embeddings of 3, probabilities. */
typedef struct shape {
    uint16_t major, minor;
    uint32_t header_bytes, layers, experts, top_k, semantic, flags;
} shape;

static const shape usual = {1, 0, 128, 2, 4, 2, 3, 1};

static void add_header(corpus_bytes *to, uint8_t per_frame, const shape *of)
{
    static const uint8_t zeros[36];
    corpus_add_text(to, "S");
    corpus_add_uint(to, per_frame, 1);
    corpus_add_text(to, "MOETRACE");
    corpus_add_uint(to, of->major, 2);
    corpus_add_uint(to, of->minor, 2);
    const uint32_t fields[] = {of->header_bytes, of->layers, of->experts, of->top_k, of->semantic,
                               of->flags,        0};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        corpus_add_uint(to, fields[i], 4);
    corpus_add_text(to, "architecture-of-28-letters..");
    corpus_add(to, zeros, sizeof zeros);
    corpus_add(to, zeros, 16);
}

/* One sequence, no embeddings; `layers` layers of top_k `k` follow from layer `first` on. */
typedef struct step {
    uint32_t bytes; /* 0: as many as there are */
    uint32_t tokens, sequences, layers, flags;
    uint32_t sequence_tokens, phase;
    uint32_t first, k, layer_flags, id;
} step;

static const step good = {0, 3, 1, 2, 0, 3, 1, 0, 2, 0, 1};

static void add_layer(corpus_bytes *to, const step *of, uint32_t layer)
{
    corpus_add_uint(to, layer, 4);
    corpus_add_uint(to, of->k, 4);
    corpus_add_uint(to, of->layer_flags, 4);
    uint32_t k = of->k < 8 ? of->k : 8;
    for (uint32_t i = 0; i < of->sequence_tokens * k; i++)
        corpus_add_uint(to, of->id, 2);
    for (uint32_t i = 0; i < of->sequence_tokens * k; i++)
        corpus_add_uint(to, 0x3f000000, 4);
    for (uint32_t i = 0; of->layer_flags & 1 && i < of->sequence_tokens * usual.experts; i++)
        corpus_add_uint(to, 0x3e800000, 4);
}

static void add_step(corpus_bytes *to, const step *of)
{
    size_t from = to->n;
    corpus_add_uint(to, of->bytes, 4);
    corpus_add_uint(to, of->tokens, 4);
    corpus_add_uint(to, of->sequences, 4);
    corpus_add_uint(to, of->layers, 4);
    corpus_add_uint(to, of->flags, 4);
    corpus_add_uint(to, 9, 8);
    corpus_add_uint(to, of->sequence_tokens, 4);
    corpus_add_uint(to, of->phase, 4);
    for (uint32_t i = 0; of->flags & 1 && i < usual.semantic; i++)
        corpus_add_uint(to, 0x3f800000, 4);
    for (uint32_t i = 0; i < of->layers && i < 4; i++)
        add_layer(to, of, of->first + i);
    if (!of->bytes) {
        uint32_t bytes = (uint32_t)(to->n - from);
        memcpy(to->at + from, &bytes, sizeof bytes);
    }
}

static void make_shaped(const char *name, const shape *of)
{
    corpus_bytes file = {0};
    add_header(&file, 0, of);
    add_step(&file, &good);
    corpus_finish(&file, TARGET, name);
}

static void make_shapes(void)
{
    static const struct {
        const char *name;
        shape of;
    } seeds[] = {
        {"sealed-good", {1, 0, 128, 2, 4, 2, 3, 1}},
        {"sealed-minor-9", {1, 9, 128, 2, 4, 2, 3, 1}},
        {"sealed-major-2", {2, 0, 128, 2, 4, 2, 3, 1}},
        {"sealed-flags", {1, 0, 128, 2, 4, 2, 3, 0x80000001}},
        {"sealed-header-127", {1, 0, 127, 2, 4, 2, 3, 1}},
        {"sealed-layers-0", {1, 0, 128, 0, 4, 2, 3, 1}},
        {"sealed-layers-most", {1, 0, 128, 4096, 65535, 4096, 1u << 20, 1}},
        {"sealed-layers-too-many", {1, 0, 128, 4097, 4, 2, 3, 1}},
        {"sealed-layers-2-32", {1, 0, 128, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 1}},
        {"sealed-experts-0", {1, 0, 128, 2, 0, 2, 3, 1}},
        {"sealed-experts-1", {1, 0, 128, 2, 1, 2, 3, 1}},
        {"sealed-experts-65536", {1, 0, 128, 2, 65536, 2, 3, 1}},
        {"sealed-top-k-1", {1, 0, 128, 2, 4, 1, 3, 1}},
        {"sealed-no-semantic", {1, 0, 128, 2, 4, 2, 0, 1}},
        {"sealed-no-probabilities", {1, 0, 128, 2, 4, 2, 3, 0}},
    };
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++)
        make_shaped(seeds[i].name, &seeds[i].of);
}

static void make_steps(void)
{
    static const struct {
        const char *name;
        step of;
    } seeds[] = {
        {"step-probabilities", {0, 3, 1, 2, 0, 3, 1, 0, 2, 1, 1}},
        {"step-semantic", {0, 3, 1, 2, 1, 3, 1, 0, 2, 0, 1}},
        {"step-no-expert", {0, 3, 1, 2, 0, 3, 1, 0, 2, 0, 0xffff}},
        {"step-second-layer", {0, 3, 1, 1, 0, 3, 0, 1, 1, 0, 3}},
        {"step-no-layer", {0, 3, 1, 0, 0, 3, 1, 0, 2, 0, 1}},
        {"step-id-of-experts", {0, 3, 1, 2, 0, 3, 1, 0, 2, 0, 4}},
        {"step-layer-past-the-end", {0, 3, 1, 2, 0, 3, 1, 1, 2, 0, 1}},
        {"step-layer-of-2-32", {0, 3, 1, 1, 0, 3, 1, 0xffffffff, 2, 0, 1}},
        {"step-layers-3", {0, 3, 1, 3, 0, 3, 1, 0, 2, 0, 1}},
        {"step-layers-2-32", {0, 3, 1, 0xffffffff, 0, 3, 1, 0, 2, 0, 1}},
        {"step-top-k-0", {0, 3, 1, 2, 0, 3, 1, 0, 0, 0, 1}},
        {"step-top-k-3", {0, 3, 1, 2, 0, 3, 1, 0, 3, 0, 1}},
        {"step-top-k-2-31", {0, 3, 1, 2, 0, 3, 1, 0, 0x80000000, 0, 1}},
        {"step-tokens-0", {0, 0, 1, 2, 0, 0, 1, 0, 2, 0, 1}},
        {"step-tokens-more", {0, 4, 1, 2, 0, 3, 1, 0, 2, 0, 1}},
        {"step-tokens-2-32", {0, 0xffffffff, 1, 2, 0, 3, 1, 0, 2, 0, 1}},
        {"step-sequences-0", {0, 3, 0, 2, 0, 3, 1, 0, 2, 0, 1}},
        {"step-sequences-2-28", {0, 3, 1u << 28, 2, 0, 3, 1, 0, 2, 0, 1}},
        {"step-sequences-2-24", {0, 3, 1u << 24, 2, 1, 3, 1, 0, 2, 0, 1}},
        {"step-phase-2", {0, 3, 1, 2, 0, 3, 2, 0, 2, 0, 1}},
        {"step-flags", {0, 3, 1, 2, 2, 3, 1, 0, 2, 0, 1}},
        {"step-layer-flags", {0, 3, 1, 2, 0, 3, 1, 0, 2, 2, 1}},
        {"step-size-0", {4, 3, 1, 2, 0, 3, 1, 0, 2, 0, 1}},
        {"step-size-short", {60, 3, 1, 2, 0, 3, 1, 0, 2, 0, 1}},
        {"step-size-2-32", {0xffffffff, 3, 1, 2, 0, 3, 1, 0, 2, 0, 1}},
    };
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++) {
        corpus_bytes file = {0};
        add_header(&file, 0, &usual);
        add_step(&file, &seeds[i].of);
        corpus_finish(&file, TARGET, seeds[i].name);
    }
}

/* Few bytes that stand for many: arrays are padded over all layers. */
static void make_wide(void)
{
    const shape many = {1, 0, 128, 4096, 4, 64, 0, 0};
    corpus_bytes file = {0};
    add_header(&file, 0, &many);
    for (uint32_t tokens = 1; tokens <= 64; tokens *= 64) {
        step wide = good;
        wide.tokens = wide.sequence_tokens = tokens;
        add_step(&file, &wide);
    }
    corpus_finish(&file, TARGET, "sealed-many-layers");
    add_header(&file, 1, &usual);
    for (int i = 0; i < 5; i++)
        add_step(&file, &good);
    corpus_finish(&file, TARGET, "sealed-five-frames");
    add_header(&file, 0, &usual);
    corpus_finish(&file, TARGET, "sealed-no-frame");
    add_header(&file, 2, &usual);
    add_step(&file, &good);
    corpus_add_text(&file, "abc");
    corpus_finish(&file, TARGET, "sealed-bytes-left-over");
}

void corpus_make_traces(void)
{
    make_shapes();
    make_steps();
    make_wide();
    corpus_write(TARGET, "empty", "", 0);
    corpus_write(TARGET, "magic-only", "MOETRACE", 8);
}
