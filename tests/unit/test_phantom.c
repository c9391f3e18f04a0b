/* Models that are a shape alone: laid out as models with weights are, and never taken for one. */

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "arena/home.h"
#include "machine_rig.h"
#include "simulated/phantom.h"
#include "testing.h"

static mp_phantom_shape small_shape(void)
{
    return (mp_phantom_shape){
        .name = "small",
        .layers = 5,
        .moe_layers = 3,
        .experts = 8,
        .top_k = 2,
        .hidden = 96,
        .expert_intermediate = 40,
        .dtype = MOEPAGE_DTYPE_BF16,
        .exph_ratio = 0.7,
    };
}

static moepage_model *open_shape(const mp_phantom_shape *shape)
{
    moepage_model *model = NULL;
    if (mp_model_open_phantom(shape, &model))
        fail_msg("%s", moepage_last_error());
    return model;
}

static void close_model(moepage_model *model)
{
    assert_int_equal(moepage_model_close(model), MOEPAGE_OK);
}

static int32_t read_nothing(void *user, uint32_t layer, uint32_t expert, uint32_t tensor,
                            uint64_t offset, uint64_t bytes, void *out)
{
    (void)user;
    (void)layer;
    (void)expert;
    (void)tensor;
    (void)offset;
    memset(out, 0, bytes);
    return 0;
}

/* A model with weights of these tensors. */
static moepage_model *open_banks(const mp_phantom_shape *shape,
                                 const moepage_expert_tensor *tensors, uint32_t n)
{
    moepage_banks banks = {
        .struct_size = sizeof banks,
        .moe_layers = shape->moe_layers,
        .layers = shape->layers,
        .experts = shape->experts,
        .top_k = shape->top_k,
        .hidden = shape->hidden,
        .expert_intermediate = shape->expert_intermediate,
        .n_tensors = n,
        .tensors = tensors,
        .read = read_nothing,
        .architecture = shape->name,
    };
    moepage_model *model = NULL;
    if (moepage_model_open_banks(&banks, NULL, &model))
        fail_msg("%s", moepage_last_error());
    return model;
}

static void assert_same_layout(moepage_model *phantom, moepage_model *banks)
{
    moepage_model_info a = {.struct_size = sizeof a}, b = a;
    moepage_expert_tensor of_a[MOEPAGE_MAX_EXPERT_TENSORS], of_b[MOEPAGE_MAX_EXPERT_TENSORS];
    assert_int_equal(moepage_model_get_info(phantom, &a), MOEPAGE_OK);
    assert_int_equal(moepage_model_get_info(banks, &b), MOEPAGE_OK);
    assert_string_equal(a.architecture, b.architecture);
    a.architecture = b.architecture = NULL;
    assert_memory_equal(&a, &b, sizeof a);
    assert_int_equal(a.ffn_supported, 1);
    assert_int_equal(moepage_model_get_expert_tensors(phantom, of_a, 8), MOEPAGE_OK);
    assert_int_equal(moepage_model_get_expert_tensors(banks, of_b, 8), MOEPAGE_OK);
    assert_memory_equal(of_a, of_b, a.expert_tensors * sizeof *of_a);
}

static void test_phantom_is_laid_out_as_a_model_with_weights(void **state)
{
    (void)state;
    mp_phantom_shape shape = small_shape();
    const moepage_expert_tensor tensors[] = {
        {.role = MOEPAGE_ROLE_GATE_UP, .dtype = shape.dtype, .rank = 2, .shape = {80, 96}},
        {.role = MOEPAGE_ROLE_DOWN, .dtype = shape.dtype, .rank = 2, .shape = {96, 40}},
    };
    moepage_model *phantom = open_shape(&shape), *banks = open_banks(&shape, tensors, 2);
    assert_same_layout(phantom, banks);
    for (uint32_t i = 0; i < 3; i++) /* dense layers come first */
        assert_int_equal(moepage_model_layer_index(phantom, i), 2 + i);
    assert_null(moepage_model_config_json(phantom));
    close_model(phantom);
    close_model(banks);
}

static void test_phantom_of_fp8_has_scales(void **state)
{
    (void)state;
    mp_phantom_shape shape = small_shape();
    shape.dtype = MOEPAGE_DTYPE_F8_E4M3;
    shape.hidden = 300; /* 3 blocks of 128, and 2 */
    shape.expert_intermediate = 200;
    const uint32_t f8 = MOEPAGE_DTYPE_F8_E4M3, f32 = MOEPAGE_DTYPE_F32;
    const moepage_expert_tensor tensors[] = {
        {.role = MOEPAGE_ROLE_GATE, .dtype = f8, .rank = 2, .shape = {200, 300}},
        {.role = MOEPAGE_ROLE_UP, .dtype = f8, .rank = 2, .shape = {200, 300}},
        {.role = MOEPAGE_ROLE_DOWN, .dtype = f8, .rank = 2, .shape = {300, 200}},
        {.role = MOEPAGE_ROLE_GATE_SCALE, .dtype = f32, .rank = 2, .shape = {2, 3}},
        {.role = MOEPAGE_ROLE_UP_SCALE, .dtype = f32, .rank = 2, .shape = {2, 3}},
        {.role = MOEPAGE_ROLE_DOWN_SCALE, .dtype = f32, .rank = 2, .shape = {3, 2}},
    };
    moepage_model *phantom = open_shape(&shape), *banks = open_banks(&shape, tensors, 6);
    assert_same_layout(phantom, banks);
    mp_image_part parts[MOEPAGE_MAX_EXPERT_TENSORS];
    mp_model_find_parts(phantom, 0, 0, MOEPAGE_FORM_EXPH, parts);
    for (uint32_t t = 0; t < 6; t++)
        assert_int_equal(parts[t].form, t < 3 ? MOEPAGE_FORM_EXPH : MOEPAGE_FORM_DENSE);
    assert_true(parts[3].bytes >= 24); /* whole */
    close_model(phantom);
    close_model(banks);
}

/* Of an image of small_shape in an integer form: packed rows, then a scale of 2 bytes for each 64
 * columns of a row, both rounded up to 16 bytes. */
static uint64_t integer_bytes(uint32_t form)
{
    static const uint64_t matrices[2][2] = {{80, 96}, {96, 40}};
    const uint64_t bits = form == MOEPAGE_FORM_INT8 ? 8 : form == MOEPAGE_FORM_INT4 ? 4 : 2;
    uint64_t sum = 0;
    for (int m = 0; m < 2; m++) {
        uint64_t rows = matrices[m][0], columns = matrices[m][1];
        sum += (rows * (columns * bits / 8) + 15) / 16 * 16;
        sum += (rows * ((columns + 63) / 64) * 2 + 15) / 16 * 16;
    }
    return sum;
}

static void test_phantom_images_have_the_sizes_it_was_told(void **state)
{
    (void)state;
    mp_phantom_shape shape = small_shape();
    moepage_model *model = open_shape(&shape);
    mp_image dense, coded;
    mp_image_part parts[MOEPAGE_MAX_EXPERT_TENSORS];
    mp_model_find_image(model, 1, 3, MOEPAGE_FORM_DENSE, &dense);
    mp_model_find_image(model, 2, 7, MOEPAGE_FORM_EXPH, &coded);
    mp_model_find_parts(model, 2, 7, MOEPAGE_FORM_EXPH, parts);
    assert_int_equal(dense.bytes, model->info.slot_bytes);
    assert_non_null(dense.address);
    assert_non_null(coded.address);
    assert_true(mp_model_keeps_images(model));
    assert_true(mp_model_image_is_checked(model, 1, 3, MOEPAGE_FORM_DENSE));
    assert_int_equal(mp_model_check_image(model, 1, 3, MOEPAGE_FORM_EXPH), MOEPAGE_OK);
    uint64_t end = 0;
    for (uint32_t t = 0; t < 2; t++) {
        double exact = 0.7 * (double)model->layouts[0].tensors[t].bytes;
        assert_int_equal(parts[t].offset, end);
        assert_int_equal(parts[t].offset % 16, 0);
        assert_int_equal(parts[t].form, MOEPAGE_FORM_EXPH);
        assert_true((double)parts[t].bytes >= exact - 1 && (double)parts[t].bytes < exact + 17);
        end += parts[t].bytes;
    }
    assert_int_equal(coded.bytes, end);
    for (uint32_t form = 0; form < MP_FORMS; form++) {
        bool has = form != MOEPAGE_FORM_NONE;
        assert_int_equal(mp_model_has_form(model, form), has);
        uint64_t bytes = form == MOEPAGE_FORM_DENSE  ? dense.bytes
                         : form == MOEPAGE_FORM_EXPH ? coded.bytes
                                                     : integer_bytes(form);
        assert_int_equal(mp_model_most_bytes(model, form), has ? bytes : 0);
        if (!has)
            continue;
        assert_true(mp_model_image_room(model, form) >= bytes);
        moepage_form_info info = {.struct_size = sizeof info};
        assert_int_equal(moepage_model_get_form(model, form, &info), MOEPAGE_OK);
        assert_int_equal(info.present, 1);
        assert_int_equal(info.most_bytes, bytes);
        assert_int_equal(info.image_bytes, 24 * bytes);
    }
    close_model(model);

    shape.exph_ratio = 0;
    shape.cold = true;
    model = open_shape(&shape);
    assert_false(mp_model_has_form(model, MOEPAGE_FORM_EXPH));
    mp_model_find_image(model, 0, 0, MOEPAGE_FORM_DENSE, &dense);
    assert_null(dense.address);
    assert_int_equal(dense.bytes, model->info.slot_bytes);
    close_model(model);
    shape.exph_ratio = 1e-300; /* nothing is smaller than something */
    model = open_shape(&shape);
    assert_int_equal(mp_model_most_bytes(model, MOEPAGE_FORM_EXPH), 32);
    close_model(model);
}

static void refuse(const mp_phantom_shape *shape, const char *what)
{
    moepage_model *model = NULL;
    assert_int_equal(mp_model_open_phantom(shape, &model), MOEPAGE_E_ARGUMENT);
    assert_null(model);
    if (!strstr(moepage_last_error(), what))
        fail_msg("\"%s\" does not name %s", moepage_last_error(), what);
}

#define REFUSE(field, value)                    \
    do {                                        \
        mp_phantom_shape shape = small_shape(); \
        shape.field = value;                    \
        refuse(&shape, #field);                 \
    } while (0)

static void test_phantom_refuses_shapes_that_cannot_be(void **state)
{
    (void)state;
    char name[80];
    memset(name, 'x', sizeof name - 1);
    name[64] = 0;
    REFUSE(name, NULL);
    REFUSE(name, "");
    REFUSE(name, name);
    REFUSE(moe_layers, 0);
    REFUSE(layers, 2); /* fewer than are MoE */
    REFUSE(experts, 0);
    REFUSE(top_k, 0);
    REFUSE(top_k, 9);
    REFUSE(hidden, 0);
    REFUSE(expert_intermediate, 0);
    REFUSE(dtype, MOEPAGE_DTYPE_NONE);
    REFUSE(dtype, MOEPAGE_DTYPE_F16);
    REFUSE(exph_ratio, -0.1);
    REFUSE(exph_ratio, 1.1);
    REFUSE(exph_ratio, (double)NAN);
    mp_phantom_shape shape = small_shape();
    shape.moe_layers = shape.layers = shape.experts = 65536;
    shape.hidden = shape.expert_intermediate = INT32_MAX;
    refuse(&shape, "64 bits");
}

/* ---- never taken for weights ---- */

static void test_phantom_cannot_be_read(void **state)
{
    (void)state;
    for (int cold = 0; cold < 2; cold++) {
        mp_phantom_shape shape = small_shape();
        shape.cold = cold;
        moepage_model *model = open_shape(&shape);
        uint64_t room = model->info.slot_bytes, read_bytes = 77;
        unsigned char *out = malloc(room), *before = malloc(room);
        assert_true(out && before);
        memset(out, 0x5a, room);
        memset(before, 0x5a, room);
        assert_int_equal(moepage_model_read_expert(model, 0, 0, out, room), MOEPAGE_E_UNSUPPORTED);
        assert_int_equal(mp_model_read_image(model, 0, 0, MOEPAGE_FORM_DENSE, out, room,
                                             &read_bytes),
                         MOEPAGE_E_UNSUPPORTED);
        assert_memory_equal(out, before, room);
        assert_int_equal(read_bytes, 77);
        moepage_tensor_view view = {.struct_size = sizeof view};
        assert_int_equal(moepage_model_find_tensor(model, "lm_head.weight", &view),
                         MOEPAGE_E_NOT_FOUND);
        close_model(model);
        free(out);
        free(before);
    }
}

static void test_phantom_cannot_be_packed(void **state)
{
    (void)state;
    mp_phantom_shape shape = small_shape();
    moepage_model *model = open_shape(&shape);
    char path[] = "/tmp/moepage-phantom-XXXXXX";
    assert_non_null(mkdtemp(path));
    char file[64];
    strcpy(stpcpy(file, path), "/x.moepack");
    moepage_pack_config config = {.struct_size = sizeof config,
                                  .forms = 1u << MOEPAGE_FORM_DENSE,
                                  .threads = 1};
    assert_int_equal(moepage_pack_write(model, file, &config, NULL), MOEPAGE_E_UNSUPPORTED);
    assert_int_not_equal(access(file, F_OK), 0);
    assert_int_equal(rmdir(path), 0); /* nor anything else */
    close_model(model);
}

static void test_phantom_is_refused_where_there_are_bytes(void **state)
{
    (void)state;
    mp_phantom_shape shape = small_shape();
    moepage_device_config config = {.struct_size = sizeof config,
                                    .budget_bytes = 4 << 20,
                                    .threads = 1};
    moepage_expert_pool_config pool_config = {.struct_size = sizeof pool_config};
    moepage_paged_config paged_config = {.struct_size = sizeof paged_config};
    moepage_device *host = NULL, *sim = NULL;
    moepage_expert_pool *pool = NULL;
    moepage_paged *paged = NULL;
    moepage_model *model = open_shape(&shape);
    assert_int_equal(moepage_device_open("host", &config, &host), MOEPAGE_OK);
    mp_sim_profile profile = machine_profile();
    config.workspace_bytes = 1 << 20;
    mp_device *device = NULL;
    assert_int_equal(mp_sim_open(&profile, &config, &device), MOEPAGE_OK);
    assert_int_equal(mp_home_open(device, &config, &sim), MOEPAGE_OK);

    moepage_device *both[2] = {sim, host};
    assert_int_equal(moepage_expert_pool_create(&host, 1, model, &pool_config, &pool),
                     MOEPAGE_E_UNSUPPORTED);
    assert_non_null(strstr(moepage_last_error(), "small"));
    assert_int_equal(moepage_expert_pool_create(both, 2, model, &pool_config, &pool),
                     MOEPAGE_E_UNSUPPORTED);
    assert_int_equal(moepage_paged_create(host, model, &paged_config, &paged),
                     MOEPAGE_E_UNSUPPORTED);
    assert_int_equal(moepage_paged_create(sim, model, &paged_config, &paged),
                     MOEPAGE_E_UNSUPPORTED);
    assert_null(pool);
    assert_int_equal(moepage_expert_pool_create(&sim, 1, model, &pool_config, &pool), MOEPAGE_OK);
    assert_int_equal(moepage_expert_pool_destroy(pool), MOEPAGE_OK);
    assert_int_equal(moepage_device_close(host), MOEPAGE_OK);
    assert_int_equal(moepage_device_close(sim), MOEPAGE_OK);
    close_model(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_phantom_is_laid_out_as_a_model_with_weights),
        cmocka_unit_test(test_phantom_of_fp8_has_scales),
        cmocka_unit_test(test_phantom_images_have_the_sizes_it_was_told),
        cmocka_unit_test(test_phantom_refuses_shapes_that_cannot_be),
        cmocka_unit_test(test_phantom_cannot_be_read),
        cmocka_unit_test(test_phantom_cannot_be_packed),
        cmocka_unit_test(test_phantom_is_refused_where_there_are_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
