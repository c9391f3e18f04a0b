/* NVTX, through the toolkit's header, which needs no library: its calls go to the profiler that has
 * started the program, and do nothing without one. */
#include "ranges.h"

#include <stddef.h>

#if defined(__has_include)
#if __has_include(<nvtx3/nvToolsExt.h>)
#define HAVE_NVTX 1
#endif
#endif

#ifdef HAVE_NVTX

#include <nvtx3/nvToolsExt.h>
#include <pthread.h>

static nvtxDomainHandle_t domain;

static void open_domain(void)
{
    domain = nvtxDomainCreateA("moepage");
}

static void push(const char *name, uint64_t amount)
{
    nvtxEventAttributes_t attributes = {0};
    attributes.version = NVTX_VERSION;
    attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    attributes.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
    attributes.payload.ullValue = amount;
    attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
    attributes.message.ascii = name;
    (void)nvtxDomainRangePushEx(domain, &attributes);
}

static void pop(void)
{
    (void)nvtxDomainRangePop(domain);
}

const mp_cuda_ranges *mp_cuda_ranges_find(void)
{
    static const mp_cuda_ranges ranges = {.push = push, .pop = pop};
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, open_domain);
    return &ranges;
}

#else

const mp_cuda_ranges *mp_cuda_ranges_find(void)
{
    return NULL;
}

#endif
