/* forms.h — the names of the forms in which experts are stored. */
#ifndef EXAMPLE_FORMS_H
#define EXAMPLE_FORMS_H

#include <stdint.h>

#include "moepage.h"

/* MOEPAGE_FORM_DENSE to this. */
#define LAST_FORM MOEPAGE_FORM_INT2

/* Returns "dense", "exph", "int8", "int4" or "int2". */
const char *form_name(uint32_t form);

/* Returns a set of 1u << MOEPAGE_FORM_* from names separated by commas; 0 for anything else. bf16
 * and fp16 mean dense with experts of that type: *dtypes is the set of 1u << MOEPAGE_DTYPE_*
 * named. */
uint32_t forms_of(const char *names, uint32_t *dtypes);

#endif
