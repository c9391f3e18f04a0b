/* letters.h — the classes of characters by which a tokenizer cuts text. */
#ifndef EXAMPLE_LETTERS_H
#define EXAMPLE_LETTERS_H

#include <stdbool.h>
#include <stdint.h>

/* Each takes a code point. */
bool letters_is_letter(uint32_t c);
bool letters_is_number(uint32_t c);
bool letters_is_space(uint32_t c);

#endif
