/* rig.h — what the conformance tests share: an open device with memory and streams that are given
 * back with it, gates that hold a transfer up, and random numbers. */
#ifndef MP_TESTS_RIG_H
#define MP_TESTS_RIG_H

#include <semaphore.h>

#include "conformance.h"
#include "testing.h"

#define CONFORMANCE_TESTS(X)                                \
    X(test_stream_ticks_count_submissions)                  \
    X(test_stream_runs_in_order_of_submission)              \
    X(test_stream_completion_makes_writes_visible)          \
    X(test_stream_wait_holds_later_work_back)               \
    X(test_stream_wait_outlives_the_stream_waited_for)      \
    X(test_stream_demand_goes_before_prefetch)              \
    X(test_stream_compute_goes_before_background)           \
    X(test_stream_sync_of_nothing_returns)                  \
    X(test_stream_sync_works_from_many_threads)             \
    X(test_stream_goes_on_when_a_waiting_thread_leaves)     \
    X(test_stream_takes_more_work_than_it_can_queue)        \
    X(test_stream_takes_more_waits_than_it_can_queue)       \
    X(test_stream_destroy_waits_for_its_work)               \
    X(test_mark_completes_with_what_came_before)            \
    X(test_mark_completes_with_what_was_waited_for)         \
    X(test_settle_shows_failures)                           \
    X(test_settle_returns_for_what_has_settled)             \
    X(test_caller_sees_what_it_follows)                     \
    X(test_views_show_the_arena)                            \
    X(test_views_move)                                      \
    X(test_views_are_read_by_kernels)                       \
    X(test_parts_keep_their_bytes_while_others_come_and_go) \
    X(test_parts_end_with_the_arena)                        \
    X(test_hazards_are_kept_by_waits)                       \
    X(test_cold_streams_run_side_by_side)                   \
    X(test_cold_streams_keep_their_order)                   \
    X(test_cold_fill_holds_up_nobody_else)                  \
    X(test_cold_bytes_reach_kernels_through_waits)          \
    X(test_memory_is_aligned_and_writable)                  \
    X(test_memory_host_map_is_zero_and_writable)            \
    X(test_copy_moves_exactly_its_bytes)                    \
    X(test_copy_fill_gets_its_struct_and_fills)             \
    X(test_copy_failure_stays_with_its_transfer)            \
    X(test_copy_failure_without_result_poisons)             \
    X(test_copy_throttle_is_never_exceeded)                 \
    X(test_task_runs_once_after_its_tick)                   \
    X(test_task_runs_alone)                                 \
    X(test_task_may_post_itself_and_submit)                 \
    X(test_task_may_overfill_a_stream)                      \
    X(test_task_is_waited_for_by_destroy_and_close)         \
    X(test_convert_is_exact_for_every_value)                \
    X(test_combine_sums_in_the_documented_order)            \
    X(test_experts_agree_with_double_precision)             \
    X(test_experts_leave_other_rows_alone)                  \
    X(test_experts_bits_do_not_depend_on_splits_or_threads) \
    X(test_decode_gives_tensors_back)                       \
    X(test_decode_stays_inside_its_tensors)                 \
    X(test_decode_does_nothing_when_told_to_skip)           \
    X(test_decode_waits_for_its_transfers)

#define CONFORMANCE_DECLARE(name) void name(void **state);
CONFORMANCE_TESTS(CONFORMANCE_DECLARE)

/* What conformance_run was given. */
extern const conformance_subject *subject;

/* Skips the running test, saying why, unless the subject has the trait. */
#define NEEDS(trait)                                                        \
    do {                                                                    \
        if (!subject->trait) {                                              \
            print_message("skipped: %s lacks " #trait "\n", subject->name); \
            skip();                                                         \
        }                                                                   \
    } while (0)

/* A status that must be MOEPAGE_OK; shows the sentence if it is not. */
#define MUST(call) must((call), #call)
void must(moepage_status status, const char *call);

#define RIG_BLOCKS 512
#define RIG_STREAMS 32

typedef struct rig {
    mp_device *device;
    const mp_device_ops *ops;
    mp_stream *carrier; /* for rig_write and rig_read */
    mp_stream *streams[RIG_STREAMS];
    uint32_t n_streams;
    struct {
        void *memory;
        mp_memory_kind kind;
        uint64_t bytes;
    } blocks[RIG_BLOCKS];
    uint32_t n_blocks;
    struct rig_table *tables; /* that launches may still read */
} rig;

void rig_open(rig *r, uint32_t threads, uint64_t bus_bytes_per_s);
/* Destroys streams first, then memory, then the device. */
void rig_close(rig *r);

void *rig_alloc(rig *r, mp_memory_kind kind, uint64_t bytes);
mp_stream *rig_stream(rig *r, mp_stream_class cls);
/* Forgets a stream that the test has destroyed itself. */
void rig_forget(rig *r, mp_stream *stream);

/* Bytes into and out of device memory; on return they are there. */
void rig_write(rig *r, void *device_memory, const void *from, uint64_t bytes);
void rig_read(rig *r, const void *device_memory, void *to, uint64_t bytes);

/* New device memory that holds these bytes. */
void *rig_put(rig *r, const void *bytes, uint64_t n);

/* A table for the next rig_launch: host memory, that lives as briefly as device.h allows. */
void *rig_table(rig *r, const void *bytes, uint64_t n);
/* Submits a kernel. */
mp_tick rig_launch(rig *r, mp_stream *stream, mp_kernel kernel, const void *args);
/* A kernel that copies floats. */
mp_tick rig_launch_copy(rig *r, mp_stream *stream, void *out, const void *in, uint32_t n);

/* Submissions of one transfer. */
mp_tick rig_copy(rig *r, mp_stream *stream, void *dst, const void *src, uint64_t bytes);
mp_tick rig_fill(rig *r, mp_stream *stream, void *dst, uint64_t bytes,
                 moepage_status (*fill)(const mp_copy *, void *), const void *user);

/* A transfer that begins and then waits to be let go. It writes zeros. */
typedef struct gate {
    sem_t begun, open;
} gate;

/* Submits one. */
mp_tick gate_queue(gate *g, rig *r, mp_stream *stream, void *dst, uint64_t bytes);
/* Submits one and returns when it holds up the stream's engine. Needs `asynchronous`. */
mp_tick gate_shut(gate *g, rig *r, mp_stream *stream, void *dst, uint64_t bytes);
void gate_open(gate *g);

/* Numbers that a seed decides. */
uint64_t random_next(uint64_t *seed);
uint32_t random_below(uint64_t *seed, uint32_t n);
/* In [-1, 1), a multiple of 2^-20. */
double random_unit(uint64_t *seed);

/* 10 times as many rounds when MP_TEST_LONG is set; a fifth on a slow device. */
uint32_t rounds(uint32_t usual);
/* Whether all cases are to be tried: not on a slow device, unless MP_TEST_LONG is set. */
bool all_cases(void);

#endif
