/* PagedTensor on a CUDA device, over the simulated driver or that of MP_TEST_DEVICE: what a
 * caller's stream reads at a layer's addresses is the layer, round after round, with two buffers
 * and with more. */
#include <stdlib.h>
#include <string.h>

#include "arena/home.h"
#include "bank_model.h"
#include "device_rig.h"
#include "gpu.h"
#include "testing.h"

#define ROUNDS 3

typedef struct reader {
    bank_model bank;
    moepage_device *device;
    mp_cuda *cuda;
    mp_cu_stream stream;
    moepage_paged *paged;
    moepage_paged_tensor tensors[MOEPAGE_MAX_EXPERT_TENSORS];
    unsigned char *read; /* pinned: [rounds][layers] of whole layers */
    uint64_t read_bytes, layer_bytes;
} reader;

static void open_reader(reader *r, const bank_shape *shape, uint32_t buffers)
{
    void *memory = NULL;
    moepage_device_config config = {.struct_size = sizeof config, .threads = 2};
    moepage_paged_config paged = {.struct_size = sizeof paged, .buffers = buffers};
    memset(r, 0, sizeof *r);
    bank_model_open(&r->bank, shape);
    config.workspace_bytes = 16u << 20;
    config.budget_bytes = 272u << 20;
    r->device = device_rig_open(&config);
    r->cuda = mp_cuda_of(r->device->device);
    if (moepage_paged_create(r->device, r->bank.model, &paged, &r->paged))
        fail_msg("%s", moepage_last_error());
    for (uint32_t t = 0; t < r->bank.n_tensors; t++) {
        r->tensors[t].struct_size = sizeof r->tensors[t];
        assert_int_equal(moepage_paged_get_tensor(r->paged, t, &r->tensors[t]), MOEPAGE_OK);
    }
    r->layer_bytes = r->bank.expert_bytes * shape->experts;
    r->read_bytes = r->layer_bytes * shape->layers * ROUNDS;
    assert_int_equal(r->device->device->ops->alloc(r->device->device, MP_MEMORY_HOST, r->read_bytes,
                                                   &memory),
                     MOEPAGE_OK);
    r->read = memory;
    memset(r->read, 0xee, r->read_bytes);
    assert_int_equal(mp_cuda_enter(r->cuda), MOEPAGE_OK);
    assert_int_equal(r->cuda->driver->stream_create(&r->stream, MP_CU_STREAM_NON_BLOCKING, 0), 0);
    mp_cuda_leave(r->cuda);
}

static void wait_for(reader *r)
{
    assert_int_equal(mp_cuda_enter(r->cuda), MOEPAGE_OK);
    assert_int_equal(r->cuda->driver->stream_sync(r->stream), 0);
    mp_cuda_leave(r->cuda);
}

static void close_reader(reader *r)
{
    wait_for(r);
    assert_int_equal(moepage_paged_destroy(r->paged), MOEPAGE_OK);
    assert_int_equal(mp_cuda_enter(r->cuda), MOEPAGE_OK);
    assert_int_equal(r->cuda->driver->stream_destroy(r->stream), 0);
    mp_cuda_leave(r->cuda);
    r->device->device->ops->free(r->device->device, MP_MEMORY_HOST, r->read, r->read_bytes);
    device_rig_close(r->device);
    bank_model_close(&r->bank);
}

/* All of a layer's tensors, one after the other, in the order of the stream. */
static void copy_layer(reader *r, uint32_t layer, unsigned char *to)
{
    assert_int_equal(mp_cuda_enter(r->cuda), MOEPAGE_OK);
    for (uint32_t t = 0; t < r->bank.n_tensors; t++) {
        uint64_t bytes = r->tensors[t].expert_stride * r->bank.shape.experts;
        const unsigned char *at =
            (const unsigned char *)r->tensors[t].base + layer * r->tensors[t].layer_stride;
        assert_int_equal(r->cuda->driver->copy((mp_cu_ptr)(uintptr_t)to, (mp_cu_ptr)(uintptr_t)at,
                                               bytes, r->stream),
                         0);
        to += bytes;
    }
    mp_cuda_leave(r->cuda);
}

static void expect_layer(const reader *r, uint32_t layer, const unsigned char *bytes)
{
    for (uint32_t t = 0; t < r->bank.n_tensors; t++)
        for (uint32_t e = 0; e < r->bank.shape.experts; e++) {
            uint64_t n = r->tensors[t].expert_stride;
            assert_memory_equal(bytes, bank_model_tensor(&r->bank, layer, e, t), n);
            bytes += n;
        }
}

static void expect_layers_at_their_addresses(const bank_shape *shape, uint32_t buffers)
{
    reader r;
    open_reader(&r, shape, buffers);
    const uint32_t n = shape->layers, ahead = buffers;
    for (uint32_t i = 0; i < ahead; i++)
        assert_int_equal(moepage_paged_materialise(r.paged, i), MOEPAGE_OK);
    for (uint32_t i = 0; i < n * ROUNDS; i++) {
        assert_int_equal(moepage_paged_acquire(r.paged, i % n, r.stream), MOEPAGE_OK);
        copy_layer(&r, i % n, r.read + i * r.layer_bytes);
        assert_int_equal(moepage_paged_release(r.paged, i % n, r.stream), MOEPAGE_OK);
        assert_int_equal(moepage_paged_materialise(r.paged, (i + ahead) % n), MOEPAGE_OK);
    }
    wait_for(&r);
    for (uint32_t i = 0; i < n * ROUNDS; i++)
        expect_layer(&r, i % n, r.read + i * r.layer_bytes);
    close_reader(&r);
}

static void test_gpu_paged_layers_are_read_at_their_addresses(void **state)
{
    (void)state;
    static const bank_shape shapes[] = {
        {5, 6, 2, 64, 40, MOEPAGE_DTYPE_BF16, .seed = 3},
        {4, 5, 2, 48, 64, MOEPAGE_DTYPE_F32, .split = true, .bias = true, .seed = 4},
        {5, 4, 2, 64, 40, MOEPAGE_DTYPE_BF16, .callback = true, .seed = 5},
        {5, 4, 2, 128, 96, MOEPAGE_DTYPE_BF16, .pack_forms = 1u << MOEPAGE_FORM_EXPH, .seed = 6},
    };
    for (uint32_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (uint32_t buffers = 2; buffers <= 3; buffers++)
            expect_layers_at_their_addresses(&shapes[i], buffers);
}

int main(void)
{
    setenv("MP_TEST_DEVICE", "sim", 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpu_paged_layers_are_read_at_their_addresses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
