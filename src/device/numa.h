/* numa.h — NUMA: the node of a device's CPUs, and memory that lies on a node.
 *
 * libnuma does the work. In a build without it nothing has a node and nothing is bound. */
#ifndef MP_DEVICE_NUMA_H
#define MP_DEVICE_NUMA_H

#include <stdbool.h>
#include <stdint.h>

#define MP_NUMA_NODES 64 /* nodes that memory can be bound to, numbered from 0 */

/* Returns the node of all CPUs that the calling thread may run on; -1 if they belong to several, or
 * if it is not known. */
int32_t mp_numa_node(void);

/* Asks for the pages of a range, none of which is present yet, to be taken from `node`. The node is
 * preferred, not enforced: memory of another node is slower, but no memory at all ends the program.
 * Returns false if the system refuses, and for -1. */
bool mp_numa_prefer(void *base, uint64_t bytes, int32_t node);

/* Returns true if the pages of a range, all of them present, lie on `node`, judged by a sample. If
 * the system does not tell, they are assumed to. */
bool mp_numa_lies_on(void *base, uint64_t bytes, int32_t node);

#endif
