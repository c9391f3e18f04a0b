/* paged_case.h — what the programs about one small PagedTensor begin with: its shape, and calls on
 * it. */
#ifndef PAGED_CASE_H
#define PAGED_CASE_H

#include <string.h>

#include "paged_rig.h"
#include "testing.h"

#define LAYERS 5
#define EXPERTS 3

static const bank_shape plain = {
    .layers = LAYERS, .experts = EXPERTS, .top_k = 2, .hidden = 40, .intermediate = 20, .seed = 1};

static paged_rig rig;

static inline void open_rig(bool late, uint32_t buffers)
{
    paged_rig_open(&rig, &plain,
                   &(paged_rig_config){.where = late ? PAGED_LATE : PAGED_ON_HOST,
                                       .buffers = buffers});
}

static inline moepage_status materialise(uint32_t layer)
{
    return moepage_paged_materialise(rig.paged, layer);
}

static inline moepage_status acquire(uint32_t layer)
{
    return moepage_paged_acquire(rig.paged, layer, paged_rig_stream(&rig));
}

static inline moepage_status release(uint32_t layer)
{
    return moepage_paged_release(rig.paged, layer, paged_rig_stream(&rig));
}

#define OK(call) assert_int_equal((call), MOEPAGE_OK)
#define REFUSED(call, status) assert_int_equal((call), MOEPAGE_E_##status)
#define SAYS(words) assert_non_null(strstr(moepage_last_error(), words))

static inline void visit(uint32_t layer)
{
    paged_rig_visit(&rig, layer);
}

#endif
