/* The simulated CUDA driver's machine and memory: each rule from the driver's documented
 * behaviour. */
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include "sim_rules.h"

/* ---- Machine, contexts, faults ---------------------------------------------------------- */

static void test_sim_cuda_machine_is_as_configured(void **state)
{
    (void)state;
    sim_cuda_config config = {.n_gpus = 2, .driver_version = 12040, .copy_batch = true};
    config.gpus[1] =
        (sim_cuda_gpu){.bytes = 64 * MIB, .major = 8, .minor = 6, .no_vmm = true, .numa_node = -1};
    const mp_cuda_driver *driver = sim_cuda_open(&config);
    int value = 0;
    size_t bytes = 0;
    char name[32];
    IS(driver->device_count(&value), MP_CU_NOT_INITIALIZED);
    OK(driver->driver_version(&value));
    assert_int_equal(value, 12040);
    OK(driver->init(0));
    OK(driver->device_count(&value));
    assert_int_equal(value, 2);
    OK(driver->device_attribute(&value, MP_CU_ATTR_MINOR, 1));
    assert_int_equal(value, 6);
    OK(driver->device_attribute(&value, MP_CU_ATTR_VMM, 1));
    assert_int_equal(value, 0);
    OK(driver->device_attribute(&value, MP_CU_ATTR_VMM, 0));
    assert_int_equal(value, 1);
    OK(driver->device_attribute(&value, MP_CU_ATTR_HOST_NUMA, 1));
    assert_int_equal(value, -1);
    IS(driver->device_attribute(&value, 12345, 0), MP_CU_INVALID_VALUE);
    OK(driver->device_bytes(&bytes, 1));
    assert_int_equal(bytes, 64 * MIB);
    OK(driver->device_name(name, sizeof name, 0));
    assert_string_equal(name, "Simulated GPU");
    IS(driver->device_attribute(&value, MP_CU_ATTR_VMM, 2), MP_CU_INVALID_DEVICE);
    assert_non_null(driver->copy_batch);
    sim_cuda_close();

    config = (sim_cuda_config){.n_gpus = SIM_NO_GPU};
    driver = sim_cuda_open(&config);
    assert_null(driver->copy_batch);
    IS(driver->init(0), MP_CU_NO_DEVICE);
    sim_cuda_close();
}

static void *alloc_elsewhere(void *result)
{
    mp_cu_ptr memory;
    *(mp_cu_result *)result = cu->mem_alloc(&memory, 1);
    return NULL;
}

static void test_sim_cuda_calls_need_a_context_of_their_thread(void **state)
{
    (void)state;
    mp_cu_ptr memory;
    mp_cu_result result = 0;
    pthread_t thread;
    begin(NULL);
    pthread_create(&thread, NULL, alloc_elsewhere, &result);
    pthread_join(thread, NULL);
    assert_int_equal(result, MP_CU_INVALID_CONTEXT);
    OK(cu->context_pop(NULL));
    IS(cu->mem_alloc(&memory, 1), MP_CU_INVALID_CONTEXT);
    IS(cu->context_pop(NULL), MP_CU_INVALID_CONTEXT);
    assert_int_equal(sim_cuda_take_misuse(), 1);
    OK(cu->context_push(context));
    end();
}

static void test_sim_cuda_streams_belong_to_their_context(void **state)
{
    (void)state;
    sim_cuda_config config = {.n_gpus = 2};
    mp_cu_context other;
    begin(&config);
    mp_cu_stream stream = new_stream(NON_BLOCKING);
    mp_cu_ptr memory = new_memory(16);
    OK(cu->context_retain(&other, 1));
    OK(cu->context_push(other));
    IS(cu->set_bytes(memory, 0, 16, stream), MP_CU_INVALID_HANDLE);
    assert_int_equal(sim_cuda_take_misuse(), 1);
    OK(cu->context_pop(NULL));
    OK(cu->context_release(1));
    OK(cu->mem_free(memory));
    OK(cu->stream_destroy(stream));
    end();
}

static void test_sim_cuda_says_what_is_left(void **state)
{
    (void)state;
    void *host;
    begin(NULL);
    assert_string_equal(sim_cuda_left(), "1 pushed contexts, 1 retained contexts");
    mp_cu_stream stream = new_stream(0);
    mp_cu_event event = new_event();
    mp_cu_ptr memory = new_memory(1);
    OK(cu->host_alloc(&host, 1, 0));
    assert_non_null(strstr(sim_cuda_left(), "1 streams, 1 events"));
    assert_non_null(strstr(sim_cuda_left(), "1 device allocations, 1 host allocations"));
    OK(cu->stream_destroy(stream));
    OK(cu->event_destroy(event));
    OK(cu->mem_free(memory));
    OK(cu->host_free(host));
    IS(cu->mem_free(memory), MP_CU_INVALID_VALUE);
    IS(cu->stream_query(stream), MP_CU_INVALID_HANDLE);
    IS(cu->event_query(event), MP_CU_INVALID_HANDLE);
    assert_non_null(strstr(sim_cuda_left(), "3 misuses"));
    assert_int_equal(sim_cuda_take_misuse(), 3);
    OK(cu->context_pop(NULL));
    OK(cu->context_release(0));
    assert_string_equal(sim_cuda_left(), "");
    sim_cuda_close();
}

static void test_sim_cuda_fails_the_nth_call(void **state)
{
    (void)state;
    mp_cu_event event;
    begin(NULL);
    uint64_t before = sim_cuda_get_stats().calls[SIM_event_create];
    sim_cuda_fail(SIM_event_create, 2, MP_CU_OUT_OF_MEMORY, false);
    OK(cu->event_destroy(new_event()));
    IS(cu->event_create(&event, 0), MP_CU_OUT_OF_MEMORY);
    OK(cu->event_destroy(new_event()));
    assert_int_equal(sim_cuda_get_stats().calls[SIM_event_create], before + 3);
    sim_cuda_fail(SIM_event_create, 1, MP_CU_OUT_OF_MEMORY, true);
    IS(cu->event_create(&event, 0), MP_CU_OUT_OF_MEMORY);
    IS(cu->event_create(&event, 0), MP_CU_OUT_OF_MEMORY);
    sim_cuda_fail_none();
    sim_cuda_fail_any(2, MP_CU_INVALID_VALUE, false);
    event = new_event();
    IS(cu->event_destroy(event), MP_CU_INVALID_VALUE);
    OK(cu->event_destroy(event));
    assert_string_equal(sim_cuda_call_name(SIM_event_create), "event_create");
    end();
}

/* ---- Memory ----------------------------------------------------------------------------- */

static void test_sim_cuda_memory_is_counted_and_holds_garbage(void **state)
{
    (void)state;
    sim_cuda_config config = {.gpus[0].bytes = MIB};
    mp_cu_ptr more;
    size_t free_bytes, total;
    begin(&config);
    mp_cu_ptr memory = new_memory(MIB - 100);
    assert_int_equal(memory % 256, 0);
    const unsigned char *bytes = at(memory);
    assert_int_not_equal(bytes[0] | bytes[MIB - 101], 0);
    OK(cu->mem_info(&free_bytes, &total));
    assert_int_equal(free_bytes, 100);
    assert_int_equal(total, MIB);
    IS(cu->mem_alloc(&more, 101), MP_CU_OUT_OF_MEMORY);
    assert_int_equal(sim_cuda_get_stats().allocated, MIB - 100);
    OK(cu->mem_free(memory));
    assert_false(sim_cuda_accessible(at(memory), 1));
    assert_int_equal(sim_cuda_get_stats().allocated, 0);
    end();
}

static const mp_cu_mem_prop on_gpu = {.type = MP_CU_ALLOCATION_PINNED,
                                      .location = {MP_CU_LOCATION_DEVICE, 0}};
static const mp_cu_access by_gpu = {{MP_CU_LOCATION_DEVICE, 0}, MP_CU_ACCESS_READWRITE};

static void test_sim_cuda_virtual_memory_goes_through_its_states(void **state)
{
    (void)state;
    const size_t g = SIM_GRANULARITY;
    mp_cu_ptr base;
    mp_cu_handle one, two;
    size_t granularity;
    begin(NULL);
    OK(cu->granularity(&granularity, &on_gpu, MP_CU_GRANULARITY_RECOMMENDED));
    assert_int_equal(granularity, g);
    IS(cu->address_reserve(&base, g + 1, 0, 0, 0), MP_CU_INVALID_VALUE);
    OK(cu->address_reserve(&base, 4 * g, 8 * g, 0, 0));
    assert_int_equal(base % (8 * g), 0);
    IS(cu->mem_create(&one, g / 2, &on_gpu, 0), MP_CU_INVALID_VALUE);
    OK(cu->mem_create(&one, g, &on_gpu, 0));
    OK(cu->mem_create(&two, 2 * g, &on_gpu, 0));
    IS(cu->mem_map(base, g, g, two, 0), MP_CU_INVALID_VALUE);     /* an offset */
    IS(cu->mem_map(base, g, 0, two, 0), MP_CU_INVALID_VALUE);     /* a part */
    IS(cu->mem_map(base + 1, g, 0, one, 0), MP_CU_INVALID_VALUE); /* between granules */
    IS(cu->mem_map(base + 3 * g, 2 * g, 0, two, 0), MP_CU_INVALID_VALUE);
    IS(cu->mem_set_access(base, g, &by_gpu, 1), MP_CU_INVALID_VALUE);
    OK(cu->mem_map(base, g, 0, one, 0));
    IS(cu->mem_map(base, 2 * g, 0, two, 0), MP_CU_INVALID_VALUE); /* over another */
    OK(cu->mem_map(base + g, 2 * g, 0, two, 0));
    assert_false(sim_cuda_accessible(at(base), 1));
    OK(cu->mem_set_access(base, g, &by_gpu, 1));
    assert_true(sim_cuda_accessible(at(base), g));
    assert_false(sim_cuda_accessible(at(base), g + 1));
    OK(cu->mem_set_access(base + g, 2 * g, &by_gpu, 1));
    assert_true(sim_cuda_accessible(at(base), 3 * g));
    assert_false(sim_cuda_accessible(at(base), 3 * g + 1));
    IS(cu->address_free(base, 4 * g), MP_CU_INVALID_VALUE); /* mapped */
    IS(cu->mem_unmap(base + g, g), MP_CU_INVALID_VALUE);    /* a part */
    IS(cu->mem_unmap(base, 3 * g), MP_CU_INVALID_VALUE);    /* two at once */
    assert_int_equal(sim_cuda_take_misuse(), 3);
    OK(cu->mem_unmap(base, g));
    OK(cu->mem_unmap(base + g, 2 * g));
    OK(cu->mem_release(one));
    OK(cu->mem_release(two));
    IS(cu->mem_release(two), MP_CU_INVALID_VALUE);
    IS(cu->address_free(base, 2 * g), MP_CU_INVALID_VALUE);
    assert_int_equal(sim_cuda_take_misuse(), 2);
    OK(cu->address_free(base, 4 * g));
    end();
}

static void test_sim_cuda_mappings_of_a_handle_show_the_same_bytes(void **state)
{
    (void)state;
    const size_t g = SIM_GRANULARITY;
    mp_cu_ptr base;
    mp_cu_handle handle;
    begin(NULL);
    OK(cu->address_reserve(&base, 2 * g, 0, 0, 0));
    OK(cu->mem_create(&handle, g, &on_gpu, 0));
    OK(cu->mem_map(base, g, 0, handle, 0));
    OK(cu->mem_map(base + g, g, 0, handle, 0));
    OK(cu->mem_set_access(base, 2 * g, &by_gpu, 1));
    OK(cu->mem_release(handle)); /* lives while it is mapped */
    memcpy(at(base + 5), "moved", 5);
    assert_memory_equal(at(base + g + 5), "moved", 5);
    OK(cu->mem_unmap(base, g));
    assert_memory_equal(at(base + g + 5), "moved", 5);
    assert_int_equal(sim_cuda_get_stats().allocated, g);
    OK(cu->mem_unmap(base + g, g));
    assert_int_equal(sim_cuda_get_stats().allocated, 0);
    OK(cu->address_free(base, 2 * g));
    end();
}

static void test_sim_cuda_host_memory_is_registered_once(void **state)
{
    (void)state;
    sim_cuda_config config = {.register_limit = 8 * MIB, .pinned_limit = 9 * MIB};
    mp_cu_ptr device;
    void *host;
    unsigned type = 0;
    unsigned char *memory =
        mmap(NULL, 16 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    begin(&config);
    mp_cu_ptr on = new_memory(64);
    IS(cu->pointer_attribute(&type, MP_CU_POINTER_MEMORY_TYPE, ptr(memory)), MP_CU_INVALID_VALUE);
    IS(cu->host_register(memory, 16 * MIB, 0), MP_CU_OUT_OF_MEMORY);
    OK(cu->host_register(memory, 8 * MIB, MP_CU_HOST_PORTABLE));
    IS(cu->host_register(memory + 4096, 4096, 0), MP_CU_HOST_MEMORY_ALREADY_REGISTERED);
    IS(cu->host_register(memory + 8 * MIB, 2 * MIB, 0), MP_CU_OUT_OF_MEMORY);
    OK(cu->host_register(memory + 8 * MIB, MIB, 0));
    assert_int_equal(sim_cuda_get_stats().pinned, 9 * MIB);
    IS(cu->host_alloc(&host, 1, 0), MP_CU_OUT_OF_MEMORY);
    OK(cu->pointer_attribute(&type, MP_CU_POINTER_MEMORY_TYPE, ptr(memory + 77)));
    assert_int_equal(type, MP_CU_MEMORY_HOST);
    OK(cu->pointer_attribute(&type, MP_CU_POINTER_MEMORY_TYPE, on));
    assert_int_equal(type, MP_CU_MEMORY_DEVICE);
    OK(cu->host_device_pointer(&device, memory + 64, 0));
    assert_true(device == ptr(memory + 64));
    OK(cu->host_unregister(memory));
    OK(cu->host_unregister(memory + 8 * MIB));
    IS(cu->host_unregister(memory), MP_CU_INVALID_VALUE);
    assert_int_equal(sim_cuda_take_misuse(), 1);
    OK(cu->mem_free(on));
    munmap(memory, 16 * MIB);
    IS(cu->host_register(memory, 4096, 0), MP_CU_INVALID_VALUE); /* not there any more */
    end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sim_cuda_machine_is_as_configured),
        cmocka_unit_test(test_sim_cuda_calls_need_a_context_of_their_thread),
        cmocka_unit_test(test_sim_cuda_streams_belong_to_their_context),
        cmocka_unit_test(test_sim_cuda_says_what_is_left),
        cmocka_unit_test(test_sim_cuda_fails_the_nth_call),
        cmocka_unit_test(test_sim_cuda_memory_is_counted_and_holds_garbage),
        cmocka_unit_test(test_sim_cuda_virtual_memory_goes_through_its_states),
        cmocka_unit_test(test_sim_cuda_mappings_of_a_handle_show_the_same_bytes),
        cmocka_unit_test(test_sim_cuda_host_memory_is_registered_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
