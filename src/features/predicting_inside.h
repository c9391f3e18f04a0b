/* predicting_inside.h — the private header of predicting.c and predicting_work.c: the queue between
 * a session's thread and its task, and the state of both. */
#ifndef MP_FEATURES_PREDICTING_INSIDE_H
#define MP_FEATURES_PREDICTING_INSIDE_H

#include "features/predicting.h"
#include "features/shared_predictor.h"
#include "planning/calibration.h"
#include "planning/payoff.h"
#include "session/step_hooks.h"

/* The most news that wait for the task. */
#define MP_NEWS 16u

typedef enum mp_news_kind { MP_NEWS_BEGIN, MP_NEWS_LAYER, MP_NEWS_END } mp_news_kind;

/* An event of a step, sent from the session's thread to the task. It owns its arrays. */
typedef struct mp_news {
    mp_news_kind kind;
    uint64_t step;
    uint32_t layer;
    uint32_t n_sequences;
    bool has_semantic, has_probabilities, has_hidden;
    bool scan;         /* prefill alone */
    moepage_seq *seq;  /* [max_sequences] BEGIN: the sequences of the iteration, 0 if not named */
    uint8_t *fresh;    /* [max_sequences] BEGIN: a prefill begins for an unnamed sequence */
    float *semantic;   /* [max_sequences][semantic_dim] */
    uint32_t *first;   /* [max_sequences + 1] LAYER: sequence s has experts[first[s] ...) */
    uint32_t *experts; /* [max_rows] */
    float *probabilities; /* [max_sequences][experts], or NULL if the predictor takes none */
    float *hidden;        /* [max_sequences][hidden] */
} mp_news;

/* A sequence's context in the predictor. */
typedef struct mp_follower {
    moepage_seq seq;
    uint64_t step; /* the last step with the sequence; 0 = none yet */
    mp_predict_context context;
} mp_follower;

/* One layer's guesses, from the moment they are made to the layer's turn. */
typedef struct mp_foresight {
    uint64_t turn;     /* the turn that they are for; 0 = none */
    uint32_t n;        /* experts named */
    uint32_t *experts; /* [experts] */
    bool *absent;      /* [experts] not on the device then, and worth fetching */
    uint32_t n_first;  /* guesses of the step's first sequence: a sample for calibration */
    mp_guess *first;   /* [experts] */
    uint64_t guessed, right;
    mp_payoff_layer payoff;
} mp_foresight;

typedef struct mp_predicting {
    mp_task task;       /* first: found from its address */
    mp_step_view *view; /* its session's */
    struct moepage_predictor *predictor;
    mp_device *device;
    mp_stream *stream; /* the task is posted behind it, so that destroying it waits for the task */

    /* The queue. */
    pthread_mutex_t lock;
    mp_news *ring[MP_NEWS];
    uint32_t head, count;
    bool posted, stopping;

    /* The session's thread. */
    mp_news *draft;
    bool listening; /* the open step is followed */
    uint64_t step;  /* number of the open step, from 1 */
    uint32_t n_sequences;
    uint32_t *sequence_tokens; /* [max_sequences] of the open step */
    uint32_t *seen_stamp;      /* [experts] */
    uint32_t stamp;
    mp_payoff_config payoff_config;
    mp_payoff payoff;

    /* Both. */
    _Atomic bool on;           /* guesses are acted on */
    _Atomic uint32_t distance; /* layers ahead */
    _Atomic uint64_t turn;     /* of the layer routed last: step * layers + layer */
    /* Absent experts that were named for layers since routed: rightly, and in vain. */
    _Atomic uint64_t avertable, vain;

    /* The task's. `facts` protects what mp_predicting_info reads. */
    pthread_mutex_t facts;
    mp_news *reading;
    bool lost;              /* the news of the open iteration's beginning was dropped */
    uint64_t heard;         /* the turn of the layer observed last */
    uint64_t asked_until;   /* guesses have been made for turns up to this one */
    mp_follower *followers; /* [max_sequences] */
    uint32_t *follower_of;  /* [max_sequences] of the open iteration */
    mp_guess *guesses;      /* [experts] scratch */
    float *chance;          /* [experts] scratch: that none of the sequences needs it */
    bool *named;            /* [experts] scratch */
    bool *fetched;          /* [experts] scratch: absent when they were first named for the turn */
    mp_ranked *wants;       /* [experts] scratch */
    mp_calibration calibration;
    mp_foresight *foresights; /* [layers] */
} mp_predicting;

/* Returns the state of a session with a predictor, or NULL. */
mp_predicting *mp_predicting_of(const struct moepage_session *session);

void mp_predicting_came(mp_predicting *own, uint32_t layer);

/* Runs the task (predicting_work.c). */
void mp_predicting_work(mp_task *task);

#endif
