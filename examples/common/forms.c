/* Names of forms. */
#include "common/forms.h"

#include <string.h>

static const struct {
    const char *name;
    uint32_t form;
} names[] = {
    {"dense", MOEPAGE_FORM_DENSE}, {"exph", MOEPAGE_FORM_EXPH}, {"int8", MOEPAGE_FORM_INT8},
    {"int4", MOEPAGE_FORM_INT4},   {"int2", MOEPAGE_FORM_INT2}, {"bf16", MOEPAGE_FORM_DENSE},
    {"fp16", MOEPAGE_FORM_DENSE},
};

const char *form_name(uint32_t form)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].form == form)
            return names[i].name;
    return "none";
}

uint32_t forms_of(const char *text)
{
    uint32_t set = 0;
    for (;;) {
        size_t length = strcspn(text, ","), i = 0, n = sizeof names / sizeof *names;
        while (i < n && (strlen(names[i].name) != length || memcmp(names[i].name, text, length)))
            i++;
        if (i == n)
            return 0;
        set |= 1u << names[i].form;
        if (!text[length])
            return set;
        text += length + 1;
    }
}
