/* Whether streams share hardware queues. A GPU takes work from as many queues as
 * CUDA_DEVICE_MAX_CONNECTIONS says (8 if it is not set), and streams are dealt out to them: behind a kernel
 * that waits, nothing of another stream in its queue begins. If that is the stream from which the kernel's
 * answer comes, only a timeout ends the wait.
 *
 * So as many streams as there would be queues each run a kernel that waits for a word, and the word is
 * written in the order of the stream that answers. All see it at once, unless two of these streams share a
 * queue. */
#include "handshake.h"

#include "device/thread.h"
#include "issue.h"
#include "kernels/path_args.h"
#include "submit.h"

#define PATIENCE_NS 50000000u

/* Begins a wait on a stream of its own: until `deadline_ns` at most. */
static moepage_status probe(mp_cuda *cuda, const mp_cuda_handshake *handshake, uint32_t index,
                            uint64_t deadline_ns, mp_cu_stream *out)
{
    const uint64_t now_ns = mp_clock_ns();
    const mp_gpu_path_wait_args args = {
        .mark = (uint32_t *)(uintptr_t)handshake->marks_gpu + index,
        .word = (const uint32_t *)(uintptr_t)handshake->word,
        .timeout_ns = now_ns < deadline_ns ? deadline_ns - now_ns : 0,
    };
    moepage_status status =
        mp_cuda_check(cuda, cuda->driver->stream_create(out, MP_CU_STREAM_NON_BLOCKING, 0),
                      "creating a stream");
    return status ? status
                  : mp_cuda_launch(cuda, *out, "mp_gpu_path_wait", 1, MP_PATH_WAIT_THREADS,
                                   MP_PATH_WAIT_SHARED, &args);
}

static bool all_have_begun(const mp_cuda_handshake *handshake)
{
    for (uint32_t i = 0; i < MP_CUDA_PROBES; i++)
        if (!__atomic_load_n(&handshake->marks[i], __ATOMIC_ACQUIRE))
            return false;
    return true;
}

/* Waits for the probes' ends and gives their streams back. */
static void end_probes(mp_cuda *cuda, mp_cu_stream streams[MP_CUDA_PROBES])
{
    for (uint32_t i = 0; i < MP_CUDA_PROBES && streams[i]; i++)
        mp_cuda_log_failure(cuda, cuda->driver->stream_sync(streams[i]), "waiting for a stream");
    for (uint32_t i = 0; i < MP_CUDA_PROBES && streams[i]; i++)
        mp_cuda_log_failure(cuda, cuda->driver->stream_destroy(streams[i]), "giving back a stream");
}

moepage_status mp_cuda_shake_hands(mp_stream *answers, const mp_cuda_handshake *handshake,
                                   bool *is_shared)
{
    mp_cuda *cuda = mp_cuda_stream_of(answers)->cuda;
    mp_cu_stream streams[MP_CUDA_PROBES] = {NULL};
    const uint64_t deadline_ns = mp_clock_ns() + PATIENCE_NS;
    *is_shared = false;
    moepage_status status = mp_cuda_enter(cuda);
    if (status)
        return status;
    for (uint32_t i = 0; i < MP_CUDA_PROBES && !status; i++)
        status = probe(cuda, handshake, i, deadline_ns, &streams[i]);
    while (!status && !all_have_begun(handshake) && mp_clock_ns() < deadline_ns)
        mp_thread_relax();
    moepage_status answered = mp_cuda_stream_write32(answers, handshake->word, 1);
    end_probes(cuda, streams);
    mp_cuda_leave(cuda);
    if (!answered)
        answered = mp_cuda_stream_write32(answers, handshake->word, 0);
    if (!status)
        status = answered;
    for (uint32_t i = 0; i < MP_CUDA_PROBES && !status; i++)
        *is_shared |= handshake->marks[i] == MP_PATH_WAIT_LATE;
    return status;
}
