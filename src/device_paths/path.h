/* path.h — layers that the device runs by itself: moepage_cuda_path.
 *
 * On the device: a slot map, [layers][experts] words, slot or -1. A layer is a few kernels on the
 * caller's stream, in a graph or not. The first (cuda/kernels/path.h) finds the distinct experts of
 * the routed ids and looks them up. If all are there it writes the experts' table and is done: the
 * CPU has no part in it. Otherwise it leaves a message in memory that both sides see, and waits:
 *
 *   device: message {layer, experts, stamps}, fence, its sequence number        in shared memory
 *   poller: chooses victims, takes them off the map, lets go of their slots;
 *           holds the missing experts; lines its answer stream up behind their loads
 *   answer stream, in order: map words -1, [loads], map words = slots, answer   in device memory
 *   device: sees the answer, reads the map again, goes on
 *
 * Nothing changes from one replay of a graph to the next: sequence numbers, stamps and errors live
 * in device memory, and the kernel itself counts them up. The poller needs no call of the caller's,
 * so that experts come and go while a graph runs.
 *
 * One message at a time. A layer that posts one does not end before the answer is there, and the
 * layers of a path run one after the other; so one mailbox will do, and the poller may read it at
 * leisure. (For the time after a timeout, see below.)
 *
 * Why slots may be overwritten at once. The path holds every published expert in the pool
 * (pool/pool.h), as a session holds the experts of its open plan, so the pool does not give its
 * slot away. The poller lets go of one only while it handles a message. The device is then waiting
 * in the first kernel of some layer: the kernels of earlier layers have completed, since they are
 * before it on the stream, and later ones have not begun. This kernel reads the map, not slots. So
 * no kernel of this path reads a slot, and the next load into it may write at once, whether for
 * this path, a session or a prefetch; only kernels of other sessions may still be reading it, and
 * for those the pool makes the writer wait (readers.c). The device goes on only behind the answer,
 * which is behind every change of the map on the same stream, and then reads the map past caches.
 * An expert is on the map only once its load has completed, because the answer stream waits for
 * that; it is held from before that until it is off the map.
 *
 * Failure. A layer is given up if a load fails, if ids are out of range, or if an answer does not
 * come in time. Its table is then empty and its y NaN, and so is every later layer's until the
 * caller has asked for the reason (moepage_cuda_path_check), which acknowledges the report. After a
 * timeout the poller may still be at work on that message, and may take experts off the map while
 * the device no longer waits for their replacement. So the next layer first waits for the late
 * answer, and is given up as well if that takes too long. A late answer cannot be mistaken for
 * another, because it carries its number.
 *
 * The path's share. Its slots are set aside in the pool for as long as it lives: other
 * sessions divide the rest, as if the path's slots were pinned, and its own session is not
 * counted among them.
 *
 * What must not happen: work of another session on the same pool waits for a layer of this path
 * that has yet to run, such as a step submitted behind it on the same stream. The layer might need
 * the very slot that this work is the last to read. Only the timeout would end such a wait.
 *
 * Files: path.c has the path's life, path_serve.c the poller, and path_layer.c the description of a
 * layer, which cuda/launch_path.c launches. */
#ifndef MP_DEVICE_PATHS_PATH_H
#define MP_DEVICE_PATHS_PATH_H

#include "arena/home.h"
#include "device/cuda_ext.h"
#include "pool/share.h"
#include "session/session.h"

/* Why a layer was given up, as far as the poller knows. */
typedef struct mp_path_failure {
    pthread_mutex_t lock;
    moepage_status status;
    char text[512];
} mp_path_failure;

struct moepage_cuda_path {
    mp_handle handle;
    moepage_session *session;
    struct moepage_expert_pool *pool;
    mp_pool_shape shape; /* of the pool */
    mp_client *client;   /* the session, as the pool knows it */
    mp_session_scratch scratch;
    bool taken;         /* the session, and its scratch */
    uint32_t max_top_k; /* the session's */
    struct moepage_device *home;
    mp_device *device;
    uint32_t max_tokens;
    uint32_t timeout_ms;
    mp_set_aside share; /* the most that it holds; 0 slots: not set aside yet */
    void *block;        /* device memory, cut into `memory` */
    uint64_t block_bytes;
    mp_path_memory memory;
    mp_cuda_shared shared; /* mail, then [keys] stamps of the message */
    mp_path_mail *mail;    /* the host's view of it */
    const uint32_t *mail_stamps;
    mp_stream *answers;
    mp_cuda_poller *poller;
    uint32_t reported; /* the last report that the caller has received */
    mp_path_failure failure;
    _Atomic uint64_t evictions;

    /* The poller's. */
    mp_hold *published; /* [keys] kind NONE: not on the map */
    uint32_t n_published;
    mp_hold *missing;  /* [experts] */
    uint32_t *victims; /* [share.slots] */
    uint32_t served;   /* the last message answered */
    uint32_t seen;     /* the last message seen, and when */
    uint64_t seen_ns;
    uint64_t told; /* layers that the device has told of */
};

/* ---- path.c ---- */
moepage_status mp_path_workspace(const struct moepage_model *model,
                                 const moepage_session_config *session,
                                 const moepage_cuda_path_config *config, uint64_t *bytes);
moepage_status mp_path_create(moepage_session *session, const moepage_cuda_path_config *config,
                              moepage_cuda_path **out);
void mp_path_destroy(moepage_cuda_path *path);
moepage_status mp_path_check(moepage_cuda_path *path, moepage_cuda_path_stats *stats);

/* ---- path_serve.c ---- */
/* Handles a message if there is a new one; returns true if there was, or if the path has gone on without
 * one. Called on the poller's thread. */
bool mp_path_poll(void *path);

/* ---- path_layer.c ---- */
moepage_status mp_path_layer(moepage_cuda_path *path, const moepage_cuda_layer *layer,
                             void *stream);

#endif
