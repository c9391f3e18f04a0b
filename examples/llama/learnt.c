/* What outlives a run: the state of a predictor, in a file of its own, and a trace of the routes. */
#include "plugin.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

static bool load(paged_model *of, const char *path)
{
    moepage_predictor *predictor = moepage_engine_predictor(of->engine);
    if (!predictor) {
        say("MOEPAGE_STATE=%s: nothing learns: MOEPAGE_OPTIONS has no predictor, such as "
            "predictor=coactivation prefetch=predictor",
            path);
        return false;
    }
    if (strlen(path) >= sizeof of->state) {
        say("MOEPAGE_STATE is too long");
        return false;
    }
    if (access(path, F_OK) && errno == ENOENT) {
        say("%s is not there yet: the predictor begins with nothing", path);
    } else if (moepage_predictor_load(predictor, path)) {
        say("%s", moepage_last_error());
        return false;
    }
    strcpy(of->state, path);
    return true;
}

static bool begin_trace(paged_model *of, const char *path)
{
    moepage_model_info model = MOEPAGE_MODEL_INFO();
    moepage_model_get_info(of->model, &model);
    const moepage_trace_info info = {.struct_size = sizeof info,
                                     .moe_layers = model.moe_layers,
                                     .experts = model.experts,
                                     .max_top_k = pages_top_k(of->model),
                                     .model = "gguf"};
    if (!moepage_trace_create(path, &info, &of->trace) &&
        !moepage_session_record(moepage_engine_session(of->engine), of->trace))
        return true;
    say("%s", moepage_last_error());
    return false;
}

bool learnt_open(paged_model *of, const settings *chosen)
{
    return (!*chosen->state || load(of, chosen->state)) &&
           (!*chosen->trace || begin_trace(of, chosen->trace));
}

void learnt_close(paged_model *of)
{
    if (*of->state && moepage_predictor_save(moepage_engine_predictor(of->engine), of->state))
        say("%s", moepage_last_error());
    if (of->trace && moepage_session_record(moepage_engine_session(of->engine), NULL))
        say("%s", moepage_last_error());
    if (of->trace && moepage_trace_close(of->trace))
        say("%s", moepage_last_error());
    of->trace = NULL;
    *of->state = 0;
}
