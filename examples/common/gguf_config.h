/* gguf_config.h — the metadata of a GGUF file, in the words of config.json. */
#ifndef EXAMPLE_GGUF_CONFIG_H
#define EXAMPLE_GGUF_CONFIG_H

#include <jansson.h>
#include <stdbool.h>

#include "moepage.h"

/* Returns true if the open model is a GGUF file. */
bool gguf_is(const moepage_model *model);

/* Returns true if the file has a tokenizer. */
bool gguf_has_tokens(const moepage_model *model);

/* Writes what the file says about attention, routing and the end of a text as a new object, *out.
 * One line and RUN_REFUSED for a value that is missing, of another type or not supported. */
int gguf_config_read(const moepage_model *model, const moepage_model_info *info, json_t **out);

#endif
