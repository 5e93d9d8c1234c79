// The part of the CUDA driver's binary interface that is used here, as of CUDA 12.0, loaded at run time: so
// the plugin is built without CUDA's headers, and loads without a driver.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/os/dynamic_library.h"

namespace towline::cuda::driver {

using Result = int;
using Device = int;
using Pointer = unsigned long long;
using Context = struct OpaqueContext*;
using Module = struct OpaqueModule*;
using Function = struct OpaqueFunction*;
using Stream = struct OpaqueStream*;
using Event = struct OpaqueEvent*;
using Graph = struct OpaqueGraph*;
using GraphNode = struct OpaqueGraphNode*;
using Handle = unsigned long long;  // of a VMM allocation
using MemoryPool = struct OpaqueMemoryPool*;
using GreenContext = struct OpaqueGreenContext*;
using ResourceDescriptor = struct OpaqueResourceDescriptor*;

inline constexpr Result kSuccess = 0;
inline constexpr Result kDeinitialized = 4;
inline constexpr Result kInvalidContext = 201;
inline constexpr Result kInvalidHandle = 400;
inline constexpr Result kNotReady = 600;
inline constexpr Result kCaptureUnjoined = 904;
inline constexpr Result kPeerAccessAlreadyEnabled = 704;
inline constexpr Result kContextIsDestroyed = 709;
inline constexpr Result kHostMemoryAlreadyRegistered = 712;

inline constexpr int kAttributeMultiprocessors = 16;
inline constexpr int kAttributeMajor = 75;  // of the compute capability
inline constexpr int kPeerAtomics = 3;      // attribute of two GPUs: atomics work on each other's memory
inline constexpr int kAttributePciBus = 33;
inline constexpr int kAttributePciDevice = 34;
inline constexpr int kAttributePciDomain = 50;
inline constexpr int kAttributeForOtherDevices = 110;  // VMM memory that they can fill
inline constexpr int kAttributeDmaBuf = 124;           // memory that is a dma-buf
inline constexpr int kAttributeWritesOrdering =
    118;  // of other devices: from 100 on the GPU itself needs no flush
inline constexpr int kAttributeHostPointers = 91;  // registered host memory is used at the host's addresses
inline constexpr int kAttributeHostNode = 134;     // of NUMA; -1: not known. From CUDA 12.2 on
inline constexpr int kFunctionThreads = 0;         // attribute: that a block may have

enum PointerAttribute : int {
  kContextOf = 1,
  kMemoryType = 2,
  kSyncMemops = 6,
  kBufferId = 7,
  kIsManaged = 8,
  kDeviceOrdinal = 9,
  kLegacyIpcCapable = 10,
  kRangeStart = 11,
  kRangeSize = 12,
  kAllowedHandleTypes = 14,
  kAccessFlags = 16,
  kPoolHandle = 17,
  kMappingSize = 18,
  kMappingStart = 19,
  kBlockId = 20,
};
inline constexpr unsigned kMemoryTypeHost = 1;
inline constexpr unsigned kMemoryTypeDevice = 2;
inline constexpr int kHandlePosixFd = 1;
inline constexpr int kLocationGpu = 1;
inline constexpr int kAccessNone = 0;
inline constexpr int kAccessRead = 1;
inline constexpr int kAccessReadWrite = 3;

struct IpcHandle {
  char bytes[64];
};

struct Location {
  int type;  // kLocationGpu
  int id;
};

struct AccessDescriptor {
  Location location;
  int flags;  // kAccess...
};

struct Uuid {
  char bytes[16];
};

// Properties of a VMM allocation, laid out as in cuda.h.
struct AllocationProperties {
  int type = 1;  // pinned to its place
  int handles = kHandlePosixFd;
  Location location = {kLocationGpu, 0};
  void* unused = nullptr;
  unsigned char flags[8] = {};
};
static_assert(sizeof(AllocationProperties) == 32);
inline constexpr int kFlagForOtherDevices = 1;  // index into its flags
inline constexpr int kLeastGranularity = 0;
inline constexpr int kRangeDmaBuf = 1;  // what a range's handle is

inline constexpr unsigned kIpcLazyPeerAccess = 1;
inline constexpr unsigned kHostPortableMapped = 3;
inline constexpr unsigned kStreamOrdered = 0;  // with the default stream
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr uintptr_t kLastSpecialStream = 2;  // 0, 1, 2 stand for default streams
inline constexpr unsigned kEventWithoutTime = 2;
inline constexpr unsigned kWaitInReplays = 1;  // a captured wait is for records outside of the graph

enum CaptureStatus : int { kCaptureNone = 0, kCaptureActive = 1, kCaptureInvalidated = 2 };
enum CaptureMode : int { kCaptureGlobal = 0, kCaptureThread = 1, kCaptureRelaxed = 2 };
inline constexpr unsigned kAddDependencies = 0;

// Part of a GPU, as cuda.h lays it out.
struct Resource {
  int type = 0;
  unsigned char unused[92] = {};
  unsigned multiprocessors = 0;
  unsigned char more[44] = {};
};
static_assert(sizeof(Resource) == 144);
inline constexpr int kMultiprocessors = 1;  // a Resource's type
inline constexpr unsigned kGreenDefaultStream = 1;

// The attributes of a batch of copies, as laid out in cuda.h.
struct CopyAttributes {
  int source_order = 1;  // as the stream orders it
  Location source_hint = {0, 0};
  Location target_hint = {0, 0};
  unsigned flags = 1;  // beside kernels, if it can be
};
static_assert(sizeof(CopyAttributes) == 24);

// CUlaunchConfig and one CUlaunchAttribute.
struct LaunchAttribute {
  int id = 0;
  int padding = 0;
  union {
    int number = 0;
    unsigned cluster[3];  // blocks
    unsigned char bytes[64];
  } value;
};
static_assert(sizeof(LaunchAttribute) == 72);
struct LaunchConfig {
  unsigned grid[3] = {1, 1, 1};
  unsigned block[3] = {1, 1, 1};
  unsigned shared_bytes = 0;
  Stream stream = nullptr;
  LaunchAttribute* attributes = nullptr;
  unsigned attribute_count = 0;
};
static_assert(sizeof(LaunchConfig) == 56);
// The kernel may begin before the one ahead of it in its stream has ended: it waits itself.
inline constexpr int kLaunchMayBeginEarly = 6;
inline constexpr int kLaunchInClusters = 4;
inline constexpr int kFunctionPtxVersion = 5;  // attribute: 90 where the kernel was compiled for 9.0

struct Api {
  // Loads the driver, `file` in its place in tests; throws Error that says what is missing.
  explicit Api(const char* file = "libcuda.so.1");

  [[nodiscard]] std::string text(Result code) const;
  // Throws Error "cuda: <what>: CUDA_ERROR_..." unless it went well.
  void check(Result code, const char* what) const;

  DynamicLibrary library;
  int version = 0;  // 13000: CUDA 13.0

  Result (*init)(unsigned) = nullptr;
  Result (*get_error_name)(Result, const char**) = nullptr;
  Result (*device_get_count)(int*) = nullptr;
  Result (*device_get)(Device*, int) = nullptr;
  Result (*device_get_name)(char*, int, Device) = nullptr;
  Result (*device_get_uuid)(Uuid*, Device) = nullptr;
  Result (*device_get_whole_uuid)(Uuid*,
                                  Device) = nullptr;  // with MIG: of the GPU that the instance is part of
  Result (*device_get_attribute)(int*, int, Device) = nullptr;
  Result (*device_can_access_peer)(int*, Device, Device) = nullptr;
  Result (*device_get_p2p_attribute)(int*, int, Device, Device) = nullptr;
  Result (*primary_get_state)(Device, unsigned*, int*) = nullptr;
  Result (*primary_retain)(Context*, Device) = nullptr;
  Result (*context_push)(Context) = nullptr;
  Result (*context_pop)(Context*) = nullptr;
  Result (*context_get_current)(Context*) = nullptr;
  Result (*context_synchronize)() = nullptr;
  Result (*context_enable_peer)(Context, unsigned) = nullptr;
  Result (*module_load)(Module*, const void*) = nullptr;
  Result (*module_get_function)(Function*, Module, const char*) = nullptr;
  Result (*launch)(Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream,
                   void**, void**) = nullptr;
  Result (*launch_with)(const LaunchConfig*, Function, void**, void**) = nullptr;
  Result (*function_get_attribute)(int*, int, Function) = nullptr;
  Result (*occupancy_clusters)(int*, Function, const LaunchConfig*) = nullptr;
  Result (*stream_create)(Stream*, unsigned) = nullptr;
  Result (*stream_create_with_priority)(Stream*, unsigned, int) = nullptr;
  Result (*context_get_priorities)(int*, int*) = nullptr;
  Result (*stream_destroy)(Stream) = nullptr;
  Result (*stream_query)(Stream) = nullptr;
  Result (*stream_synchronize)(Stream) = nullptr;
  Result (*stream_write_value64)(Stream, Pointer, uint64_t, unsigned) = nullptr;
  Result (*stream_get_context)(Stream, Context*) = nullptr;
  Result (*stream_is_capturing)(Stream, CaptureStatus*) = nullptr;
  Result (*stream_get_capture)(Stream, CaptureStatus*, uint64_t*, Graph*, const GraphNode**,
                               size_t*) = nullptr;
  Result (*stream_update_capture)(Stream, GraphNode*, size_t, unsigned) = nullptr;
  Result (*exchange_capture_mode)(CaptureMode*) = nullptr;
  Result (*event_create)(Event*, unsigned) = nullptr;
  Result (*event_destroy)(Event) = nullptr;
  Result (*event_record)(Event, Stream) = nullptr;
  Result (*graph_add_event_record)(GraphNode*, Graph, const GraphNode*, size_t, Event) = nullptr;
  Result (*graph_add_edges)(Graph, const GraphNode*, const GraphNode*, size_t) = nullptr;
  Result (*graph_remove_edges)(Graph, const GraphNode*, const GraphNode*, size_t) = nullptr;
  Result (*stream_wait_event)(Stream, Event, unsigned) = nullptr;
  Result (*memory_alloc)(Pointer*, size_t) = nullptr;
  Result (*memory_free)(Pointer) = nullptr;
  Result (*memory_set32)(Pointer, unsigned, size_t) = nullptr;
  Result (*memory_set32_async)(Pointer, unsigned, size_t, Stream) = nullptr;
  Result (*memory_copy_async)(Pointer, Pointer, size_t, Stream) = nullptr;
  Result (*host_alloc)(void**, size_t, unsigned) = nullptr;
  Result (*host_free)(void*) = nullptr;
  Result (*host_register)(void*, size_t, unsigned) = nullptr;
  Result (*host_unregister)(void*) = nullptr;
  Result (*host_device_pointer)(Pointer*, void*, unsigned) = nullptr;
  Result (*pointer_get_attribute)(void*, int, Pointer) = nullptr;
  Result (*pointer_set_attribute)(const void*, int, Pointer) = nullptr;  // null: the driver has none
  Result (*pointer_get_attributes)(unsigned, int*, void**, Pointer) = nullptr;
  Result (*ipc_get_handle)(IpcHandle*, Pointer) = nullptr;
  Result (*ipc_open_handle)(Pointer*, IpcHandle, unsigned) = nullptr;
  Result (*ipc_close_handle)(Pointer) = nullptr;
  Result (*vmm_create)(Handle*, size_t, const AllocationProperties*, unsigned long long) = nullptr;
  Result (*vmm_granularity)(size_t*, const AllocationProperties*, int) = nullptr;
  Result (*context_get_device)(Device*) = nullptr;
  Result (*event_query)(Event) = nullptr;
  Result (*vmm_retain)(Handle*, void*) = nullptr;
  Result (*vmm_release)(Handle) = nullptr;
  Result (*vmm_export)(void*, Handle, int, unsigned long long) = nullptr;
  Result (*vmm_import)(Handle*, void*, int) = nullptr;
  Result (*vmm_reserve)(Pointer*, size_t, size_t, Pointer, unsigned long long) = nullptr;
  Result (*vmm_free)(Pointer, size_t) = nullptr;
  Result (*vmm_map)(Pointer, size_t, size_t, Handle, unsigned long long) = nullptr;
  Result (*vmm_unmap)(Pointer, size_t) = nullptr;
  Result (*vmm_set_access)(Pointer, size_t, const AccessDescriptor*, size_t) = nullptr;
  Result (*vmm_get_access)(unsigned long long*, const Location*, Pointer) = nullptr;
  Result (*pool_set_access)(MemoryPool, const AccessDescriptor*, size_t) = nullptr;
  Result (*pool_get_access)(int*, MemoryPool, Location*) = nullptr;
  // Null: the driver has none.
  Result (*range_handle)(void*, Pointer, size_t, int, unsigned long long) = nullptr;
  // From CUDA 12.5 on; null before.
  Result (*function_load)(Function) = nullptr;
  Result (*device_get_resource)(Device, Resource*, int) = nullptr;
  Result (*split_multiprocessors)(Resource*, unsigned*, const Resource*, Resource*, unsigned,
                                  unsigned) = nullptr;
  Result (*describe_resource)(ResourceDescriptor*, Resource*, unsigned) = nullptr;
  Result (*green_create)(GreenContext*, ResourceDescriptor, Device, unsigned) = nullptr;
  Result (*green_get_resource)(GreenContext, Resource*, int) = nullptr;
  Result (*context_of_green)(Context*, GreenContext) = nullptr;
  Result (*green_stream_create)(Stream*, GreenContext, unsigned, int) = nullptr;
  // From CUDA 13.0 on, and as 12.8 has it. Null: the driver is older.
  Result (*memory_copy_batch)(Pointer*, Pointer*, size_t*, size_t, CopyAttributes*, size_t*, size_t,
                              Stream) = nullptr;
  Result (*memory_copy_batch_12)(Pointer*, Pointer*, size_t*, size_t, CopyAttributes*, size_t*, size_t,
                                 size_t*, Stream) = nullptr;
};

}  // namespace towline::cuda::driver
