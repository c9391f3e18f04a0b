/* The system's text for an error number. */
#include "base/errno_text.h"

#include <stdio.h>
#include <string.h>

mp_errno_text mp_errno_text_of(int error)
{
    mp_errno_text out;
    /* GNU's strerror_r either writes to `out` or returns a constant. */
    const char *text = strerror_r(error, out.text, sizeof out.text);
    if (text != out.text)
        snprintf(out.text, sizeof out.text, "%s", text);
    return out;
}
