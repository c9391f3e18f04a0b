/* Twice over the same list of tensors: to add their sizes up, then to copy them. */
#include "cuda/upload.h"

#include <stdlib.h>
#include <string.h>

#include "common/fail.h"
#include "common/kernels.h"

#define ALIGN 256u
#define STAGE_BYTES ((size_t)8 << 20)

typedef struct uploader {
    machine *m;
    const kernels *kernels;
    bool bf16;           /* operands are rounded */
    unsigned char *slab; /* NULL: sizes are being added up */
    uint64_t used;
    unsigned char *stage; /* pinned */
    float *wide;          /* for rounding, half as many elements as the stage has bytes */
} uploader;

/* Room in the slab; NULL while sizes are added up. */
static unsigned char *place(uploader *u, uint64_t bytes)
{
    unsigned char *at = u->slab ? u->slab + u->used : NULL;
    u->used += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    return at;
}

/* Through pinned memory: a checkpoint is a mapped file. */
static void copy_bytes(uploader *u, unsigned char *to, const void *from, uint64_t bytes)
{
    const unsigned char *source = from;
    for (uint64_t done = 0; done < bytes && !u->m->code; done += STAGE_BYTES) {
        size_t n = bytes - done < STAGE_BYTES ? (size_t)(bytes - done) : STAGE_BYTES;
        memcpy(u->stage, source + done, n);
        machine_copy(u->m, to + done, u->stage, n);
        machine_settle(u->m);
    }
}

static void copy_rounded(uploader *u, unsigned char *to, const matrix *from)
{
    const uint64_t total = (uint64_t)from->rows * from->columns, most = STAGE_BYTES / 2;
    const uint32_t size = from->dtype == MOEPAGE_DTYPE_F32 ? 4 : 2;
    const unsigned char *source = from->data;
    uint16_t *stage = (uint16_t *)(void *)u->stage;
    for (uint64_t done = 0; done < total && !u->m->code; done += most) {
        uint32_t n = (uint32_t)(total - done < most ? total - done : most);
        u->kernels->widen(u->wide, source + done * size, from->dtype, n);
        for (uint32_t i = 0; i < n; i++)
            stage[i] = gpu_to_bf16(u->wide[i]);
        machine_copy(u->m, to + 2 * done, stage, 2 * (size_t)n);
        machine_settle(u->m);
    }
}

/* As stored. */
static matrix upload_stored(uploader *u, const matrix *from)
{
    matrix to = *from;
    if (!from->data)
        return to;
    const uint64_t bytes = matrix_row_bytes(from) * from->rows;
    unsigned char *at = place(u, bytes);
    to.data = at;
    if (at)
        copy_bytes(u, at, from->data, bytes);
    return to;
}

/* As an operand of products. */
static matrix upload_matrix(uploader *u, const matrix *from)
{
    if (!from->data || !u->bf16 || from->dtype == MOEPAGE_DTYPE_BF16)
        return upload_stored(u, from);
    matrix to = *from;
    unsigned char *at = place(u, 2 * (uint64_t)from->rows * from->columns);
    to.data = at;
    to.dtype = MOEPAGE_DTYPE_BF16;
    if (at)
        copy_rounded(u, at, from);
    return to;
}

static const float *upload_vector(uploader *u, const float *from, uint32_t n)
{
    unsigned char *at = from ? place(u, n * sizeof *from) : NULL;
    if (at)
        copy_bytes(u, at, from, n * sizeof *from);
    return (const float *)(const void *)at;
}

static norm_weights upload_norm(uploader *u, const norm_weights *from, uint32_t n)
{
    norm_weights to = *from;
    to.scale = upload_vector(u, from->scale, n);
    to.shift = upload_vector(u, from->shift, n);
    return to;
}

static void upload_layer(uploader *u, const model_config *c, const layer_weights *from,
                         layer_weights *to)
{
    const uint32_t q_width = c->heads * c->head_dim, kv_width = c->kv_heads * c->head_dim;
    const bool per_head = c->qk_norm == QK_NORM_HEAD;
    to->input_norm = upload_norm(u, &from->input_norm, c->hidden);
    to->post_norm = upload_norm(u, &from->post_norm, c->hidden);
    to->q_norm = upload_norm(u, &from->q_norm, per_head ? c->head_dim : q_width);
    to->k_norm = upload_norm(u, &from->k_norm, per_head ? c->head_dim : kv_width);
    to->q = upload_matrix(u, &from->q);
    to->k = upload_matrix(u, &from->k);
    to->v = upload_matrix(u, &from->v);
    to->o = upload_matrix(u, &from->o);
    to->q_bias = upload_vector(u, from->q_bias, q_width);
    to->k_bias = upload_vector(u, from->k_bias, kv_width);
    to->v_bias = upload_vector(u, from->v_bias, kv_width);
    to->o_bias = upload_vector(u, from->o_bias, c->hidden);
    to->router = upload_matrix(u, &from->router);
    to->mlp.gate = upload_matrix(u, &from->mlp.gate);
    to->mlp.up = upload_matrix(u, &from->mlp.up);
    to->mlp.down = upload_matrix(u, &from->mlp.down);
    to->shared_gate = upload_matrix(u, &from->shared_gate);
}

/* Embeddings are looked up, not multiplied: they stay exact, and serve as the head where that is
 * tied to them and needs no rounding. */
static void upload_all(uploader *u, const model_config *c, const model_weights *from,
                       model_weights *to)
{
    const bool rounded = u->bf16 && from->head.dtype != MOEPAGE_DTYPE_BF16;
    to->embedding = upload_stored(u, &from->embedding);
    to->head = from->head.data == from->embedding.data && !rounded ? to->embedding
                                                                   : upload_matrix(u, &from->head);
    to->head_bias = upload_vector(u, from->head_bias, c->vocabulary);
    to->final_norm = upload_norm(u, &from->final_norm, c->hidden);
    for (uint32_t l = 0; l < c->layers; l++)
        upload_layer(u, c, &from->layers[l], &to->layers[l]);
}

int upload_weights(machine *m, const model_config *config, const model_weights *weights,
                   uint32_t math, model_weights *out)
{
    uploader u = {.m = m, .kernels = kernels_choose(), .bf16 = math != MOEPAGE_MATH_FP32};
    *out = (model_weights){.layers = calloc(config->layers, sizeof *out->layers)};
    u.wide = malloc(STAGE_BYTES / 2 * sizeof *u.wide);
    if (!out->layers || !u.wide) {
        m->code = m->fail(RUN_FAILED, "not enough memory");
    } else {
        upload_all(&u, config, weights, out);
        u.stage = machine_take_pinned(m, STAGE_BYTES);
        u.slab = u.stage ? machine_take(m, u.used) : NULL;
        u.used = 0;
        if (u.slab)
            upload_all(&u, config, weights, out);
    }
    free(u.wide);
    return m->code;
}
