#include "gpu_memory.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "failure.h"
#include "units.h"

namespace tool {

namespace {

using Code = int;

// The part of the driver's interface that is used, as of CUDA 12.0.
struct Driver {
  Code (*init)(unsigned) = nullptr;
  Code (*count)(int*) = nullptr;
  Code (*retain)(void**, int) = nullptr;
  Code (*use)(void*) = nullptr;
  Code (*allocate)(unsigned long long*, size_t) = nullptr;
  Code (*free)(unsigned long long) = nullptr;
  Code (*put)(unsigned long long, const void*, size_t) = nullptr;
  Code (*get)(void*, unsigned long long, size_t) = nullptr;
  Code (*name)(Code, const char**) = nullptr;

  Driver() {
    void* const library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == nullptr) throw Failure{fmt::format("no GPU driver is installed: {}", dlerror())};
    const auto load = [library](auto& function, const char* symbol) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, symbol));
      if (function == nullptr) throw Failure{fmt::format("the GPU's driver has no {}", symbol)};
    };
    load(init, "cuInit");
    load(count, "cuDeviceGetCount");
    load(retain, "cuDevicePrimaryCtxRetain");
    load(use, "cuCtxSetCurrent");
    load(allocate, "cuMemAlloc_v2");
    load(free, "cuMemFree_v2");
    load(put, "cuMemcpyHtoD_v2");
    load(get, "cuMemcpyDtoH_v2");
    load(name, "cuGetErrorName");
    check(init(0), "starting the driver");
  }

  void check(Code code, const char* what) const {
    if (code == 0) return;
    const char* text = "an unknown error";
    (void)name(code, &text);
    throw Failure{fmt::format("GPU memory: {}: {} ({})", what, text, code)};
  }
};

const Driver& driver() {
  static const Driver instance;
  return instance;
}

}  // namespace

GpuMemory::GpuMemory(int which, uint64_t bytes) {
  const Driver& gpu = driver();
  int count = 0;
  gpu.check(gpu.count(&count), "counting GPUs");
  if (count == 0) throw Failure{"the driver shows this process no GPU"};
  const int turn = which < 0 ? -1 - which : which;
  device_ = static_cast<uint32_t>(which < 0 ? count - 1 - turn % count : turn % count);
  gpu.check(gpu.retain(&context_, static_cast<int>(device_)), "opening the GPU");
  gpu.check(gpu.use(context_), "opening the GPU");
  unsigned long long address = 0;
  gpu.check(gpu.allocate(&address, bytes),
            fmt::format("{} of it", format_size(static_cast<double>(bytes))).c_str());
  address_ = address;
}

GpuMemory::~GpuMemory() {
  (void)driver().use(context_);
  (void)driver().free(address_);
}

void GpuMemory::put(uint64_t offset, const void* from, uint64_t bytes) {
  driver().check(driver().use(context_), "using the GPU");
  driver().check(driver().put(address_ + offset, from, bytes), "copying to it");
}

void GpuMemory::get(uint64_t offset, void* to, uint64_t bytes) const {
  driver().check(driver().use(context_), "using the GPU");
  driver().check(driver().get(to, address_ + offset, bytes), "copying from it");
}

}  // namespace tool
