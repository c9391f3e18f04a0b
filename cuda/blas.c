/* cuBLAS as a table of functions, looked for once. The device works without it: MATH_BF16_FAST is
 * then the same as MATH_BF16. */
#include "blas.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static const char *const files[] = {"libcublas.so.13", "libcublas.so.12"};
#define N_FILES (sizeof files / sizeof *files)

static pthread_once_t once = PTHREAD_ONCE_INIT;
static mp_cuda_blas found;
static bool is_found;
static char why_not[512];

/* 120500 for 12.5.0; 0 if the library does not say. Needs no GPU, unlike cublasGetVersion_v2. */
static uint32_t version_of(void *library)
{
    enum { MAJOR, MINOR, PATCH, PARTS }; /* libraryPropertyType */
    mp_blas_status (*property)(int which, int *value) = NULL;
    int part[PARTS] = {0};
    if (!mp_cuda_take_symbol(library, "cublasGetProperty", (void *)&property))
        return 0;
    for (int i = MAJOR; i < PARTS; i++) {
        if (property(i, &part[i]) || part[i] < 0)
            return 0;
    }
    return (uint32_t)(part[MAJOR] * 10000 + part[MINOR] * 100 + part[PATCH]);
}

static const char *take_functions(void *library, mp_cuda_blas *blas)
{
    const char *missing = NULL;
#define TAKE(field, symbol, parameters)                                          \
    if (!missing && !mp_cuda_take_symbol(library, symbol, (void *)&blas->field)) \
        missing = symbol;
    MP_BLAS_FUNCTIONS(TAKE)
#undef TAKE
    return missing;
}

/* Appends to the sentence that says why there is no cuBLAS. */
static void say(const char *file, const char *what, const char *detail)
{
    size_t used = strlen(why_not);
    snprintf(why_not + used, sizeof why_not - used, "%s%s%s%s", used ? "; " : "", file, what,
             detail);
}

static bool load(const char *file)
{
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *why = dlerror(); /* begins with the file's name */
        say("", "", why ? why : file);
        return false;
    }
    mp_cuda_blas blas = {.loaded_version = version_of(library)};
    const char *missing = NULL;
    char version[32];
    snprintf(version, sizeof version, "%u.%u", blas.loaded_version / 10000,
             blas.loaded_version / 100 % 100);
    if (blas.loaded_version < MP_BLAS_OLDEST)
        say(file, " is older than 12.0: version ", version);
    else if ((missing = take_functions(library, &blas)))
        say(file, " has no function ", missing);
    else {
        found = blas;
        return true;
    }
    dlclose(library);
    return false;
}

static void look(void)
{
    for (size_t i = 0; i < N_FILES && !is_found; i++)
        is_found = load(files[i]);
}

const mp_cuda_blas *mp_cuda_blas_load(const char **why)
{
    pthread_once(&once, look);
    *why = is_found ? "" : why_not;
    return is_found ? &found : NULL;
}
