/* controller.h — a controller watches a pair of pools, and moves bytes between them while they
 * serve. This is the object behind a moepage_controller handle.
 *
 *   controller.c         its life, and what it reports
 *   controller_watch.c   observing: reuse distances, steps
 *   controller_size.c    right-sizing: whose working sets bound the experts' side; size.c has the sets
 *   controller_choose.c  what the mode's law chooses at a burst's end
 *   controller_look.c    gathering the pools' state
 *   controller_lend.c    KV's idle blocks, lent to experts and called back
 *   controller_tick.c    choosing and moving, tick by tick
 *
 * src/planning decides and src/split moves; the controller feeds the one and calls the other.
 * Locks: the pools call the watch under their own locks, so the controller's `lock` comes last, and
 * is never held while a pool is called. All locks, in their order: a KV pool's loan_lock, the device's
 * budget_lock, `ticking`, which keeps ticks apart, the pools' own, `lock`. */
#ifndef MP_CONTROLLERS_CONTROLLER_H
#define MP_CONTROLLERS_CONTROLLER_H

#include <stddef.h>

#include "base/config.h"
#include "base/handle.h"
#include "controllers/size.h"
#include "kv/kv.h"
#include "kv/kv_loan.h"
#include "planning/admission.h"
#include "planning/curve.h"
#include "planning/mvwsa.h"
#include "planning/pace.h"
#include "planning/rate.h"
#include "planning/residency.h"
#include "planning/sampled.h"
#include "planning/turn.h"
#include "planning/watch.h"
#include "pool/share.h"

/* The reuse of experts, or of sequences, and its miss curve. */
typedef struct mp_reuse_watch {
    uint32_t n_stacks;   /* sets of keys that do not compete with each other: one per layer, or 1 */
    mp_sampled **stacks; /* [n_stacks] */
    mp_sampled_use *uses; /* scratch */
    mp_sample *samples;   /* scratch */
    mp_curve curve;       /* over units */
} mp_reuse_watch;

/* The goal of a move. */
typedef struct mp_move {
    uint64_t slots;
    uint64_t blocks;
    uint32_t compressed; /* per layer */
} mp_move;

struct moepage_controller {
    mp_handle handle;
    mp_watch watch;
    mp_kv_watch kv_watch;
    mp_kv_loan loan;
    mp_budget_watch budget_watch; /* while it lends */
    struct moepage_expert_pool *experts;
    mp_pool_shape shape;              /* of the experts */
    struct moepage_kv_pool *kv;       /* or NULL */
    const mp_kv_shape *kv_shape;      /* or NULL */
    struct moepage_device *home;      /* of both */
    moepage_controller_config config; /* defaults filled in */
    uint32_t unit_slots;              /* slots of an expert unit: those that come and go together */
    uint32_t unit_blocks;             /* blocks of a KV unit: a granule's */

    pthread_mutex_t lock; /* protects what is observed, below */
    mp_reuse_watch reuse;
    mp_reuse_watch kv_reuse;
    bool kv_named;           /* the host names its prefixes */
    uint64_t longest_blocks; /* the longest sequence seen */
    uint64_t running_blocks; /* the most that one step's sequences had in this burst */
    double mean_blocks;      /* of a sequence in a step, lately, */
    double square_blocks;    /* and of their squares */
    double idle_blocks;      /* used by sequences that are in no step, likewise */
    uint64_t steps;
    mp_rate miss_ns;         /* stall per miss, by step */
    uint32_t prefill_tokens; /* of the longest recent prefill steps */
    mp_rate recompute_ns;    /* per token of long prefill steps */
    mp_pace pace;            /* of decode steps, by their tokens */
    mp_admission admission;
    mp_turn turn;            /* with admission, */
    mp_turn_outlook outlook; /* and what it expected at the last burst's end */
    double *turn_bins;
    uint64_t now_units; /* of experts: the present split */

    pthread_mutex_t ticking; /* protects the rest */
    uint64_t burst_began;    /* in steps */
    uint64_t bursts, moves, recalls, refused;
    uint64_t peak_blocks;
    uint32_t attempts; /* at the move under way; 0 = no move is */
    mp_move target;
    uint64_t share;   /* KV's blocks of the chosen split, lent ones too; 0: none is chosen */
    uint64_t offered; /* that sequences were told of */
    mp_mvwsa mvwsa;
    mp_residency_planner planner;
    /* [3][experts + 1] scratch of the planner, by dense experts: misses of a cache, those of a window, and the part
     * of all uses that the most used ones have */
    double *use;
    mp_mvwsa_answer answer;
    /* Of misses (eq. 4): now, and at the answer's target. */
    double predicted_now_ns, predicted_best_ns;
    mp_residency_answer plan;
    mp_size size; /* the users' working sets */
    bool placed;  /* FIXED has moved */
    bool planned; /* the planner's plan is the pools' present state, or the goal of their move */
};

/* Reports as first published; writes one to a caller. */
#define MP_REPORT_MIN_BYTES offsetof(moepage_controller_report, target_running)
#define MP_REPORT_CHECK(report) mp_config_check((report), MP_REPORT_MIN_BYTES, "report")
#define MP_REPORT_WRITE(report, own) \
    mp_config_write((report), &(own), sizeof(own), MP_REPORT_MIN_BYTES, "report")

moepage_status mp_controller_create(struct moepage_expert_pool *experts, struct moepage_kv_pool *kv,
                                    const moepage_controller_config *config,
                                    struct moepage_controller **out);
void mp_controller_destroy(struct moepage_controller *controller);
void mp_controller_info(struct moepage_controller *controller, moepage_controller_info *info);
/* Experts that one more unit brings, of those that compete with each other. */
static inline uint32_t mp_controller_unit_experts(const struct moepage_controller *controller)
{
    return controller->shape.n_scopes == 1 ? controller->shape.step_slots : 1;
}

/* Predicted warm misses at `size` slots, or blocks, per burst; blocks' in blocks. */
double mp_controller_misses(struct moepage_controller *controller, bool kv, uint64_t size);

/* ---- controller_watch.c ---- */
moepage_status mp_reuse_watch_open(mp_reuse_watch *watch, uint32_t n_stacks, uint32_t keys,
                                   uint32_t max_samples, uint32_t set, uint64_t units);
void mp_reuse_watch_close(mp_reuse_watch *watch);
/* Makes the pools report to this controller. */
void mp_controller_watch(struct moepage_controller *controller);
void mp_controller_kv_use(struct moepage_controller *controller, uint64_t key, uint64_t tokens);

/* ---- controller_size.c ---- */

/* Replaces the users; after a failure they are as they were. */
moepage_status mp_controller_rightsize(struct moepage_controller *controller,
                                       struct moepage_predictor *const *predictors, uint32_t n,
                                       uint32_t coverage_permille);
moepage_status mp_controller_user(struct moepage_controller *controller, uint32_t user,
                                  moepage_rightsize *out);
/* Returns the most expert units that are worth having, of `all` and no fewer than `least`. `ticking` is held, as below. */
uint64_t mp_controller_most_units(const struct moepage_controller *controller, uint64_t least,
                                  uint64_t all);
void mp_controller_size_info(const struct moepage_controller *controller,
                             moepage_controller_info *info);

/* ---- controller_choose.c; the lock is held ---- */

/* The state of the pools at a tick. */
typedef struct mp_scene {
    mp_split_bounds bounds;
    mp_split now;        /* in units; blocks that are lent are KV's */
    uint64_t pinned_end; /* slots that pins keep */
    mp_move here;        /* in slots and blocks; blocks that are lent are slots */
    double load_ns;
    double bus_ns;
    mp_kv_survey kv;
    uint64_t arena_bytes;        /* above the low versions, which stay */
    uint64_t image_bytes;        /* of compressed experts */
    uint64_t bus_bytes_per_s;    /* of dense experts */
    uint64_t decode_bytes_per_s; /* likewise */
    bool coded_bus;
} mp_scene;

/* The present cost of misses in ns: of one routed expert, and of one KV unit. */
typedef struct mp_miss_costs {
    double expert_ns;
    double kv_ns;
} mp_miss_costs;
/* `load_ns` of one expert, `bus_ns` of one byte; `kv` may be zeroed. */
mp_miss_costs mp_controller_costs(const struct moepage_controller *controller, double load_ns,
                                  double bus_ns, const mp_kv_survey *kv);

/* Returns true if KV's idle blocks are lent: not where pins keep versions, of which some may never leave their slots. */
static inline bool mp_controller_lends(const struct moepage_controller *controller)
{
    const mp_pool_shape *shape = &controller->shape;
    return controller->config.admission && controller->config.mode == MOEPAGE_CONTROL_MV_WSA &&
           !(shape->precision && shape->precision->serve == MOEPAGE_SERVE_VERSIONS);
}

/* Returns the sequences that should run at once; 0 = no limit. */
static inline uint32_t mp_controller_target(const struct moepage_controller *controller)
{
    const uint32_t limit = controller->admission.limit, running = controller->outlook.running;
    return limit && (!running || limit < running) ? limit : running;
}

/* Returns the part of all uses that a layer's most used experts have, [experts + 1]; the planner's. */
static inline double *mp_controller_parts(const struct moepage_controller *controller)
{
    return controller->use + 2 * (controller->shape.experts + 1ull);
}

/* Returns the admission floor in KV units. */
uint64_t mp_controller_floor(const struct moepage_controller *controller);
/* The same in blocks; UINT64_MAX if it is more. */
uint64_t mp_controller_floor_blocks(const struct moepage_controller *controller);

/* Returns true if some split is feasible; the planner's bounds include the images, which it may give up. */
bool mp_controller_feasible(const struct moepage_controller *controller, const mp_scene *scene);
mp_move mp_controller_choose(struct moepage_controller *controller, const mp_scene *scene);
/* Returns the move to a split of units; images stay. */
mp_move mp_controller_in_slots(const struct moepage_controller *controller, const mp_scene *scene,
                               const mp_split *split);

/* ---- controller_look.c ---- */

/* Looks at the pools; `ticking` is held, `lock` is not. */
void mp_controller_look(struct moepage_controller *controller, mp_scene *scene);

/* ---- controller_lend.c ---- */

/* Lets sequences use the share. */
void mp_controller_offer(struct moepage_controller *controller, const mp_scene *scene);
/* Turns a split that has been chosen into the one that the pools are to have for now. */
void mp_controller_lend(struct moepage_controller *controller, const mp_scene *scene,
                        mp_move *split);
void mp_controller_open_loan(struct moepage_controller *controller);
/* Gives back what is lent, as far as nothing reads it. */
void mp_controller_close_loan(struct moepage_controller *controller);

/* ---- controller_tick.c ---- */

moepage_status mp_controller_tick(struct moepage_controller *controller, void *stream,
                                  moepage_controller_report *report);

#endif
