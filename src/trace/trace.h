/* trace.h — a trace file, open for a session to write or for a program to read.
 *
 * Recording never makes a step fail: the step_* calls return nothing; the first failure (disk full,
 * no memory, a step beyond the format's limits) discards the file and is kept for
 * moepage_trace_close to report. One session at a time records to a trace. */
#ifndef MP_TRACE_TRACE_H
#define MP_TRACE_TRACE_H

#include "base/handle.h"
#include "moepage.h"

typedef struct mp_trace_writer mp_trace_writer;
typedef struct mp_trace_reader mp_trace_reader;

struct moepage_trace {
    mp_handle handle;
    _Atomic uint32_t users;  /* sessions recording */
    moepage_trace_info info; /* struct_size set */
    mp_trace_writer *writer; /* exactly one of the two is set */
    mp_trace_reader *reader;
};

/* Opens a step of `n_tokens` tokens. The tokens of `sequences` [n_sequences >= 1] add up to
 * n_tokens. `semantic` [n_sequences][semantic_dim] or NULL; it is recorded if the trace has a
 * semantic_dim, which must then be equal. */
void mp_trace_step_begin(moepage_trace *trace, uint32_t n_tokens,
                         const moepage_step_sequence *sequences, uint32_t n_sequences,
                         const float *semantic, uint32_t semantic_dim);

/* Records one layer's routing, at most once per layer and step, layers in any order. `ids` and
 * `weights` [n_tokens][top_k], top_k <= info.max_top_k and free to differ between layers;
 * `probabilities` [n_tokens][experts] or NULL, recorded if the trace has them. */
void mp_trace_step_layer(moepage_trace *trace, uint32_t layer, uint32_t top_k, const int32_t *ids,
                         const float *weights, const float *probabilities);

/* Completes the step. Compresses and writes a frame when enough records have accumulated. */
void mp_trace_step_end(moepage_trace *trace);

/* Discards the open step, if any. */
void mp_trace_step_cancel(moepage_trace *trace);

/* Creates the file for moepage_trace_create. `info` is valid; a frame ends once it has
 * `frame_bytes` raw bytes. */
moepage_status mp_trace_writer_create(const char *path, const moepage_trace_info *info,
                                      uint64_t frame_bytes, mp_trace_writer **out);

/* Completes the file and renames it to its final name, or reports the first failure and leaves no
 * file. Frees the writer in both cases. */
moepage_status mp_trace_writer_close(mp_trace_writer *writer);

moepage_status mp_trace_reader_open(const char *path, moepage_trace_info *info,
                                    mp_trace_reader **out);
moepage_status mp_trace_reader_next(mp_trace_reader *reader, moepage_trace_step *step);
void mp_trace_reader_close(mp_trace_reader *reader);

#endif
