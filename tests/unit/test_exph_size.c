/* How small exponent-Huffman streams are: on a trained checkpoint, on Gaussian weights, and on what
 * cannot be made smaller. Sizes are compared with the entropy and with a count of the parts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <math.h>

#include "exph_data.h"
#include "exph_naive.h"
#include "model/model.h"
#include "testing.h"

#define BF16 MOEPAGE_DTYPE_BF16

/* Bits per exponent that no code of single symbols can go below. */
static double exponent_entropy(const uint16_t *elements, uint64_t n)
{
    uint64_t counts[256] = {0};
    double bits = 0;
    for (uint64_t i = 0; i < n; i++)
        counts[elements[i] >> 7 & 255]++;
    for (uint32_t e = 0; e < 256; e++) {
        if (counts[e])
            bits -= (double)counts[e] * log2((double)counts[e] / (double)n);
    }
    return bits / (double)n;
}

typedef struct total {
    double raw;     /* bytes */
    double entropy; /* bytes: the rests, and the exponents at their entropy, tensor by tensor */
    double stream;  /* bytes, everything counted */
} total;

/* Encodes one tensor; also holds its stream to the sum of its parts. */
static void add_tensor(const uint16_t *elements, uint64_t n, total *sum)
{
    uint8_t *stream = malloc(mp_exph_bound(BF16, n));
    uint16_t *back = malloc(2 * n);
    assert_true(stream && back);
    exph_naive_stats stats;
    const uint64_t bytes = mp_exph_encode(BF16, elements, n, stream);
    assert_null(exph_naive_read(stream, bytes, BF16, n, back, &stats));
    assert_memory_equal(back, elements, 2 * n);
    assert_int_equal(stats.coded, mp_exph_chunks(n));
    const uint64_t parts = exph_naive_size(BF16, elements, n);
    assert_in_range(bytes, parts, parts + stats.coded * 16 + (n + 8191) / 8192);
    sum->raw += 2.0 * (double)n;
    sum->entropy += (8 + exponent_entropy(elements, n)) / 8 * (double)n;
    sum->stream += (double)bytes;
    free(stream);
    free(back);
}

static void is_small(const char *what, const total *sum, double of_raw, double of_entropy)
{
    print_message("%s: %.3f %% of BF16, %.3f %% above the entropy\n", what,
                  100 * sum->stream / sum->raw, 100 * (sum->stream / sum->entropy - 1));
    assert_true(sum->stream <= of_raw * sum->raw);
    assert_true(sum->stream <= of_entropy * sum->entropy);
}

/* gate_up is two pieces, gate and up, that lie apart in the file. */
static void gather_tensor(const moepage_model *model, uint32_t key, uint32_t tensor, uint8_t *out)
{
    const uint32_t experts = model->info.experts;
    for (uint32_t p = 0; p < model->n_pieces; p++) {
        const mp_piece *piece = &model->layouts[0].pieces[p];
        if (piece->tensor == tensor)
            assert_int_equal(mp_model_read_piece(model, key / experts, key % experts, p, 0,
                                                 piece->bytes, out + piece->tensor_offset),
                             MOEPAGE_OK);
    }
}

static void test_exph_size_of_a_trained_model_is_near_the_entropy(void **state)
{
    (void)state;
    moepage_model *model = NULL;
    total sum = {0};
    if (moepage_model_open("examples/models/tiny-qwen3moe", NULL, &model))
        fail_msg("not opened: %s", moepage_last_error());
    const uint32_t n_experts = model->info.moe_layers * model->info.experts;
    const uint32_t every = getenv("MP_TEST_LONG") ? 1 : 5; /* all layers come up */
    for (uint32_t e = 0; e < n_experts; e += every) {
        for (uint32_t t = 0; t < model->info.expert_tensors; t++) {
            assert_int_equal(model->layouts[0].tensors[t].dtype, BF16);
            uint8_t *tensor = malloc(model->layouts[0].tensors[t].bytes);
            assert_non_null(tensor);
            gather_tensor(model, e, t, tensor);
            add_tensor((const uint16_t *)tensor, model->layouts[0].tensors[t].bytes / 2, &sum);
            free(tensor);
        }
    }
    is_small("tiny-qwen3moe", &sum, 0.672, 1.015);
    moepage_model_close(model);
}

static void gaussian(uint64_t n, double of_raw, double of_entropy)
{
    char what[64];
    total sum = {0};
    exph_random random = exph_random_of(n);
    uint16_t *in = malloc(2 * n);
    assert_non_null(in);
    exph_fill(&random, BF16, EXPH_GAUSSIAN, in, n);
    add_tensor(in, n, &sum);
    snprintf(what, sizeof what, "Gaussian, %llu weights", (unsigned long long)n);
    is_small(what, &sum, of_raw, of_entropy);
    free(in);
}

static void test_exph_size_of_gaussian_weights_is_near_the_entropy(void **state)
{
    (void)state;
    gaussian(1572864, 0.667, 1.0125);
    gaussian(16384, 0.672, 1.015);
    gaussian(8192, 0.672, 1.016);
}

/* FP8 has less to gain: no more than the header is lost where nothing is. */
static void test_exph_size_never_exceeds_the_bound(void **state)
{
    (void)state;
    exph_random random = exph_random_of(3);
    uint8_t *in = malloc(200000), *out = malloc(210000);
    assert_true(in && out);
    for (uint32_t d = 0; d < 4; d++) {
        for (uint32_t kind = 0; kind < EXPH_KINDS; kind++) {
            const uint64_t n = 1 + exph_below(&random, 100000);
            exph_fill(&random, exph_dtypes[d], kind, in, n);
            const uint64_t bytes = mp_exph_encode(exph_dtypes[d], in, n, out);
            const uint64_t raw = n * exph_element_bytes(exph_dtypes[d]);
            assert_true(bytes <= mp_exph_bound(exph_dtypes[d], n));
            assert_true(bytes <= raw + 36 + 12 * mp_exph_chunks(n) + 30);
            if (kind == EXPH_NOISE)
                assert_true(bytes >= raw);
        }
    }
    free(in);
    free(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exph_size_of_a_trained_model_is_near_the_entropy),
        cmocka_unit_test(test_exph_size_of_gaussian_weights_is_near_the_entropy),
        cmocka_unit_test(test_exph_size_never_exceeds_the_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
