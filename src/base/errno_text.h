/* errno_text.h — the system's text for an error number, safe from any thread. */
#ifndef MP_BASE_ERRNO_TEXT_H
#define MP_BASE_ERRNO_TEXT_H

typedef struct mp_errno_text {
    char text[96];
} mp_errno_text;

/* Returns the text by value, for use inside the call that prints it:
 * mp_errno_text_of(errno).text. */
mp_errno_text mp_errno_text_of(int error);

#endif
