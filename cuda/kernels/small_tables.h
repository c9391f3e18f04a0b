/* small_tables.h — host tables that travel inside a launch's arguments, instead of in front of it.
 *
 * An argument struct with room for tables ends with it; a table is there if the pointer to it is NULL. A kernel reads
 * a table by one pointer, to device memory or into its own arguments: entries take these as __grid_constant__, so
 * that they have an address and are not copied. Arguments have at most 4096 bytes. */
#ifndef MP_KERNELS_SMALL_TABLES_H
#define MP_KERNELS_SMALL_TABLES_H

/* Bytes of room. Arguments are handed over whole, so a step of a few tokens fits, and no more. */
#define MP_SMALL_COMBINE 1024u /* 128 rows */
#define MP_SMALL_DECODE 2304u  /* 48 jobs: 16 experts of three tensors */

/* Where tables start, in the arguments, and in front of each other. */
#define MP_SMALL_ALIGN 64u
#define MP_SMALL_ROOM(bytes) unsigned char tables[bytes] __attribute__((aligned(16)))

#endif
