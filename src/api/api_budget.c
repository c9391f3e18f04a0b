/* Entry points for moving a device's budget. */
#include "split/budget.h"

moepage_status moepage_device_set_budget(moepage_device *device, uint64_t bytes, void *stream)
{
    moepage_status status = mp_handle_check(device, MP_KIND_DEVICE);
    return status ? status : mp_budget_set(device, bytes, stream);
}

moepage_status moepage_device_follow_memory(moepage_device *device, void *stream)
{
    moepage_status status = mp_handle_check(device, MP_KIND_DEVICE);
    return status ? status : mp_budget_follow(device, stream);
}
