/* moepage-bench — measures the library's parts on this machine and prints the numbers.
 *
 * It never passes or fails: it is not a test. */
#include <string.h>

#include "bench/bench.h"
#include "common/fail.h"
#include "common/standard.h"

static const char usage[] =
    "usage: moepage-bench COMMAND\n"
    "\n"
    "  route                 announcing a layer, by batch and top-k\n"
    "  ffn                   the experts' kernels, by shape and batch\n"
    "  prefetch --model PATH [--budget B] [--bus BYTES] [--max-tokens N]\n"
    "                        a generation with prefetch on and off, interleaved\n"
    "  codec [--model PATH] [--mb N] [--threads T]\n"
    "                        exph beside zstd, LZ4 and memcpy, on random weights or on a\n"
    "                        model's experts (default 128 MB)\n"
    "  tiers --model X.moepack [--budget B] [--bus BYTES] [--max-tokens N] [--threads T]\n"
    "        [--mb N] [--skip-generation]\n"
    "                        loading experts from each tier, with at most N MB (default 4096)\n"
    "                        of them in one place; a generation with dense and exph images\n"
    "                        crossing the bus, interleaved\n"
    "\n"
    "--budget, --bus and --max-tokens are those of moepage-generate.\n";

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(int argc, char **argv);
    } commands[] = {
        {"route", bench_route}, {"ffn", bench_ffn},     {"prefetch", bench_prefetch},
        {"codec", bench_codec}, {"tiers", bench_tiers},
    };
    standard_open();
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--help"))
            return standard_print(usage);
    for (size_t i = 0; argc > 1 && i < sizeof commands / sizeof *commands; i++)
        if (!strcmp(argv[1], commands[i].name))
            return standard_finish(commands[i].run(argc - 1, argv + 1));
    return fail(RUN_REFUSED, "%s: see --help", argc > 1 ? argv[1] : "no command");
}
