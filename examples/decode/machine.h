/* machine.h — the host application's own use of a device: memory, a stream, graphs. On CUDA it
 * calls the driver's functions, found in libcuda.so.1 at run time, so that building this needs
 * nothing of CUDA. On "host" memory is ordinary memory, and there are no streams and graphs. */
#ifndef EXAMPLE_MACHINE_H
#define EXAMPLE_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct machine machine;
typedef struct machine_graph machine_graph;

/* Opens "host" or "cuda:N". One line and an exit code on failure, as for all functions here that
 * return int. The GPU's context stays current for the calling thread. */
int machine_open(const char *device, machine **out);
void machine_close(machine *m);

/* cudaStream_t of everything below; NULL on "host". */
void *machine_stream(const machine *m);

/* Allocate device memory, and host memory that the device reaches at full speed. */
int machine_alloc(machine *m, size_t bytes, void **out);
void machine_free(machine *m, void *memory);
int machine_alloc_pinned(machine *m, size_t bytes, void **out);
void machine_free_pinned(machine *m, void *memory);

/* Copies in the order of the stream; does not wait if the source is pinned. */
int machine_copy(machine *m, void *to, const void *from, size_t bytes);
int machine_wait(machine *m);

/* Work submitted to the stream between begin and end becomes a graph. */
int machine_capture_begin(machine *m);
int machine_capture_end(machine *m, machine_graph **out);
int machine_replay(machine *m, machine_graph *graph);
/* Frees a graph; NULL is a no-op. */
void machine_graph_free(machine *m, machine_graph *graph);

#endif
