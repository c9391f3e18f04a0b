/* Names of forms. */
#include "common/forms.h"

#include <string.h>

static const struct {
    const char *name;
    uint32_t form;
    uint32_t dtype; /* required of experts, or NONE */
} names[] = {
    {"dense", MOEPAGE_FORM_DENSE, MOEPAGE_DTYPE_NONE},
    {"exph", MOEPAGE_FORM_EXPH, MOEPAGE_DTYPE_NONE},
    {"int8", MOEPAGE_FORM_INT8, MOEPAGE_DTYPE_NONE},
    {"int4", MOEPAGE_FORM_INT4, MOEPAGE_DTYPE_NONE},
    {"int2", MOEPAGE_FORM_INT2, MOEPAGE_DTYPE_NONE},
    {"bf16", MOEPAGE_FORM_DENSE, MOEPAGE_DTYPE_BF16},
    {"fp16", MOEPAGE_FORM_DENSE, MOEPAGE_DTYPE_F16},
};

const char *form_name(uint32_t form)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].form == form)
            return names[i].name;
    return "none";
}

uint32_t forms_of(const char *text, uint32_t *dtypes)
{
    uint32_t set = 0;
    *dtypes = 0;
    for (;;) {
        size_t length = strcspn(text, ","), i = 0, n = sizeof names / sizeof *names;
        while (i < n && (strlen(names[i].name) != length || memcmp(names[i].name, text, length)))
            i++;
        if (i == n)
            return 0;
        set |= 1u << names[i].form;
        if (names[i].dtype)
            *dtypes |= 1u << names[i].dtype;
        if (!text[length])
            return set;
        text += length + 1;
    }
}
