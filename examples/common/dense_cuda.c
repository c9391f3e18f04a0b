/* Finds the plug-in. */
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/dense.h"
#include "common/fail.h"
#include "common/flags.h"

bool dense_is_cuda(const char *device, uint32_t *ordinal)
{
    uint64_t n;
    if (strncmp(device, "cuda:", 5))
        return false;
    const char *rest = device + 5;
    if (!flag_take_number(&rest, &n) || *rest || n > INT32_MAX)
        return false; /* not a device name; the library reports that */
    *ordinal = (uint32_t)n;
    return true;
}

/* Returns the plug-in's path in the tool's own directory; "" if that cannot be determined. */
static void path_beside_tool(char *path, size_t capacity)
{
    char tool[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", tool, sizeof tool - 1);
    path[0] = 0;
    if (length <= 0)
        return;
    tool[length] = 0;
    char *slash = strrchr(tool, '/');
    if (!slash)
        return;
    int n = snprintf(path, capacity, "%.*s/%s", (int)(slash - tool), tool, DENSE_CUDA_FILE);
    if (n < 0 || (size_t)n >= capacity)
        path[0] = 0;
}

static bool is_ours(const dense_plugin *plugin)
{
    return plugin && !strcmp(plugin->build, DENSE_CUDA_BUILD) &&
           plugin->config_bytes == sizeof(dense_config) && plugin->dense_bytes == sizeof(dense) &&
           plugin->ops_bytes == sizeof(dense_ops);
}

int dense_cuda_find(const char *device, const dense_plugin **out)
{
    char beside[PATH_MAX];
    path_beside_tool(beside, sizeof beside);
    const char *path = *beside && access(beside, F_OK) == 0 ? beside : DENSE_CUDA_FILE;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *why = dlerror();
        return fail(RUN_REFUSED,
                    "--device %s: attention and routers need %s beside the tool, which `make` "
                    "builds where nvcc is (%s); --device host needs none",
                    device, DENSE_CUDA_FILE, why ? why : "no reason given");
    }
    *out = dlsym(library, DENSE_CUDA_SYMBOL);
    if (is_ours(*out))
        return RUN_OK;
    dlclose(library);
    return fail(RUN_REFUSED, "--device %s: %s is of another build than the tool", device, path);
}
