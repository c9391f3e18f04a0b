/* What it costs to read experts from a file's cached pages instead of copying them from a mapping of
 * it, and to look after each whether the file has changed. Not part of any suite; docs/checkpoints.md
 * has the command and what came out.
 *
 * Experts are taken in turn from a file of 256 MiB, larger than the last-level cache, in pieces as a
 * checkpoint has them; each lands in one of a few places, as slots are. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "model/file.h"

#define FILE_BYTES (256ull << 20)
#define PLACES 8u
#define PIECES 3u
#define RUNS 9
#define CHECKS 100000u

typedef struct bench {
    mp_model_file file;
    const unsigned char *mapped;
    unsigned char *places;
    uint64_t expert_bytes;
} bench;

/* The process's own time: it has one thread, and other processes' turns are not its work. */
static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void die(const char *what)
{
    fprintf(stderr, "bench_files: %s\n", what);
    exit(1);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values)
{
    qsort(values, RUNS, sizeof *values, by_size);
    return values[RUNS / 2];
}

static void copy_mapped(const bench *b, uint64_t offset, uint64_t bytes, unsigned char *out)
{
    memcpy(out, b->mapped + offset, bytes);
}

static void copy_read(const bench *b, uint64_t offset, uint64_t bytes, unsigned char *out)
{
    if (mp_model_file_read(&b->file, offset, bytes, out))
        die(moepage_last_error());
}

/* The same without looking whether the file has changed. */
static void copy_unchecked(const bench *b, uint64_t offset, uint64_t bytes, unsigned char *out)
{
    if (pread(b->file.fd, out, bytes, (off_t)offset) != (ssize_t)bytes)
        die("a read was short");
}

/* Microseconds for one expert: every expert of the file once. */
static double time_experts(const bench *b, void (*copy)(const bench *b, uint64_t offset,
                                                        uint64_t bytes, unsigned char *out))
{
    const uint64_t n = FILE_BYTES / b->expert_bytes, piece = b->expert_bytes / PIECES;
    double begin = seconds();
    for (uint64_t e = 0; e < n; e++)
        for (uint32_t p = 0; p < PIECES; p++)
            copy(b, e * b->expert_bytes + p * piece, piece,
                 b->places + e % PLACES * b->expert_bytes + p * piece);
    return (seconds() - begin) * 1e6 / (double)n;
}

static void compare(bench *b, uint64_t kib)
{
    double mapped[RUNS], unchecked[RUNS], checked[RUNS];
    b->expert_bytes = kib << 10;
    time_experts(b, copy_mapped); /* the mapping's pages, and the places' */
    for (int r = 0; r < RUNS; r++) {
        mapped[r] = time_experts(b, copy_mapped);
        unchecked[r] = time_experts(b, copy_unchecked);
        checked[r] = time_experts(b, copy_read);
    }
    double m = median(mapped), u = median(unchecked), c = median(checked);
    printf("%8llu KiB  %9.1f  %9.1f  %9.1f   %+5.1f %%\n", (unsigned long long)kib, m, u, c,
           (c / m - 1) * 100);
}

static void time_check(const bench *b)
{
    double ns[RUNS];
    for (int r = 0; r < RUNS; r++) {
        double begin = seconds();
        for (uint32_t i = 0; i < CHECKS; i++)
            if (mp_model_file_check(&b->file))
                die(moepage_last_error());
        ns[r] = (seconds() - begin) * 1e9 / CHECKS;
    }
    printf("one look at the file: %.0f ns\n", median(ns));
}

static void make_file(const char *path)
{
    static unsigned char bytes[1 << 20];
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        die("the file cannot be made: name one that is not there");
    for (uint64_t at = 0; at < FILE_BYTES; at += sizeof bytes) {
        memset(bytes, (int)(at >> 20), sizeof bytes);
        if (write(fd, bytes, sizeof bytes) != (ssize_t)sizeof bytes)
            die("the file cannot be written");
    }
    close(fd);
}

int main(int argc, char **argv)
{
    static const uint64_t kibs[] = {48, 384, 3072, 18432, 36864};
    bench b = {0};
    if (argc != 2)
        die("usage: bench_files FILE, which is made and deleted");
    make_file(argv[1]);
    if (mp_model_file_open(argv[1], &b.file))
        die(moepage_last_error());
    unlink(argv[1]);
    b.mapped = mmap(NULL, FILE_BYTES, PROT_READ, MAP_SHARED, b.file.fd, 0);
    b.places = aligned_alloc(4096, PLACES * (kibs[4] << 10));
    if (b.mapped == MAP_FAILED || !b.places)
        die("out of memory");
    memset(b.places, 1, PLACES * (kibs[4] << 10));
    printf("an expert of      mapping      pread    checked   microseconds, medians of %d\n", RUNS);
    for (size_t i = 0; i < sizeof kibs / sizeof *kibs; i++)
        compare(&b, kibs[i]);
    time_check(&b);
    return 0;
}
