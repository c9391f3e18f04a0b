/* errno_text.h — the system's own words for an error number, from any thread. */
#ifndef MP_BASE_ERRNO_TEXT_H
#define MP_BASE_ERRNO_TEXT_H

typedef struct mp_errno_text {
    char text[96];
} mp_errno_text;

/* By value, so that it can stand in the call that prints it: mp_errno_text_of(errno).text. */
mp_errno_text mp_errno_text_of(int error);

#endif
