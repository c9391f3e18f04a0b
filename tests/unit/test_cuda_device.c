/* The CUDA device on a simulated driver: what it says of a GPU and why it refuses one, its errors,
 * its arena and views, and its other memory. */
#include <string.h>

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/status.h"
#include "gpu.h"
#include "sim_cuda.h"
#include "testing.h"
#include "vmm.h"

#define MIB (1ull << 20)

/* ---- The rig ---------------------------------------------------------------------------- */

static struct {
    uint32_t lines[4]; /* by level */
    char last[512];
} heard;

static void hear(void *user, int32_t level, const char *text)
{
    (void)user;
    heard.lines[level]++;
    snprintf(heard.last, sizeof heard.last, "%s", text);
}

static const mp_cuda_driver *driver;
static uint64_t pinned_at_open; /* the device's own */

static void begin(const sim_cuda_config *config)
{
    memset(&heard, 0, sizeof heard);
    driver = sim_cuda_open(config);
}

static moepage_device_config config_of(uint32_t threads)
{
    return (moepage_device_config){.struct_size = sizeof(moepage_device_config),
                                   .threads = threads,
                                   .budget_bytes = MIB,
                                   .log = hear};
}

static moepage_status try_open(uint32_t ordinal, const moepage_device_config *config,
                               mp_device **out)
{
    return mp_cuda_device_open(driver, NULL, "libcublas.so.13: not here", sim_images, sim_n_images,
                               ordinal, config, out);
}

static mp_cuda *open_gpu(uint32_t ordinal)
{
    const moepage_device_config config = config_of(2);
    mp_device *device = NULL;
    if (try_open(ordinal, &config, &device))
        fail_msg("%s", moepage_last_error());
    pinned_at_open = sim_cuda_get_stats().pinned;
    return mp_cuda_of(device);
}

/* Host memory that has been pinned since. */
static uint64_t pinned(void)
{
    return sim_cuda_get_stats().pinned - pinned_at_open;
}

static void close_gpu(mp_cuda *cuda)
{
    cuda->device.ops->close(&cuda->device);
}

static moepage_cuda_info info_of(mp_cuda *cuda)
{
    moepage_cuda_info info;
    assert_int_equal(cuda->device.ops->cuda->get_info(&cuda->device, &info), MOEPAGE_OK);
    return info;
}

static void *alloc_from(mp_cuda *cuda, mp_memory_kind kind, uint64_t bytes)
{
    void *memory = NULL;
    if (cuda->device.ops->alloc(&cuda->device, kind, bytes, &memory))
        fail_msg("%s", moepage_last_error());
    return memory;
}

static void give_back(mp_cuda *cuda, mp_memory_kind kind, void *memory, uint64_t bytes)
{
    cuda->device.ops->free(&cuda->device, kind, memory, bytes);
}

static bool said(const char *words)
{
    return strstr(moepage_last_error(), words) != NULL;
}

/* ---- Opening ---------------------------------------------------------------------------- */

static void test_cuda_device_says_what_it_is(void **state)
{
    (void)state;
    const sim_cuda_config config = {.n_gpus = 2,
                                    .gpus = {{.numa_node = -1},
                                             {.name = "Simulated Two",
                                              .bytes = 3ull << 30,
                                              .multiprocessors = 7,
                                              .major = 8,
                                              .minor = 6,
                                              .numa_node = 3}},
                                    .driver_version = 12040};
    begin(&config);
    mp_cuda *cuda = open_gpu(1);
    moepage_cuda_info info = info_of(cuda);
    assert_string_equal(cuda->device.name, "cuda:1");
    assert_string_equal(cuda->device.kernels, "sm_86");
    assert_int_equal(cuda->device.caps, 0);
    assert_int_equal(cuda->device.threads, 2);
    assert_int_equal(cuda->device.io_threads, 4);
    assert_int_equal(cuda->device.ops->version, MP_DEVICE_OPS_VERSION);
    assert_int_equal(cuda->device.arena_align, 2 * MIB);
    assert_int_equal(cuda->device.view_bytes, 0);
    assert_string_equal(info.name, "Simulated Two");
    assert_int_equal(info.ordinal, 1);
    assert_int_equal(info.compute_major, 8);
    assert_int_equal(info.compute_minor, 6);
    assert_int_equal(info.multiprocessors, 7);
    assert_int_equal(info.driver_version, 12040);
    assert_int_equal(info.cublas_version, 0);
    assert_int_equal(info.device_bytes, 3ull << 30);
    assert_int_equal(info.numa_node, 3);
    assert_int_equal(info.poisoned, 0);
    assert_int_equal(info.arena_kind, 0);
    assert_int_equal(heard.lines[MOEPAGE_LOG_INFO], 1);
    assert_non_null(strstr(heard.last, "BF16_FAST runs as MATH_BF16: libcublas.so.13: not here"));
    uint64_t first = cuda->device.ops->now_ns(&cuda->device);
    assert_true(cuda->device.ops->now_ns(&cuda->device) >= first);
    close_gpu(cuda);
    sim_cuda_close();
}

/* One refusal: its status and what its sentence must name. */
static void refuses(const sim_cuda_config *machine, uint32_t ordinal, moepage_status status,
                    const char *words)
{
    const moepage_device_config config = config_of(1);
    mp_device *device = NULL;
    begin(machine);
    assert_int_equal(try_open(ordinal, &config, &device), status);
    if (!said(words) || !said("cuda:"))
        fail_msg("\"%s\" does not say \"%s\"", moepage_last_error(), words);
    assert_null(device);
    sim_cuda_close();
}

static void test_cuda_device_says_why_a_gpu_will_not_do(void **state)
{
    (void)state;
    const sim_cuda_config none = {.n_gpus = SIM_NO_GPU}, one = {.n_gpus = 1}, three = {.n_gpus = 3},
                          old_driver = {.driver_version = 11080},
                          old_gpu = {.gpus = {{.name = "Turing", .major = 7, .minor = 5}}};
    refuses(&none, 0, MOEPAGE_E_NOT_FOUND, "sees no GPU");
    refuses(&one, 1, MOEPAGE_E_NOT_FOUND,
            "cuda:1: the NVIDIA driver sees 1 GPU, the last is "
            "\"cuda:0\"");
    refuses(&three, 3, MOEPAGE_E_NOT_FOUND, "sees 3 GPUs, the last is \"cuda:2\"");
    refuses(&three, UINT32_MAX, MOEPAGE_E_NOT_FOUND, "cuda:4294967295: ");
    refuses(&old_driver, 0, MOEPAGE_E_UNSUPPORTED, "one for CUDA 11.8, and CUDA 12.0");
    refuses(&old_gpu, 0, MOEPAGE_E_UNSUPPORTED, "Turing has compute capability 7.5, and 8.0");
}

static void test_cuda_device_refuses_a_config_that_it_cannot_honour(void **state)
{
    (void)state;
    moepage_device_config config = config_of(1025);
    mp_device *device = NULL;
    begin(NULL);
    assert_int_equal(try_open(0, &config, &device), MOEPAGE_E_ARGUMENT);
    assert_true(said("cuda:0: threads is 1025, at most 1024"));
    config = config_of(1);
    config.io_threads = 65;
    assert_int_equal(try_open(0, &config, &device), MOEPAGE_E_ARGUMENT);
    assert_true(said("io_threads is 65, at most 64"));
    config.io_threads = 3;
    config.bus_bytes_per_s = 77;
    assert_int_equal(try_open(0, &config, &device), MOEPAGE_E_ARGUMENT);
    assert_true(said("bus_bytes_per_s is 77"));
    assert_null(device);
    config.bus_bytes_per_s = config.threads = 0;
    assert_int_equal(try_open(0, &config, &device), MOEPAGE_OK);
    assert_true(device->threads >= 1 && device->threads <= 16);
    assert_int_equal(device->io_threads, 3);
    device->ops->close(device);
    sim_cuda_close();
}

static void test_cuda_device_says_when_the_kernels_are_not_for_it(void **state)
{
    (void)state;
    const moepage_device_config config = config_of(1);
    mp_device *device = NULL;
    begin(NULL);
    sim_cuda_fail(SIM_module_load, 1, MP_CU_NO_BINARY_FOR_GPU, false);
    assert_int_equal(try_open(0, &config, &device), MOEPAGE_E_UNSUPPORTED);
    assert_true(said("kernels for Simulated GPU (compute capability 9.0): build with "
                     "CUDA_ARCHS=\"90\""));
    sim_cuda_fail(SIM_module_load, 1, MP_CU_INVALID_VALUE, false);
    assert_int_equal(try_open(0, &config, &device), MOEPAGE_E_DEVICE);
    assert_true(said("loading kernels failed"));
    assert_int_equal(mp_cuda_device_open(driver, NULL, NULL, NULL, 0, 0, &config, &device),
                     MOEPAGE_E_VERSION);
    assert_true(said("this build has no kernel mp_gpu_"));
    assert_null(device);
    sim_cuda_close();
}

/* Not one is left to its first launch. */
static void test_cuda_device_loads_every_kernel_when_it_opens(void **state)
{
    (void)state;
    const moepage_device_config config = config_of(1);
    mp_device *device = NULL;
    begin(NULL);
    mp_cuda *cuda = open_gpu(0);
    const uint32_t functions = cuda->kernels.n_functions;
    assert_true(functions > 20);
    assert_int_equal(sim_cuda_get_stats().calls[SIM_function_load], functions);
    close_gpu(cuda);
    sim_cuda_fail(SIM_function_load, functions, MP_CU_OUT_OF_MEMORY, false);
    assert_int_equal(try_open(0, &config, &device), MOEPAGE_E_NO_MEMORY);
    assert_true(said("loading a kernel failed"));
    sim_cuda_close();
    begin(&(sim_cuda_config){.driver_version = 12000}); /* which cannot be asked to */
    close_gpu(open_gpu(0));
    sim_cuda_close();
}

static void test_cuda_device_asks_for_shared_memory_rather_than_cache(void **state)
{
    (void)state;
    begin(NULL);
    mp_cuda *cuda = open_gpu(0);
    assert_int_equal(mp_cuda_enter(cuda), MOEPAGE_OK);
    for (uint32_t i = 0; i < cuda->kernels.n_functions; i++) {
        int percent = 0;
        assert_int_equal(cuda->driver->function_attribute(&percent, MP_CU_FUNC_SHARED_CARVEOUT,
                                                          cuda->kernels.functions[i].handle),
                         MP_CU_SUCCESS);
        assert_int_equal(percent, 100);
    }
    mp_cuda_leave(cuda);
    close_gpu(cuda);
    sim_cuda_close();
}

static void test_cuda_device_finds_the_node_of_old_drivers_by_the_bus(void **state)
{
    (void)state;
    char root[] = "/tmp/moepage-node-XXXXXX", path[256], file[512];
    int place[3] = {0};
    assert_non_null(mkdtemp(root));
    begin(NULL);
    mp_cuda *cuda = open_gpu(0);
    sim_cuda_fail(SIM_device_attribute, 1, MP_CU_INVALID_VALUE, false);
    assert_int_equal(mp_cuda_numa_node(cuda, root), -1); /* the system has no such file */

    driver->device_attribute(&place[0], MP_CU_ATTR_PCI_DOMAIN, 0);
    driver->device_attribute(&place[1], MP_CU_ATTR_PCI_BUS, 0);
    driver->device_attribute(&place[2], MP_CU_ATTR_PCI_DEVICE, 0);
    const char *const parts[] = {"/sys", "/bus", "/pci", "/devices"};
    snprintf(path, sizeof path, "%s", root);
    for (uint32_t i = 0; i < 4; i++) {
        strcat(path, parts[i]);
        assert_int_equal(mkdir(path, 0700), 0);
    }
    snprintf(path + strlen(path), 64, "/%04x:%02x:%02x.0", (unsigned)place[0], (unsigned)place[1],
             (unsigned)place[2]);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(file, sizeof file, "%s/numa_node", path);
    const struct {
        const char *text;
        int32_t node;
    } cases[] = {{"1\n", 1}, {"-1\n", -1}, {"63\n", 63}, {"64\n", -1}, {"none\n", -1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        FILE *node = fopen(file, "w");
        assert_non_null(node);
        fputs(cases[i].text, node);
        fclose(node);
        sim_cuda_fail(SIM_device_attribute, 1, MP_CU_INVALID_VALUE, false);
        assert_int_equal(mp_cuda_numa_node(cuda, root), cases[i].node);
    }
    close_gpu(cuda);
    sim_cuda_close();
    remove(file);
    for (uint32_t i = 0; i < 6; i++) {
        rmdir(path);
        *strrchr(path, '/') = 0;
    }
}

/* ---- Errors and the context ------------------------------------------------------------- */

static void test_cuda_device_puts_the_callers_context_back(void **state)
{
    (void)state;
    const sim_cuda_config config = {.n_gpus = 2};
    mp_cu_context theirs = NULL, popped = NULL;
    int mode = 1; /* of its captures: another one than what a thread begins with */
    begin(&config);
    assert_int_equal(driver->init(0), 0);
    assert_int_equal(driver->context_retain(&theirs, 1), 0);
    assert_int_equal(driver->context_push(theirs), 0);
    assert_int_equal(driver->capture_mode(&mode), 0);
    const int own_mode = mode;
    mp_cuda *cuda = open_gpu(0);
    assert_int_equal(mp_cuda_enter(cuda), MOEPAGE_OK);
    assert_int_equal(mp_cuda_enter(cuda), MOEPAGE_OK);
    void *arena = alloc_from(cuda, MP_MEMORY_ARENA, 100);
    mp_cuda_leave(cuda);
    mode = MP_CU_CAPTURE_MODE_RELAXED;
    driver->capture_mode(&mode);
    assert_int_equal(mode, MP_CU_CAPTURE_MODE_RELAXED); /* still inside */
    mp_cuda_leave(cuda);
    give_back(cuda, MP_MEMORY_ARENA, arena, 100);
    sim_cuda_fail(SIM_capture_mode, 1, MP_CU_INVALID_VALUE, false);
    assert_int_equal(mp_cuda_enter(cuda), MOEPAGE_E_DEVICE);
    close_gpu(cuda);
    mode = own_mode;
    driver->capture_mode(&mode);
    assert_int_equal(mode, 1);
    assert_int_equal(driver->context_pop(&popped), 0);
    assert_ptr_equal(popped, theirs);
    assert_int_equal(driver->context_release(1), 0);
    sim_cuda_close();
}

static void test_cuda_device_turns_results_into_statuses(void **state)
{
    (void)state;
    begin(NULL);
    mp_cuda *cuda = open_gpu(0);
    heard.lines[MOEPAGE_LOG_ERROR] = 0;
    assert_int_equal(mp_cuda_check(cuda, MP_CU_SUCCESS, "x"), MOEPAGE_OK);
    assert_int_equal(mp_cuda_check(cuda, MP_CU_OUT_OF_MEMORY, "baking"), MOEPAGE_E_NO_MEMORY);
    assert_true(said("cuda:0: baking failed: CUDA_ERROR_OUT_OF_MEMORY (2: "));
    assert_int_equal(mp_cuda_check(cuda, MP_CU_INVALID_VALUE, "baking"), MOEPAGE_E_DEVICE);
    assert_int_equal(mp_cuda_check(cuda, 31337, "baking"), MOEPAGE_E_DEVICE);
    assert_true(said("31337"));
    assert_int_equal(mp_cuda_check_health(cuda), MOEPAGE_OK);
    assert_int_equal(heard.lines[MOEPAGE_LOG_ERROR], 0);

    mp_error_set("the first failure");
    mp_cuda_log_failure(cuda, MP_CU_INVALID_VALUE, "sweeping up");
    assert_true(said("the first failure"));
    assert_int_equal(heard.lines[MOEPAGE_LOG_WARNING], 1);
    assert_non_null(strstr(heard.last, "sweeping up failed"));
    close_gpu(cuda);
    sim_cuda_close();
}

static void test_cuda_device_dies_once_and_says_of_what(void **state)
{
    (void)state;
    static const mp_cu_result sticky[] = {MP_CU_DEINITIALIZED,
                                          MP_CU_ECC_UNCORRECTABLE,
                                          MP_CU_ILLEGAL_ADDRESS,
                                          MP_CU_LAUNCH_TIMEOUT,
                                          MP_CU_ASSERT,
                                          MP_CU_MISALIGNED_ADDRESS,
                                          MP_CU_LAUNCH_FAILED,
                                          MP_CU_CONTEXT_IS_DESTROYED,
                                          MP_CU_NVLINK_UNCORRECTABLE,
                                          MP_CU_UNKNOWN};
    begin(NULL);
    for (size_t i = 0; i < sizeof sticky / sizeof *sticky; i++) {
        mp_cuda *cuda = open_gpu(0);
        uint32_t args = 0;
        mp_cuda_path_layer layer = {0};
        heard.lines[MOEPAGE_LOG_ERROR] = 0;
        assert_int_equal(mp_cuda_check(cuda, sticky[i], "the first one"), MOEPAGE_E_DEVICE);
        assert_int_equal(mp_cuda_check(cuda, MP_CU_LAUNCH_FAILED, "an echo"), MOEPAGE_E_DEVICE);
        assert_true(said("the first one failed") && said("has to be closed"));
        mp_cuda_log_failure(cuda, MP_CU_LAUNCH_FAILED, "an echo");
        assert_int_equal(heard.lines[MOEPAGE_LOG_ERROR], 1);
        assert_int_equal(info_of(cuda).poisoned, 1);
        mp_error_set("none");
        assert_int_equal(cuda->device.ops->cuda->call(&cuda->device, MP_CUDA_CALL_GATHER, &args,
                                                      NULL),
                         MOEPAGE_E_DEVICE);
        assert_true(said("the first one failed"));
        assert_int_equal(cuda->device.ops->cuda->path_layer(&cuda->device, &layer, NULL),
                         MOEPAGE_E_DEVICE);
        close_gpu(cuda);
    }
    sim_cuda_close();
}

/* The driver's own word for it, from a GPU that breaks under us. */
static void test_cuda_device_is_closed_without_leaks_after_its_death(void **state)
{
    (void)state;
    begin(NULL);
    mp_cuda *cuda = open_gpu(0);
    void *arena = alloc_from(cuda, MP_MEMORY_ARENA, 10 * MIB), *more = NULL;
    sim_cuda_break(0, MP_CU_ILLEGAL_ADDRESS);
    assert_int_equal(cuda->device.ops->alloc(&cuda->device, MP_MEMORY_WORKSPACE, 64, &more),
                     MOEPAGE_E_DEVICE);
    assert_true(said("CUDA_ERROR_ILLEGAL_ADDRESS"));
    assert_null(more);
    assert_int_equal(info_of(cuda).poisoned, 1);
    give_back(cuda, MP_MEMORY_ARENA, arena, 10 * MIB);
    assert_int_equal(cuda->device.ops->alloc(&cuda->device, MP_MEMORY_ARENA, MIB, &more),
                     MOEPAGE_E_DEVICE);
    assert_null(more);
    close_gpu(cuda);
    sim_cuda_close();
}

/* ---- Kernels ---------------------------------------------------------------------------- */

static void test_cuda_device_refuses_launches_that_cannot_be(void **state)
{
    (void)state;
    static const char *const names[] = {
#define NAME(entry) "mp_gpu_" #entry,
        MP_CUDA_ENTRIES(NAME) NULL};
    const sim_cuda_config config = {.gpus = {{.shared_optin = 100000, .multiprocessors = 5}}};
    uint64_t args[512] = {0};
    begin(&config);
    mp_cuda *cuda = open_gpu(0);
    assert_int_equal(mp_cuda_enter(cuda), MOEPAGE_OK);
    assert_int_equal(mp_cuda_launch(cuda, NULL, "mp_gpu_nothing", 1, 32, 0, args),
                     MOEPAGE_E_NOT_FOUND);
    assert_true(said("there is no kernel mp_gpu_nothing"));
    assert_int_equal(mp_cuda_resident_blocks(cuda, "mp_gpu_nothing", 32, 0), 1);
    for (uint32_t i = 0; names[i]; i++) {
        assert_int_equal(mp_cuda_launch(cuda, NULL, names[i], 1, 32, 100001, args),
                         MOEPAGE_E_UNSUPPORTED);
        assert_true(said("100001 bytes of shared memory") && said(names[i]));
        assert_int_equal(mp_cuda_launch(cuda, NULL, names[i], 0, 32, 0, args), MOEPAGE_OK);

        /* A question's answer is kept, and not taken for another question's. */
        uint32_t few = mp_cuda_resident_blocks(cuda, names[i], 1024, 100000);
        uint32_t many = mp_cuda_resident_blocks(cuda, names[i], 32, 0);
        assert_true(few >= 5 && few % 5 == 0 && many > few && many % 5 == 0);
        sim_cuda_fail(SIM_occupancy, 1, MP_CU_INVALID_VALUE, true);
        assert_int_equal(mp_cuda_resident_blocks(cuda, names[i], 32, 0), many);
        assert_int_equal(mp_cuda_resident_blocks(cuda, names[i], 1024, 100000), 1);
        sim_cuda_fail_none();
    }
    mp_cuda_leave(cuda);
    close_gpu(cuda);
    assert_int_equal(sim_cuda_get_stats().kernels, 0);
    sim_cuda_close();
}

/* ---- The arena -------------------------------------------------------------------------- */

static void test_cuda_arena_handles_waste_little(void **state)
{
    (void)state;
    const struct {
        uint64_t arena, handle;
    } cases[] = {{1, 2 * MIB},           {255 * MIB, 2 * MIB},   {256 * MIB, 4 * MIB},
                 {1024 * MIB, 16 * MIB}, {2047 * MIB, 16 * MIB}, {2048 * MIB, 32 * MIB},
                 {1ull << 40, 32 * MIB}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(mp_cuda_handle_bytes(2 * MIB, cases[i].arena), cases[i].handle);
    assert_int_equal(mp_cuda_handle_bytes(64 * MIB, 1ull << 40), 64 * MIB);
}

static void test_cuda_arena_is_all_of_its_bytes_and_one_only(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {1, 4096, 2 * MIB, 2 * MIB + 4096, 300 * MIB + 12345};
    begin(NULL);
    mp_cuda *cuda = open_gpu(0);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint64_t bytes = sizes[i], granules = (bytes + 2 * MIB - 1) / (2 * MIB);
        void *second = NULL;
        unsigned char *arena = alloc_from(cuda, MP_MEMORY_ARENA, bytes);
        moepage_cuda_info info = info_of(cuda);
        assert_int_equal((uintptr_t)arena % 4096, 0);
        assert_true(sim_cuda_accessible(arena, bytes));
        arena[0] = arena[bytes - 1] = 1;
        assert_int_equal(info.arena_kind, MOEPAGE_CUDA_ARENA_VMM);
        assert_int_equal(info.handle_bytes, mp_cuda_handle_bytes(2 * MIB, bytes));
        assert_true(info.handle_ns > 0);
        assert_int_equal(cuda->device.view_bytes, info.handle_bytes);
        assert_int_equal(sim_cuda_get_stats().allocated, granules * 2 * MIB);
        assert_int_equal(cuda->device.ops->alloc(&cuda->device, MP_MEMORY_ARENA, 1, &second),
                         MOEPAGE_E_STATE);
        assert_null(second);
        give_back(cuda, MP_MEMORY_ARENA, arena, bytes);
        assert_int_equal(sim_cuda_get_stats().allocated, 0);
        assert_int_equal(info_of(cuda).arena_kind, 0);
        assert_int_equal(cuda->device.view_bytes, 0);
    }
    close_gpu(cuda);
    sim_cuda_close();
}

static void arena_in_one_piece(mp_cuda *cuda)
{
    void *view = NULL;
    uint32_t warnings = heard.lines[MOEPAGE_LOG_WARNING];
    unsigned char *arena = alloc_from(cuda, MP_MEMORY_ARENA, 3 * MIB + 1);
    moepage_cuda_info info = info_of(cuda);
    assert_int_equal((uintptr_t)arena % 4096, 0);
    assert_true(sim_cuda_accessible(arena, 3 * MIB + 1));
    assert_true(sim_cuda_get_stats().allocated <= 3 * MIB + 1 + 4096);
    assert_int_equal(info.arena_kind, MOEPAGE_CUDA_ARENA_MALLOC);
    assert_int_equal(info.handle_bytes, 0);
    assert_int_equal(info.handle_ns, 0);
    assert_int_equal(cuda->device.view_bytes, 0);
    assert_int_equal(heard.lines[MOEPAGE_LOG_WARNING], warnings + 1);
    assert_non_null(strstr(heard.last, "no views"));
    assert_int_equal(cuda->device.ops->view_reserve(&cuda->device, 2 * MIB, &view),
                     MOEPAGE_E_UNSUPPORTED);
    assert_int_equal(cuda->device.ops->view_map(&cuda->device, arena, 0, 2 * MIB),
                     MOEPAGE_E_UNSUPPORTED);
    assert_null(view);
    give_back(cuda, MP_MEMORY_ARENA, arena, 3 * MIB + 1);
    assert_int_equal(sim_cuda_get_stats().allocated, 0);
}

static void test_cuda_arena_is_in_one_piece_where_there_is_no_virtual_memory(void **state)
{
    (void)state;
    const sim_cuda_config config = {.gpus = {{.no_vmm = true}}};
    static const sim_cuda_call refused[] = {SIM_granularity, SIM_address_reserve, SIM_mem_create,
                                            SIM_mem_map, SIM_mem_set_access};
    begin(&config);
    mp_cuda *cuda = open_gpu(0);
    arena_in_one_piece(cuda);
    close_gpu(cuda);
    sim_cuda_close();
    begin(NULL);
    cuda = open_gpu(0);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        sim_cuda_fail(refused[i], 1, MP_CU_NOT_SUPPORTED, true);
        arena_in_one_piece(cuda);
        sim_cuda_fail_none();
    }
    close_gpu(cuda);
    sim_cuda_close();
}

static void test_cuda_arena_beyond_free_memory_is_refused_with_the_numbers(void **state)
{
    (void)state;
    const sim_cuda_config config = {.gpus = {{.bytes = 64 * MIB}}};
    begin(&config);
    mp_cuda *cuda = open_gpu(0);
    void *taken = alloc_from(cuda, MP_MEMORY_WORKSPACE, 20 * MIB), *arena = NULL;
    size_t free_bytes = 0, total_bytes = 0;
    char words[160];
    assert_int_equal(mp_cuda_enter(cuda), MOEPAGE_OK);
    driver->mem_info(&free_bytes, &total_bytes);
    mp_cuda_leave(cuda);
    const uint64_t sizes[] = {free_bytes + 1, UINT64_MAX};
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(cuda->device.ops->alloc(&cuda->device, MP_MEMORY_ARENA, sizes[i], &arena),
                         MOEPAGE_E_NO_MEMORY);
        snprintf(words, sizeof words,
                 "cuda:0: the arena takes %llu bytes, and %zu of the GPU's %zu are free",
                 (unsigned long long)sizes[i], free_bytes, total_bytes);
        if (!said(words))
            fail_msg("%s", moepage_last_error());
    }
    assert_null(arena);
    assert_int_equal(sim_cuda_get_stats().calls[SIM_mem_create], 0);

    /* Somebody else takes it while the handles are made. */
    sim_cuda_fail(SIM_mem_create, 3, MP_CU_OUT_OF_MEMORY, false);
    assert_int_equal(cuda->device.ops->alloc(&cuda->device, MP_MEMORY_ARENA, 20 * MIB, &arena),
                     MOEPAGE_E_NO_MEMORY);
    assert_true(said("are free: open the device with a smaller budget"));
    assert_null(arena);
    give_back(cuda, MP_MEMORY_WORKSPACE, taken, 20 * MIB);
    assert_int_equal(sim_cuda_get_stats().allocated, 0);
    close_gpu(cuda);
    sim_cuda_close();
}

/* ---- Views ------------------------------------------------------------------------------ */

enum { UNIT = 2 << 20, UNITS = 9 }; /* and half of one, which no view may have */

typedef struct view_rig {
    mp_cuda *cuda;
    mp_device *device;
    const mp_device_ops *ops;
    unsigned char *arena, *views;
} view_rig;

static view_rig open_views(void)
{
    begin(NULL);
    mp_cuda *cuda = open_gpu(0);
    view_rig r = {.cuda = cuda, .device = &cuda->device, .ops = cuda->device.ops};
    r.arena = alloc_from(cuda, MP_MEMORY_ARENA, UNITS * UNIT + UNIT / 2);
    assert_int_equal(r.device->view_bytes, UNIT);
    void *views = NULL;
    assert_int_equal(r.ops->view_reserve(r.device, 6 * UNIT, &views), MOEPAGE_OK);
    r.views = views;
    assert_int_equal((uintptr_t)views % UNIT, 0);
    assert_false(sim_cuda_accessible(r.views, 1));
    return r;
}

static void close_views(view_rig *r)
{
    r->ops->view_release(r->device, r->views, 6 * UNIT);
    give_back(r->cuda, MP_MEMORY_ARENA, r->arena, UNITS * UNIT + UNIT / 2);
    close_gpu(r->cuda);
    sim_cuda_close();
}

static void test_cuda_views_show_the_arena_a_second_time(void **state)
{
    (void)state;
    view_rig r = open_views();
    for (uint32_t i = 0; i < UNITS; i++)
        memset(r.arena + i * UNIT, (int)i, UNIT);
    assert_int_equal(r.ops->view_map(r.device, r.views + UNIT, 3 * UNIT, 2 * UNIT), MOEPAGE_OK);
    assert_int_equal(r.ops->view_map(r.device, r.views + 3 * UNIT, 0, 3 * UNIT), MOEPAGE_OK);
    assert_false(sim_cuda_accessible(r.views, 1));
    assert_true(sim_cuda_accessible(r.views + UNIT, 5 * UNIT));
    static const unsigned char shown[] = {3, 4, 0, 1, 2};
    for (uint32_t i = 0; i < 5; i++) {
        unsigned char *view = r.views + (i + 1) * UNIT;
        assert_int_equal(view[0], shown[i]);
        assert_int_equal(view[UNIT - 1], shown[i]);
        view[77] = (unsigned char)(100 + i);
        assert_int_equal(r.arena[shown[i] * UNIT + 77], 100 + i);
    }
    r.ops->view_unmap(r.device, r.views + UNIT, 2 * UNIT);
    assert_false(sim_cuda_accessible(r.views + UNIT, 1));
    assert_true(sim_cuda_accessible(r.views + 3 * UNIT, 3 * UNIT));
    assert_int_equal(r.ops->view_map(r.device, r.views + UNIT, 8 * UNIT, UNIT), MOEPAGE_OK);
    assert_int_equal(r.views[UNIT], 8);
    r.ops->view_unmap(r.device, r.views + UNIT, UNIT);
    r.ops->view_unmap(r.device, r.views + 3 * UNIT, 3 * UNIT);
    assert_true(sim_cuda_accessible(r.arena, UNITS * UNIT + UNIT / 2));
    close_views(&r);
}

static void test_cuda_views_are_of_whole_handles(void **state)
{
    (void)state;
    view_rig r = open_views();
    const struct {
        uint64_t at, offset, bytes;
    } bad[] = {{0, 0, 0},
               {0, 0, UNIT / 2},
               {0, UNIT / 2, UNIT},
               {4096, 0, UNIT},
               {0, 9 * UNIT, UNIT}, /* the half one */
               {0, 8 * UNIT, 2 * UNIT},
               {0, UNIT, UINT64_MAX / UNIT * UNIT},
               {0, UINT64_MAX / UNIT * UNIT, UNIT}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(r.ops->view_map(r.device, r.views + bad[i].at, bad[i].offset,
                                         bad[i].bytes),
                         MOEPAGE_E_ARGUMENT);
    void *more = NULL;
    assert_int_equal(r.ops->view_reserve(r.device, UNIT + 1, &more), MOEPAGE_E_ARGUMENT);
    assert_int_equal(r.ops->view_reserve(r.device, 0, &more), MOEPAGE_E_ARGUMENT);
    assert_null(more);
    assert_int_equal(sim_cuda_get_stats().calls[SIM_mem_map], UNITS + 1);
    close_views(&r);
}

static void test_cuda_views_that_fail_have_mapped_nothing(void **state)
{
    (void)state;
    view_rig r = open_views();
    static const struct {
        sim_cuda_call call;
        uint64_t nth;
    } faults[] = {{SIM_mem_map, 1}, {SIM_mem_map, 3}, {SIM_mem_set_access, 1}};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        sim_cuda_fail(faults[i].call, faults[i].nth, MP_CU_OUT_OF_MEMORY, false);
        assert_int_equal(r.ops->view_map(r.device, r.views, UNIT, 3 * UNIT), MOEPAGE_E_NO_MEMORY);
        assert_true(said("mapping a view of the arena failed"));
        assert_int_equal(r.ops->view_map(r.device, r.views, UNIT, 3 * UNIT), MOEPAGE_OK);
        r.ops->view_unmap(r.device, r.views, 3 * UNIT);
    }
    close_views(&r);
}

/* ---- Other memory ----------------------------------------------------------------------- */

static void test_cuda_memory_is_reached_by_the_gpu(void **state)
{
    (void)state;
    begin(NULL);
    mp_cuda *cuda = open_gpu(0);
    static const uint64_t sizes[] = {1, 64, 3 * MIB + 5};
    for (size_t i = 0; i < 3; i++) {
        uint64_t bytes = sizes[i];
        void *workspace = alloc_from(cuda, MP_MEMORY_WORKSPACE, bytes);
        void *host = alloc_from(cuda, MP_MEMORY_HOST, bytes);
        assert_int_equal((uintptr_t)workspace % 64, 0);
        assert_int_equal((uintptr_t)host % 64, 0);
        assert_true(sim_cuda_accessible(workspace, bytes));
        assert_true(sim_cuda_accessible(host, bytes));
        memset(host, 1, bytes);
        assert_true(pinned() >= bytes);
        give_back(cuda, MP_MEMORY_WORKSPACE, workspace, bytes);
        give_back(cuda, MP_MEMORY_HOST, host, bytes);
    }
    assert_int_equal(sim_cuda_get_stats().allocated, 0);
    assert_int_equal(pinned(), 0);
    void *none = NULL;
    assert_int_equal(cuda->device.ops->alloc(&cuda->device, MP_MEMORY_WORKSPACE, 1ull << 50, &none),
                     MOEPAGE_E_NO_MEMORY);
    assert_true(said("a workspace takes 1125899906842624 bytes"));
    sim_cuda_fail(SIM_host_alloc, 1, MP_CU_OUT_OF_MEMORY, false);
    assert_int_equal(cuda->device.ops->alloc(&cuda->device, MP_MEMORY_HOST, 12345, &none),
                     MOEPAGE_E_NO_MEMORY);
    assert_true(said("no 12345 bytes of host memory to pin"));
    assert_null(none);
    close_gpu(cuda);
    sim_cuda_close();
}

static void test_cuda_shared_memory_has_an_address_on_both_sides(void **state)
{
    (void)state;
    begin(NULL);
    mp_cuda *cuda = open_gpu(0);
    const mp_cuda_ext *ext = cuda->device.ops->cuda;
    mp_cuda_shared memory = {0}, none = {0};
    assert_int_equal(ext->shared_alloc(&cuda->device, 1000, &memory), MOEPAGE_OK);
    assert_int_equal(memory.bytes, 1000);
    assert_int_equal((uintptr_t)memory.host % 64, 0);
    assert_true(sim_cuda_accessible((void *)(uintptr_t)memory.device, 1000));
    for (uint32_t i = 0; i < 1000; i++)
        assert_int_equal(((unsigned char *)memory.host)[i], 0);
    ((unsigned char *)memory.host)[999] = 7;
    assert_int_equal(((unsigned char *)(uintptr_t)memory.device)[999], 7);
    ext->shared_free(&cuda->device, &memory);
    ext->shared_free(&cuda->device, &none);
    sim_cuda_fail(SIM_host_device_pointer, 1, MP_CU_INVALID_VALUE, false);
    assert_int_equal(ext->shared_alloc(&cuda->device, 1000, &none), MOEPAGE_E_DEVICE);
    assert_null(none.host);
    assert_int_equal(pinned(), 0);
    close_gpu(cuda);
    sim_cuda_close();
}

/* What cannot be pinned serves all the same, more slowly, and shows. */
static void check_pageable_tier(mp_cuda *cuda, uint64_t bytes)
{
    const mp_device_ops *ops = cuda->device.ops;
    enum { N = 100000 };
    mp_host_memory tier = {0};
    mp_stream *stream = NULL;
    unsigned char *back = alloc_from(cuda, MP_MEMORY_HOST, N);
    unsigned char *there = alloc_from(cuda, MP_MEMORY_WORKSPACE, N);
    uint64_t before = pinned();
    mp_tick tick;
    assert_int_equal(ops->host_map(&cuda->device, bytes, &tier), MOEPAGE_OK);
    assert_non_null(strstr(heard.last, "cuda:0: the driver cannot pin a host tier of"));
    assert_int_equal(pinned(), before);
    assert_int_equal(atomic_load(&cuda->device.pageable_bytes), tier.bytes);
    for (uint32_t i = 0; i < N; i++)
        tier.base[i] = (unsigned char)(i * 7 + i / 251);
    assert_int_equal(ops->stream_create(&cuda->device, MP_STREAM_DEMAND, &stream), MOEPAGE_OK);
    const mp_copy copies[2] = {{.dst = there, .src = tier.base, .bytes = N},
                               {.dst = back, .src = there, .bytes = N}};
    assert_int_equal(ops->copy(stream, copies, 2, &tick), MOEPAGE_OK);
    assert_int_equal(ops->sync(stream, tick), MOEPAGE_OK);
    assert_memory_equal(back, tier.base, N);
    ops->stream_destroy(stream);
    ops->host_unmap(&cuda->device, &tier);
    assert_int_equal(atomic_load(&cuda->device.pageable_bytes), 0);
    give_back(cuda, MP_MEMORY_HOST, back, N);
    give_back(cuda, MP_MEMORY_WORKSPACE, there, N);
}

static void test_cuda_host_tier_is_pinned_whole_or_not_at_all(void **state)
{
    (void)state;
    const sim_cuda_config config = {.register_limit = 16 * MIB};
    begin(&config);
    mp_cuda *cuda = open_gpu(0);
    const mp_device_ops *ops = cuda->device.ops;
    mp_host_memory tier = {0}, none = {0};
    const uint64_t bytes = 9 * MIB + 4096;
    assert_int_equal(ops->host_map(&cuda->device, bytes, &tier), MOEPAGE_OK);
    assert_true(tier.bytes >= bytes);
    assert_true(sim_cuda_accessible(tier.base, tier.bytes));
    assert_int_equal(pinned(), tier.bytes);
    for (uint64_t i = 0; i < tier.bytes; i++)
        assert_int_equal(tier.base[i], 0);
    memset(tier.base, 1, tier.bytes);
    ops->host_unmap(&cuda->device, &tier);
    assert_int_equal(pinned(), 0);

    check_pageable_tier(cuda, 17 * MIB);
    assert_int_equal(atomic_load(&cuda->device.pageable_bytes), 0);
    sim_cuda_fail(SIM_host_register, 1, MP_CU_INVALID_VALUE, false);
    assert_int_equal(ops->host_map(&cuda->device, bytes, &none), MOEPAGE_E_DEVICE);
    assert_true(said("pinning a host tier failed"));
    assert_null(none.base);
    assert_int_equal(pinned(), 0);
    close_gpu(cuda);
    sim_cuda_close();
}

/* In pieces, cut at addresses that are multiples of the largest one. */
static void test_cuda_host_tier_is_pinned_in_pieces(void **state)
{
    (void)state;
    enum { PIECE = 2 * MIB };
    const sim_cuda_config config = {.register_limit = PIECE};
    begin(&config);
    mp_cuda *cuda = open_gpu(0);
    const mp_device_ops *ops = cuda->device.ops;
    mp_host_memory tier = {0}, none = {0};
    cuda->pin_bytes = PIECE;
    assert_int_equal(ops->host_map(&cuda->device, 9 * MIB + 4096, &tier), MOEPAGE_OK);
    assert_int_equal(pinned(), tier.bytes);
    uint64_t n = sim_cuda_get_stats().calls[SIM_host_register];
    assert_in_range(n, 5, 6);
    for (uint64_t at = 0; at < tier.bytes; at += 4096)
        assert_true(sim_cuda_accessible(tier.base + at, 4096));
    uint64_t cut = PIECE - (uintptr_t)tier.base % PIECE;
    assert_false(sim_cuda_accessible(tier.base + cut - 1, 2));
    ops->host_unmap(&cuda->device, &tier);
    assert_int_equal(pinned(), 0);
    for (uint64_t nth = 1; nth <= 5; nth++) {
        sim_cuda_fail(SIM_host_register, nth, MP_CU_INVALID_VALUE, false);
        assert_int_equal(ops->host_map(&cuda->device, 9 * MIB + 4096, &none), MOEPAGE_E_DEVICE);
        assert_null(none.base);
        assert_int_equal(pinned(), 0);
    }
    close_gpu(cuda);
    sim_cuda_close();
}

/* The proof that a steady state makes none is only as good as the count. */
static void test_cuda_device_counts_every_driver_call_about_memory(void **state)
{
    (void)state;
    view_rig r = open_views();
    mp_host_memory tier = {0};
    mp_cuda_shared shared = {0};
    uint64_t unseen = sim_cuda_get_stats().memory_calls - info_of(r.cuda).driver_calls;
    void *workspace = alloc_from(r.cuda, MP_MEMORY_WORKSPACE, 100);
    void *host = alloc_from(r.cuda, MP_MEMORY_HOST, 100);
    assert_int_equal(r.ops->host_map(r.device, 100, &tier), MOEPAGE_OK);
    assert_int_equal(r.ops->cuda->shared_alloc(r.device, 100, &shared), MOEPAGE_OK);
    assert_int_equal(r.ops->view_map(r.device, r.views, 0, 2 * UNIT), MOEPAGE_OK);
    r.ops->view_unmap(r.device, r.views, 2 * UNIT);
    r.ops->cuda->shared_free(r.device, &shared);
    r.ops->host_unmap(r.device, &tier);
    give_back(r.cuda, MP_MEMORY_HOST, host, 100);
    give_back(r.cuda, MP_MEMORY_WORKSPACE, workspace, 100);
    assert_true(info_of(r.cuda).driver_calls >= 13);
    assert_int_equal(sim_cuda_get_stats().memory_calls - info_of(r.cuda).driver_calls, unseen);
    close_views(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_device_says_what_it_is),
        cmocka_unit_test(test_cuda_device_says_why_a_gpu_will_not_do),
        cmocka_unit_test(test_cuda_device_refuses_a_config_that_it_cannot_honour),
        cmocka_unit_test(test_cuda_device_says_when_the_kernels_are_not_for_it),
        cmocka_unit_test(test_cuda_device_loads_every_kernel_when_it_opens),
        cmocka_unit_test(test_cuda_device_asks_for_shared_memory_rather_than_cache),
        cmocka_unit_test(test_cuda_device_finds_the_node_of_old_drivers_by_the_bus),
        cmocka_unit_test(test_cuda_device_puts_the_callers_context_back),
        cmocka_unit_test(test_cuda_device_turns_results_into_statuses),
        cmocka_unit_test(test_cuda_device_dies_once_and_says_of_what),
        cmocka_unit_test(test_cuda_device_is_closed_without_leaks_after_its_death),
        cmocka_unit_test(test_cuda_device_refuses_launches_that_cannot_be),
        cmocka_unit_test(test_cuda_arena_handles_waste_little),
        cmocka_unit_test(test_cuda_arena_is_all_of_its_bytes_and_one_only),
        cmocka_unit_test(test_cuda_arena_is_in_one_piece_where_there_is_no_virtual_memory),
        cmocka_unit_test(test_cuda_arena_beyond_free_memory_is_refused_with_the_numbers),
        cmocka_unit_test(test_cuda_views_show_the_arena_a_second_time),
        cmocka_unit_test(test_cuda_views_are_of_whole_handles),
        cmocka_unit_test(test_cuda_views_that_fail_have_mapped_nothing),
        cmocka_unit_test(test_cuda_memory_is_reached_by_the_gpu),
        cmocka_unit_test(test_cuda_shared_memory_has_an_address_on_both_sides),
        cmocka_unit_test(test_cuda_host_tier_is_pinned_whole_or_not_at_all),
        cmocka_unit_test(test_cuda_host_tier_is_pinned_in_pieces),
        cmocka_unit_test(test_cuda_device_counts_every_driver_call_about_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
