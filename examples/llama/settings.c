/* The settings of the plug-in: variables of the environment. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin.h"

static bool copy(const char *name, const char *value, const char *without, char *out, size_t room)
{
    const size_t n = strlen(value);
    if (n > 0 && n < room && !strpbrk(value, without)) {
        memcpy(out, value, n + 1);
        return true;
    }
    say("%s=%s: it is empty, too long, or has a character that must not be there", name, value);
    return false;
}

static const char *value_of(const char *name, const char *otherwise)
{
    const char *value = getenv(name);
    return value ? value : otherwise;
}

static bool read_kernels(kernels_setting *out)
{
    static const char *const names[] = {"auto", "moepage", "llama.cpp"};
    const char *value = value_of("MOEPAGE_KERNELS", names[KERNELS_AUTO]);
    for (int i = KERNELS_AUTO; i <= KERNELS_HOST; i++)
        if (strcmp(value, names[i]) == 0) {
            *out = (kernels_setting)i;
            return true;
        }
    say("MOEPAGE_KERNELS=%s: it must be auto, moepage or llama.cpp", value);
    return false;
}

/* Empty, or not there: the host itself. */
static bool read_device(settings *out)
{
    const char *value = value_of("MOEPAGE_DEVICE", "");
    out->device[0] = 0;
    return !*value || copy("MOEPAGE_DEVICE", value, "", out->device, sizeof out->device);
}

bool settings_read(settings *out)
{
    out->options = value_of("MOEPAGE_OPTIONS", "");
    out->state = value_of("MOEPAGE_STATE", "");
    out->trace = value_of("MOEPAGE_TRACE", "");
    return read_kernels(&out->kernels) && read_device(out) &&
           copy("MOEPAGE_POLICY", value_of("MOEPAGE_POLICY", "cycle"), " \t\n=", out->policy,
                sizeof out->policy) &&
           copy("MOEPAGE_STATS", value_of("MOEPAGE_STATS", "text"), "", out->stats,
                sizeof out->stats) &&
           copy("MOEPAGE_BUDGET", value_of("MOEPAGE_BUDGET", "auto"), " \t\n=", out->budget,
                sizeof out->budget);
}

bool settings_are_right(void)
{
    settings read;
    return settings_read(&read);
}
