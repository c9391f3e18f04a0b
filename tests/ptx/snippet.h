/* snippet.h — a few lines of PTX, run by a block of the machine. */
#ifndef PTX_SNIPPET_H
#define PTX_SNIPPET_H

#include "ptx.h"

#define SNIPPET_WORDS 2048

/* What a snippet reads and writes: its own thread's two double words of `in` and one of `out`, and, where it
 * says so itself, anything in `in`, `out` and `shared` bytes of shared memory.
 *
 * Registers: %rd1 = in, %rd2 = out, %rd3 = out + 8 * thread, %r0 = thread; %rd10, %rd11, %rd12: the thread's
 * words in[4 * thread] and on; %r10 .. 12, %f10 .. 12, %rs10 .. 12 the same, cut; %p1 .. %p9 are free, and
 * so are %r20, %rd20, %f20, %rs20 and on. */
typedef struct snippet {
    const char *body;
    uint32_t threads, blocks, shared; /* 0: 1, 1, 4096 */
    uint64_t seed, most_steps;
    bool host_looks; /* at `out` */
    void (*pause)(void *user);
    uint64_t now_ns;
    /* Results. */
    ptx_finding found;
    char said[400];
} snippet;

extern uint64_t snippet_in[SNIPPET_WORDS] __attribute__((aligned(256)));
extern uint64_t snippet_out[SNIPPET_WORDS] __attribute__((aligned(256)));

/* Runs it; what cannot be parsed fails the test. */
void snippet_run(snippet *s);
/* The error of one that cannot be parsed. */
const char *snippet_refusal(const char *body);

#endif
