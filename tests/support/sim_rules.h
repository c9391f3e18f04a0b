/* sim_rules.h — what the tests of the simulated driver's rules share. */
#ifndef MP_TESTS_SIM_RULES_H
#define MP_TESTS_SIM_RULES_H

#include "sim_cuda.h"
#include "testing.h"

#define OK(call) assert_int_equal((call), MP_CU_SUCCESS)
#define IS(call, result) assert_int_equal((call), (result))
#define MIB (1ull << 20)
#define NON_BLOCKING MP_CU_STREAM_NON_BLOCKING

static const mp_cuda_driver *cu;
static mp_cu_context context;

/* Opens a machine, GPU 0's context current; NULL: the default one. */
static inline void begin(const sim_cuda_config *config)
{
    cu = sim_cuda_open(config);
    OK(cu->init(0));
    OK(cu->context_retain(&context, 0));
    OK(cu->context_push(context));
}

/* Nothing may be left. */
static inline void end(void)
{
    OK(cu->context_pop(NULL));
    OK(cu->context_release(0));
    sim_cuda_close();
}

static inline void *at(mp_cu_ptr memory)
{
    return (void *)(uintptr_t)memory;
}

static inline mp_cu_ptr ptr(const void *memory)
{
    return (uintptr_t)memory;
}

static inline mp_cu_stream new_stream(unsigned flags)
{
    mp_cu_stream stream;
    OK(cu->stream_create(&stream, flags, 0));
    return stream;
}

static inline mp_cu_event new_event(void)
{
    mp_cu_event event;
    OK(cu->event_create(&event, MP_CU_EVENT_DISABLE_TIMING));
    return event;
}

static inline mp_cu_ptr new_memory(size_t bytes)
{
    mp_cu_ptr memory;
    OK(cu->mem_alloc(&memory, bytes));
    return memory;
}

#endif
