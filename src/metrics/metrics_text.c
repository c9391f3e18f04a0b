/* Text under construction, measured and written by the same calls: characters that do not fit
 * are only counted. */
#include <string.h>

#include "metrics/metrics.h"

static void put(mp_text *text, const char *from, size_t n)
{
    for (size_t i = 0; i < n; i++, text->length++)
        if (text->out && text->length < text->capacity)
            text->out[text->length] = from[i];
}

void mp_text_put(mp_text *text, const char *string)
{
    put(text, string, strlen(string));
}

void mp_text_label(mp_text *text, const char *name, const char *value)
{
    mp_text_put(text, name);
    mp_text_put(text, "=\"");
    for (; *value; value++) {
        if (*value == '\n') {
            mp_text_put(text, "\\n");
            continue;
        }
        if (*value == '"' || *value == '\\')
            mp_text_put(text, "\\");
        put(text, value, 1);
    }
    mp_text_put(text, "\"");
}
