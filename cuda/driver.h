/* driver.h — the part of the CUDA driver's interface that the device uses, as a table of functions.
 *
 * The types, constants and signatures are those of the driver's stable binary interface, declared
 * here so that nothing but the kernels needs a CUDA toolkit: the device builds, and its tests
 * run, on any machine. tests/cuda/check_abi.cpp compares this file with the toolkit's <cuda.h>
 * wherever there is one. mp_cuda_driver_load fills a table from libcuda.so.1; tests fill one from
 * a simulated driver. */
#ifndef MP_CUDA_DRIVER_H
#define MP_CUDA_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "moepage.h"

/* ---- Types ------------------------------------------------------------------------------ */

typedef int mp_cu_result;                /* CUresult */
typedef int mp_cu_device;                /* CUdevice: an ordinal */
typedef unsigned long long mp_cu_ptr;    /* CUdeviceptr */
typedef unsigned long long mp_cu_handle; /* CUmemGenericAllocationHandle */
typedef struct CUctx_st *mp_cu_context;
typedef struct CUstream_st *mp_cu_stream;
typedef struct CUevent_st *mp_cu_event;
typedef struct CUmod_st *mp_cu_module;
typedef struct CUfunc_st *mp_cu_function;

typedef struct mp_cu_location {
    int type; /* MP_CU_LOCATION_DEVICE */
    int id;
} mp_cu_location;

typedef struct mp_cu_mem_prop { /* CUmemAllocationProp */
    int type;                   /* MP_CU_ALLOCATION_PINNED */
    int handle_types;           /* 0 */
    mp_cu_location location;
    void *unused;
    unsigned char compression;
    unsigned char rdma;
    unsigned short usage;
    unsigned char reserved[4];
} mp_cu_mem_prop;

typedef struct mp_cu_access { /* CUmemAccessDesc */
    mp_cu_location location;
    int flags; /* MP_CU_ACCESS_READWRITE */
} mp_cu_access;

typedef struct mp_cu_copy_attributes { /* CUmemcpyAttributes */
    int source_order;                  /* MP_CU_SOURCE_ORDER_STREAM */
    mp_cu_location source, destination;
    unsigned flags;
} mp_cu_copy_attributes;

/* ---- Constants -------------------------------------------------------------------------- */

enum {
    MP_CU_SUCCESS = 0,
    MP_CU_INVALID_VALUE = 1,
    MP_CU_OUT_OF_MEMORY = 2,
    MP_CU_NOT_INITIALIZED = 3,
    MP_CU_DEINITIALIZED = 4,
    MP_CU_NO_DEVICE = 100,
    MP_CU_INVALID_DEVICE = 101,
    MP_CU_INVALID_IMAGE = 200,
    MP_CU_INVALID_CONTEXT = 201,
    MP_CU_NO_BINARY_FOR_GPU = 209,
    MP_CU_ECC_UNCORRECTABLE = 214,
    MP_CU_PEER_ACCESS_UNSUPPORTED = 217,
    MP_CU_INVALID_PTX = 218,
    MP_CU_NVLINK_UNCORRECTABLE = 220,
    MP_CU_JIT_COMPILER_NOT_FOUND = 221,
    MP_CU_UNSUPPORTED_PTX_VERSION = 222,
    MP_CU_JIT_COMPILATION_DISABLED = 223,
    MP_CU_CONTAINED = 226,
    MP_CU_OPERATING_SYSTEM = 304,
    MP_CU_INVALID_HANDLE = 400,
    MP_CU_NOT_FOUND = 500,
    MP_CU_NOT_READY = 600,
    MP_CU_ILLEGAL_ADDRESS = 700,
    MP_CU_LAUNCH_OUT_OF_RESOURCES = 701,
    MP_CU_LAUNCH_TIMEOUT = 702,
    MP_CU_PEER_ACCESS_ALREADY_ENABLED = 704,
    MP_CU_CONTEXT_IS_DESTROYED = 709,
    MP_CU_ASSERT = 710,
    MP_CU_TOO_MANY_PEERS = 711,
    MP_CU_HOST_MEMORY_ALREADY_REGISTERED = 712,
    MP_CU_HARDWARE_STACK_ERROR = 714,
    MP_CU_ILLEGAL_INSTRUCTION = 715,
    MP_CU_MISALIGNED_ADDRESS = 716,
    MP_CU_INVALID_ADDRESS_SPACE = 717,
    MP_CU_INVALID_PC = 718,
    MP_CU_LAUNCH_FAILED = 719,
    MP_CU_TENSOR_MEMORY_LEAK = 721,
    MP_CU_NOT_PERMITTED = 800,
    MP_CU_NOT_SUPPORTED = 801,
    MP_CU_MPS_CLIENT_TERMINATED = 810,
    MP_CU_CAPTURE_UNSUPPORTED = 900,
    MP_CU_EXTERNAL_DEVICE = 911,
    MP_CU_UNKNOWN = 999
};

enum { /* CUdevice_attribute */
       MP_CU_ATTR_MULTIPROCESSORS = 16,
       MP_CU_ATTR_PCI_BUS = 33,
       MP_CU_ATTR_PCI_DEVICE = 34,
       MP_CU_ATTR_L2_BYTES = 38,
       MP_CU_ATTR_COPY_ENGINES = 40,
       MP_CU_ATTR_PCI_DOMAIN = 50,
       MP_CU_ATTR_MAJOR = 75,
       MP_CU_ATTR_MINOR = 76,
       MP_CU_ATTR_SHARED_OPTIN = 97,
       MP_CU_ATTR_VMM = 102,
       MP_CU_ATTR_STREAM_MEM_OPS_64 = 122,
       MP_CU_ATTR_HOST_NUMA = 134
};

enum {
    MP_CU_STREAM_NON_BLOCKING = 1,
    MP_CU_EVENT_BLOCKING_SYNC = 1,
    MP_CU_EVENT_DISABLE_TIMING = 2,
    MP_CU_HOST_PORTABLE = 1,
    MP_CU_HOST_DEVICEMAP = 2,
    MP_CU_ALLOCATION_PINNED = 1,
    MP_CU_LOCATION_DEVICE = 1,
    MP_CU_ACCESS_READWRITE = 3,
    MP_CU_GRANULARITY_MINIMUM = 0,
    MP_CU_GRANULARITY_RECOMMENDED = 1,
    MP_CU_POINTER_MEMORY_TYPE = 2,
    MP_CU_MEMORY_HOST = 1,
    MP_CU_MEMORY_DEVICE = 2,
    MP_CU_FUNC_LOCAL_BYTES = 3,
    MP_CU_FUNC_REGISTERS = 4,
    MP_CU_FUNC_MAX_DYNAMIC_SHARED = 8,
    MP_CU_FUNC_SHARED_CARVEOUT = 9,
    MP_CU_CAPTURE_MODE_RELAXED = 2,
    MP_CU_CAPTURE_NONE = 0,
    MP_CU_CAPTURE_ACTIVE = 1,
    MP_CU_CAPTURE_INVALIDATED = 2,
    MP_CU_SOURCE_ORDER_STREAM = 1
};

/* ---- Functions -------------------------------------------------------------------------- */

/* X(field, exported symbol, parameters). All return mp_cu_result. */
#define MP_CU_FUNCTIONS(X)                                                                         \
    X(init, "cuInit", (unsigned flags))                                                            \
    X(driver_version, "cuDriverGetVersion", (int *version))                                        \
    X(error_name, "cuGetErrorName", (mp_cu_result error, const char **text))                       \
    X(error_string, "cuGetErrorString", (mp_cu_result error, const char **text))                   \
    X(device_count, "cuDeviceGetCount", (int *count))                                              \
    X(device_get, "cuDeviceGet", (mp_cu_device * device, int ordinal))                             \
    X(device_name, "cuDeviceGetName", (char *name, int capacity, mp_cu_device device))             \
    X(device_attribute, "cuDeviceGetAttribute", (int *value, int attribute, mp_cu_device device))  \
    X(device_bytes, "cuDeviceTotalMem_v2", (size_t * bytes, mp_cu_device device))                  \
    X(context_retain, "cuDevicePrimaryCtxRetain", (mp_cu_context * context, mp_cu_device device))  \
    X(context_release, "cuDevicePrimaryCtxRelease_v2", (mp_cu_device device))                      \
    X(context_push, "cuCtxPushCurrent_v2", (mp_cu_context context))                                \
    X(context_pop, "cuCtxPopCurrent_v2", (mp_cu_context * context))                                \
    X(can_access_peer, "cuDeviceCanAccessPeer",                                                    \
      (int *can, mp_cu_device device, mp_cu_device peer))                                          \
    X(enable_peer, "cuCtxEnablePeerAccess", (mp_cu_context peer, unsigned flags))                  \
    X(priority_range, "cuCtxGetStreamPriorityRange", (int *least, int *greatest))                  \
    X(mem_info, "cuMemGetInfo_v2", (size_t * free_bytes, size_t * total_bytes))                    \
    X(mem_alloc, "cuMemAlloc_v2", (mp_cu_ptr * out, size_t bytes))                                 \
    X(mem_free, "cuMemFree_v2", (mp_cu_ptr memory))                                                \
    X(granularity, "cuMemGetAllocationGranularity",                                                \
      (size_t * bytes, const mp_cu_mem_prop *prop, int option))                                    \
    X(address_reserve, "cuMemAddressReserve",                                                      \
      (mp_cu_ptr * out, size_t bytes, size_t alignment, mp_cu_ptr hint, unsigned long long flags)) \
    X(address_free, "cuMemAddressFree", (mp_cu_ptr at, size_t bytes))                              \
    X(mem_create, "cuMemCreate",                                                                   \
      (mp_cu_handle * out, size_t bytes, const mp_cu_mem_prop *prop, unsigned long long flags))    \
    X(mem_release, "cuMemRelease", (mp_cu_handle handle))                                          \
    X(mem_map, "cuMemMap",                                                                         \
      (mp_cu_ptr at, size_t bytes, size_t offset, mp_cu_handle handle, unsigned long long flags))  \
    X(mem_unmap, "cuMemUnmap", (mp_cu_ptr at, size_t bytes))                                       \
    X(mem_set_access, "cuMemSetAccess",                                                            \
      (mp_cu_ptr at, size_t bytes, const mp_cu_access *access, size_t count))                      \
    X(host_alloc, "cuMemHostAlloc", (void **out, size_t bytes, unsigned flags))                    \
    X(host_free, "cuMemFreeHost", (void *memory))                                                  \
    X(host_register, "cuMemHostRegister_v2", (void *memory, size_t bytes, unsigned flags))         \
    X(host_unregister, "cuMemHostUnregister", (void *memory))                                      \
    X(host_device_pointer, "cuMemHostGetDevicePointer_v2",                                         \
      (mp_cu_ptr * out, void *memory, unsigned flags))                                             \
    X(pointer_attribute, "cuPointerGetAttribute", (void *value, int attribute, mp_cu_ptr memory))  \
    X(stream_create, "cuStreamCreateWithPriority",                                                 \
      (mp_cu_stream * out, unsigned flags, int priority))                                          \
    X(stream_destroy, "cuStreamDestroy_v2", (mp_cu_stream stream))                                 \
    X(stream_query, "cuStreamQuery", (mp_cu_stream stream))                                        \
    X(stream_sync, "cuStreamSynchronize", (mp_cu_stream stream))                                   \
    X(stream_wait, "cuStreamWaitEvent", (mp_cu_stream stream, mp_cu_event event, unsigned flags))  \
    X(stream_capturing, "cuStreamIsCapturing", (mp_cu_stream stream, int *status))                 \
    X(capture_mode, "cuThreadExchangeStreamCaptureMode", (int *mode))                              \
    X(stream_write64, "cuStreamWriteValue64_v2",                                                   \
      (mp_cu_stream stream, mp_cu_ptr at, uint64_t value, unsigned flags))                         \
    X(stream_write32, "cuStreamWriteValue32_v2",                                                   \
      (mp_cu_stream stream, mp_cu_ptr at, uint32_t value, unsigned flags))                         \
    X(event_create, "cuEventCreate", (mp_cu_event * out, unsigned flags))                          \
    X(event_destroy, "cuEventDestroy_v2", (mp_cu_event event))                                     \
    X(event_record, "cuEventRecord", (mp_cu_event event, mp_cu_stream stream))                     \
    X(event_query, "cuEventQuery", (mp_cu_event event))                                            \
    X(event_sync, "cuEventSynchronize", (mp_cu_event event))                                       \
    X(copy, "cuMemcpyAsync", (mp_cu_ptr dst, mp_cu_ptr src, size_t bytes, mp_cu_stream stream))    \
    X(set_bytes, "cuMemsetD8Async",                                                                \
      (mp_cu_ptr dst, unsigned char value, size_t bytes, mp_cu_stream stream))                     \
    X(module_load, "cuModuleLoadData", (mp_cu_module * out, const void *image))                    \
    X(module_unload, "cuModuleUnload", (mp_cu_module module))                                      \
    X(module_function, "cuModuleGetFunction",                                                      \
      (mp_cu_function * out, mp_cu_module module, const char *name))                               \
    X(function_attribute, "cuFuncGetAttribute",                                                    \
      (int *value, int attribute, mp_cu_function function))                                        \
    X(function_set_attribute, "cuFuncSetAttribute",                                                \
      (mp_cu_function function, int attribute, int value))                                         \
    X(occupancy, "cuOccupancyMaxActiveBlocksPerMultiprocessor",                                    \
      (int *blocks, mp_cu_function function, int threads, size_t shared_bytes))                    \
    X(launch, "cuLaunchKernel",                                                                    \
      (mp_cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,                 \
       unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,                \
       mp_cu_stream stream, void **params, void **extra))

/* Functions of newer drivers; NULL in older ones. X(field, symbol, driver version, parameters). */
#define MP_CU_OPTIONAL(X)                                                                 \
    X(function_load, "cuFuncLoad", 12040, (mp_cu_function function))                      \
    X(copy_batch, "cuMemcpyBatchAsync", 12080,                                            \
      (mp_cu_ptr * dsts, mp_cu_ptr * srcs, size_t * sizes, size_t count,                  \
       mp_cu_copy_attributes * attributes, size_t * attribute_index, size_t n_attributes, \
       size_t * failed, mp_cu_stream stream))

typedef struct mp_cuda_driver {
#define MP_CU_FIELD(field, symbol, parameters) mp_cu_result(*field) parameters;
    MP_CU_FUNCTIONS(MP_CU_FIELD)
#undef MP_CU_FIELD
#define MP_CU_FIELD(field, symbol, version, parameters) mp_cu_result(*field) parameters;
    MP_CU_OPTIONAL(MP_CU_FIELD)
#undef MP_CU_FIELD
    void *library; /* what dlopen gave; NULL for a table that was not loaded */
} mp_cuda_driver;

/* Stores the address of a symbol in *function, a pointer to a function of its type; NULL, and
 * returns false, if the library has no such symbol. */
bool mp_cuda_take_symbol(void *library, const char *symbol, void *function);

/* The oldest driver that the device works with: CUDA 12.0's. */
#define MP_CUDA_OLDEST_DRIVER 12000

/* Fails with UNSUPPORTED if the driver is older than that. */
moepage_status mp_cuda_driver_check(const mp_cuda_driver *driver);

/* Loads libcuda.so.1 and fills the table; loaded once per process and kept. NOT_FOUND (no
 * driver), UNSUPPORTED (too old, or a function missing), each with a sentence that says which and
 * what to install. */
moepage_status mp_cuda_driver_load(const mp_cuda_driver **out);

#endif
