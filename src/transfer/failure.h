/* failure.h — the last failure: its expert, status and sentence. It is a read's, or what a device refused. Any thread. */
#ifndef MP_TRANSFER_FAILURE_H
#define MP_TRANSFER_FAILURE_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "moepage.h"

#define MP_FAILURE_BYTES 512u

typedef struct mp_failure {
    pthread_mutex_t lock;
    uint32_t key;
    moepage_status status;
    char sentence[MP_FAILURE_BYTES];
} mp_failure;

void mp_failure_open(mp_failure *failure);
void mp_failure_close(mp_failure *failure);
void mp_failure_note(mp_failure *failure, uint32_t key, moepage_status status,
                     const char *sentence);
/* Copies the sentence if it was this expert's, otherwise "". */
void mp_failure_recall(mp_failure *failure, uint32_t key, char *out, size_t capacity);
/* Copies the sentence, whatever expert it is of, if it was of this status, otherwise "". */
void mp_failure_recall_status(mp_failure *failure, moepage_status status, char *out,
                              size_t capacity);

#endif
