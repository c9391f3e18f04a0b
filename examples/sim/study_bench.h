/* study_bench.h — common parts of studies: a machine, a model, its routing, and a sequence of
 * arms. */
#ifndef SIM_STUDY_BENCH_H
#define SIM_STUDY_BENCH_H

#include "sim/serve.h"
#include "sim/study.h"

#define SIM_GB 1e9

typedef struct sim_bench {
    sim_machine machine;
    sim_shape shape;
    sim_source *source;
    uint64_t slot_bytes;
} sim_bench;

/* `routing`: a generator's description. */
int sim_bench_open(const char *machine, const char *model, uint32_t tp, const char *routing,
                   uint64_t seed, sim_bench *out);
/* The same with the model's own generator; of gpt-oss-20b experts are in FP8, and its routes are those of its
 * trace if the study has been given any. */
int sim_bench_open_recorded(const char *machine, const char *model, uint64_t seed,
                            const sim_findings *study, sim_bench *out);
void sim_bench_close(sim_bench *bench);

/* Returns a configuration without a split and without jobs. */
sim_serve_config sim_bench_config(const sim_bench *bench);
/* The same, quiet, with so many percent of the experts' bytes. */
sim_serve_config sim_bench_budget(const sim_bench *bench, uint32_t percent, uint64_t seed);

/* A run's figures in its steady state: its second half. */
typedef struct sim_pace {
    double tokens_per_s;
    double step_ns;
    double batch; /* mean number of running sequences */
    sim_result result;
} sim_pace;

/* Returns a regime's name; MOEPAGE_REGIME_*. */
const char *sim_bench_regime(uint32_t regime);

/* Returns the tokens per second of a run's second half; 0 if it is too short. */
double sim_bench_rate(const sim_result *result);

/* Serves config's jobs. RUN_REFUSED after a line if the split does not start. */
int sim_bench_run(const sim_serve_config *config, sim_pace *out);

/* A batch in the midst of being decoded: `n` sequences, their contexts spread evenly up to `context`
 * tokens, each followed by others that begin short. */
int sim_bench_batch(uint32_t n, uint32_t context, uint32_t rounds, sim_jobs *out);

/* Poisson arrivals, all at once if the rate, of jobs a second, is 0; answers' lengths are exponential. */
int sim_bench_poisson(const sim_bench *bench, uint32_t n, uint32_t prompt, uint32_t answer,
                      double rate, uint64_t seed, sim_jobs *out);

#endif
