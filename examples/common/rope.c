/* Rotary position embedding and the scalings of its frequencies. */
#include "common/rope.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"

/* Returns the object with the scaling; older configs call it rope_scaling. */
static const json_t *find_scaling(const json_t *config)
{
    const json_t *scaling = json_object_get(config, "rope_parameters");
    if (!json_is_object(scaling))
        scaling = json_object_get(config, "rope_scaling");
    return json_is_object(scaling) ? scaling : NULL;
}

static const char *scaling_type(const json_t *scaling)
{
    const char *type = json_string_value(json_object_get(scaling, "rope_type"));
    if (!type)
        type = json_string_value(json_object_get(scaling, "type"));
    return type ? type : "default";
}

/* Returns a number of the scaling object, else of the config, else `otherwise`. */
static double number(const json_t *scaling, const json_t *config, const char *key, double otherwise)
{
    const json_t *value = json_object_get(scaling, key);
    if (!json_is_number(value))
        value = json_object_get(config, key);
    return json_is_number(value) ? json_number_value(value) : otherwise;
}

static int apply_linear(const json_t *scaling, rope *out)
{
    double factor = number(scaling, NULL, "factor", 0);
    if (!(factor > 0))
        return fail(RUN_REFUSED, "config.json: linear rope scaling needs a factor above 0");
    for (uint32_t i = 0; i < out->head_dim / 2; i++)
        out->inverse_frequency[i] /= (float)factor;
    return RUN_OK;
}

/* Returns the pair of a head that turns `turns` times within the trained length. */
static double yarn_pair(const rope *r, double trained, double theta, double turns)
{
    const double circle = 6.283185307179586;
    return r->head_dim * log(trained / (turns * circle)) / (2 * log(theta));
}

/* Applies YaRN (arXiv:2309.00071): pairs that turn often keep their frequency, slow ones are
 * interpolated, and those between are mixed. */
static int apply_yarn(const json_t *scaling, const json_t *config, double theta, rope *out)
{
    const double factor = number(scaling, NULL, "factor", 0);
    const double trained = number(scaling, config, "original_max_position_embeddings", 0);
    const double fast = number(scaling, NULL, "beta_fast", 32);
    const double slow = number(scaling, NULL, "beta_slow", 1);
    if (!(factor >= 1) || !(trained >= 2) || !(fast > slow) || !(slow > 0) || !(theta > 1))
        return fail(RUN_REFUSED, "config.json: yarn needs a factor of at least 1, "
                                 "original_max_position_embeddings, and beta_fast above beta_slow");
    if (json_object_get(scaling, "mscale") || json_object_get(scaling, "mscale_all_dim"))
        return fail(RUN_REFUSED, "config.json: yarn with mscale is not supported by this example");
    double first = yarn_pair(out, trained, theta, fast),
           last = yarn_pair(out, trained, theta, slow);
    if (!json_is_false(json_object_get(scaling, "truncate"))) {
        first = floor(first);
        last = ceil(last);
    }
    first = fmax(first, 0);
    last = fmin(last, out->head_dim - 1.0);
    const double width = last == first ? 0.001 : last - first;
    for (uint32_t i = 0; i < out->head_dim / 2; i++) {
        const double kept = 1 - fmin(fmax((i - first) / width, 0), 1);
        const double frequency = 1 / pow(theta, 2.0 * i / out->head_dim);
        out->inverse_frequency[i] = (float)(frequency * (kept + (1 - kept) / factor));
    }
    out->amplitude = (float)number(scaling, NULL, "attention_factor", 0.1 * log(factor) + 1);
    return RUN_OK;
}

/* Applies LongRoPE. It has two sets of factors, for contexts within the length the model was first
 * trained on and for longer ones. Cached keys of one set cannot serve the other, so only the first
 * is offered. */
static int apply_longrope(const json_t *scaling, const json_t *config, rope *out)
{
    const json_t *factors = json_object_get(scaling, "short_factor");
    double trained = number(scaling, config, "original_max_position_embeddings", 0);
    double served = number(config, NULL, "max_position_embeddings", trained);
    if (json_array_size(factors) != out->head_dim / 2 || !(trained >= 2))
        return fail(RUN_REFUSED,
                    "config.json: longrope needs %u short_factor entries and "
                    "original_max_position_embeddings",
                    out->head_dim / 2);
    for (uint32_t i = 0; i < out->head_dim / 2; i++) {
        double factor = json_number_value(json_array_get(factors, i));
        if (!(factor > 0))
            return fail(RUN_REFUSED, "config.json: longrope short_factor %u is not above 0", i);
        out->inverse_frequency[i] = (float)((double)out->inverse_frequency[i] / factor);
    }
    double factor = number(scaling, NULL, "factor", served / trained);
    double amplitude = factor <= 1 ? 1 : sqrt(1 + log(factor) / log(trained));
    amplitude = number(scaling, NULL, "attention_factor", amplitude);
    out->amplitude = (float)number(scaling, NULL, "short_mscale", amplitude);
    out->max_positions = (uint32_t)trained;
    return RUN_OK;
}

int rope_read(const json_t *config, uint32_t head_dim, double default_theta, rope *out)
{
    const json_t *scaling = find_scaling(config);
    const char *type = scaling_type(scaling);
    double theta = number(scaling, config, "rope_theta", default_theta);
    if (!(theta > 0))
        return fail(RUN_REFUSED, "config.json: rope_theta is not above 0");
    if (number(scaling, config, "partial_rotary_factor", 1) != 1)
        return fail(RUN_REFUSED, "config.json: partial_rotary_factor is not supported by this "
                                 "example");
    *out = (rope){.head_dim = head_dim, .max_positions = UINT32_MAX, .amplitude = 1};
    out->inverse_frequency = calloc(head_dim / 2, sizeof(float));
    if (!out->inverse_frequency)
        return fail_memory();
    for (uint32_t i = 0; i < head_dim / 2; i++)
        out->inverse_frequency[i] = (float)(1 / pow(theta, 2.0 * i / head_dim));
    if (!strcmp(type, "default"))
        return RUN_OK;
    if (!strcmp(type, "linear"))
        return apply_linear(scaling, out);
    if (!strcmp(type, "yarn"))
        return apply_yarn(scaling, config, theta, out);
    if (!strcmp(type, "longrope") || !strcmp(type, "su"))
        return apply_longrope(scaling, config, out);
    return fail(RUN_REFUSED,
                "config.json: rope scaling '%s' is not supported by this example: "
                "default, linear, yarn and longrope are",
                type);
}

void rope_free(rope *r)
{
    free(r->inverse_frequency);
    r->inverse_frequency = NULL;
}

void rope_angles(const rope *r, uint64_t position, float *cosines, float *sines)
{
    for (uint32_t i = 0; i < r->head_dim / 2; i++) {
        /* The product is rounded to float first, as in the training of the checkpoints. */
        float angle = (float)position * r->inverse_frequency[i];
        cosines[i] = cosf(angle) * r->amplitude;
        sines[i] = sinf(angle) * r->amplitude;
    }
}

void rope_turn(uint32_t head_dim, const float *cosines, const float *sines, float *head)
{
    uint32_t half = head_dim / 2;
    for (uint32_t i = 0; i < half; i++) {
        float a = head[i], b = head[i + half];
        head[i] = a * cosines[i] - b * sines[i];
        head[i + half] = b * cosines[i] + a * sines[i];
    }
}
