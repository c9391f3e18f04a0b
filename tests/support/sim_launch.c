/* The simulated driver's modules and kernels: blocks run one after the other in a random order, on
 * shared memory and registers full of garbage, their threads in a random order too. */
#include <stdlib.h>
#include <string.h>

#include "sim_inside.h"

#define MAX_ARGS_BYTES 4096u
#define MAX_THREADS 1024u
#define DEFAULT_SHARED (48u << 10)
#define SHARED_OF_MULTIPROCESSOR (228u << 10)
#define SHARED_RESERVED 1024u /* of each block */

/* ---- Modules ---------------------------------------------------------------------------- */

static mp_cu_module module_find(mp_cu_module handle)
{
    mp_cu_module module = sim.modules;
    while (module && module != handle)
        module = module->next;
    if (!module)
        sim_misuse("a module that is not loaded");
    return module;
}

static void module_free(mp_cu_module module)
{
    mp_cu_module *link = &sim.modules;
    while (*link != module)
        link = &(*link)->next;
    *link = module->next;
    free(module->functions);
    free(module);
}

void sim_modules_drop(int gpu)
{
    for (mp_cu_module m = sim.modules, next; m; m = next) {
        next = m->next;
        if (gpu < 0 || m->context->gpu == gpu)
            module_free(m);
    }
}

mp_cu_result sim_do_module_load(mp_cu_module *out, const void *image)
{
    SIM_BEGIN(SIM_module_load);
    if (!image)
        return MP_CU_INVALID_VALUE;
    const mp_cpu_kernel *kernels = image;
    mp_cu_module module = sim_new(sizeof *module);
    while (kernels[module->n_functions].name)
        module->n_functions++;
    module->functions = sim_new(module->n_functions * sizeof module->functions[0]);
    for (uint32_t i = 0; i < module->n_functions; i++)
        module->functions[i] = (struct CUfunc_st){module, &kernels[i], DEFAULT_SHARED, -1};
    module->context = sim_current();
    module->next = sim.modules;
    sim.modules = module;
    *out = module;
    return MP_CU_SUCCESS;
}

mp_cu_result sim_do_module_unload(mp_cu_module handle)
{
    SIM_BEGIN(SIM_module_unload);
    mp_cu_module module = module_find(handle);
    if (!module)
        return MP_CU_INVALID_HANDLE;
    module_free(module);
    return MP_CU_SUCCESS;
}

mp_cu_result sim_do_module_function(mp_cu_function *out, mp_cu_module handle, const char *name)
{
    SIM_BEGIN(SIM_module_function);
    mp_cu_module module = module_find(handle);
    if (!module)
        return MP_CU_INVALID_HANDLE;
    for (uint32_t i = 0; i < module->n_functions; i++) {
        if (!strcmp(module->functions[i].kernel->name, name)) {
            *out = &module->functions[i];
            return MP_CU_SUCCESS;
        }
    }
    return MP_CU_NOT_FOUND;
}

/* ---- Functions -------------------------------------------------------------------------- */

static mp_cu_function function_find(mp_cu_function handle)
{
    for (mp_cu_module m = sim.modules; m; m = m->next) {
        for (uint32_t i = 0; i < m->n_functions; i++) {
            if (handle == &m->functions[i] && m->context == sim_current())
                return handle;
        }
    }
    sim_misuse("a function of no module that is loaded in this context");
    return NULL;
}

mp_cu_result sim_do_function_attribute(int *value, int attribute, mp_cu_function handle)
{
    SIM_BEGIN(SIM_function_attribute);
    mp_cu_function function = function_find(handle);
    if (!function)
        return MP_CU_INVALID_HANDLE;
    switch (attribute) {
    case MP_CU_FUNC_LOCAL_BYTES: *value = 0; break;
    case MP_CU_FUNC_REGISTERS: *value = 32; break;
    case MP_CU_FUNC_MAX_DYNAMIC_SHARED: *value = (int)function->shared_limit; break;
    case MP_CU_FUNC_SHARED_CARVEOUT: *value = function->carveout; break;
    default: return MP_CU_INVALID_VALUE;
    }
    return MP_CU_SUCCESS;
}

/* All is there already. */
mp_cu_result sim_do_function_load(mp_cu_function handle)
{
    SIM_BEGIN(SIM_function_load);
    return function_find(handle) ? MP_CU_SUCCESS : MP_CU_INVALID_HANDLE;
}

mp_cu_result sim_do_function_set_attribute(mp_cu_function handle, int attribute, int value)
{
    SIM_BEGIN(SIM_function_set_attribute);
    mp_cu_function function = function_find(handle);
    if (!function)
        return MP_CU_INVALID_HANDLE;
    if (attribute == MP_CU_FUNC_SHARED_CARVEOUT && value >= -1 && value <= 100) {
        function->carveout = value;
        return MP_CU_SUCCESS;
    }
    if (attribute != MP_CU_FUNC_MAX_DYNAMIC_SHARED || value < 0 ||
        value > sim.config.gpus[sim_current()->gpu].shared_optin)
        return MP_CU_INVALID_VALUE;
    function->shared_limit = (uint32_t)value;
    return MP_CU_SUCCESS;
}

mp_cu_result sim_do_occupancy(int *blocks, mp_cu_function handle, int threads, size_t shared_bytes)
{
    SIM_BEGIN(SIM_occupancy);
    mp_cu_function function = function_find(handle);
    if (!function)
        return MP_CU_INVALID_HANDLE;
    if (threads < 1 || threads > (int)MAX_THREADS)
        return MP_CU_INVALID_VALUE;
    int by_threads = 2048 / threads;
    int by_shared = (int)(SHARED_OF_MULTIPROCESSOR / (shared_bytes + SHARED_RESERVED));
    *blocks = by_threads < by_shared ? by_threads : by_shared;
    if (shared_bytes > function->shared_limit)
        *blocks = 0;
    return MP_CU_SUCCESS;
}

/* ---- Launching -------------------------------------------------------------------------- */

/* The kernels of this project know one dimension, and take one struct by value. */
static mp_cu_result check_launch(mp_cu_function function, const unsigned grid[3],
                                 const unsigned block[3], unsigned shared, void **params,
                                 void **extra)
{
    const mp_cpu_kernel *kernel = function->kernel;
    if (!grid[0] || !block[0] || grid[1] != 1 || grid[2] != 1 || block[1] != 1 || block[2] != 1)
        return MP_CU_INVALID_VALUE;
    if (grid[0] > INT32_MAX || block[0] > MAX_THREADS || shared > function->shared_limit)
        return MP_CU_INVALID_VALUE;
    if (extra || !params || !params[0] || kernel->args_bytes > MAX_ARGS_BYTES)
        return MP_CU_INVALID_VALUE;
    if (kernel->most_threads && block[0] > kernel->most_threads) {
        sim_misuse("%s is launched with %u threads, its bound is %u", kernel->name, block[0],
                   kernel->most_threads);
        return MP_CU_LAUNCH_OUT_OF_RESOURCES;
    }
    if (shared < kernel->shared_bytes) {
        sim_misuse("%s is given %u bytes of shared memory and uses %u", kernel->name, shared,
                   kernel->shared_bytes);
        return MP_CU_INVALID_VALUE;
    }
    return MP_CU_SUCCESS;
}

mp_cu_result sim_do_launch(mp_cu_function handle, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                           unsigned block_x, unsigned block_y, unsigned block_z,
                           unsigned shared_bytes, mp_cu_stream stream, void **params, void **extra)
{
    const unsigned grid[3] = {grid_x, grid_y, grid_z}, block[3] = {block_x, block_y, block_z};
    SIM_BEGIN(SIM_launch);
    mp_cu_function function = function_find(handle);
    if (!function)
        return MP_CU_INVALID_HANDLE;
    mp_cu_result result = check_launch(function, grid, block, shared_bytes, params, extra);
    if (result)
        return result;
    sim_work work = {
        .kind = SIM_WORK_LAUNCH,
        .kernel = function->kernel,
        .n_blocks = grid_x,
        .n_threads = block_x,
        .shared_bytes = shared_bytes,
        .own = sim_new(function->kernel->args_bytes),
    };
    memcpy(work.own, params[0], function->kernel->args_bytes);
    return sim_submit(sim_stream_find(stream), &work);
}

/* ---- Running ---------------------------------------------------------------------------- */

typedef struct sim_grid {
    uint32_t *blocks, *threads; /* orders */
    unsigned char *shared, *registers;
    size_t register_bytes;
} sim_grid;

static void *new_aligned(size_t align, size_t bytes)
{
    void *memory = NULL;
    if (posix_memalign(&memory, align, bytes ? bytes : 1))
        abort();
    return memory;
}

static uint32_t *new_order(uint32_t n)
{
    uint32_t *order = sim_new((size_t)n * sizeof *order);
    for (uint32_t i = 0; i < n; i++)
        order[i] = i;
    return order;
}

static void shuffle(uint32_t *order, uint32_t n, uint64_t *random)
{
    for (uint32_t i = n; i > 1; i--) {
        uint32_t j = (uint32_t)(sim_random(random) % i), swap = order[j];
        order[j] = order[i - 1];
        order[i - 1] = swap;
    }
}

static void run_block(const sim_work *work, sim_grid *grid, uint32_t block, uint64_t *random)
{
    static const unsigned char garbage[] = {0xff, 0x7f, 0xa5, 0x01};
    uint64_t draw = sim_random(random);
    memset(grid->shared, garbage[draw % 4], work->shared_bytes);
    memset(grid->registers, garbage[draw / 4 % 4], grid->register_bytes);
    shuffle(grid->threads, work->n_threads, random);
    mp_cpu_block cpu = {.n_threads = work->n_threads, .order = grid->threads};
    work->kernel->run(work->own, grid->shared, grid->registers, block, work->n_blocks, &cpu);
}

_Thread_local int sim_running_gpu = SIM_ANY_GPU;

void sim_kernel_run(mp_cu_stream stream, const sim_work *work)
{
    pthread_mutex_lock(&sim_lock);
    uint64_t random = sim_random(&stream->random);
    pthread_mutex_unlock(&sim_lock);
    sim_grid grid = {.register_bytes = (size_t)work->kernel->thread_bytes * work->n_threads};
    grid.blocks = new_order(work->n_blocks);
    grid.threads = new_order(work->n_threads);
    grid.shared = new_aligned(128, work->shared_bytes);
    grid.registers = new_aligned(128, grid.register_bytes);
    shuffle(grid.blocks, work->n_blocks, &random);
    sim_running_gpu = stream->context->gpu;
    for (uint32_t i = 0; i < work->n_blocks; i++)
        run_block(work, &grid, grid.blocks[i], &random);
    sim_running_gpu = SIM_ANY_GPU;
    free(grid.registers);
    free(grid.shared);
    free(grid.threads);
    free(grid.blocks);
}
