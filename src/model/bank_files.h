/* bank_files.h — the files that hold the experts of a model which the caller describes. */
#ifndef MP_MODEL_BANK_FILES_H
#define MP_MODEL_BANK_FILES_H

#include "model/model.h"

/* Opens banks->files, and fills the model's spans, one for each tensor, from banks->places: call it after
 * mp_slot_layout. ARGUMENT for a place in no file; NOT_FOUND, IO; FORMAT for a file that is too short. */
moepage_status mp_bank_files_open(struct moepage_model *model, const moepage_banks *banks);

/* Closes the files; NULL is a no-op. */
void mp_bank_files_close(struct mp_bank_files *files);

#endif
