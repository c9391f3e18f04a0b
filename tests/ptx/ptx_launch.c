/* The machine in place of kernels' CPU forms: mp_cpu_elsewhere of cuda/kernels/phase.h.
 *
 * MP_TEST_PTX names the folder of <family>.ptx files; without it, CPU forms run. A finding is printed, counts
 * as misuse of the simulated driver's machine, and makes the program's exit status 1. With
 * MP_TEST_PTX_RAN, a folder, a program leaves there which instructions it has run. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "cpu_clock.h"
#include "ptx_launch.h"
#include "sim_cuda.h"

/* ---- Entries, parsed once ---- */

#define MOST_ENTRIES 128
#define PAGE 4096u

uint64_t mp_cpu_clock_ns(void);
void mp_cpu_pause(void);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    ptx_entry *entry;
    const char *family;
} parsed[MOST_ENTRIES];
static uint32_t n_parsed;
static char *texts[PTX_FAMILIES];
static const char *const families[PTX_FAMILIES] = {"decode", "experts", "elementwise",
                                                   "quant",  "rows",    "topk",
                                                   "remap",  "path",    "fast"};
static uint32_t n_findings;

static char *read_text(const char *folder, const char *family)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s.ptx", folder, family);
    FILE *file = fopen(path, "r");
    char *text = NULL;
    size_t room = 0;
    if (!file || getdelim(&text, &room, 0, file) < 0) {
        fprintf(stderr, "PTX machine: cannot read %s\n", path);
        _exit(1);
    }
    fclose(file);
    return text;
}

static void leave(void);

static ptx_entry *parse_in(uint32_t family, const char *name)
{
    char error[256], mark[128];
    snprintf(mark, sizeof mark, ".entry %s(", name);
    if (!texts[family])
        texts[family] = read_text(getenv("MP_TEST_PTX"), families[family]);
    if (!strstr(texts[family], mark))
        return NULL;
    ptx_entry *entry = ptx_parse(texts[family], name, error, sizeof error);
    if (!entry || n_parsed == MOST_ENTRIES) {
        fprintf(stderr, "PTX machine: %s.ptx: %s\n", families[family],
                entry ? "too many entries" : error);
        _exit(1);
    }
    if (!n_parsed)
        atexit(leave);
    parsed[n_parsed].entry = entry;
    parsed[n_parsed++].family = families[family];
    return entry;
}

ptx_entry *ptx_launch_entry(const char *name)
{
    pthread_mutex_lock(&lock);
    ptx_entry *entry = NULL;
    for (uint32_t i = 0; i < n_parsed && !entry; i++) {
        if (!strcmp(ptx_entry_name(parsed[i].entry), name))
            entry = parsed[i].entry;
    }
    for (uint32_t i = 0; i < PTX_FAMILIES && !entry; i++)
        entry = parse_in(i, name);
    pthread_mutex_unlock(&lock);
    return entry;
}

/* ---- What is left behind ---- */

static void write_ran(FILE *file)
{
    for (uint32_t i = 0; i < n_parsed; i++) {
        const ptx_entry *entry = parsed[i].entry;
        for (uint32_t at = 0; at < ptx_entry_size(entry); at++)
            fprintf(file, "%s %s %u %s %u %d\n", parsed[i].family, ptx_entry_name(entry), at,
                    ptx_entry_opcode(entry, at), ptx_entry_line(entry, at),
                    ptx_entry_ran(entry, at));
    }
}

static void leave(void)
{
    const char *folder = getenv("MP_TEST_PTX_RAN");
    char path[512];
    fflush(NULL);
    if (folder) {
        snprintf(path, sizeof path, "%s/%ld.ran", folder, (long)getpid());
        FILE *file = fopen(path, "w");
        if (file) {
            write_ran(file);
            fclose(file);
        }
    }
    if (n_findings)
        _exit(1);
}

static void report(const char *said)
{
    char text[512];
    snprintf(text, sizeof text, "PTX machine: %s", said);
    fprintf(stderr, "%s\n", text);
    sim_cuda_complain(text);
    __atomic_fetch_add(&n_findings, 1, __ATOMIC_RELAXED);
}

/* ---- The world ---- */

/* Memory of the process is reached page by page, where no machine says what a kernel may touch. */
static bool readable(uint64_t at)
{
    char byte;
    struct iovec to = {&byte, 1}, from = {(void *)(uintptr_t)at, 1};
    return process_vm_readv(getpid(), &to, 1, &from, 1, 0) == 1;
}

static bool reach(void *user, uint64_t at, uint64_t bytes, uint64_t *first, uint64_t *end)
{
    bool open;
    (void)user;
    if (sim_cuda_reach(at, bytes, first, end, &open))
        return true;
    *first = at / PAGE * PAGE;
    *end = (at + bytes + PAGE - 1) / PAGE * PAGE;
    return !open && readable(at) && readable(at + bytes - 1);
}

static bool shows(void *user, uint64_t at)
{
    bool open;
    uint64_t first, end;
    (void)user;
    if (sim_cuda_pinned(at))
        return true;
    return !sim_cuda_reach(at, 1, &first, &end, &open) && !open;
}

static uint64_t now_ns(void *user)
{
    (void)user;
    return mp_cpu_clock_ns();
}

static void pause_lanes(void *user)
{
    (void)user;
    mp_cpu_pause();
}

/* ---- Launches: blocks of one grid come one by one, and each once ---- */

#define SPARE 6u

typedef struct shape {
    ptx_entry *entry;
    uint32_t n_threads, shared_bytes, args_bytes;
} shape;

/* A thread's: the launch that it is at, and grids of the last ones, for more of the same shape. */
typedef struct running {
    shape shape;
    ptx_grid *grid;
    const void *args;
    uint32_t n_blocks, left;
    unsigned char *done; /* by block */
    struct {
        shape shape;
        ptx_grid *grid;
    } spare[SPARE];
    uint32_t next_spare;
} running;

static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static uint64_t n_grids;

static bool same_shape(const shape *a, const shape *b)
{
    return a->entry == b->entry && a->n_threads == b->n_threads &&
           a->shared_bytes == b->shared_bytes && a->args_bytes == b->args_bytes;
}

static void end_grid(running *r)
{
    if (!r->grid)
        return;
    const uint32_t at = r->next_spare++ % SPARE;
    ptx_grid_end(r->grid);
    ptx_grid_free(r->spare[at].grid);
    r->spare[at].grid = r->grid;
    r->spare[at].shape = r->shape;
    r->grid = NULL;
    free(r->done);
    r->done = NULL;
}

static ptx_grid *take_spare(running *r, const shape *wanted)
{
    for (uint32_t i = 0; i < SPARE; i++) {
        ptx_grid *grid = r->spare[i].grid;
        if (!grid || !same_shape(&r->spare[i].shape, wanted))
            continue;
        r->spare[i].grid = NULL;
        return grid;
    }
    return NULL;
}

static void forget(void *of_thread)
{
    running *r = of_thread;
    end_grid(r);
    for (uint32_t i = 0; i < SPARE; i++)
        ptx_grid_free(r->spare[i].grid);
    free(r);
}

static void make_key(void)
{
    pthread_key_create(&key, forget);
}

static running *of_this_thread(void)
{
    pthread_once(&once, make_key);
    running *r = pthread_getspecific(key);
    if (!r) {
        r = calloc(1, sizeof *r);
        if (!r)
            abort();
        pthread_setspecific(key, r);
    }
    return r;
}

static void begin_grid(running *r, const shape *wanted, const void *args, uint32_t n_blocks)
{
    const ptx_world world = {.reach = reach,
                             .shows = shows,
                             .now_ns = now_ns,
                             .pause = pause_lanes,
                             .seed = __atomic_add_fetch(&n_grids, 1, __ATOMIC_RELAXED)};
    end_grid(r);
    r->shape = *wanted;
    r->args = args;
    r->n_blocks = r->left = n_blocks;
    r->done = calloc(n_blocks, 1);
    if (!r->done)
        abort();
    r->grid = take_spare(r, wanted);
    if (r->grid)
        ptx_grid_again(r->grid, world.seed, args, n_blocks);
    else
        r->grid = ptx_grid_new(wanted->entry, &world, args, wanted->args_bytes, n_blocks,
                               wanted->n_threads, wanted->shared_bytes);
}

int mp_cpu_elsewhere(const char *name, const void *args, uint32_t args_bytes, uint32_t shared_bytes,
                     uint32_t block, uint32_t n_blocks, const mp_cpu_block *cpu)
{
    ptx_entry *entry = getenv("MP_TEST_PTX") ? ptx_launch_entry(name) : NULL;
    if (!entry)
        return 0;
    running *r = of_this_thread();
    const shape wanted = {entry, cpu->n_threads, shared_bytes, args_bytes};
    if (!r->grid || !same_shape(&r->shape, &wanted) || r->args != args || r->n_blocks != n_blocks ||
        r->done[block])
        begin_grid(r, &wanted, args, n_blocks);
    const bool before = ptx_grid_said(r->grid)[0] != 0;
    r->done[block] = 1;
    if (ptx_grid_block(r->grid, block) && !before)
        report(ptx_grid_said(r->grid));
    if (!--r->left)
        end_grid(r);
    return 1;
}
