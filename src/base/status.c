/* Status texts and the thread-local last error: the only global state of the library. */
#include "base/status.h"

#include <stdio.h>
#include <string.h>

#define MP_ERROR_BYTES 512

static _Thread_local char last_error[MP_ERROR_BYTES];

#define MP_STATUS_TABLE(X)                                  \
    X(MOEPAGE_OK, "success")                                \
    X(MOEPAGE_E_ARGUMENT, "argument out of range")          \
    X(MOEPAGE_E_STATE, "call out of order")                 \
    X(MOEPAGE_E_HANDLE, "stale or foreign handle")          \
    X(MOEPAGE_E_BUSY, "object in use")                      \
    X(MOEPAGE_E_NO_MEMORY, "out of memory")                 \
    X(MOEPAGE_E_BUDGET, "device budget exceeded")           \
    X(MOEPAGE_E_WOULD_NOT_FIT, "would not fit the KV pool") \
    X(MOEPAGE_E_NOT_FOUND, "not found")                     \
    X(MOEPAGE_E_IO, "input/output error")                   \
    X(MOEPAGE_E_FORMAT, "malformed data")                   \
    X(MOEPAGE_E_UNSUPPORTED, "not supported")               \
    X(MOEPAGE_E_VERSION, "incompatible version")            \
    X(MOEPAGE_E_CALLBACK, "caller's callback failed")       \
    X(MOEPAGE_E_DEVICE, "device failed")                    \
    X(MOEPAGE_E_END, "end of data")

const char *moepage_status_text(moepage_status status)
{
    switch (status) {
#define MP_STATUS_CASE(code, text) \
    case code: return text;
        MP_STATUS_TABLE(MP_STATUS_CASE)
#undef MP_STATUS_CASE
    default: return "unknown status";
    }
}

const char *moepage_last_error(void)
{
    return last_error;
}

void mp_error_set_list(const char *format, va_list args)
{
    vsnprintf(last_error, sizeof last_error, format, args);
}

void mp_error_set(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    mp_error_set_list(format, args);
    va_end(args);
}

moepage_status mp_fail_within(moepage_status status, const char *format, ...)
{
    char inner[MP_ERROR_BYTES];
    memcpy(inner, last_error, sizeof inner);
    va_list args;
    va_start(args, format);
    int n = vsnprintf(last_error, sizeof last_error, format, args);
    va_end(args);
    if (n >= 0 && (size_t)n < sizeof last_error)
        snprintf(last_error + n, sizeof last_error - (size_t)n, ": %s", inner);
    return status;
}

_Static_assert(sizeof((mp_kept_error){0}.sentence) == MP_ERROR_BYTES, "a sentence is kept whole");

mp_kept_error mp_error_keep(void)
{
    mp_kept_error kept;
    memcpy(kept.sentence, last_error, sizeof kept.sentence);
    return kept;
}

moepage_status mp_fail_kept(moepage_status status, const mp_kept_error *kept)
{
    memcpy(last_error, kept->sentence, sizeof last_error);
    return status;
}

uint32_t moepage_version(void)
{
    return MOEPAGE_VERSION;
}

#define MP_TEXT(x) #x
#define MP_TEXT_OF(x) MP_TEXT(x)

const char *moepage_version_text(void)
{
    return MP_TEXT_OF(MOEPAGE_VERSION_MAJOR) "." MP_TEXT_OF(MOEPAGE_VERSION_MINOR) "." MP_TEXT_OF(
        MOEPAGE_VERSION_PATCH);
}
