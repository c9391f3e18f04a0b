/* The last failure's sentence. */
#include "transfer/failure.h"

#include <stdio.h>

void mp_failure_open(mp_failure *failure)
{
    pthread_mutex_init(&failure->lock, NULL);
    failure->key = UINT32_MAX;
    failure->status = MOEPAGE_OK;
    failure->sentence[0] = '\0';
}

void mp_failure_close(mp_failure *failure)
{
    pthread_mutex_destroy(&failure->lock);
}

void mp_failure_note(mp_failure *failure, uint32_t key, moepage_status status, const char *sentence)
{
    pthread_mutex_lock(&failure->lock);
    failure->key = key;
    failure->status = status;
    snprintf(failure->sentence, sizeof failure->sentence, "%s", sentence);
    pthread_mutex_unlock(&failure->lock);
}

void mp_failure_recall(mp_failure *failure, uint32_t key, char *out, size_t capacity)
{
    pthread_mutex_lock(&failure->lock);
    snprintf(out, capacity, "%s", failure->key == key ? failure->sentence : "");
    pthread_mutex_unlock(&failure->lock);
}

void mp_failure_recall_status(mp_failure *failure, moepage_status status, char *out,
                              size_t capacity)
{
    pthread_mutex_lock(&failure->lock);
    snprintf(out, capacity, "%s", failure->status == status ? failure->sentence : "");
    pthread_mutex_unlock(&failure->lock);
}
