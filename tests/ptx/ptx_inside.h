/* ptx_inside.h — what the machine's files share: instructions, warps, blocks, grids. */
#ifndef PTX_INSIDE_H
#define PTX_INSIDE_H

#include <string.h>

#include "ptx.h"

#define PTX_LANES 32u
#define PTX_ALL_LANES 0xffffffffu
#define PTX_MAX_OPS 16u
#define PTX_NAME 80u
#define PTX_INTERVALS 64u

/* Addresses: shared memory begins above what the system keeps for itself, parameters somewhere else; both
 * windows are outside what a process may map. */
#define PTX_SHARED_BASE 1024u
#define PTX_SHARED_WINDOW 0x0100000000000000ull
#define PTX_PARAM_BASE 0x0200000000000160ull

/* ---- Entries ---- */

typedef struct ptx_warp ptx_warp;
typedef struct ptx_insn ptx_insn;
typedef void ptx_handler(ptx_warp *warp, const ptx_insn *insn);

typedef enum ptx_flow {
    PTX_PLAIN,
    PTX_EFFECT, /* on memory: what it is given must be set */
    PTX_SELECT, /* one of two registers: selp */
    PTX_BRANCH,
    PTX_RETURN,
    PTX_BARRIER,   /* of the block */
    PTX_ALIGNED,   /* needs all lanes, now */
    PTX_CONVERGENT /* needs the lanes of its mask, which wait for each other */
} ptx_flow;

/* `shape`: a letter for each register, those written before the '='. h, w, x: 16, 32, 64 bits; p: a
 * predicate; v: any but a predicate; a: an address; l: a label; t: the clock. */
typedef struct ptx_opcode {
    const char *name, *shape;
    ptx_handler *run;
    ptx_flow flow;
} ptx_opcode;

typedef enum ptx_space { PTX_GENERIC, PTX_GLOBAL, PTX_SHARED, PTX_PARAM } ptx_space;
typedef enum ptx_order { PTX_WEAK, PTX_RELAXED, PTX_ACQUIRE, PTX_RELEASE } ptx_order;

struct ptx_insn {
    ptx_handler *run;
    ptx_flow flow;
    uint32_t at[PTX_MAX_OPS]; /* where operands are in a warp's registers */
    uint16_t id[PTX_MAX_OPS]; /* of operands; 0: constants */
    uint8_t n_ops, n_written;
    bool guard_not;
    uint16_t guard_id; /* 0: none */
    uint32_t guard_at;
    uint32_t target; /* of a branch */
    /* Addresses, at most two, and memory. */
    int64_t disp[2];
    bool wide[PTX_MAX_OPS]; /* operands of 64 bits */
    uint8_t bytes, count;   /* of an element; elements */
    bool sign, nc;
    ptx_space space;
    ptx_order order;
    uint32_t line;
    char opcode[PTX_NAME];
};

typedef struct ptx_constant {
    uint32_t at;
    char letter; /* p, w (h as well) or x */
    uint64_t value;
} ptx_constant;

struct ptx_entry {
    char name[PTX_NAME];
    ptx_insn *insns;
    uint32_t n_insns, cap_insns;
    bool *ran;
    ptx_constant *constants;
    uint32_t n_constants, cap_constants;
    uint32_t n_ids; /* 0 is that of constants */
    uint32_t register_bytes;
    uint32_t param_bytes;
    bool constant; /* it has constant loads */
    bool talks;    /* to the host, while it runs: it has instructions of .sys order */
    uint32_t tid_at, tid_id, ntid_at, ctaid_at, nctaid_at;
};

/* ---- Grids ---- */

typedef struct ptx_block ptx_block;

typedef enum ptx_wait { PTX_RUNS, PTX_AT_BARRIER, PTX_MEETS } ptx_wait;

struct ptx_warp {
    unsigned char *registers;
    uint32_t *set;      /* by id: lanes in which it has a value that depends on none that has not */
    uint32_t undefined; /* lanes whose result of this instruction has no defined value */
    /* The lanes that run this instruction; the same as words and as double words. */
    uint32_t active;
    uint32_t narrow[PTX_LANES] __attribute__((aligned(64)));
    uint64_t wide[PTX_LANES] __attribute__((aligned(64)));
    uint32_t pc[PTX_LANES];
    uint32_t lanes, exited, at_barrier, meeting; /* sets of lanes */
    uint32_t index, epoch;                       /* epoch: of bar.warp.sync */
    ptx_block *block;
    const ptx_insn *insn;
};

/* cp.async: the bytes that a thread has not waited for. */
typedef struct ptx_copy {
    uint32_t thread, to, bytes, read;
    uint64_t from;
} ptx_copy;

typedef struct ptx_shadow {
    uint16_t writer, reader; /* threads; see ptx_checks.c */
    uint32_t write_epoch, write_warp_epoch, read_epoch, read_warp_epoch;
    bool pending, atomic;
} ptx_shadow;

struct ptx_block {
    ptx_grid *grid;
    ptx_warp *warps;
    uint32_t n_warps, epoch;
    unsigned char *shared;
    ptx_shadow *shadow;
    ptx_copy *copies;
    uint32_t n_copies, cap_copies;
    uint64_t steps;
};

typedef struct ptx_line ptx_line;
typedef struct ptx_store ptx_store;

struct ptx_grid {
    ptx_entry *entry;
    ptx_world world;
    unsigned char *args;
    uint32_t args_bytes, n_blocks, n_threads, shared_bytes;
    ptx_block block;
    uint32_t index; /* of the block that runs */
    uint64_t random;
    uint64_t first[PTX_INTERVALS],
        end[PTX_INTERVALS]; /* memory known to be the kernel's, by page */
    ptx_line *lines;        /* what has been read as constant, and written */
    uint32_t n_lines, cap_lines;
    ptx_store *stores; /* that the host does not see yet */
    uint32_t n_stores, cap_stores;
    ptx_finding found;
    char said[400];
};

/* memcpy of an element, and of an access's bytes: 1, 2, 4, 8, and 16. */
static inline void ptx_copy_element(void *to, const void *from, uint32_t bytes)
{
    switch (bytes) {
    case 1: memcpy(to, from, 1); break;
    case 2: memcpy(to, from, 2); break;
    case 4: memcpy(to, from, 4); break;
    default: memcpy(to, from, 8);
    }
}

static inline void ptx_copy_bytes(void *to, const void *from, uint32_t bytes)
{
    if (bytes == 16)
        memcpy(to, from, 16);
    else
        ptx_copy_element(to, from, bytes);
}

/* ---- Between files ---- */

extern const ptx_opcode ptx_ops_int[], ptx_ops_wide[], ptx_ops_compare[], ptx_ops_float[],
    ptx_ops_memory[], ptx_ops_warp[], ptx_ops_flow[];

/* Fills in the rest of an instruction whose opcode is ld or st with modifiers; false: not known. */
bool ptx_memory_opcode(ptx_insn *insn);
extern const ptx_opcode ptx_op_ld, ptx_op_st;

/* ptx_run.c */
void ptx_find(ptx_warp *warp, uint32_t lane, ptx_finding finding, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void ptx_activate(ptx_warp *warp, uint32_t lanes);
uint64_t ptx_random(uint64_t *state);

/* ptx_checks.c. Shared memory, by offset. */
void ptx_shared_read(ptx_warp *warp, uint32_t lane, uint32_t at, uint32_t bytes);
void ptx_shared_write(ptx_warp *warp, uint32_t lane, uint32_t at, uint32_t bytes, const void *value,
                      bool atomic);
void ptx_copy_begin(ptx_warp *warp, uint32_t lane, const ptx_copy *copy);
void ptx_copy_wait(ptx_warp *warp, uint32_t lane);
/* Global memory. `kind`: what is done to the bytes. */
typedef enum ptx_touch {
    PTX_WRITES = 1,
    PTX_READS_CONSTANT = 2,
    PTX_STRONG = 4,
    PTX_READS = 8
} ptx_touch;
void ptx_global_touch(ptx_warp *warp, uint32_t lane, uint64_t at, uint32_t bytes, ptx_touch kind);

/* ptx_stores.c: stores to memory that the host looks at. */
void ptx_store_global(ptx_warp *warp, uint32_t lane, uint64_t at, const void *value, uint32_t bytes,
                      ptx_order order);
void ptx_load_global(ptx_warp *warp, uint32_t lane, uint64_t at, void *value, uint32_t bytes,
                     ptx_order order);
void ptx_stores_fence(ptx_warp *warp, uint32_t lane);
void ptx_stores_flush(ptx_grid *grid); /* at its end */

#endif
