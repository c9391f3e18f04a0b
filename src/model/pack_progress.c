/* What the parts of writing a .moepack file share: the first failure, and how far the call has come. */
#include <string.h>

#include "base/status.h"
#include "model/pack_write.h"

void mp_pack_failure_keep(mp_pack_failure *failure, moepage_status status)
{
    if (atomic_exchange(&failure->claimed, 1))
        return;
    failure->status = status;
    strncpy(failure->text, moepage_last_error(), sizeof failure->text - 1);
}

moepage_status mp_pack_failure_raise(const mp_pack_failure *failure)
{
    if (!mp_pack_failed(failure))
        return MOEPAGE_OK;
    return mp_fail(failure->status, "%s", failure->text);
}

moepage_status mp_pack_progress_add(mp_pack_progress *progress, uint64_t bytes)
{
    const mp_pack_options *options = progress->options;
    progress->done_bytes += bytes;
    int32_t stop =
        options->progress
            ? options->progress(options->progress_user, progress->done_bytes, progress->total_bytes)
            : 0;
    if (!stop)
        return MOEPAGE_OK;
    return mp_fail(MOEPAGE_E_CALLBACK,
                   "the progress callback ended the call with %d after %llu of "
                   "%llu bytes",
                   stop, (unsigned long long)progress->done_bytes,
                   (unsigned long long)progress->total_bytes);
}

uint64_t mp_pack_experts_bytes(const struct moepage_model *model, uint64_t first, uint64_t n)
{
    uint64_t bytes = 0;
    for (uint64_t key = first; key < first + n; key++)
        bytes += mp_model_layout(model, (uint32_t)(key / model->info.experts))->expert_bytes;
    return bytes;
}
