/* A model's experts in an engine of libmoepage, under one budget, and the sessions on them. */
#include "plugin.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* ---- the budget ---- */

/* Bytes of the model's files that are no experts. */
static uint64_t dense_bytes(const paged_model *of, uint64_t expert_bytes)
{
    uint64_t all = 0;
    struct stat there;
    for (uint32_t i = 0; i < of->n_files; i++)
        all += stat(of->files[i], &there) ? 0 : (uint64_t)there.st_size;
    return all > expert_bytes ? all - expert_bytes : 0;
}

/* All that is free, but for the rest of the model, which stays mapped, for what is being read, both in the host's
 * memory, and for an eighth, at least 256 MiB: KV, compute buffers and the system need it. */
static bool choose_budget(const paged_model *of, uint64_t reading, char *out, size_t room)
{
    moepage_model_info info = MOEPAGE_MODEL_INFO();
    moepage_model_get_info(of->model, &info);
    const bool away = of->device.device;
    const uint64_t bytes = away ? device_free(&of->device) : memory_free();
    const uint64_t beside = away ? 0 : dense_bytes(of, info.routed_bytes) + reading;
    const uint64_t rest = beside + (bytes / 8 > 256u << 20 ? bytes / 8 : 256u << 20);
    if (bytes <= rest) {
        say("MOEPAGE_BUDGET=auto: %llu bytes of memory are free, and %llu must stay so: give a "
            "budget",
            (unsigned long long)bytes, (unsigned long long)rest);
        return false;
    }
    snprintf(out, room, "%llu", (unsigned long long)(bytes - rest));
    return true;
}

/* ---- reading ---- */

enum { MOST_READS = 16, READERS = 8 };

/* Memory for experts that are being read, several at a time and past the page cache: sixteen of the largest, or a
 * thirty-second of all, but two. */
static uint64_t reading_bytes(const paged_model *of)
{
    moepage_model_info info = MOEPAGE_MODEL_INFO();
    moepage_model_get_info(of->model, &info);
    uint64_t largest = 0, reads = (uint64_t)info.moe_layers * info.experts / 32;
    for (uint32_t l = 0; l < of->n_layers; l++) {
        uint64_t bytes = 0;
        for (int k = 0; k < MOST_BANKS; k++)
            bytes += of->banks[l][k].address ? of->banks[l][k].expert_bytes : 0;
        largest = bytes > largest ? bytes : largest;
    }
    reads = reads < 2 ? 2 : reads > MOST_READS ? MOST_READS : reads;
    return reads * (largest + 2 * 4096);
}

/* ---- opening ---- */

static void tell_opened(const paged_model *of, const settings *chosen)
{
    moepage_expert_pool_info pool = MOEPAGE_EXPERT_POOL_INFO();
    moepage_model_info model = MOEPAGE_MODEL_INFO();
    moepage_model_get_info(of->model, &model);
    moepage_expert_pool_get_info(moepage_engine_expert_pool(of->engine), &pool);
    say("budget %s, policy %s: %llu of %llu experts have a slot (%u layers of %u, %.2f GB in "
        "all), %.2f GB for what is being read%s%s",
        chosen->budget, chosen->policy, (unsigned long long)pool.slots,
        (unsigned long long)model.moe_layers * model.experts, model.moe_layers, model.experts,
        (double)model.routed_bytes / 1e9, (double)pool.host_tier_bytes / 1e9,
        *chosen->options ? "; " : "", chosen->options);
}

uint32_t pages_top_k(const moepage_model *model)
{
    moepage_model_info info = MOEPAGE_MODEL_INFO();
    moepage_model_get_info(model, &info);
    return info.experts < MOST_TOP_K ? info.experts : MOST_TOP_K;
}

/* The engine's options as text; what MOEPAGE_OPTIONS names is left to it. */
static bool write_options(const paged_model *of, const settings *chosen, char *out, size_t room)
{
    char budget[32], reading[64] = "", readers[32] = "";
    const uint64_t bytes = strstr(chosen->options, "host_tier=") ? 0 : reading_bytes(of);
    memcpy(budget, chosen->budget, sizeof budget);
    if (strcmp(budget, "auto") == 0 && !choose_budget(of, bytes, budget, sizeof budget))
        return false;
    if (bytes)
        snprintf(reading, sizeof reading, " host_tier=%llu", (unsigned long long)bytes);
    if (!strstr(chosen->options, "io_threads="))
        snprintf(readers, sizeof readers, " io_threads=%d", READERS);
    if (snprintf(out, room, "budget=%s policy=%s%s%s %s", budget, chosen->policy, reading, readers,
                 chosen->options) < (int)room)
        return true;
    say("MOEPAGE_OPTIONS is too long");
    return false;
}

static bool open_engine(paged_model *of, const settings *chosen)
{
    char options[1024];
    if (!write_options(of, chosen, options, sizeof options))
        return false;
    const moepage_session_config session =
        MOEPAGE_SESSION_CONFIG(.max_tokens = MOST_TOKENS, .max_top_k = pages_top_k(of->model));
    const moepage_device_config away = MOEPAGE_DEVICE_CONFIG(.external = &of->device.memory);
    const moepage_engine_config config =
        MOEPAGE_ENGINE_CONFIG(.model = of->model, .session = &session,
                              .device_name = of->device.device ? "external" : NULL,
                              .device = of->device.device ? &away : NULL);
    if (moepage_engine_open(NULL, options, &config, &of->engine)) {
        say("%s", moepage_last_error());
        return false;
    }
    return true;
}

/* The host has read the file ahead, which takes the memory that the slots are to have. */
static void drop_cache(const paged_model *of)
{
    for (uint32_t l = 0; l < of->n_layers; l++)
        for (int k = 0; k < MOST_BANKS; k++) {
            const bank *from = &of->banks[l][k];
            if (from->address)
                place_drop(of->files[from->file], from->offset, (char *)from->address,
                           from->expert_bytes * (size_t)from->experts);
        }
}

bool pages_open(paged_model *of)
{
    if (of->engine || of->in_memory || of->n_layers == 0)
        return !of->lost;
    of->closed = true;
    places_forget();
    settings chosen;
    if (!settings_read(&chosen) || !layers_open(of))
        return false;
    if (!device_find(of, &chosen) || !choice_make(of, &chosen) || !open_engine(of, &chosen) ||
        !learnt_open(of, &chosen)) {
        pages_close(of);
        return false;
    }
    drop_cache(of);
    memcpy(of->stats, chosen.stats, sizeof of->stats);
    tell_opened(of, &chosen);
    return true;
}

/* ---- sessions ---- */

moepage_session *pages_take_session(paged_model *of)
{
    if (!atomic_exchange(&of->engine_session_taken, true))
        return moepage_engine_session(of->engine);
    const moepage_session_config config =
        MOEPAGE_SESSION_CONFIG(.max_tokens = MOST_TOKENS, .max_top_k = pages_top_k(of->model));
    moepage_session *session = NULL;
    if (moepage_session_create(moepage_engine_expert_pool(of->engine), NULL, &config, &session))
        say("%s", moepage_last_error());
    return session;
}

void pages_give_session(paged_model *of, moepage_session *session)
{
    if (session == moepage_engine_session(of->engine)) {
        moepage_session_cancel(session);
        atomic_store(&of->engine_session_taken, false);
    } else if (moepage_session_destroy(session)) {
        say("%s", moepage_last_error());
    }
}

/* ---- closing ---- */

void pages_close(paged_model *of)
{
    if (of->engine) {
        learnt_close(of);
        report_at_the_end(of);
        if (moepage_engine_close(of->engine))
            say("%s", moepage_last_error());
        of->engine = NULL;
    }
    if (of->model && moepage_model_close(of->model))
        say("%s", moepage_last_error());
    of->model = NULL;
}
