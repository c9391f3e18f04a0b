/* predicting_inside.h — what the two sides of predicting.h share. */
#ifndef MP_FEATURES_PREDICTING_INSIDE_H
#define MP_FEATURES_PREDICTING_INSIDE_H

#include "planning/calibration.h"
#include "planning/payoff.h"
#include "features/predicting.h"
#include "features/shared_predictor.h"
#include "session/step_hooks.h"

/* News that the task has not got to yet, at most. */
#define MP_NEWS 16u

typedef enum mp_news_kind { MP_NEWS_BEGIN, MP_NEWS_LAYER, MP_NEWS_END } mp_news_kind;

/* What the session's thread has to tell; its arrays are the news' own. */
typedef struct mp_news {
    mp_news_kind kind;
    uint64_t step;
    uint32_t layer;
    uint32_t n_sequences;
    bool has_semantic, has_probabilities, has_hidden;
    bool scan;            /* prefill alone */
    moepage_seq *seq;     /* [max_sequences] BEGIN: whose iteration */
    uint8_t *fresh;       /* [max_sequences] BEGIN: a prefill of nobody in particular begins */
    float *semantic;      /* [max_sequences][semantic_dim] */
    uint32_t *first;      /* [max_sequences + 1] LAYER: sequence s has experts[first[s] ...) */
    uint32_t *experts;    /* [max_rows] */
    float *probabilities; /* [max_sequences][experts], where they are taken */
    float *hidden;        /* [max_sequences][hidden] */
} mp_news;

/* A sequence as the predictor knows it. */
typedef struct mp_follower {
    moepage_seq seq;
    uint64_t step; /* when it last had one; 0 = never */
    mp_predict_context context;
} mp_follower;

/* One layer's guesses, from when they are made until the layer comes. */
typedef struct mp_foresight {
    uint64_t turn;     /* the layer's, that they are for; 0 = none */
    uint32_t n;        /* experts named */
    uint32_t *experts; /* [experts] */
    bool *absent;      /* [experts] it was not on the device then, and worth fetching */
    uint32_t n_first;  /* guesses of the step's first sequence: a sample for calibration */
    mp_guess *first;   /* [experts] */
    uint64_t guessed, right;
    mp_payoff_layer payoff;
} mp_foresight;

typedef struct mp_predicting {
    mp_task task;       /* first: found from its address */
    mp_step_view *view; /* of its session */
    struct moepage_predictor *predictor;
    mp_device *device;
    mp_stream *stream; /* that the task is posted behind: destroying it waits for the task */

    /* The queue. */
    pthread_mutex_t lock;
    mp_news *ring[MP_NEWS];
    uint32_t head, count;
    bool posted, stopping;

    /* The session's thread. */
    mp_news *draft;
    bool listening; /* the open step is followed */
    uint64_t step;  /* counts from 1 */
    uint32_t n_sequences;
    uint32_t *sequence_tokens; /* [max_sequences] of the open step */
    uint32_t *seen_stamp;      /* [experts] */
    uint32_t stamp;
    mp_payoff_config payoff_config;
    mp_payoff payoff;

    /* Both. */
    _Atomic bool on;           /* guesses are acted on */
    _Atomic uint32_t distance; /* layers ahead */
    _Atomic uint64_t turn;     /* of the latest layer that came: step * layers + layer */
    /* Absent experts named for the layers that came, rightly or not. */
    _Atomic uint64_t avertable, vain;

    /* The task; the info takes `facts`. */
    pthread_mutex_t facts;
    mp_news *reading;
    bool lost;              /* the open iteration's beginning was not told */
    uint64_t heard;         /* turn of the layer observed last */
    uint64_t asked_until;   /* turns for which guesses have been made */
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

/* The state of a session with a predictor, or NULL. */
mp_predicting *mp_predicting_of(const struct moepage_session *session);

void mp_predicting_came(mp_predicting *own, uint32_t layer);

/* The task (predicting_work.c). */
void mp_predicting_work(mp_task *task);

#endif
