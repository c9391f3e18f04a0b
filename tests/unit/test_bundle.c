/* Slots of several sizes: each layer's share, where a slot is, and what is lost. */
#include <string.h>

#include "base/status.h"
#include "cache/bundle.h"
#include "testing.h"

#define MOST_LAYERS 64

static struct moepage_model model;
static uint8_t layout_of[MOST_LAYERS];

/* A model whose layer l has slots of sizes[l]. */
static void make(const uint64_t *sizes, uint32_t layers)
{
    model = (struct moepage_model){.layout_of = layout_of, .info = {.moe_layers = layers}};
    for (uint32_t l = 0; l < layers; l++) {
        uint32_t i = 0;
        while (i < model.n_layouts && model.layouts[i].slot_bytes != sizes[l])
            i++;
        if (i == model.n_layouts)
            model.layouts[model.n_layouts++].slot_bytes = sizes[l];
        layout_of[l] = (uint8_t)i;
    }
}

/* A class has slots as it has layers, and they lie one behind the other without a gap. */
static void check(const uint64_t *sizes, uint32_t layers, uint32_t n_slots)
{
    mp_bundle bundle;
    make(sizes, layers);
    assert_int_equal(mp_bundle_open(&model, MOEPAGE_FORM_DENSE, &bundle), MOEPAGE_OK);
    assert_int_equal(bundle.n_slots, n_slots);
    for (uint32_t l = 0; l < layers; l++) {
        const mp_slot_class *class = &bundle.classes[bundle.class_of_layer[l]];
        assert_int_equal(class->slot_bytes, sizes[l]);
        assert_int_equal(class->slots * layers, n_slots * class->layers);
    }
    uint64_t end = 0;
    for (uint32_t slot = 0; slot < 3 * n_slots; slot++) {
        assert_int_equal(mp_bundle_offset(&bundle, slot), end);
        assert_int_equal((uint64_t)mp_bundle_number(&bundle, slot) * mp_bundle_stride(&bundle),
                         end);
        end += bundle.classes[mp_bundle_class_of(&bundle, slot)].slot_bytes;
    }
    assert_int_equal(mp_bundle_bytes(&bundle, 3 * n_slots), end);
    mp_bundle_close(&bundle);
}

static void test_bundle_gives_each_layer_its_share(void **state)
{
    (void)state;
    check((uint64_t[]){512, 512, 512}, 3, 1);
    check((uint64_t[]){512, 768, 512, 768}, 4, 2);
    check((uint64_t[]){512, 768, 512}, 3, 3);
    check((uint64_t[]){512, 768, 512, 512, 768, 512}, 6, 3);
    check((uint64_t[]){256, 512, 768, 1024, 1280}, 5, 5);
    uint64_t sizes[48];
    for (uint32_t l = 0; l < 48; l++)
        sizes[l] = l % 8 ? 2048 : 4096;
    check(sizes, 48, 8);
}

static void test_bundle_of_slots_that_are_alike_is_one_slot(void **state)
{
    (void)state;
    uint64_t sizes[48];
    mp_bundle bundle;
    for (uint32_t l = 0; l < 48; l++)
        sizes[l] = 4352;
    make(sizes, 48);
    assert_int_equal(mp_bundle_open(&model, MOEPAGE_FORM_DENSE, &bundle), MOEPAGE_OK);
    assert_int_equal(bundle.n_slots, 1);
    assert_int_equal(mp_bundle_stride(&bundle), 4352);
    assert_int_equal(mp_bundle_number(&bundle, 1000000), 1000000);
    assert_true(mp_bundle_offset(&bundle, 1000000) == 4352ull * 1000000);
    mp_bundle_close(&bundle);
}

/* Of Qwen3-30B-A3B in Q4_K_M, whose downs are Q6_K in every second layer: 128 experts of 768 x 2048 in 48
 * layers, 144 bytes for 256 weights and 210. */
static void test_bundle_loses_next_to_nothing(void **state)
{
    (void)state;
    const uint64_t matrix = 768 * 2048 / 256, small = 3 * matrix * 144;
    const uint64_t big = 2 * matrix * 144 + matrix * 210;
    uint64_t sizes[48], bytes = 0;
    for (uint32_t l = 0; l < 48; l++) {
        sizes[l] = ((l % 2 ? big : small) + 255) / 256 * 256;
        bytes += 128 * (l % 2 ? big : small);
    }
    mp_bundle bundle;
    make(sizes, 48);
    assert_int_equal(mp_bundle_open(&model, MOEPAGE_FORM_DENSE, &bundle), MOEPAGE_OK);
    assert_true(mp_bundle_bytes(&bundle, 48 * 128) <= bytes + bytes / 1000);
    mp_bundle_close(&bundle);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bundle_gives_each_layer_its_share),
        cmocka_unit_test(test_bundle_of_slots_that_are_alike_is_one_slot),
        cmocka_unit_test(test_bundle_loses_next_to_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
