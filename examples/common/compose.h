/* compose.h — Unicode's normal form C, to which some tokenizers bring a text first. */
#ifndef EXAMPLE_COMPOSE_H
#define EXAMPLE_COMPOSE_H

#include <stddef.h>

/* Returns valid UTF-8 in normal form C, *length bytes of it, to be freed; NULL without memory. */
char *compose(const char *text, size_t n, size_t *length);

#endif
