/* Host scratch memory. */
#include "arena/scratch.h"

#define PAGE 4096u

moepage_status mp_scratch_open(struct moepage_device *home, uint64_t room, mp_scratch *out)
{
    const mp_device_ops *ops = home->device->ops;
    *out = (mp_scratch){.bytes = room + PAGE, .room = room};
    moepage_status status = ops->alloc(home->device, MP_MEMORY_HOST, out->bytes, &out->memory);
    if (!status)
        out->aligned = (unsigned char *)out->memory + (-(uintptr_t)out->memory & (PAGE - 1));
    return status;
}

void mp_scratch_close(struct moepage_device *home, mp_scratch *scratch)
{
    if (scratch->memory)
        home->device->ops->free(home->device, MP_MEMORY_HOST, scratch->memory, scratch->bytes);
    scratch->memory = NULL;
}
