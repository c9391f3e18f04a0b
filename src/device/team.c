/* The fork-join team: one word to claim parts from, one count to join on. */
#include "device/team.h"

#include <assert.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/status.h"
#include "device/thread.h"

/* Pauses before a sleep: about 20 us on current x86, a few times what waking a sleeper costs. */
#define SPINS 1000

#define CACHE_LINE 64

struct mp_team {
    /* The job. Only a thread that holds a claim on a part reads it, and it is not replaced before every
     * claimed part is done. */
    mp_team_fn fn;
    void *context;

    /* generation (32 bits) | parts (16) | parts claimed (16). The generation keeps a member that
     * was interrupted between reading the word and claiming from claiming of a later job. */
    _Atomic uint64_t claim;
    _Atomic uint32_t posted;   /* jobs so far; idle members sleep on it */
    _Atomic uint32_t sleepers; /* members that sleep, or are about to */
    _Atomic bool stop;

    /* Members finishing parts write here while others claim above. */
    char apart[CACHE_LINE];
    _Atomic uint32_t pending; /* parts not done yet; the caller may sleep on it */
    _Atomic uint32_t joining; /* 1: the caller sleeps, or is about to */

    uint32_t spins;
    uint32_t n_threads; /* started members, the caller not counted */
    pthread_t threads[];
};

static void futex_wait(_Atomic uint32_t *word, uint32_t while_value)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, while_value, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, uint32_t n)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

static bool claim_part(mp_team *team, uint32_t *part, uint32_t *n_parts)
{
    uint64_t word = atomic_load(&team->claim);
    do {
        *part = word & MP_TEAM_MAX_PARTS;
        *n_parts = word >> 16 & MP_TEAM_MAX_PARTS;
        if (*part == *n_parts)
            return false;
    } while (!atomic_compare_exchange_weak(&team->claim, &word, word + 1));
    return true;
}

static void take_part(mp_team *team)
{
    uint32_t part, n_parts;
    while (claim_part(team, &part, &n_parts)) {
        team->fn(team->context, part, n_parts);
        /* Sequentially consistent with the caller's store to `joining` and load of `pending`: one
         * of the two sees the other. */
        if (atomic_fetch_sub(&team->pending, 1) == 1 && atomic_load(&team->joining))
            futex_wake(&team->pending, 1);
    }
}

/* Waits for a job after the `seen`th: spins, then sleeps. A job that is announced between the last look
 * and the futex call changes `posted`, so that the call returns at once. */
static uint32_t await_job(mp_team *team, uint32_t seen)
{
    for (uint32_t i = 0; i < team->spins; i++) {
        uint32_t posted = atomic_load(&team->posted);
        if (posted != seen)
            return posted;
        mp_thread_relax();
    }
    atomic_fetch_add(&team->sleepers, 1);
    uint32_t posted;
    while ((posted = atomic_load(&team->posted)) == seen)
        futex_wait(&team->posted, seen);
    atomic_fetch_sub(&team->sleepers, 1);
    return posted;
}

static void *member(void *arg)
{
    mp_team *team = arg;
    uint32_t seen = 0;
    for (;;) {
        seen = await_job(team, seen);
        if (atomic_load(&team->stop))
            return NULL;
        take_part(team);
    }
}

static void announce(mp_team *team, uint32_t helpers)
{
    atomic_fetch_add(&team->posted, 1);
    if (atomic_load(&team->sleepers) > 0)
        futex_wake(&team->posted, helpers);
}

static void join(mp_team *team)
{
    for (uint32_t i = 0; i < team->spins; i++) {
        if (atomic_load(&team->pending) == 0)
            return;
        mp_thread_relax();
    }
    atomic_store(&team->joining, 1);
    uint32_t pending;
    while ((pending = atomic_load(&team->pending)) > 0)
        futex_wait(&team->pending, pending);
    atomic_store(&team->joining, 0);
}

void mp_team_run(mp_team *team, mp_team_fn fn, void *context, uint32_t n_parts)
{
    assert(n_parts > 0 && n_parts <= MP_TEAM_MAX_PARTS);
    if (n_parts == 1 || team->n_threads == 0) {
        for (uint32_t part = 0; part < n_parts; part++)
            fn(context, part, n_parts);
        return;
    }
    team->fn = fn;
    team->context = context;
    atomic_store(&team->pending, n_parts); /* before the claim word: a part may be done at once */
    uint64_t generation = (atomic_load(&team->claim) >> 32) + 1;
    atomic_store(&team->claim, generation << 32 | (uint64_t)n_parts << 16);
    announce(team, n_parts - 1);
    take_part(team);
    join(team);
}

moepage_status mp_team_create(uint32_t members, mp_team **out)
{
    assert(members > 0);
    mp_team *team = mp_alloc(sizeof *team + (members - 1) * sizeof team->threads[0]);
    if (!team)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory for a team of %u threads", members);
    /* Spinning only helps while the other members have CPUs of their own. */
    team->spins = members <= mp_thread_cpus() ? SPINS : 0;
    for (uint32_t i = 1; i < members; i++) {
        char name[16];
        snprintf(name, sizeof name, "mp-team-%u", i % 1000000);
        moepage_status status = mp_thread_start(&team->threads[i - 1], name, member, team);
        if (status) {
            mp_team_destroy(team);
            return status;
        }
        team->n_threads++;
    }
    *out = team;
    return MOEPAGE_OK;
}

void mp_team_destroy(mp_team *team)
{
    if (!team)
        return;
    atomic_store(&team->stop, true);
    announce(team, INT_MAX);
    for (uint32_t i = 0; i < team->n_threads; i++)
        pthread_join(team->threads[i], NULL);
    mp_free(team);
}
