/* Checkpoints whose experts are more than plain matrices, as the hub stores them: DeepSeek's FP8
 * with block scales, gpt-oss's MXFP4 with biases. They are described and paged, through two slots,
 * and every tensor that a plan points at is compared with the checksum that the fixture's maker
 * took of it. tests/data/hf/README.md describes the checkpoints. */
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "moepage.h"
#include "testing.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))
#define HF "tests/data/hf/"

typedef struct layout_case {
    const char *architecture;
    uint32_t ffn_supported;
} layout_case;

static const layout_case layouts[] = {{"deepseek_v2", 1}, {"deepseek_v3", 1}, {"gpt_oss", 1}};

/* ---- What is expected -------------------------------------------------------------------- */

typedef struct word {
    const char *text;
    uint32_t value;
} word;

static const word roles[] = {
    {"gate_up", MOEPAGE_ROLE_GATE_UP},
    {"down", MOEPAGE_ROLE_DOWN},
    {"gate_up_scale", MOEPAGE_ROLE_GATE_UP_SCALE},
    {"down_scale", MOEPAGE_ROLE_DOWN_SCALE},
    {"gate_up_bias", MOEPAGE_ROLE_GATE_UP_BIAS},
    {"down_bias", MOEPAGE_ROLE_DOWN_BIAS},
};

static const word dtypes[] = {
    {"BF16", MOEPAGE_DTYPE_BF16},
    {"F32", MOEPAGE_DTYPE_F32},
    {"MXFP4", MOEPAGE_DTYPE_MXFP4},
    {"F8_E4M3", MOEPAGE_DTYPE_F8_E4M3},
};

static uint32_t value_of(const word *words, size_t n, const json_t *text)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(words[i].text, json_string_value(text)))
            return words[i].value;
    fail_msg("the fixture has an unknown word %s", json_string_value(text));
    return 0;
}

static uint32_t number(const json_t *expected, const char *key)
{
    assert_true(json_is_integer(json_object_get(expected, key)));
    return (uint32_t)json_integer_value(json_object_get(expected, key));
}

/* CRC-32 as in IEEE 802.3 and zlib, bit by bit. */
static uint32_t crc32_of(const void *data, uint64_t n)
{
    uint32_t crc = UINT32_MAX;
    for (uint64_t i = 0; i < n; i++) {
        crc ^= ((const unsigned char *)data)[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
    }
    return ~crc;
}

/* ---- The fixture ------------------------------------------------------------------------- */

typedef struct opened {
    json_t *expected;
    moepage_model *model;
    moepage_model_info info;
    moepage_expert_tensor tensors[MOEPAGE_MAX_EXPERT_TENSORS];
} opened;

static void open_layout(const layout_case *layout, opened *out)
{
    char path[128];
    snprintf(path, sizeof path, HF "%s/expected.json", layout->architecture);
    out->expected = json_load_file(path, 0, NULL);
    assert_non_null(out->expected);
    snprintf(path, sizeof path, HF "%s", layout->architecture);
    if (moepage_model_open(path, NULL, &out->model))
        fail_msg("%s", moepage_last_error());
    out->info = (moepage_model_info){.struct_size = sizeof out->info};
    assert_int_equal(moepage_model_get_info(out->model, &out->info), MOEPAGE_OK);
    assert_int_equal(moepage_model_get_expert_tensors(out->model, out->tensors,
                                                      MOEPAGE_MAX_EXPERT_TENSORS),
                     MOEPAGE_OK);
}

static void close_layout(opened *o)
{
    assert_int_equal(moepage_model_close(o->model), MOEPAGE_OK);
    json_decref(o->expected);
}

/* ---- Described --------------------------------------------------------------------------- */

static void expect_tensor(const moepage_expert_tensor *found, const json_t *expected)
{
    const json_t *shape = json_object_get(expected, "shape");
    assert_int_equal(found->role, value_of(roles, COUNT(roles), json_object_get(expected, "role")));
    assert_int_equal(found->dtype,
                     value_of(dtypes, COUNT(dtypes), json_object_get(expected, "dtype")));
    assert_int_equal(found->rank, json_array_size(shape));
    for (uint32_t i = 0; i < found->rank; i++)
        assert_int_equal(found->shape[i], json_integer_value(json_array_get(shape, i)));
}

static void test_hub_layouts_are_described(void **state)
{
    const layout_case *layout = *state;
    opened o;
    open_layout(layout, &o);
    uint32_t first = number(o.expected, "first_moe_layer");
    assert_string_equal(o.info.architecture, layout->architecture);
    assert_int_equal(o.info.layers, number(o.expected, "layers"));
    assert_int_equal(o.info.moe_layers, o.info.layers - first);
    assert_int_equal(o.info.experts, number(o.expected, "experts"));
    assert_int_equal(o.info.top_k, number(o.expected, "top_k"));
    assert_int_equal(o.info.hidden, number(o.expected, "hidden"));
    assert_int_equal(o.info.expert_intermediate, number(o.expected, "expert_intermediate"));
    assert_int_equal(o.info.shared_experts, number(o.expected, "shared_experts"));
    assert_int_equal(o.info.vocabulary, number(o.expected, "vocabulary"));
    assert_int_equal(o.info.ffn_supported, layout->ffn_supported);
    for (uint32_t l = 0; l < o.info.moe_layers; l++)
        assert_int_equal(moepage_model_layer_index(o.model, l), first + l);
    const json_t *tensors = json_object_get(o.expected, "tensors");
    assert_int_equal(o.info.expert_tensors, json_array_size(tensors));
    uint64_t bytes = 0;
    for (uint32_t t = 0; t < o.info.expert_tensors; t++) {
        expect_tensor(&o.tensors[t], json_array_get(tensors, t));
        bytes += o.tensors[t].bytes;
    }
    assert_int_equal(o.info.expert_bytes, bytes);
    close_layout(&o);
}

/* ---- Paged ------------------------------------------------------------------------------- */

static void expect_bytes(const opened *o, uint32_t layer, const moepage_plan_expert *expert)
{
    const json_t *checksums =
        json_array_get(json_array_get(json_object_get(o->expected, "crc32"), layer),
                       expert->expert);
    assert_int_equal(json_array_size(checksums), o->info.expert_tensors);
    for (uint32_t t = 0; t < o->info.expert_tensors; t++)
        if (crc32_of(expert->tensors[t], o->tensors[t].bytes) !=
            json_integer_value(json_array_get(checksums, t)))
            fail_msg("layer %u, expert %u: other bytes in tensor %u", layer, expert->expert, t);
}

/* One token for the two experts, in one step of one layer. */
static void route_two(const opened *o, moepage_session *session, uint32_t layer, int32_t a,
                      int32_t b)
{
    const float weights[] = {0.5f, 0.5f};
    const int32_t ids[] = {a, b};
    moepage_step step = {.struct_size = sizeof step, .n_tokens = 1};
    moepage_routing routing = {.struct_size = sizeof routing,
                               .top_k = 2,
                               .ids = ids,
                               .weights = weights};
    moepage_plan plan = {.struct_size = sizeof plan};
    assert_int_equal(moepage_session_begin(session, &step), MOEPAGE_OK);
    assert_int_equal(moepage_session_route(session, layer, &routing, &plan), MOEPAGE_OK);
    uint32_t seen = 0;
    for (uint32_t g = 0;; g++) {
        for (uint32_t i = 0; i < plan.n_experts; i++)
            expect_bytes(o, layer, &plan.experts[i]);
        seen += plan.n_experts;
        if (g + 1 == plan.n_groups)
            break;
        assert_int_equal(moepage_session_next_group(session, layer, &plan), MOEPAGE_OK);
    }
    assert_int_equal(seen, 2);
    assert_int_equal(moepage_session_retire(session, layer), MOEPAGE_OK);
    assert_int_equal(moepage_session_end(session, NULL), MOEPAGE_OK);
}

static void test_hub_layouts_are_paged_byte_by_byte(void **state)
{
    opened o;
    open_layout(*state, &o);
    moepage_device_config device_config = {.struct_size = sizeof device_config,
                                           .threads = 1,
                                           .budget_bytes = 2u << 20,
                                           .workspace_bytes = 1u << 20};
    moepage_expert_pool_config pool_config = {.struct_size = sizeof pool_config, .slots = 2};
    moepage_session_config session_config = {.struct_size = sizeof session_config, .max_tokens = 1};
    moepage_device *device;
    moepage_expert_pool *pool;
    moepage_session *session;
    assert_int_equal(moepage_device_open("host", &device_config, &device), MOEPAGE_OK);
    assert_int_equal(moepage_expert_pool_create(&device, 1, o.model, &pool_config, &pool),
                     MOEPAGE_OK);
    if (moepage_session_create(pool, NULL, &session_config, &session))
        fail_msg("%s", moepage_last_error());
    for (uint32_t l = 0; l < o.info.moe_layers; l++)
        for (uint32_t a = 0; a < o.info.experts; a++)
            for (uint32_t b = 0; b < o.info.experts; b++)
                if (a != b)
                    route_two(&o, session, l, (int32_t)a, (int32_t)b);
    moepage_expert_pool_info info = {.struct_size = sizeof info};
    assert_int_equal(moepage_expert_pool_get_info(pool, &info), MOEPAGE_OK);
    assert_true(info.evictions > o.info.moe_layers * o.info.experts);
    assert_int_equal(moepage_session_destroy(session), MOEPAGE_OK);
    assert_int_equal(moepage_expert_pool_destroy(pool), MOEPAGE_OK);
    assert_int_equal(moepage_device_close(device), MOEPAGE_OK);
    close_layout(&o);
}

/* ---- The program ------------------------------------------------------------------------- */

int main(void)
{
    static char names[2 * COUNT(layouts)][96];
    static struct CMUnitTest tests[2 * COUNT(layouts)];
    for (size_t i = 0; i < COUNT(tests); i++) {
        const layout_case *layout = &layouts[i % COUNT(layouts)];
        int described = i < COUNT(layouts);
        snprintf(names[i], sizeof names[i], "test_hub_layouts_of_%s_are_%s", layout->architecture,
                 described ? "described" : "paged_byte_by_byte");
        tests[i] =
            (struct CMUnitTest){.name = names[i],
                                .test_func = described ? test_hub_layouts_are_described
                                                       : test_hub_layouts_are_paged_byte_by_byte,
                                .initial_state = (void *)(uintptr_t)layout};
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
