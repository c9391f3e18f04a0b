/* The driver's library as a table of functions, loaded once. */
#include "driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include "base/status.h"

#define DRIVER_FILE "libcuda.so.1"

/* A version number such as 12040, for printing as 12.4. */
#define VERSION_FORMAT "%d.%d"
#define VERSION_PARTS(version) (version) / 1000, (version) % 1000 / 10

/* memcpy, because ISO C has no cast from an object's to a function's pointer. */
bool mp_cuda_take_symbol(void *library, const char *symbol, void *function)
{
    void *address = dlsym(library, symbol);
    memcpy(function, &address, sizeof address);
    return address != NULL;
}

moepage_status mp_cuda_driver_check(const mp_cuda_driver *driver)
{
    int version = 0;
    mp_cu_result result = driver->driver_version(&version);
    if (result)
        return mp_fail(MOEPAGE_E_DEVICE, "the NVIDIA driver does not tell its version: error %d",
                       result);
    if (version >= MP_CUDA_OLDEST_DRIVER)
        return MOEPAGE_OK;
    return mp_fail(MOEPAGE_E_UNSUPPORTED,
                   "the NVIDIA driver is one for CUDA " VERSION_FORMAT ", and CUDA " VERSION_FORMAT
                   " is the oldest that works: install driver 525.60 or newer",
                   VERSION_PARTS(version), VERSION_PARTS(MP_CUDA_OLDEST_DRIVER));
}

/* Fills the table; returns the first function that the library lacks, or NULL. */
static const char *take_functions(void *library, mp_cuda_driver *driver)
{
    const char *missing = NULL;
#define TAKE(field, symbol, parameters)                                            \
    if (!missing && !mp_cuda_take_symbol(library, symbol, (void *)&driver->field)) \
        missing = symbol;
    MP_CU_FUNCTIONS(TAKE)
#undef TAKE
    return missing;
}

/* Asks for each function in the form that it has in version `since`: the plain name may mean
 * another form in later drivers. */
static void take_optional(void *library, mp_cuda_driver *driver)
{
    mp_cu_result (*find)(const char *, void **, int, uint64_t, int *) = NULL;
    int version = 0;
    if (!mp_cuda_take_symbol(library, "cuGetProcAddress_v2", (void *)&find) ||
        driver->driver_version(&version))
        return;
#define TAKE(field, symbol, since, parameters)                                        \
    {                                                                                 \
        void *address = NULL;                                                         \
        if (version >= (since) && !find(symbol, &address, since, 0, NULL) && address) \
            memcpy((void *)&driver->field, &address, sizeof address);                 \
    }
    MP_CU_OPTIONAL(TAKE)
#undef TAKE
}

static moepage_status load(mp_cuda_driver *driver)
{
    moepage_status status;
    void *library = dlopen(DRIVER_FILE, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *why = dlerror();
        return mp_fail(MOEPAGE_E_NOT_FOUND,
                       "there is no NVIDIA driver (%s): install one, or let the container see it",
                       why ? why : DRIVER_FILE);
    }
    *driver = (mp_cuda_driver){.library = library};
    if (!mp_cuda_take_symbol(library, "cuDriverGetVersion", (void *)&driver->driver_version)) {
        status =
            mp_fail(MOEPAGE_E_UNSUPPORTED,
                    "%s has no function cuDriverGetVersion: it is no NVIDIA driver", DRIVER_FILE);
        goto fail;
    }
    status = mp_cuda_driver_check(driver); /* first: an old driver lacks functions, too */
    if (status)
        goto fail;
    const char *missing = take_functions(library, driver);
    if (missing) {
        status = mp_fail(MOEPAGE_E_UNSUPPORTED,
                         "%s has no function %s, which drivers for CUDA " VERSION_FORMAT
                         " and newer have: install the driver again",
                         DRIVER_FILE, missing, VERSION_PARTS(MP_CUDA_OLDEST_DRIVER));
        goto fail;
    }
    take_optional(library, driver);
    return MOEPAGE_OK;

fail:
    dlclose(library);
    return status;
}

moepage_status mp_cuda_driver_load(const mp_cuda_driver **out)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static mp_cuda_driver driver;
    static bool loaded;
    moepage_status status = MOEPAGE_OK;
    pthread_mutex_lock(&lock);
    if (!loaded)
        status = load(&driver);
    loaded = loaded || !status;
    pthread_mutex_unlock(&lock);
    if (!status)
        *out = &driver;
    return status;
}
