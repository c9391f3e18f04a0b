/* Right-sizing: whose working sets bound the experts' side. */
#include "base/status.h"
#include "controllers/controller.h"

#define DEFAULT_COVERAGE_PERMILLE 990u

moepage_status mp_controller_rightsize(struct moepage_controller *controller,
                                       struct moepage_predictor *const *predictors, uint32_t n,
                                       uint32_t coverage_permille)
{
    mp_size size;
    uint32_t permille = coverage_permille ? coverage_permille : DEFAULT_COVERAGE_PERMILLE;
    if (permille > 999)
        return mp_fail(MOEPAGE_E_ARGUMENT, "coverage_permille is %u, it must be below 1000",
                       coverage_permille);
    moepage_status status =
        mp_size_open(&size, controller->shape.model, predictors, n, permille / 1000.0);
    if (status)
        return status;
    pthread_mutex_lock(&controller->ticking);
    mp_size before = controller->size;
    controller->size = size;
    controller->placed = false; /* FIXED divides anew */
    pthread_mutex_unlock(&controller->ticking);
    mp_size_close(&before);
    return MOEPAGE_OK;
}

moepage_status mp_controller_user(struct moepage_controller *controller, uint32_t user,
                                  moepage_rightsize *out)
{
    moepage_status status = MOEPAGE_OK;
    pthread_mutex_lock(&controller->ticking);
    const mp_size *size = &controller->size;
    if (user < size->n) {
        const uint64_t slot_bytes = controller->shape.slot_bytes,
                       experts = size->users[user].experts;
        *out = (moepage_rightsize){.layers = size->layers,
                                   .coverage = size->coverage,
                                   .experts = experts,
                                   .bytes = experts * slot_bytes,
                                   .unseen = size->users[user].set.unseen};
        if (experts)
            out->freed = (controller->shape.keys - experts) * slot_bytes;
    } else {
        status = mp_fail(MOEPAGE_E_ARGUMENT, "user is %u, the controller sizes %u", user, size->n);
    }
    pthread_mutex_unlock(&controller->ticking);
    return status;
}

/* Returns the cap in expert units; 0: none. */
static uint64_t cap_of(const struct moepage_controller *controller)
{
    const uint32_t each = mp_controller_unit_experts(controller);
    return (controller->size.competing + each - 1) / each;
}

uint64_t mp_controller_most_units(const struct moepage_controller *controller, uint64_t least,
                                  uint64_t all)
{
    const uint64_t cap = cap_of(controller);
    if (!cap || cap > all)
        return all;
    return cap > least ? cap : least;
}

void mp_controller_size_info(const struct moepage_controller *controller,
                             moepage_controller_info *info)
{
    const mp_size *size = &controller->size;
    info->users = size->n;
    info->needed_experts = size->needed;
    info->cap_slots = cap_of(controller) * controller->unit_slots;
    for (uint32_t i = 0; i < size->n; i++) {
        const uint64_t experts = size->users[i].experts;
        info->sized_users += experts > 0;
        if (experts > info->largest_user_experts)
            info->largest_user_experts = experts;
    }
}
