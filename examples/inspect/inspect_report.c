/* Text and JSON about a model. */
#include "inspect/inspect_report.h"

#include <inttypes.h>
#include <jansson.h>
#include <string.h>

#include "common/fail.h"
#include "common/json_out.h"
#include "common/units.h"

static const char *role_name(uint32_t role)
{
    static const char *const names[] = {"none",       "gate_up",       "gate",       "up",
                                        "down",       "gate_up_scale", "gate_scale", "up_scale",
                                        "down_scale", "gate_up_bias",  "gate_bias",  "up_bias",
                                        "down_bias"};
    return role < sizeof names / sizeof *names ? names[role] : "unknown";
}

static uint64_t experts(const inspection *i)
{
    return (uint64_t)i->info.moe_layers * i->info.experts;
}

static double share_of_experts(const inspection *i, uint64_t bytes)
{
    return (double)bytes / (double)i->info.routed_bytes;
}

/* Returns true if the stored EXPH size belongs to exactly the counted experts, because those are
 * all. */
static bool as_stored(const inspection *i)
{
    return i->forms[MOEPAGE_FORM_EXPH].present && i->census.sampled == experts(i) &&
           !i->census.damaged;
}

/* Returns the fraction of the experts' bytes that EXPH takes, over the sampled ones like all
 * figures it is compared with. 0 = unknown. */
static double reached(const inspection *i)
{
    if (as_stored(i))
        return share_of_experts(i, i->forms[MOEPAGE_FORM_EXPH].image_bytes);
    return i->census.raw_bytes ? (double)i->census.coded_bytes / (double)i->census.raw_bytes : 0;
}

/* Returns the smallest fraction for whole experts, with their tensors of all types. */
static double expert_floor(const inspection *i)
{
    double sum = 0;
    for (uint32_t t = 0; t < i->info.expert_tensors; t++)
        sum += (double)i->tensors[t].bytes *
               census_floor(&i->census.types[i->tensors[t].dtype], i->tensors[t].dtype);
    return sum / (double)i->info.expert_bytes;
}

/* ---- Text -------------------------------------------------------------------------------- */

static const char *activation_name(uint32_t activation)
{
    return activation == MOEPAGE_ACTIVATION_SWIGLU           ? "swiglu"
           : activation == MOEPAGE_ACTIVATION_SWIGLU_CLAMPED ? "swiglu-clamped"
                                                             : "other";
}

static void print_model(FILE *out, const inspection *i)
{
    const moepage_model_info *m = &i->info;
    fprintf(out, "%s: %s, a %s\n", i->path, m->architecture,
            strcmp(i->kind, "gguf") == 0 ? "GGUF file" : i->kind);
    fprintf(out,
            "layers          %" PRIu32 ", %" PRIu32 " of them with %" PRIu32
            " experts (top-%" PRIu32 ", %" PRIu32 " shared); hidden %" PRIu32
            ", expert width %" PRIu32 "\n",
            m->layers, m->moe_layers, m->experts, m->top_k, m->shared_experts, m->hidden,
            m->expert_intermediate);
    fprintf(out,
            "experts         %" PRIu64 " of %" PRIu64 " bytes: %.1f MiB; slots of %" PRIu64
            " bytes; %s\n",
            experts(i), m->expert_bytes, mib(m->routed_bytes), m->slot_bytes,
            m->ffn_supported ? "the library runs them" : "the library cannot run them");
    fprintf(out, "the rest        %.1f MiB in %" PRIu64 " tensors\n\n", mib(m->dense_bytes),
            i->n_dense);
}

static void print_forms(FILE *out, const inspection *i)
{
    fprintf(out, "form         images    of dense    largest image      stored\n");
    for (uint32_t form = MOEPAGE_FORM_DENSE; form <= LAST_FORM; form++) {
        const moepage_form_info *f = &i->forms[form];
        if (!f->present)
            continue;
        fprintf(out, "%-5s  %10.1f MiB  %8.2f%%  %9" PRIu64 " bytes  %8.1f MiB", form_name(form),
                mib(f->image_bytes), 100 * share_of_experts(i, f->image_bytes), f->most_bytes,
                mib(f->stored_bytes));
        if (f->group_size)
            fprintf(out, "  groups of %" PRIu32, f->group_size);
        fputc('\n', out);
    }
    fputc('\n', out);
}

static void print_tensors(FILE *out, const inspection *i)
{
    if (i->info.layouts > 1)
        fprintf(out, "%" PRIu32 " mixtures of types among the layers; MoE layer %" PRIu32 " has\n",
                i->info.layouts, i->census.first_layer);
    fprintf(out, "tensor of an expert  type     shape                 bytes      offset\n");
    for (uint32_t t = 0; t < i->info.expert_tensors; t++) {
        const moepage_expert_tensor *e = &i->tensors[t];
        char shape[96] = "";
        size_t used = 0;
        for (uint32_t d = 0; d < e->rank && used < sizeof shape; d++)
            used += (size_t)snprintf(shape + used, sizeof shape - used, "%s%" PRIu64,
                                     d ? " x " : "", e->shape[d]);
        fprintf(out, "%-19s  %-7s  %-16s %10" PRIu64 "  %10" PRIu64 "\n", role_name(e->role),
                float_kind_of(e->dtype).name, shape, e->bytes, e->offset);
    }
    fputc('\n', out);
}

static void print_sample(FILE *out, const inspection *i)
{
    const census *c = &i->census;
    fprintf(out, "exponents of ");
    if (c->sampled < c->population)
        fprintf(out, "%" PRIu64 " of %" PRIu64 " experts, evenly spread over ", c->sampled,
                c->population);
    else
        fprintf(out, "all %" PRIu64 " experts of ", c->population);
    if (i->one_layer)
        fprintf(out, "MoE layer %" PRIu32, c->first_layer);
    else
        fprintf(out, "all MoE layers");
    if (c->damaged)
        fprintf(out, ", less %" PRIu64 " that cannot be read", c->damaged);
    fputc('\n', out);
}

#define BAR 50
#define LEAST_SHOWN 1e-4

static void print_histogram(FILE *out, const exponent_census *c, float_kind kind)
{
    uint64_t most = 1, left_out = 0;
    for (uint32_t e = 0; e < 256; e++)
        most = c->count[e] > most ? c->count[e] : most;
    for (uint32_t e = 256; e-- > 0;) {
        double share = (double)c->count[e] / (double)c->weights;
        if (share < LEAST_SHOWN) {
            left_out += c->count[e];
            continue;
        }
        fprintf(out, "  %3" PRIu32 "  2^%-4" PRId32 " %7.3f%%  ", e,
                (int32_t)e - kind.exponent_bias, 100 * share);
        for (uint64_t n = 0; n < (c->count[e] * BAR + most - 1) / most; n++)
            fputc('#', out);
        fputc('\n', out);
    }
    fprintf(out, "  others     %7.3f%%\n", 100 * (double)left_out / (double)c->weights);
}

static void print_census(FILE *out, const inspection *i)
{
    print_sample(out, i);
    for (uint32_t dtype = 0; dtype < CENSUS_DTYPES; dtype++) {
        const exponent_census *c = &i->census.types[dtype];
        if (!c->weights)
            continue;
        float_kind kind = float_kind_of(dtype);
        fprintf(out,
                "%s: H = %.4f bits per exponent within a tensor, %.4f over all; floor (%" PRIu32
                " + H) / %" PRIu32 " = %.2f%%\n",
                kind.name, census_entropy(c), census_pooled_entropy(c),
                kind.bits - kind.exponent_bits, kind.bits, 100 * census_floor(c, dtype));
        print_histogram(out, c, kind);
    }
    if (reached(i) > 0)
        fprintf(out, "experts in exph: %.2f%% of dense (%s), %.4f of the floor of %.2f%%\n",
                100 * reached(i), as_stored(i) ? "as stored" : "these, encoded now",
                reached(i) / expert_floor(i), 100 * expert_floor(i));
}

void inspect_print(FILE *out, const inspection *i)
{
    print_model(out, i);
    print_forms(out, i);
    print_tensors(out, i);
    print_census(out, i);
}

/* ---- JSON -------------------------------------------------------------------------------- */

static int set_forms(json_t *root, const inspection *i)
{
    json_t *forms = json_object();
    int failed = json_object_set_new(root, "forms", forms);
    for (uint32_t form = MOEPAGE_FORM_DENSE; form <= LAST_FORM && !failed; form++) {
        const moepage_form_info *f = &i->forms[form];
        if (!f->present)
            continue;
        json_t *one = json_object();
        failed |= json_object_set_new(forms, form_name(form), one);
        failed |= put_count(one, "image_bytes", f->image_bytes);
        failed |= put_count(one, "most_bytes", f->most_bytes);
        failed |= put_count(one, "stored_bytes", f->stored_bytes);
        failed |= put_count(one, "group_size", f->group_size);
        failed |= json_object_set_new(one, "ratio", json_real(share_of_experts(i, f->image_bytes)));
    }
    return failed;
}

static int set_tensors(json_t *root, const inspection *i)
{
    json_t *tensors = json_array();
    int failed = json_object_set_new(root, "tensors", tensors);
    for (uint32_t t = 0; t < i->info.expert_tensors && !failed; t++) {
        const moepage_expert_tensor *e = &i->tensors[t];
        json_t *one = json_object(), *shape = json_array();
        failed |= json_array_append_new(tensors, one);
        failed |= put_text(one, "role", role_name(e->role));
        failed |= put_text(one, "dtype", float_kind_of(e->dtype).name);
        failed |= json_object_set_new(one, "shape", shape);
        for (uint32_t d = 0; d < e->rank; d++)
            failed |= json_array_append_new(shape, json_integer((json_int_t)e->shape[d]));
        failed |= put_count(one, "bytes", e->bytes) | put_count(one, "offset", e->offset);
    }
    return failed;
}

static int set_histogram(json_t *object, const exponent_census *c)
{
    json_t *histogram = json_object();
    int failed = json_object_set_new(object, "histogram", histogram);
    for (uint32_t e = 0; e < 256 && !failed; e++) {
        char key[8];
        snprintf(key, sizeof key, "%" PRIu32, e);
        if (c->count[e])
            failed |= put_count(histogram, key, c->count[e]);
    }
    return failed;
}

static int set_damaged(json_t *root, const census *c)
{
    json_t *named = json_array();
    int failed = put_count(root, "damaged_experts", c->damaged);
    failed |= json_object_set_new(root, "damaged", named);
    for (uint64_t i = 0; i < c->damaged && i < CENSUS_DAMAGED && !failed; i++) {
        json_t *one = json_object();
        failed |= json_array_append_new(named, one);
        failed |= put_count(one, "layer", c->first_damaged[i].layer);
        failed |= put_count(one, "expert", c->first_damaged[i].expert);
    }
    return failed;
}

static int set_census(json_t *root, const inspection *i)
{
    json_t *exponents = json_object();
    int failed = json_object_set_new(root, "exponents", exponents);
    failed |= put_count(root, "sampled_experts", i->census.sampled);
    failed |= put_count(root, "population_experts", i->census.population);
    failed |= json_object_set_new(root, "layer",
                                  i->one_layer ? json_integer(i->census.first_layer) : json_null());
    failed |= set_damaged(root, &i->census);
    for (uint32_t dtype = 0; dtype < CENSUS_DTYPES && !failed; dtype++) {
        const exponent_census *c = &i->census.types[dtype];
        if (!c->weights)
            continue;
        json_t *one = json_object();
        failed |= json_object_set_new(exponents, float_kind_of(dtype).name, one);
        failed |= put_count(one, "weights", c->weights);
        failed |= json_object_set_new(one, "entropy_bits", json_real(census_entropy(c)));
        failed |=
            json_object_set_new(one, "pooled_entropy_bits", json_real(census_pooled_entropy(c)));
        failed |= json_object_set_new(one, "floor", json_real(census_floor(c, dtype)));
        failed |= set_histogram(one, c);
    }
    failed |= json_object_set_new(root, "floor", json_real(expert_floor(i)));
    failed |= json_object_set_new(root, "exph_ratio",
                                  reached(i) > 0 ? json_real(reached(i)) : json_null());
    failed |= json_object_set_new(root, "exph_stored", json_boolean(as_stored(i)));
    return failed;
}

static int set_model(json_t *root, const inspection *i)
{
    const moepage_model_info *m = &i->info;
    int failed = put_text(root, "path", i->path);
    failed |= put_text(root, "kind", i->kind);
    failed |= put_text(root, "architecture", m->architecture);
    failed |= put_count(root, "layers", m->layers) | put_count(root, "moe_layers", m->moe_layers);
    failed |= put_count(root, "experts", m->experts) | put_count(root, "top_k", m->top_k);
    failed |= put_count(root, "hidden", m->hidden);
    failed |= put_count(root, "expert_intermediate", m->expert_intermediate);
    failed |= put_count(root, "shared_experts", m->shared_experts);
    failed |= put_count(root, "vocabulary", m->vocabulary);
    failed |= json_object_set_new(root, "ffn_supported", json_boolean(m->ffn_supported));
    failed |= put_text(root, "activation", activation_name(m->activation));
    failed |= put_count(root, "expert_bytes", m->expert_bytes) |
              put_count(root, "slot_bytes", m->slot_bytes);
    failed |= put_count(root, "routed_bytes", m->routed_bytes);
    failed |= put_count(root, "dense_bytes", m->dense_bytes) |
              put_count(root, "dense_tensors", i->n_dense);
    return failed;
}

int inspect_print_json(FILE *out, const inspection *i)
{
    json_t *root = json_object();
    int failed =
        set_model(root, i) | set_forms(root, i) | set_tensors(root, i) | set_census(root, i);
    return put_print(out, failed, root);
}
