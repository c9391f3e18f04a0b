/* forms.h — the names of the forms in which experts are stored. */
#ifndef EXAMPLE_FORMS_H
#define EXAMPLE_FORMS_H

#include <stdint.h>

#include "moepage.h"

/* MOEPAGE_FORM_DENSE to this. */
#define LAST_FORM MOEPAGE_FORM_INT2

/* "dense", "exph", "int8", "int4", "int2". */
const char *form_name(uint32_t form);

/* A set of 1u << MOEPAGE_FORM_* from names with commas between them; 0 for anything else. bf16 and
 * fp16 are dense too, of experts that have this type: *dtypes is the set of 1u << MOEPAGE_DTYPE_*
 * that was named. */
uint32_t forms_of(const char *names, uint32_t *dtypes);

#endif
