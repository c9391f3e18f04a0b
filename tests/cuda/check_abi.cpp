/* cuda/driver.h and cuda/blas.h against the toolkit's own headers: everything is asserted at
 * compile time. C++, because its templates take function types apart; test_abi.sh compiles it. */
#include <cublas_v2.h>
#include <cuda.h>
#include <cudaTypedefs.h>

#include <cstddef>
#include <type_traits>

#include "blas.h"
#include "cuda/driver.h"
#include "driver.h"

/* ---- When two parameters are passed alike ------------------------------------------------- */

/* The size behind a pointer; 1 for void and for what is only declared. */
template <typename T, typename = void> constexpr std::size_t size_behind = 1;
template <typename T> constexpr std::size_t size_behind<T, std::void_t<decltype(sizeof(T))>> = sizeof(T);

/* Pointers to void stand for pointers to anything. */
template <typename A, typename B> constexpr bool points_alike()
{
    using a = std::remove_cv_t<std::remove_pointer_t<A>>;
    using b = std::remove_cv_t<std::remove_pointer_t<B>>;
    return std::is_void_v<a> || std::is_void_v<b> ||
           (std::is_pointer_v<a> == std::is_pointer_v<b> && size_behind<a> == size_behind<b>);
}

template <typename A, typename B> constexpr bool passed_alike()
{
    if constexpr (std::is_pointer_v<A> && std::is_pointer_v<B>)
        return points_alike<A, B>();
    else
        return !std::is_pointer_v<A> && !std::is_pointer_v<B> && sizeof(A) == sizeof(B) &&
               std::is_floating_point_v<A> == std::is_floating_point_v<B>;
}

template <typename Ours, typename Theirs> struct calls;
template <typename R, typename... P, typename S, typename... Q> struct calls<R (*)(P...), S (*)(Q...)> {
    static constexpr bool alike()
    {
        if constexpr (sizeof...(P) == sizeof...(Q))
            return passed_alike<R, S>() && (passed_alike<P, Q>() && ...);
        else
            return false;
    }
};

constexpr bool same_text(const char *a, const char *b)
{
    while (*a && *a == *b)
        a++, b++;
    return *a == *b;
}

/* ---- Functions ---------------------------------------------------------------------------- */

#define TEXT(x) #x
#define TEXT_OF(x) TEXT(x) /* with the version that the header gives the name */

/* What ours is called, to be compared with. */
#define OUR_NAME(field, symbol, parameters) constexpr const char *name_of_##field = symbol;
MP_CU_FUNCTIONS(OUR_NAME)
namespace blas
{
MP_BLAS_FUNCTIONS(OUR_NAME)
}

#define CHECK(field, function)                                                               \
    static_assert(same_text(name_of_##field, TEXT_OF(function)), #field ": another symbol"); \
    static_assert(calls<decltype(mp_cuda_driver::field), decltype(&function)>::alike(),      \
                  #field ": other parameters");                                              \
    constexpr bool checked_##field = true;

CHECK(init, cuInit)
CHECK(driver_version, cuDriverGetVersion)
CHECK(error_name, cuGetErrorName)
CHECK(error_string, cuGetErrorString)
CHECK(device_count, cuDeviceGetCount)
CHECK(device_get, cuDeviceGet)
CHECK(device_name, cuDeviceGetName)
CHECK(device_attribute, cuDeviceGetAttribute)
CHECK(device_bytes, cuDeviceTotalMem)
CHECK(context_retain, cuDevicePrimaryCtxRetain)
CHECK(context_release, cuDevicePrimaryCtxRelease)
CHECK(context_push, cuCtxPushCurrent)
CHECK(context_pop, cuCtxPopCurrent)
CHECK(can_access_peer, cuDeviceCanAccessPeer)
CHECK(enable_peer, cuCtxEnablePeerAccess)
CHECK(priority_range, cuCtxGetStreamPriorityRange)
CHECK(mem_info, cuMemGetInfo)
CHECK(mem_alloc, cuMemAlloc)
CHECK(mem_free, cuMemFree)
CHECK(granularity, cuMemGetAllocationGranularity)
CHECK(address_reserve, cuMemAddressReserve)
CHECK(address_free, cuMemAddressFree)
CHECK(mem_create, cuMemCreate)
CHECK(mem_release, cuMemRelease)
CHECK(mem_map, cuMemMap)
CHECK(mem_unmap, cuMemUnmap)
CHECK(mem_set_access, cuMemSetAccess)
CHECK(host_alloc, cuMemHostAlloc)
CHECK(host_free, cuMemFreeHost)
CHECK(host_register, cuMemHostRegister)
CHECK(host_unregister, cuMemHostUnregister)
CHECK(host_device_pointer, cuMemHostGetDevicePointer)
CHECK(pointer_attribute, cuPointerGetAttribute)
CHECK(stream_create, cuStreamCreateWithPriority)
CHECK(stream_destroy, cuStreamDestroy)
CHECK(stream_query, cuStreamQuery)
CHECK(stream_sync, cuStreamSynchronize)
CHECK(stream_wait, cuStreamWaitEvent)
CHECK(stream_capturing, cuStreamIsCapturing)
CHECK(capture_mode, cuThreadExchangeStreamCaptureMode)
CHECK(stream_write64, cuStreamWriteValue64)
CHECK(stream_write32, cuStreamWriteValue32)
CHECK(event_create, cuEventCreate)
CHECK(event_destroy, cuEventDestroy)
CHECK(event_record, cuEventRecord)
CHECK(event_query, cuEventQuery)
CHECK(event_sync, cuEventSynchronize)
CHECK(copy, cuMemcpyAsync)
CHECK(set_bytes, cuMemsetD8Async)
CHECK(module_load, cuModuleLoadData)
CHECK(module_unload, cuModuleUnload)
CHECK(module_function, cuModuleGetFunction)
CHECK(function_attribute, cuFuncGetAttribute)
CHECK(function_set_attribute, cuFuncSetAttribute)
CHECK(occupancy, cuOccupancyMaxActiveBlocksPerMultiprocessor)
CHECK(launch, cuLaunchKernel)

/* Optional ones are asked for by version, whatever the header's name stands for by now. */
#define CHECK_SINCE(field, version, type)                                        \
    static_assert(calls<decltype(mp_cuda_driver::field), type##_v##version>::alike(), \
                  #field ": other parameters");                                  \
    constexpr int since_##field = version;

#if CUDA_VERSION >= 12080
CHECK_SINCE(function_load, 12040, PFN_cuFuncLoad)
CHECK_SINCE(copy_batch, 12080, PFN_cuMemcpyBatchAsync)
#define CHECKED_SINCE(field, symbol, since, parameters) \
    static_assert(since_##field == since, #field ": since another version");
MP_CU_OPTIONAL(CHECKED_SINCE)
#endif

#define CHECKED(field, symbol, parameters) static_assert(checked_##field);
MP_CU_FUNCTIONS(CHECKED) /* one without a line above does not compile */

namespace blas
{
#undef CHECK
#define CHECK(field, function)                                                               \
    static_assert(same_text(name_of_##field, TEXT_OF(function)), #field ": another symbol"); \
    static_assert(calls<decltype(mp_cuda_blas::field), decltype(&function)>::alike(),        \
                  #field ": other parameters");                                              \
    constexpr bool checked_##field = true;
CHECK(create, cublasCreate)
CHECK(destroy, cublasDestroy)
CHECK(version, cublasGetVersion)
CHECK(set_stream, cublasSetStream)
CHECK(set_workspace, cublasSetWorkspace)

/* C++ has two of this name; the library has the one whose arithmetic is a cublasComputeType_t. */
using gemm_function = cublasStatus_t (*)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int,
                                         int, const void *, const void *const *, cudaDataType, int,
                                         const void *const *, cudaDataType, int, const void *,
                                         void *const *, cudaDataType, int, int,
                                         cublasComputeType_t, cublasGemmAlgo_t);
static_assert(same_text(name_of_gemm_batched, TEXT_OF(cublasGemmBatchedEx)));
constexpr gemm_function gemm_declared = cublasGemmBatchedEx;
static_assert(calls<decltype(mp_cuda_blas::gemm_batched), decltype(+gemm_declared)>::alike());
constexpr bool checked_gemm_batched = true;

MP_BLAS_FUNCTIONS(CHECKED)
}

/* ---- Structs ------------------------------------------------------------------------------ */

#define FIELD(ours, our_field, theirs, their_field)                                \
    static_assert(offsetof(ours, our_field) == offsetof(theirs, their_field) &&    \
                      sizeof(ours::our_field) == sizeof(((theirs *)0)->their_field), \
                  #ours "." #our_field);

static_assert(sizeof(mp_cu_ptr) == sizeof(CUdeviceptr));
static_assert(sizeof(mp_cu_handle) == sizeof(CUmemGenericAllocationHandle));
static_assert(std::is_same_v<mp_cu_context, CUcontext> && std::is_same_v<mp_cu_stream, CUstream> &&
              std::is_same_v<mp_cu_event, CUevent> && std::is_same_v<mp_cu_module, CUmodule> &&
              std::is_same_v<mp_cu_function, CUfunction> &&
              std::is_same_v<mp_blas_handle, cublasHandle_t>);

static_assert(sizeof(mp_cu_location) == sizeof(CUmemLocation));
FIELD(mp_cu_location, type, CUmemLocation, type)
FIELD(mp_cu_location, id, CUmemLocation, id)

static_assert(sizeof(mp_cu_mem_prop) == sizeof(CUmemAllocationProp));
FIELD(mp_cu_mem_prop, type, CUmemAllocationProp, type)
FIELD(mp_cu_mem_prop, handle_types, CUmemAllocationProp, requestedHandleTypes)
FIELD(mp_cu_mem_prop, location, CUmemAllocationProp, location)
FIELD(mp_cu_mem_prop, unused, CUmemAllocationProp, win32HandleMetaData)
FIELD(mp_cu_mem_prop, compression, CUmemAllocationProp, allocFlags.compressionType)
FIELD(mp_cu_mem_prop, rdma, CUmemAllocationProp, allocFlags.gpuDirectRDMACapable)
FIELD(mp_cu_mem_prop, usage, CUmemAllocationProp, allocFlags.usage)
FIELD(mp_cu_mem_prop, reserved, CUmemAllocationProp, allocFlags.reserved)

static_assert(sizeof(mp_cu_access) == sizeof(CUmemAccessDesc));
FIELD(mp_cu_access, location, CUmemAccessDesc, location)
FIELD(mp_cu_access, flags, CUmemAccessDesc, flags)

#if CUDA_VERSION >= 12080
static_assert(sizeof(mp_cu_copy_attributes) == sizeof(CUmemcpyAttributes));
FIELD(mp_cu_copy_attributes, source_order, CUmemcpyAttributes, srcAccessOrder)
FIELD(mp_cu_copy_attributes, source, CUmemcpyAttributes, srcLocHint)
FIELD(mp_cu_copy_attributes, destination, CUmemcpyAttributes, dstLocHint)
FIELD(mp_cu_copy_attributes, flags, CUmemcpyAttributes, flags)
static_assert(MP_CU_SOURCE_ORDER_STREAM == (int)CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
#endif

/* ---- Constants ---------------------------------------------------------------------------- */

#define SAME(ours, theirs) static_assert((long long)(ours) == (long long)(theirs), #ours);
#define RESULT(name) SAME(MP_CU_##name, CUDA_ERROR_##name)
#define ATTRIBUTE(ours, theirs) SAME(MP_CU_ATTR_##ours, CU_DEVICE_ATTRIBUTE_##theirs)

SAME(MP_CU_SUCCESS, CUDA_SUCCESS)
RESULT(INVALID_VALUE)
RESULT(OUT_OF_MEMORY)
RESULT(NOT_INITIALIZED)
RESULT(DEINITIALIZED)
RESULT(NO_DEVICE)
RESULT(INVALID_DEVICE)
RESULT(INVALID_IMAGE)
RESULT(INVALID_CONTEXT)
RESULT(NO_BINARY_FOR_GPU)
RESULT(ECC_UNCORRECTABLE)
RESULT(INVALID_PTX)
RESULT(NVLINK_UNCORRECTABLE)
RESULT(JIT_COMPILER_NOT_FOUND)
RESULT(UNSUPPORTED_PTX_VERSION)
RESULT(JIT_COMPILATION_DISABLED)
RESULT(INVALID_HANDLE)
RESULT(NOT_FOUND)
RESULT(NOT_READY)
RESULT(ILLEGAL_ADDRESS)
RESULT(LAUNCH_OUT_OF_RESOURCES)
RESULT(LAUNCH_TIMEOUT)
RESULT(CONTEXT_IS_DESTROYED)
RESULT(ASSERT)
RESULT(HOST_MEMORY_ALREADY_REGISTERED)
RESULT(HARDWARE_STACK_ERROR)
RESULT(ILLEGAL_INSTRUCTION)
RESULT(MISALIGNED_ADDRESS)
RESULT(INVALID_ADDRESS_SPACE)
RESULT(INVALID_PC)
RESULT(LAUNCH_FAILED)
RESULT(NOT_SUPPORTED)
RESULT(MPS_CLIENT_TERMINATED)
RESULT(EXTERNAL_DEVICE)
RESULT(UNKNOWN)
SAME(MP_CU_CAPTURE_UNSUPPORTED, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
#if CUDA_VERSION >= 12080
RESULT(TENSOR_MEMORY_LEAK)
RESULT(CONTAINED)
#endif

ATTRIBUTE(MULTIPROCESSORS, MULTIPROCESSOR_COUNT)
ATTRIBUTE(PCI_BUS, PCI_BUS_ID)
ATTRIBUTE(PCI_DEVICE, PCI_DEVICE_ID)
ATTRIBUTE(PCI_DOMAIN, PCI_DOMAIN_ID)
ATTRIBUTE(L2_BYTES, L2_CACHE_SIZE)
ATTRIBUTE(COPY_ENGINES, ASYNC_ENGINE_COUNT)
ATTRIBUTE(MAJOR, COMPUTE_CAPABILITY_MAJOR)
ATTRIBUTE(MINOR, COMPUTE_CAPABILITY_MINOR)
ATTRIBUTE(SHARED_OPTIN, MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
ATTRIBUTE(VMM, VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)
ATTRIBUTE(STREAM_MEM_OPS_64, CAN_USE_64_BIT_STREAM_MEM_OPS)
#if CUDA_VERSION >= 12020
ATTRIBUTE(HOST_NUMA, HOST_NUMA_ID)
#endif

SAME(MP_CU_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING)
SAME(MP_CU_EVENT_BLOCKING_SYNC, CU_EVENT_BLOCKING_SYNC)
SAME(MP_CU_EVENT_DISABLE_TIMING, CU_EVENT_DISABLE_TIMING)
SAME(MP_CU_HOST_PORTABLE, CU_MEMHOSTALLOC_PORTABLE)
SAME(MP_CU_HOST_DEVICEMAP, CU_MEMHOSTALLOC_DEVICEMAP)
SAME(MP_CU_HOST_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE)
SAME(MP_CU_HOST_DEVICEMAP, CU_MEMHOSTREGISTER_DEVICEMAP)
SAME(MP_CU_ALLOCATION_PINNED, CU_MEM_ALLOCATION_TYPE_PINNED)
SAME(MP_CU_LOCATION_DEVICE, CU_MEM_LOCATION_TYPE_DEVICE)
SAME(MP_CU_ACCESS_READWRITE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
SAME(MP_CU_GRANULARITY_MINIMUM, CU_MEM_ALLOC_GRANULARITY_MINIMUM)
SAME(MP_CU_GRANULARITY_RECOMMENDED, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
SAME(MP_CU_POINTER_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
SAME(MP_CU_MEMORY_HOST, CU_MEMORYTYPE_HOST)
SAME(MP_CU_MEMORY_DEVICE, CU_MEMORYTYPE_DEVICE)
SAME(MP_CU_FUNC_LOCAL_BYTES, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)
SAME(MP_CU_FUNC_REGISTERS, CU_FUNC_ATTRIBUTE_NUM_REGS)
SAME(MP_CU_FUNC_MAX_DYNAMIC_SHARED, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
SAME(MP_CU_FUNC_SHARED_CARVEOUT, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT)
SAME(MP_CU_CAPTURE_MODE_RELAXED, CU_STREAM_CAPTURE_MODE_RELAXED)
SAME(MP_CU_CAPTURE_NONE, CU_STREAM_CAPTURE_STATUS_NONE)
SAME(MP_CU_CAPTURE_ACTIVE, CU_STREAM_CAPTURE_STATUS_ACTIVE)
SAME(MP_CU_CAPTURE_INVALIDATED, CU_STREAM_CAPTURE_STATUS_INVALIDATED)

SAME(MP_BLAS_OP_N, CUBLAS_OP_N)
SAME(MP_BLAS_OP_T, CUBLAS_OP_T)
SAME(MP_BLAS_R_32F, CUDA_R_32F)
SAME(MP_BLAS_R_16F, CUDA_R_16F)
SAME(MP_BLAS_R_16BF, CUDA_R_16BF)
SAME(MP_BLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F)
SAME(MP_BLAS_DEFAULT, CUBLAS_GEMM_DEFAULT)
SAME(MP_BLAS_SUCCESS, CUBLAS_STATUS_SUCCESS)
SAME(MP_BLAS_NOT_INITIALIZED, CUBLAS_STATUS_NOT_INITIALIZED)
SAME(MP_BLAS_ALLOC_FAILED, CUBLAS_STATUS_ALLOC_FAILED)
SAME(MP_BLAS_INVALID_VALUE, CUBLAS_STATUS_INVALID_VALUE)
SAME(MP_BLAS_ARCH_MISMATCH, CUBLAS_STATUS_ARCH_MISMATCH)
SAME(MP_BLAS_MAPPING_ERROR, CUBLAS_STATUS_MAPPING_ERROR)
SAME(MP_BLAS_EXECUTION_FAILED, CUBLAS_STATUS_EXECUTION_FAILED)
SAME(MP_BLAS_INTERNAL_ERROR, CUBLAS_STATUS_INTERNAL_ERROR)
SAME(MP_BLAS_NOT_SUPPORTED, CUBLAS_STATUS_NOT_SUPPORTED)
SAME(MP_BLAS_OLDEST % 100, 0)
SAME(MAJOR_VERSION, 0)
SAME(MINOR_VERSION, 1)
SAME(PATCH_LEVEL, 2)

static_assert(CUDA_VERSION >= MP_CUDA_OLDEST_DRIVER);

/* ---- What moepage-generate declares for itself --------------------------------------------- */

#define ALIKE(field, symbol, parameters)                                                        \
    static_assert(same_text(symbol, name_of_##field), #field ": another symbol");               \
    static_assert(calls<decltype(gpu_driver::field), decltype(mp_cuda_driver::field)>::alike(), \
                  #field ": other parameters");
GPU_DRIVER_FUNCTIONS(ALIKE)

namespace generate
{
GPU_BLAS_FUNCTIONS(OUR_NAME)
#undef CHECK
#define CHECK(field, function)                                                               \
    static_assert(same_text(name_of_##field, TEXT_OF(function)), #field ": another symbol"); \
    static_assert(calls<decltype(gpu_blas::field), decltype(&function)>::alike(),            \
                  #field ": other parameters");                                              \
    constexpr bool checked_##field = true;
CHECK(create, cublasCreate)
CHECK(destroy, cublasDestroy)
CHECK(set_stream, cublasSetStream)
CHECK(set_workspace, cublasSetWorkspace)

using gemm_function = cublasStatus_t (*)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int,
                                         int, const void *, const void *, cudaDataType, int,
                                         const void *, cudaDataType, int, const void *, void *,
                                         cudaDataType, int, cublasComputeType_t, cublasGemmAlgo_t);
static_assert(same_text(name_of_gemm, TEXT_OF(cublasGemmEx)));
constexpr gemm_function gemm_declared = cublasGemmEx;
static_assert(calls<decltype(gpu_blas::gemm), decltype(+gemm_declared)>::alike());
constexpr bool checked_gemm = true;

GPU_BLAS_FUNCTIONS(CHECKED)
}

SAME(GPU_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY)
SAME(GPU_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING)
SAME(GPU_BLAS_N, CUBLAS_OP_N)
SAME(GPU_BLAS_T, CUBLAS_OP_T)
SAME(GPU_BLAS_F32, CUDA_R_32F)
SAME(GPU_BLAS_BF16, CUDA_R_16BF)
SAME(GPU_BLAS_COMPUTE_F32, CUBLAS_COMPUTE_32F)
SAME(GPU_BLAS_DEFAULT, CUBLAS_GEMM_DEFAULT)
