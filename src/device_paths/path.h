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
 * leisure. (After a timeout the device owes itself the answer: see below.)
 *
 * Why slots may be overwritten at once. A published expert is one that the path holds in the pool
 * (pool/pool.h), as a session holds what its open plan uses: the pool gives its slot to
 * nobody. The poller lets go of one only while it handles a message. Then the device stands in the
 * first kernel of some layer: the kernels of earlier layers have completed, for they are before it
 * on the stream, and later ones have not begun. This kernel looks at the map, not at slots. So
 * nobody reads a slot of this path, and whoever gets it from the pool, this path, a session, a
 * prefetch, may write to it at once; only kernels of other sessions may still read it, and for
 * those the pool has the writer wait (readers.c). When the device goes on, it does so
 * behind the answer, which is behind every change of the map on the same stream; and the map is
 * read past caches after it. An expert is on the map only once its load has completed, for the
 * answer stream waits for that; and it is held from before until it is off the map.
 *
 * Failure. A load that fails, ids out of range, an answer that does not come in time: the layer is
 * given up. Its table is empty, its y NaN, and so is that of every layer after it, until the caller
 * has asked for the reason (moepage_cuda_path_check), which acknowledges that report. After a
 * timeout the poller may still be at work on that message, and may take away slots that the device
 * no longer waits to see replaced. So the next layer first waits for the answer owed, and is given
 * up as well if that takes too long. A late answer can be mistaken for no other: it carries its
 * number.
 *
 * The path's share. Its slots are set aside in the pool for as long as it lives: other sessions
 * divide what is left, as if its slots were pinned, and its own session does not count.
 *
 * What must not happen: work of other sessions on the same pool that waits for a layer of this path
 * which has yet to run, such as a step submitted behind it on the same stream. The slot that the
 * layer waits for could be the one that this work was last to read. The timeout ends it.
 *
 * Files: path.c life; path_serve.c the poller; path_layer.c what the device is told of a layer, which
 * cuda/launch_path.c launches. */
#ifndef MP_PATHS_PATH_H
#define MP_PATHS_PATH_H

#include "arena/home.h"
#include "device/cuda_ext.h"
#include "pool/share.h"
#include "session/session.h"

/* What a layer was given up for, as the poller knows it. */
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
    mp_client *client;   /* as which the pool knows the session */
    mp_session_scratch scratch;
    bool taken;         /* the session, and its scratch */
    uint32_t max_top_k; /* the session's */
    struct moepage_device *home;
    mp_device *device;
    uint32_t max_tokens;
    uint32_t timeout_ms;
    mp_set_aside share; /* most that it holds; 0 slots: not set aside yet */
    void *block;        /* device memory, cut into `memory` */
    uint64_t block_bytes;
    mp_path_memory memory;
    mp_cuda_shared shared; /* mail, then [keys] stamps of the message */
    mp_path_mail *mail;    /* the host's view of it */
    const uint32_t *mail_stamps;
    mp_stream *answers;
    mp_cuda_poller *poller;
    uint32_t reported; /* the last report that the caller was told */
    mp_path_failure failure;
    _Atomic uint64_t evictions;

    /* The poller's. */
    mp_hold *published; /* [keys] kind NONE: not on the map */
    uint32_t n_published;
    mp_hold *missing;  /* [experts] */
    uint32_t *victims; /* [share.slots] */
    uint32_t served;   /* the last message that was answered */
    uint32_t seen;     /* the last one that was seen, and when */
    uint64_t seen_ns;
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
/* Handles a message if there is a new one; says whether there was. On the poller's thread. */
bool mp_path_poll(void *path);

/* ---- path_layer.c ---- */
moepage_status mp_path_layer(moepage_cuda_path *path, const moepage_cuda_layer *layer,
                             void *stream);

#endif
