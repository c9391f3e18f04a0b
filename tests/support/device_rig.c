/* Opening the device under test, and moving bytes to and from it. */
#include "device_rig.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "arena/home.h"
#include "gpu.h"
#include "sim_cuda.h"
#include "testing.h"

static uint32_t n_simulated; /* devices open over the simulated driver */

/* Devices that are open, each with the stream that moves its bytes once it has been needed. */
#define MOST_DEVICES 16
static struct {
    moepage_device *device;
    mp_stream *mover;
} opened[MOST_DEVICES];
static uint32_t n_opened;
static pthread_mutex_t movers_lock = PTHREAD_MUTEX_INITIALIZER;

static const char *name_of_device(void)
{
    const char *name = getenv("MP_TEST_DEVICE");
    return name && *name ? name : "host";
}

bool device_rig_is_cuda(void)
{
    return strcmp(name_of_device(), "host") != 0;
}

bool device_rig_is_simulated(void)
{
    return strcmp(name_of_device(), "sim") == 0;
}

static bool no_peers;

void device_rig_allow_peers(bool allow)
{
    no_peers = !allow;
    if (n_simulated > 0)
        sim_cuda_allow_peers(allow);
}

static moepage_device *open_simulated(const moepage_device_config *config, uint32_t ordinal)
{
    static const mp_cuda_driver *driver;
    mp_device *device = NULL;
    moepage_device *home = NULL;
    if (n_simulated++ == 0)
        driver = sim_cuda_open(&(sim_cuda_config){
            .n_gpus = SIM_MAX_GPUS, .copy_batch = true, .no_peers = no_peers, .seed = 1});
    moepage_status status = mp_cuda_device_open(driver, NULL, "the simulation has no cuBLAS",
                                                sim_images, sim_n_images, ordinal, config, &device);
    if (!status)
        status = mp_home_open(device, config, &home);
    if (status)
        fail_msg("%s", moepage_last_error());
    return home;
}

/* A GPU's context takes long to make: the first one stays, as a program's would that uses CUDA for
 * more than this. */
static void keep_context(moepage_device *home)
{
    static bool kept;
    mp_cuda *cuda = mp_cuda_of(home->device);
    mp_cu_context context;
    if (!kept)
        assert_int_equal(cuda->driver->context_retain(&context, cuda->gpu), MP_CU_SUCCESS);
    kept = true;
}

moepage_device *device_rig_open(const moepage_device_config *config)
{
    return device_rig_open_nth(config, 0);
}

moepage_device *device_rig_open_nth(const moepage_device_config *config, uint32_t ordinal)
{
    moepage_device *device = NULL;
    if (device_rig_is_simulated())
        device = open_simulated(config, ordinal);
    else if (moepage_device_open(name_of_device(), config, &device))
        fail_msg("%s", moepage_last_error());
    if (device_rig_is_cuda() && !device_rig_is_simulated())
        keep_context(device);
    assert_true(n_opened < MOST_DEVICES);
    opened[n_opened].mover = NULL;
    opened[n_opened++].device = device;
    return device;
}

void device_rig_close(moepage_device *device)
{
    uint32_t at = 0;
    while (at < n_opened && opened[at].device != device)
        at++;
    if (at < n_opened) { /* else it was opened otherwise */
        if (opened[at].mover)
            device->device->ops->stream_destroy(opened[at].mover);
        opened[at] = opened[--n_opened];
    }
    assert_int_equal(moepage_device_close(device), MOEPAGE_OK);
    if (device_rig_is_simulated() && --n_simulated == 0)
        sim_cuda_close();
}

void *device_rig_alloc(moepage_device *device, uint64_t bytes)
{
    void *memory = NULL;
    assert_int_equal(device->device->ops->alloc(device->device, MP_MEMORY_WORKSPACE, bytes,
                                                &memory),
                     MOEPAGE_OK);
    return memory;
}

void device_rig_free(moepage_device *device, void *memory, uint64_t bytes)
{
    device->device->ops->free(device->device, MP_MEMORY_WORKSPACE, memory, bytes);
}

static mp_stream *new_mover(moepage_device *device)
{
    mp_stream *stream = NULL;
    assert_int_equal(device->device->ops->stream_create(device->device, MP_STREAM_DEMAND, &stream),
                     MOEPAGE_OK);
    return stream;
}

/* NULL for devices that were opened otherwise. */
static mp_stream *find_mover(moepage_device *device)
{
    mp_stream *stream = NULL;
    pthread_mutex_lock(&movers_lock);
    for (uint32_t i = 0; i < n_opened; i++) {
        if (opened[i].device != device)
            continue;
        if (!opened[i].mover)
            opened[i].mover = new_mover(device);
        stream = opened[i].mover;
    }
    pthread_mutex_unlock(&movers_lock);
    return stream;
}

static void move(moepage_device *device, void *to, const void *from, uint64_t bytes)
{
    const mp_device_ops *ops = device->device->ops;
    if (device->device->caps & MP_CAP_SYNC_CALLER) {
        memcpy(to, from, bytes);
        return;
    }
    mp_stream *found = find_mover(device), *stream = found ? found : new_mover(device);
    mp_tick tick = 0;
    mp_copy copy = {.dst = to, .src = from, .bytes = bytes};
    assert_int_equal(ops->enter(stream, NULL), MOEPAGE_OK);
    assert_int_equal(ops->copy(stream, &copy, 1, &tick), MOEPAGE_OK);
    assert_int_equal(ops->sync(stream, tick), MOEPAGE_OK);
    if (!found)
        ops->stream_destroy(stream);
}

void device_rig_wait(moepage_device *device)
{
    static unsigned char none;
    move(device, &none, &none, 0);
}

void device_rig_write(moepage_device *device, void *memory, const void *from, uint64_t bytes)
{
    move(device, memory, from, bytes);
}

void device_rig_read(moepage_device *device, const void *memory, void *to, uint64_t bytes)
{
    move(device, to, memory, bytes);
}
