/* flags.h — a command line as a table: one row per flag, with the function that reads its value
 * into a struct of the program's own. */
#ifndef EXAMPLE_FLAGS_H
#define EXAMPLE_FLAGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FLAG_CHOICES 6

typedef struct flag flag;
struct flag {
    const char *name;
    int (*read)(const flag *self, const char *text, void *out); /* NULL: a switch, a bool */
    size_t offset;                                              /* of the field in *out */
    uint64_t least, most;
    const char *choice[FLAG_CHOICES];
    size_t note; /* 0, or the offset of a const char * that is set to `name` when the flag is there,
                    whatever its value */
    const flag
        *part; /* instead of a flag: those of the struct at `offset`; a row of zeros ends them */
};

/* Reads argv[1..argc): "--name value", "--name=value", switches. Words other than flags go to
 * `word`, or are refused if that is NULL. One line and RUN_REFUSED for an error. */
int flags_read(const flag *flags, size_t n_flags, int argc, char **argv,
               int (*word)(const char *text, void *out), void *out);

/* Readers of fields: text (borrowed), uint32_t and uint64_t between least and most, bytes with a
 * suffix K, M or G as uint64_t, the position of a word in `choice` as uint32_t, and doubles: from 0 on,
 * above 0, and above 0 and up to 1. */
int flag_text(const flag *self, const char *text, void *out);
int flag_u32(const flag *self, const char *text, void *out);
int flag_u64(const flag *self, const char *text, void *out);
int flag_bytes(const flag *self, const char *text, void *out);
int flag_choice(const flag *self, const char *text, void *out);
int flag_real(const flag *self, const char *text, void *out);
int flag_positive(const flag *self, const char *text, void *out);
int flag_share(const flag *self, const char *text, void *out);
int flag_ms(const flag *self, const char *text, void *out); /* into a uint64_t of ns */

/* Helpers for a program's own readers. */
void *flag_field(const flag *self, void *out);

/* Prints "<flag> <text>: expected <wanted>"; returns RUN_REFUSED. */
int flag_refuse(const flag *self, const char *text, const char *wanted);

/* Reads decimal digits only, so that "-1", " 1" and "0x1" are refused. Advances *text. */
bool flag_take_number(const char **text, uint64_t *out);

/* Reads a number with an optional fraction or exponent; finite and not negative. Advances *text. */
bool flag_take_real(const char **text, double *out);

/* Reads a byte count from the whole text: digits, optionally followed by K, M or G. */
bool flag_is_bytes(const char *text, uint64_t *out);

#endif
