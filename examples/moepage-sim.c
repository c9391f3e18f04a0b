/* moepage-sim — predicts what a policy, a split or a budget would give on a machine that need not
 * be present. */
#include <stddef.h>

#include "common/fail.h"
#include "common/standard.h"
#include "sim/miss_curve.h"
#include "sim/options.h"
#include "sim/replay.h"
#include "sim/study.h"
#include "sim/synthetic.h"
#include "sim/trace.h"
#include "sim/trace_stats.h"

#define SYNTHETIC_REQUESTS 64u

static int record(const sim_options *options, sim_trace **out)
{
    sim_synthetic config;
    int code = sim_synthetic_read(options->synthetic, options->seed, &config);
    uint32_t requests = options->requests ? options->requests : SYNTHETIC_REQUESTS;
    return code ? code : sim_synthetic_record(&config, requests, out);
}

static int open_trace(const sim_options *options, sim_trace **out)
{
    if (options->synthetic)
        return record(options, out);
    const sim_trace_shape shape = {options->shape_layers, options->shape_experts,
                                   options->shape_top_k};
    *out = sim_trace_open_as(options->trace, &shape);
    if (!*out)
        return RUN_REFUSED;
    sim_trace_keep(*out, options->requests);
    return RUN_OK;
}

static int run_on_trace(const sim_options *options)
{
    sim_trace *trace = NULL;
    int code = open_trace(options, &trace);
    if (code)
        return code;
    if (options->mode == SIM_STATS)
        code = sim_trace_stats_main(trace, options);
    else if (options->mode == SIM_CURVE)
        code = sim_miss_curve_main(trace, options);
    else
        code = sim_replay_main(trace, options);
    trace->source.close(&trace->source);
    return code;
}

static int print_tables(const sim_options *options)
{
    sim_synthetic config;
    int code = sim_synthetic_read(options->synthetic, options->seed, &config);
    return code ? code : sim_activation_main(&config, options);
}

static int run(const sim_options *options)
{
    switch (options->mode) {
    case SIM_TABLES: return print_tables(options);
    case SIM_LIST: return sim_list_main(options);
    case SIM_STUDY: return sim_study_main(options);
    case SIM_SERVE:
    case SIM_CONFIGURE: return sim_serve_main(options);
    default: return run_on_trace(options);
    }
}

int main(int argc, char **argv)
{
    static sim_options options;
    standard_open();
    int code = sim_options_read(argc, argv, &options);
    if (code)
        return code;
    if (options.help)
        return standard_print(sim_options_usage());
    return standard_finish(run(&options));
}
