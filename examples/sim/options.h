/* options.h — the command line of moepage-sim as a struct. */
#ifndef SIM_OPTIONS_H
#define SIM_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#define SIM_LIST_MOST 32

/* The tool's modes; flags without an effect in the chosen mode are refused. */
typedef enum sim_mode {
    SIM_REPLAY,    /* --policy, --capacity: cache replay of a trace */
    SIM_CURVE,     /* --curve: misses at every capacity, from reuse distances */
    SIM_STATS,     /* --stats: describes a trace */
    SIM_TABLES,    /* --tables: experts used by a generator's batches, beside published figures */
    SIM_SERVE,     /* --machine and --model: serving in virtual time */
    SIM_CONFIGURE, /* --configure: the best split for a trace, without serving it */
    SIM_LIST,      /* --list */
    SIM_STUDY      /* --study: a paper's experiment */
} sim_mode;

typedef enum sim_scope { SIM_SCOPE_GLOBAL, SIM_SCOPE_LAYER } sim_scope;
typedef enum sim_access { SIM_ACCESS_LAYER, SIM_ACCESS_SEQUENTIAL } sim_access;

typedef enum sim_split_kind {
    SIM_SPLIT_FIXED, /* fraction of the budget's bytes for experts */
    SIM_SPLIT_HALF,  /* 50-50 */
    SIM_SPLIT_FLUX,
    SIM_SPLIT_DUAL_RESIZE,
    SIM_SPLIT_MV_WSA,        /* the configurator's, before serving */
    SIM_SPLIT_MV_WSA_ONLINE, /* the controller, from 50-50 */
    SIM_SPLIT_ORACLE,        /* the best static split, tried one by one */
    SIM_SPLIT_PLANNER,       /* the residency planner */
    SIM_SPLIT_KINDS
} sim_split_kind;

typedef struct sim_split_option {
    sim_split_kind kind;
    double fraction; /* for FIXED: 0..1 */
} sim_split_option;

/* Numbers of a flag that takes several; n 0: not given. */
typedef struct sim_numbers {
    uint32_t n;
    uint64_t values[SIM_LIST_MOST];
} sim_numbers;

/* Words of a flag that takes several. */
typedef struct sim_words {
    uint32_t n;
    char words[SIM_LIST_MOST][64];
} sim_words;

/* A byte count, or a percentage of the model's experts. */
typedef struct sim_budget {
    uint64_t bytes;
    double percent; /* of the experts' bytes, if bytes is 0 */
} sim_budget;

typedef struct sim_options {
    int argc; /* the command line as it was given */
    char **argv;
    sim_mode mode;
    bool help, json;
    const char *report; /* a file to be written, or NULL */

    /* source of routing: one of the two, or neither for modes that need none */
    const char *trace;
    const char *synthetic; /* a generator's description */
    uint32_t shape_layers; /* --shape LxExK, of a bare .u8 file; 0 = not given */
    uint32_t shape_experts;
    uint32_t shape_top_k;
    uint32_t requests; /* only the first requests; 0 = all */
    uint64_t seed;

    /* replay */
    sim_words policies;
    sim_numbers capacities;
    uint32_t scope;  /* sim_scope */
    uint32_t access; /* sim_access */

    /* curve, stats */
    bool curve, stats, tables;
    uint32_t sample_keys;  /* most keys of the sampled curve; 0 = a controller's number */
    uint32_t burst;        /* steps; 0 = one request */
    uint64_t expert_bytes; /* of one expert on the bus; 0 = the model's */
    uint64_t bus_bytes;    /* per second; 0 = the machine's */

    /* serving */
    const char *machine; /* a file, or a name in examples/machines */
    const char *model;   /* a shape's name */
    uint32_t tp;         /* tensor-parallel ranks, of which one is simulated; 1 */
    bool f8;             /* experts of one byte per weight */
    const char *arrivals;
    const char *regime;                      /* auto, cache, stream; NULL = auto */
    const char *kv_miss;                     /* swap, recompute; NULL = swap */
    const char *prefetch;                    /* a predictor's name; NULL = none */
    bool admission;                          /* controllers decide how many run at once, */
    uint64_t target_ttft_ns, target_tpot_ns; /* by these; 0 = none */
    struct {
        uint32_t n;
        sim_budget list[SIM_LIST_MOST];
    } budgets;
    struct {
        uint32_t n;
        sim_split_option list[SIM_LIST_MOST];
    } splits;
    sim_words baselines;
    sim_numbers concurrency;
    sim_numbers prompt_tokens; /* of every job if there are no arrivals */
    sim_numbers output_tokens;
    uint32_t jobs;         /* number of jobs served; 0 = all */
    uint64_t steps;        /* most steps simulated; 0 = until all jobs are done */
    uint32_t block_tokens; /* of a KV block */
    double rate;           /* arrivals per second without --arrivals; 0 = all at once */
    double time_scale;     /* factor on --arrivals' times; 1 */
    bool configure;

    const char *study;      /* a study's name or NULL */
    uint32_t train_percent; /* of a trace's requests; 0 = the study's default */

    /* --list */
    const char *list; /* "models", "machines", "policies", "baselines", "studies" or NULL */

    /* last flag given of each group, for error messages; NULL = none */
    const char *for_trace;     /* reading a trace */
    const char *for_misses;    /* replay and curve: --access */
    const char *for_replay;    /* --capacity */
    const char *for_curve;     /* --sample-keys */
    const char *for_study;     /* --train-percent */
    const char *for_stats;     /* --expert-bytes, --bus-bytes */
    const char *for_machine;   /* stats and serving: --machine, --model ... */
    const char *for_serve;     /* serving only */
    const char *for_admission; /* serving with --admission only */
} sim_options;

/* Reads the command line. One line and an exit code of common/fail.h on failure. */
int sim_options_read(int argc, char **argv, sim_options *out);
const char *sim_options_usage(void);

/* Returns a split's name in the flag's syntax; FIXED's is "fixed". */
const char *sim_split_name(sim_split_kind kind);

/* Prints the names that --list asks for. */
int sim_list_main(const sim_options *options);

/* Serves or configures (serve_main.c), and prints the results; returns an exit code. */
int sim_serve_main(const sim_options *options);

#endif
