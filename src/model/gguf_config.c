/* Reads the counts and widths of a model from a GGUF file's metadata. */
#include <stdio.h>
#include <string.h>

#include "model/gguf_model.h"

/* Far above any real model, far below values whose products would overflow. */
#define MAX_LAYERS 65536u
#define MAX_EXPERTS 65536u
#define MAX_WIDTH (1u << 24)

#define EXPERT_WIDTH "expert_feed_forward_length"
#define WIDTH "feed_forward_length"

#define CLAMPED                                                               \
    {                                                                         \
        MOEPAGE_ACTIVATION_SWIGLU_CLAMPED, MP_CLAMPED_ALPHA, MP_CLAMPED_LIMIT \
    }

/* Files say nothing of the activation: it is the architecture's. */
static const mp_gguf_architecture architectures[] = {
    {"qwen3moe", EXPERT_WIDTH, {0}},
    {"qwen2moe", EXPERT_WIDTH, {0}},
    {"olmoe", WIDTH, {0}},
    {"llama", WIDTH, {0}},
    {"phimoe", WIDTH, {0}},
    {"deepseek2", EXPERT_WIDTH, {0}},
    {"glm4moe", EXPERT_WIDTH, {0}},
    {"minimax-m2", EXPERT_WIDTH, {0}},
    {"gpt-oss", EXPERT_WIDTH, CLAMPED},
};

#define N_ARCHITECTURES (sizeof architectures / sizeof *architectures)

/* A key of the architecture's own: its name, a dot, and the rest. */
typedef struct own_key {
    char text[64];
} own_key;

static own_key key_of(const mp_gguf_config *config, const char *rest)
{
    own_key key;
    snprintf(key.text, sizeof key.text, "%s.%s", config->architecture->name, rest);
    return key;
}

static moepage_status find_architecture(const mp_gguf_metadata *metadata, mp_gguf_config *out)
{
    mp_gguf_text name;
    moepage_status status = mp_gguf_get_text(metadata, "general.architecture", &name);
    if (status)
        return status;
    char known[256] = "";
    size_t used = 0;
    for (size_t i = 0; i < N_ARCHITECTURES; i++) {
        const mp_gguf_architecture *a = &architectures[i];
        if (strlen(a->name) == name.n_bytes && memcmp(a->name, name.bytes, name.n_bytes) == 0) {
            out->architecture = a;
            return MOEPAGE_OK;
        }
        used +=
            (size_t)snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "", a->name);
    }
    return mp_fail(MOEPAGE_E_UNSUPPORTED,
                   "general.architecture \"%.*s\" is not recognised; these are: %s",
                   (int)(name.n_bytes < 60 ? name.n_bytes : 60), name.bytes, known);
}

static moepage_status read_experts(const mp_gguf_metadata *metadata, mp_gguf_config *out)
{
    own_key count = key_of(out, "expert_count"), used = key_of(out, "expert_used_count");
    moepage_status status =
        mp_gguf_get_uint_or(metadata, count.text, 0, MAX_EXPERTS, 0, &out->experts);
    if (status)
        return status;
    if (!out->experts)
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "the model has no routed experts: metadata key \"%s\" is %s", count.text,
                       mp_gguf_metadata_find(metadata, count.text) ? "0" : "missing");
    return mp_gguf_get_uint(metadata, used.text, 1, out->experts, &out->top_k);
}

/* Layers that predict further tokens stand behind the others and count with them; they are not part
 * of the model, and their tensors stay dense. */
static moepage_status read_layers(const mp_gguf_metadata *metadata, mp_gguf_config *out)
{
    uint32_t further;
    own_key layers = key_of(out, "block_count"), first = key_of(out, "leading_dense_block_count");
    moepage_status status = mp_gguf_get_uint(metadata, layers.text, 1, MAX_LAYERS, &out->layers);
    if (!status)
        status = mp_gguf_get_uint_or(metadata, key_of(out, "nextn_predict_layers").text, 0,
                                     out->layers - 1, 0, &further);
    if (status)
        return status;
    out->layers -= further;
    return mp_gguf_get_uint_or(metadata, first.text, 0, out->layers - 1, 0, &out->first_moe);
}

static moepage_status read_vocabulary(const mp_gguf_metadata *metadata, mp_gguf_config *out)
{
    const mp_gguf_value *tokens = mp_gguf_metadata_find(metadata, "tokenizer.ggml.tokens");
    if (!tokens || tokens->type != MP_GGUF_ARRAY)
        return mp_gguf_get_uint_or(metadata, key_of(out, "vocab_size").text, 0, INT32_MAX, 0,
                                   &out->vocabulary);
    if (tokens->n > INT32_MAX)
        return mp_fail(MOEPAGE_E_FORMAT, "metadata key \"%s\" has %llu tokens, at most %d are read",
                       tokens->key, (unsigned long long)tokens->n, INT32_MAX);
    out->vocabulary = (uint32_t)tokens->n;
    return MOEPAGE_OK;
}

/* Files of some architectures do not say that there is one shared expert: its tensors do. */
static moepage_status read_shared(const mp_gguf *gguf, mp_gguf_config *out)
{
    mp_gguf_name name = mp_gguf_name_of(out->first_moe, "ffn_up_shexp.weight");
    return mp_gguf_get_uint_or(mp_gguf_metadata_of(gguf), key_of(out, "expert_shared_count").text,
                               0, MAX_EXPERTS, mp_gguf_find(gguf, name.text) != NULL, &out->shared);
}

static moepage_status read_all(const mp_gguf *gguf, mp_gguf_config *out)
{
    const mp_gguf_metadata *metadata = mp_gguf_metadata_of(gguf);
    moepage_status status = find_architecture(metadata, out);
    if (!status)
        status = read_experts(metadata, out);
    if (!status)
        status = read_layers(metadata, out);
    if (!status)
        status = mp_gguf_get_uint(metadata, key_of(out, "embedding_length").text, 1, MAX_WIDTH,
                                  &out->hidden);
    if (!status)
        status = mp_gguf_get_uint(metadata, key_of(out, out->architecture->width_key).text, 1,
                                  MAX_WIDTH, &out->intermediate);
    if (!status)
        status = read_vocabulary(metadata, out);
    if (!status)
        status = read_shared(gguf, out);
    return status;
}

moepage_status mp_gguf_config_read(const mp_gguf *gguf, mp_gguf_config *out)
{
    *out = (mp_gguf_config){0};
    moepage_status status = read_all(gguf, out);
    return status ? mp_fail_within(status, "%.200s", gguf->files[0]->file.name) : MOEPAGE_OK;
}
