/* stack.h — the library as a host sets it up, on a simulated device: both pools on one arena, a
 * session over them, and optionally a controller. No object here depends on time being virtual. */
#ifndef SIM_STACK_H
#define SIM_STACK_H

#include "moepage.h"
#include "sim/machine.h"
#include "sim/shape.h"

/* Zero is a default unless a comment says otherwise. */
typedef struct sim_stack_config {
    const sim_machine *machine;
    const sim_shape *shape;
    uint64_t arena_bytes;   /* shared by experts and KV; dense weights and workspaces are extra */
    uint64_t expert_slots;  /* the initial split; KV has the rest */
    uint32_t scope;         /* MOEPAGE_SCOPE_* */
    uint32_t regime;        /* MOEPAGE_REGIME_* */
    uint32_t prefetch;      /* MOEPAGE_PREFETCH_* */
    const char *predictor;  /* of MOEPAGE_PREFETCH_PREDICTOR; looks `predict_ahead` layers ahead */
    uint32_t predict_ahead; /* at most; 0 = the library's default */
    uint32_t scan_percent;
    const char *policy;
    double exph_ratio;                         /* of compressed images; 0: no such form */
    uint32_t compressed_experts;               /* per layer, in device memory */
    uint32_t bus_form;                         /* MOEPAGE_FORM_* */
    const moepage_precision_config *precision; /* NULL = none; expert_slots is then 0 */
    uint32_t step_tokens;                      /* most tokens of a step; 0 = 512 */
    uint32_t max_sequences;                    /* of a step; 0 = step_tokens */
    uint32_t block_tokens;
    uint32_t blocks_per_granule;
    const moepage_controller_config *controller; /* NULL = none */
    uint32_t coverage_permille; /* that it sizes the predictor's user by; 0 = it does not */
} sim_stack_config;

typedef struct sim_stack {
    moepage_device *device;
    moepage_model *model;
    moepage_expert_pool *experts;
    moepage_predictor *predictor;
    moepage_kv_pool *kv;
    moepage_session *session;
    moepage_controller *controller;
    mp_device *clock; /* the same device, for the host's own work */
    uint64_t slot_bytes;
} sim_stack;

/* Opens a stack. If the budget has no room for it, returns RUN_REFUSED, after a line on stderr
 * unless `quiet`; *out is then empty. */
int sim_stack_open(const sim_stack_config *config, bool quiet, sim_stack *out);
void sim_stack_close(sim_stack *stack);

/* Returns the most tokens of a step. */
uint32_t sim_stack_step_tokens(const sim_stack_config *config);

/* Returns the virtual time in ns. */
uint64_t sim_stack_now(const sim_stack *stack);

/* Returns the distance in bytes between two slots of the model's experts. */
int sim_slot_bytes(const sim_shape *shape, uint64_t *out);

#endif
