/* ptx_launch.h — the entries that kernels' CPU forms are replaced with. */
#ifndef PTX_LAUNCH_H
#define PTX_LAUNCH_H

#include "kernels/phase.h"
#include "ptx.h"

#define PTX_FAMILIES 9

/* The entry of that name in the files of MP_TEST_PTX; NULL: none has it. The program ends if it cannot be
 * parsed. */
ptx_entry *ptx_launch_entry(const char *name);

#endif
