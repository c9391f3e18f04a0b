/* The last error of a thread, which is the library's: base/status.h over the services that
 * libmoepage.so passes to the module. */
#include "services.h"

#include <stdatomic.h>
#include <stdio.h>

#include "base/status.h"

/* One library in a process, so that every open sets the same pointer. */
static const mp_module_services *_Atomic services;

void mp_cuda_services_set(const mp_module_services *library)
{
    atomic_store(&services, library);
}

void mp_error_set_list(const char *format, va_list args)
{
    const mp_module_services *library = atomic_load(&services);
    if (library)
        library->error_set(format, args);
}

void mp_error_set(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    mp_error_set_list(format, args);
    va_end(args);
}

const char *moepage_last_error(void)
{
    const mp_module_services *library = atomic_load(&services);
    return library ? library->last_error() : "";
}

moepage_status mp_fail_within(moepage_status status, const char *format, ...)
{
    char prefix[256], inner[512];
    va_list args;
    va_start(args, format);
    vsnprintf(prefix, sizeof prefix, format, args);
    va_end(args);
    snprintf(inner, sizeof inner, "%s", moepage_last_error());
    mp_error_set("%s: %s", prefix, inner);
    return status;
}
