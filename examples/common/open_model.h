/* open_model.h — opens a checkpoint or a pack, or reports in one line why it cannot. */
#ifndef EXAMPLE_OPEN_MODEL_H
#define EXAMPLE_OPEN_MODEL_H

#include "moepage.h"

/* Opens a model; the library's warnings go to standard error. One line and RUN_REFUSED on
 * failure. */
int open_model(const char *path, moepage_model **out);

#endif
