// As much of a driver of CUDA 12.0 as it takes to make memory that other devices can fill, and to enter a GPU's context. Tests
// read what was asked of it, and have one of its functions fail. Once it is loaded, a search for libcuda.so.1 finds it.
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#define SHOWN __attribute__((visibility("default")))

struct properties {
  int type;
  int handles;
  int location_type;
  int location;
  void* unused;
  unsigned char flags[8];
};

SHOWN const char* dma_driver_fails = "";  // the function that fails with CUDA_ERROR_NOT_SUPPORTED
SHOWN int dma_driver_attributes = 1;      // of 110 and 124
SHOWN int dma_driver_ordering = 100;      // of writes by other devices
SHOWN int dma_driver_live = 0;         // reserved ranges, allocations, mappings and contexts that are current
SHOWN int dma_driver_partitioned = 0;  // by MIG
SHOWN uint64_t dma_driver_bytes = 0;
SHOWN int dma_driver_for_devices = 0;
SHOWN int dma_driver_gpu = -1;
SHOWN int dma_driver_handle_type = 0;
SHOWN uint64_t dma_driver_range = 0;  // of which a handle was asked
SHOWN uint64_t dma_driver_range_bytes = 0;
SHOWN uint64_t dma_driver_synchronous = 0;  // where copies wait for one another

SHOWN int dma_driver_stream = 0;            // what is answered about a stream
SHOWN int dma_driver_capture = 0;           // whether it records a graph
SHOWN void* dma_driver_stream_context = 0;  // of which it is

enum { kUnit = 2 << 20 };

static int outcome(const char* name) { return strcmp(dma_driver_fails, name) == 0 ? 801 : 0; }

// Any thread.
static void add_live(int change) { __atomic_fetch_add(&dma_driver_live, change, __ATOMIC_RELAXED); }

static int nothing(void) { return 0; }

static int one_gpu(int* count) {
  *count = 1;
  return 0;
}

static int retain(void** context, int gpu) {
  (void)gpu;
  *context = (void*)&dma_driver_live;
  return 0;
}

// Before CUDA 11.4 the function knew no instances of MIG.
static int whole_uuid(unsigned char* uuid, int gpu) {
  memset(uuid, 0x10 + gpu, 16);
  return 0;
}
static int uuid_of_instance(unsigned char* uuid, int gpu) {
  whole_uuid(uuid, gpu);
  if (dma_driver_partitioned) uuid[15] = 0x99;
  return 0;
}

static int get_attribute(int* value, int which, int gpu) {
  (void)gpu;
  *value = which == 110 || which == 124 ? dma_driver_attributes
           : which == 118               ? dma_driver_ordering
           : which == 33                ? 0xaf
           : which == 50                ? 1
                                        : 0;
  return outcome("cuDeviceGetAttribute");
}

static int push(void* context) {
  (void)context;
  add_live(1);
  return 0;
}

static int pop(void** context) {
  *context = NULL;
  add_live(-1);
  return 0;
}

static int granularity(size_t* unit, const struct properties* wish, int which) {
  (void)wish;
  (void)which;
  *unit = kUnit;
  return outcome("cuMemGetAllocationGranularity");
}

static int reserve(unsigned long long* address, size_t bytes, size_t alignment, unsigned long long near,
                   unsigned long long flags) {
  (void)bytes;
  (void)alignment;
  (void)near;
  (void)flags;
  const int failed = outcome("cuMemAddressReserve");
  if (failed != 0) return failed;
  *address = 0x700000000000;
  add_live(1);
  return 0;
}

static int unreserve(unsigned long long address, size_t bytes) {
  (void)address;
  (void)bytes;
  add_live(-1);
  return 0;
}

static int create(unsigned long long* handle, size_t bytes, const struct properties* wish,
                  unsigned long long flags) {
  (void)flags;
  const int failed = outcome("cuMemCreate");
  if (failed != 0) return failed;
  *handle = 5;
  dma_driver_bytes = bytes;
  dma_driver_for_devices = wish->flags[1];
  dma_driver_gpu = wish->location;
  add_live(1);
  return 0;
}

static int release(unsigned long long handle) {
  (void)handle;
  add_live(-1);
  return 0;
}

static int map(unsigned long long address, size_t bytes, size_t offset, unsigned long long handle,
               unsigned long long flags) {
  (void)address;
  (void)bytes;
  (void)offset;
  (void)handle;
  (void)flags;
  const int failed = outcome("cuMemMap");
  if (failed == 0) add_live(1);
  return failed;
}

static int unmap(unsigned long long address, size_t bytes) {
  (void)address;
  (void)bytes;
  add_live(-1);
  return 0;
}

static int set_access(unsigned long long address, size_t bytes, const void* access, size_t count) {
  (void)address;
  (void)bytes;
  (void)access;
  (void)count;
  return outcome("cuMemSetAccess");
}

static int range_handle(void* handle, unsigned long long address, size_t bytes, int type,
                        unsigned long long flags) {
  const int failed = outcome("cuMemGetHandleForAddressRange");
  if (failed != 0) return failed;
  if (address % 4096 != 0 || bytes % 4096 != 0 || flags != 0) return 1;  // as documented
  dma_driver_range = address;
  dma_driver_range_bytes = bytes;
  dma_driver_handle_type = type;
  *(int*)handle = dup(2);
  return 0;
}

static int set_pointer_attribute(const void* value, int which, unsigned long long address) {
  const int failed = outcome("cuPointerSetAttribute");
  if (failed == 0 && which == 6 && *(const unsigned*)value == 1) dma_driver_synchronous = address;
  return failed;
}

static int is_capturing(void* stream, int* capture) {
  (void)stream;
  if (dma_driver_stream == 0) *capture = dma_driver_capture;
  return dma_driver_stream;
}

static int stream_context(void* stream, void** context) {
  (void)stream;
  *context = dma_driver_stream_context;
  return dma_driver_stream;
}

SHOWN int cuDriverGetVersion(int* version) {
  *version = 12000;
  return 0;
}

SHOWN int cuGetProcAddress_v2(const char* name, void** function, int version, unsigned long long flags,
                              int* found) {
  const struct {
    const char* name;
    void* function;
  } known[] = {
      {"cuDeviceGetCount", (void*)one_gpu},
      {"cuDevicePrimaryCtxRetain", (void*)retain},
      {"cuDeviceGetAttribute", (void*)get_attribute},
      {"cuDeviceGetUuid", version < 11040 ? (void*)whole_uuid : (void*)uuid_of_instance},
      {"cuCtxPushCurrent", (void*)push},
      {"cuCtxPopCurrent", (void*)pop},
      {"cuMemGetAllocationGranularity", (void*)granularity},
      {"cuMemAddressReserve", (void*)reserve},
      {"cuMemAddressFree", (void*)unreserve},
      {"cuMemCreate", (void*)create},
      {"cuMemRelease", (void*)release},
      {"cuMemMap", (void*)map},
      {"cuMemUnmap", (void*)unmap},
      {"cuMemSetAccess", (void*)set_access},
      {"cuMemGetHandleForAddressRange", (void*)range_handle},
      {"cuPointerSetAttribute", (void*)set_pointer_attribute},
      {"cuStreamIsCapturing", (void*)is_capturing},
      {"cuStreamGetCtx", (void*)stream_context},
  };
  (void)flags;
  *found = 0;
  *function = (void*)nothing;
  for (size_t i = 0; i < sizeof known / sizeof known[0]; ++i)
    if (strcmp(known[i].name, name) == 0) *function = known[i].function;
  return 0;
}
