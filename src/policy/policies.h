/* policies.h — the available eviction policies, one line each. docs/adding-a-policy.md says how to
 * add one. */
#ifndef MP_POLICY_POLICIES_H
#define MP_POLICY_POLICIES_H

#include "policy/policy.h"

extern const mp_policy mp_policy_lru;      /* least recently used */
extern const mp_policy mp_policy_lfu;      /* least frequently used since insertion, no ageing */
extern const mp_policy mp_policy_lfu_aged; /* LFU with counts halved now and then */
extern const mp_policy mp_policy_sieve;    /* one queue, one hand (NSDI 2024) */
extern const mp_policy mp_policy_s3fifo;   /* small, main and ghost queue (SOSP 2023) */
extern const mp_policy mp_policy_lirs;     /* low inter-reference recency (SIGMETRICS 2002) */
extern const mp_policy mp_policy_finemoe;  /* 1/(p freq), p from a predictor (EuroSys 2026) */
extern const mp_policy mp_policy_cycle;    /* least expected next use, learnt; knows the layers */

#endif
