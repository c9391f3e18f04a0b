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
    for (uint32_t i = 0; i < out->dims / 2; i++)
        out->inverse_frequency[i] /= (float)factor;
    return RUN_OK;
}

/* Returns the pair that turns `turns` times within the trained length. */
static double yarn_pair(const rope *r, double trained, double theta, double turns)
{
    const double circle = 6.283185307179586;
    return r->dims * log(trained / (turns * circle)) / (2 * log(theta));
}

/* Sets what YaRN multiplies: angles' sines and cosines by 0.1 ln(factor) + 1. DeepSeek divides that
 * between them and the scores of attention. Readers disagree on one of its two keys alone, or 0. */
static int apply_mscale(const json_t *scaling, double factor, rope *out)
{
    const bool split =
        json_object_get(scaling, "mscale") || json_object_get(scaling, "mscale_all_dim");
    const double some = number(scaling, NULL, "mscale", 0);
    const double all = number(scaling, NULL, "mscale_all_dim", 0);
    double amplitude = 0.1 * log(factor) + 1;
    if (split && (!(some > 0) || !(all > 0)))
        return fail(RUN_REFUSED,
                    "config.json: yarn needs both mscale and mscale_all_dim above 0, or "
                    "neither");
    if (split) {
        const double scores = 0.1 * all * log(factor) + 1;
        amplitude = (0.1 * some * log(factor) + 1) / scores;
        out->score_factor = (float)(scores * scores);
    }
    out->amplitude = (float)number(scaling, NULL, "attention_factor", amplitude);
    return RUN_OK;
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
    double first = yarn_pair(out, trained, theta, fast),
           last = yarn_pair(out, trained, theta, slow);
    if (!json_is_false(json_object_get(scaling, "truncate"))) {
        first = floor(first);
        last = ceil(last);
    }
    first = fmax(first, 0);
    last = fmin(last, out->dims - 1.0);
    const double width = last == first ? 0.001 : last - first;
    for (uint32_t i = 0; i < out->dims / 2; i++) {
        const double kept = 1 - fmin(fmax((i - first) / width, 0), 1);
        const double frequency = 1 / pow(theta, 2.0 * i / out->dims);
        out->inverse_frequency[i] = (float)(frequency * (kept + (1 - kept) / factor));
    }
    return apply_mscale(scaling, factor, out);
}

/* Applies LongRoPE. It has two sets of factors, for contexts within the length the model was first
 * trained on and for longer ones. Cached keys of one set cannot serve the other, so only the first
 * is offered. */
static int apply_longrope(const json_t *scaling, const json_t *config, rope *out)
{
    const json_t *factors = json_object_get(scaling, "short_factor");
    double trained = number(scaling, config, "original_max_position_embeddings", 0);
    double served = number(config, NULL, "max_position_embeddings", trained);
    if (json_array_size(factors) != out->dims / 2 || !(trained >= 2))
        return fail(RUN_REFUSED,
                    "config.json: longrope needs %u short_factor entries and "
                    "original_max_position_embeddings",
                    out->dims / 2);
    for (uint32_t i = 0; i < out->dims / 2; i++) {
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

/* Gives the elements of a head that are rotated. */
static int read_dims(const json_t *config, const json_t *scaling, const rope_traits *traits,
                     uint32_t head_dim, uint32_t *out)
{
    const double whole = traits->partial > 0 ? traits->partial : 1;
    const double share = number(scaling, config, "partial_rotary_factor", whole);
    if (share != 1 && !(traits->partial > 0))
        return fail(RUN_REFUSED, "config.json: partial_rotary_factor is not supported by this "
                                 "example");
    *out = share > 0 && share <= 1 ? (uint32_t)(head_dim * share) : 0;
    if (!*out || *out % 2)
        return fail(
            RUN_REFUSED,
            "config.json: partial_rotary_factor %g of heads of %u must be an even number of "
            "elements above 0",
            share, head_dim);
    return RUN_OK;
}

static int apply_scaling(const json_t *scaling, const json_t *config, double theta, rope *out)
{
    const char *type = scaling_type(scaling);
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

int rope_read(const json_t *config, uint32_t head_dim, const rope_traits *traits, rope *out)
{
    const json_t *scaling = find_scaling(config);
    const json_t *interleaved = json_object_get(config, "rope_interleave");
    double theta = number(scaling, config, "rope_theta", traits->theta);
    if (!(theta > 0))
        return fail(RUN_REFUSED, "config.json: rope_theta is not above 0");
    *out = (rope){.max_positions = UINT32_MAX, .amplitude = 1, .score_factor = 1};
    out->interleaved = traits->interleaved && !json_is_false(interleaved);
    int code = read_dims(config, scaling, traits, head_dim, &out->dims);
    if (code)
        return code;
    out->inverse_frequency = calloc(out->dims / 2, sizeof(float));
    if (!out->inverse_frequency)
        return fail_memory();
    for (uint32_t i = 0; i < out->dims / 2; i++)
        out->inverse_frequency[i] = (float)(1 / pow(theta, 2.0 * i / out->dims));
    return apply_scaling(scaling, config, theta, out);
}

void rope_free(rope *r)
{
    free(r->inverse_frequency);
    r->inverse_frequency = NULL;
}

void rope_angles(const rope *r, uint64_t position, float *cosines, float *sines)
{
    for (uint32_t i = 0; i < r->dims / 2; i++) {
        /* The product is rounded to float first, as in the training of the checkpoints. */
        float angle = (float)position * r->inverse_frequency[i];
        cosines[i] = cosf(angle) * r->amplitude;
        sines[i] = sinf(angle) * r->amplitude;
    }
}

void rope_turn(const rope *r, const float *cosines, const float *sines, float *x)
{
    const uint32_t half = r->dims / 2;
    const uint32_t step = r->interleaved ? 2 : 1, apart = r->interleaved ? 1 : half;
    for (uint32_t i = 0; i < half; i++) {
        float *pair = x + (size_t)i * step;
        const float a = pair[0], b = pair[apart];
        pair[0] = a * cosines[i] - b * sines[i];
        pair[apart] = b * cosines[i] + a * sines[i];
    }
}
