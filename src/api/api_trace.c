/* Entry points of traces: check arguments, call the writer or the reader. */
#include <stdatomic.h>

#include "base/alloc.h"
#include "base/config.h"
#include "base/status.h"
#include "trace/trace.h"
#include "trace/trace_format.h"

static moepage_status check_path(const char *path, moepage_trace **out)
{
    if (!path || !*path)
        return mp_fail(MOEPAGE_E_ARGUMENT, "the trace's path is %s: name a file",
                       path ? "empty" : "NULL");
    if (!out)
        return mp_fail(MOEPAGE_E_ARGUMENT, "out is NULL");
    return MOEPAGE_OK;
}

moepage_status moepage_trace_create(const char *path, const moepage_trace_info *info,
                                    moepage_trace **out)
{
    moepage_trace_info own;
    moepage_status status = check_path(path, out);
    if (!status && !info)
        status = mp_fail(MOEPAGE_E_ARGUMENT, "info is NULL: a trace needs the model's shape");
    if (!status)
        status = MP_CONFIG_READ(own, info);
    if (!status)
        status = mp_trace_check_info(&own, MOEPAGE_E_ARGUMENT);
    if (status)
        return status;
    moepage_trace *trace = mp_alloc(sizeof *trace);
    if (!trace)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a trace");
    trace->info = own;
    status = mp_trace_writer_create(path, &own, MP_TRACE_FRAME_BYTES, &trace->writer);
    if (status) {
        mp_free(trace);
        return status;
    }
    mp_handle_open(&trace->handle, MP_KIND_TRACE);
    *out = trace;
    return MOEPAGE_OK;
}

moepage_status moepage_trace_open(const char *path, moepage_trace **out)
{
    moepage_status status = check_path(path, out);
    if (status)
        return status;
    moepage_trace *trace = mp_alloc(sizeof *trace);
    if (!trace)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a trace");
    status = mp_trace_reader_open(path, &trace->info, &trace->reader);
    if (status) {
        mp_free(trace);
        return status;
    }
    mp_handle_open(&trace->handle, MP_KIND_TRACE);
    *out = trace;
    return MOEPAGE_OK;
}

moepage_status moepage_trace_get_info(const moepage_trace *trace, moepage_trace_info *info)
{
    moepage_status status = mp_handle_check(trace, MP_KIND_TRACE);
    return status ? status : MP_CONFIG_WRITE(info, trace->info);
}

moepage_status moepage_trace_next(moepage_trace *trace, moepage_trace_step *step)
{
    moepage_trace_step own = {.struct_size = sizeof own};
    moepage_status status = mp_handle_check(trace, MP_KIND_TRACE);
    if (status)
        return status;
    if (!trace->reader)
        return mp_fail(MOEPAGE_E_STATE, "the trace is being written: close it, then open it");
    status = MP_CONFIG_CHECK(step); /* else a step would be read and then lost */
    if (!status)
        status = mp_trace_reader_next(trace->reader, &own);
    return status ? status : MP_CONFIG_WRITE(step, own);
}

moepage_status moepage_trace_close(moepage_trace *trace)
{
    if (!trace)
        return MOEPAGE_OK;
    moepage_status status = mp_handle_check(trace, MP_KIND_TRACE);
    if (status)
        return status;
    uint32_t users = atomic_load(&trace->users);
    if (users)
        return mp_fail(MOEPAGE_E_BUSY,
                       "%u session(s) record to the trace: stop them with "
                       "moepage_session_record(session, NULL) first",
                       users);
    if (trace->writer)
        status = mp_trace_writer_close(trace->writer);
    mp_trace_reader_close(trace->reader);
    mp_handle_kill(&trace->handle);
    mp_free(trace);
    return status;
}
