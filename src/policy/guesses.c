/* Selects instead of sorting: only a few of many guesses are needed. */
#include "policy/guesses.h"

static bool comes_before(const mp_guess *a, const mp_guess *b)
{
    return a->p > b->p || (a->p == b->p && a->expert < b->expert);
}

uint32_t mp_guesses_best(mp_guess *guesses, uint32_t n, uint32_t keep)
{
    uint32_t kept = 0;
    while (kept < n && kept < keep) {
        uint32_t best = kept;
        for (uint32_t i = kept + 1; i < n; i++)
            if (comes_before(&guesses[i], &guesses[best]))
                best = i;
        if (!(guesses[best].p > 0))
            break;
        mp_guess first = guesses[best];
        guesses[best] = guesses[kept];
        guesses[kept++] = first;
    }
    return kept;
}
