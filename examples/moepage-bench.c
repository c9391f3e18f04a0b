/* moepage-bench — prints numbers: what the library's parts cost on this machine.
 *
 *   moepage-bench route                 announcing a layer, by batch and top-k
 *   moepage-bench ffn                   the experts' kernels, by shape and batch
 *   moepage-bench prefetch --model DIR  a generation with prefetch on and off, interleaved
 *
 * It never passes or fails: nothing here is a test. */
#include <stdio.h>
#include <string.h>

#include "bench/bench.h"
#include "common/fail.h"

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(int argc, char **argv);
    } commands[] = {
        {"route", bench_route},
        {"ffn", bench_ffn},
        {"prefetch", bench_prefetch},
    };
    for (size_t i = 0; argc > 1 && i < sizeof commands / sizeof *commands; i++)
        if (!strcmp(argv[1], commands[i].name))
            return commands[i].run(argc - 1, argv + 1);
    return fail(RUN_REFUSED, "usage: moepage-bench route | ffn | prefetch --model DIR [...]");
}
