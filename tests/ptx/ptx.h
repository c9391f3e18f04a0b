/* ptx.h — a machine that runs the PTX which nvcc makes of this project's kernels, lane by lane, and says
 * what hardware would have forgiven.
 *
 * An entry is parsed once, into instructions that know their operands' places. A block runs warp by
 * warp, in turns that a seed draws; of a warp's lanes those at the lowest instruction run together.
 * Meanings are the PTX ISA's. What it finds (ptx_finding) ends the grid. README.md beside this file
 * says what is checked, and what is not. */
#ifndef PTX_H
#define PTX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ptx_entry ptx_entry;
typedef struct ptx_grid ptx_grid;

/* The first entry of that name in a file's text, which must last as long as the entry does. NULL, and why
 * in `error`, when it has none, or an instruction that the machine does not know: by name and line. */
ptx_entry *ptx_parse(const char *text, const char *name, char *error, size_t error_bytes);
void ptx_entry_free(ptx_entry *entry);

/* What is wrong with a program, though a GPU might get on with it. */
typedef enum ptx_finding {
    PTX_FOUND_NOTHING,
    PTX_FOUND_LANES,   /* lanes miss at a .sync or .aligned instruction, or its mask is wrong */
    PTX_FOUND_BARRIER, /* a barrier that not all threads reach */
    PTX_FOUND_PENDING, /* bytes that cp.async has not delivered are used, or are never waited for */
    PTX_FOUND_RACE, /* two threads, a write, the same byte of shared memory, no barrier between */
    PTX_FOUND_NC,   /* ld.global.nc of bytes that the grid writes */
    PTX_FOUND_ALIGNMENT, /* of an access */
    PTX_FOUND_BOUNDS,    /* memory that is not the kernel's */
    PTX_FOUND_UNSET,     /* an effect that depends on a register which is not written before */
    PTX_FOUND_WEAK,      /* a word that is also accessed with .sys order is accessed without */
    PTX_FOUND_UNDEFINED, /* a lane shuffles from one that is not there */
    PTX_FOUND_ENDLESS    /* more instructions than ptx_world.most_steps */
} ptx_finding;
const char *ptx_finding_name(ptx_finding finding);

/* What a grid runs in. */
typedef struct ptx_world {
    void *user;
    /* Whether a kernel may access these bytes; the interval around them for which that is so. */
    bool (*reach)(void *user, uint64_t at, uint64_t bytes, uint64_t *first, uint64_t *end);
    /* Whether the host may look at the byte while the grid runs; NULL: nowhere. */
    bool (*shows)(void *user, uint64_t at);
    uint64_t (*now_ns)(void *user); /* globaltimer */
    void (*pause)(void *user);      /* nanosleep: the host may act */
    uint64_t seed;
    uint64_t most_steps; /* warps' instructions of a block; 0: 2^32 */
} ptx_world;

/* One grid: blocks are run one by one, in any order, by the same thread. Arguments are what a launch
 * passes, laid out as the entry's parameters; they may change between blocks no more than a grid's. */
ptx_grid *ptx_grid_new(ptx_entry *entry, const ptx_world *world, const void *args,
                       uint32_t args_bytes, uint32_t n_blocks, uint32_t n_threads,
                       uint32_t shared_bytes);
/* The grid for another launch of the entry, with as many threads, shared memory and arguments. */
void ptx_grid_again(ptx_grid *grid, uint64_t seed, const void *args, uint32_t n_blocks);
ptx_finding ptx_grid_block(ptx_grid *grid, uint32_t block);
/* All that it has stored is there for the host. */
void ptx_grid_end(ptx_grid *grid);
/* Of the last finding: "race: mp_gpu_rows:120 ld.shared.u32, block 3, thread 17: ..." */
const char *ptx_grid_said(const ptx_grid *grid);
void ptx_grid_free(ptx_grid *grid);

/* Instructions, by index: line, opcode, and whether any thread ran it. */
uint32_t ptx_entry_size(const ptx_entry *entry);
const char *ptx_entry_name(const ptx_entry *entry);
uint32_t ptx_entry_line(const ptx_entry *entry, uint32_t index);
const char *ptx_entry_opcode(const ptx_entry *entry, uint32_t index);
bool ptx_entry_ran(const ptx_entry *entry, uint32_t index);

#endif
