/* Dividing absent experts between the host and the bus. */
#include "planning/host_share.h"

static void sort_by_rows(const uint32_t *rows, uint32_t *which, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++) {
        const uint32_t one = which[i];
        uint32_t at = i;
        for (; at > 0 && rows[which[at - 1]] > rows[one]; at--)
            which[at] = which[at - 1];
        which[at] = one;
    }
}

static double later(double a, double b)
{
    return a > b ? a : b;
}

uint32_t mp_host_share(double row_ns, double load_ns, const uint32_t *rows, uint32_t *which,
                       uint32_t n)
{
    double own_ns = 0, best_ns = load_ns * n;
    uint32_t best = 0;
    sort_by_rows(rows, which, n);
    if (row_ns <= 0)
        return n > 0;
    for (uint32_t k = 1; k <= n; k++) {
        own_ns += row_ns * mp_host_rows(rows[which[k - 1]]);
        const double end_ns = later(own_ns, load_ns * (n - k));
        if (end_ns <= best_ns) {
            best_ns = end_ns;
            best = k;
        }
    }
    return best;
}
