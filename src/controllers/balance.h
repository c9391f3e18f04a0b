/* balance.h — dual resize beside a PagedTensor (WiSP app. D with FluxMoE's compressed backend): KV has what
 * its peak asks for, compressed experts the rest. */
#ifndef MP_CONTROLLERS_BALANCE_H
#define MP_CONTROLLERS_BALANCE_H

#include "kv/kv.h"
#include "paged_tensor/paged.h"

/* Ends a burst: decides by its peak, and moves as far as nothing in use is in the way. *report: the outcome, and
 * both sides afterwards. */
moepage_status mp_balance(struct moepage_paged *paged, struct moepage_kv_pool *kv, double headroom,
                          void *stream, moepage_controller_report *report);

#endif
