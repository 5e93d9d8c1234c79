#include "gpu/cuda.h"

#include <exception>

namespace towline::gpu_test {

namespace {

using cuda::driver::Context;
using cuda::driver::Handle;
using cuda::driver::Pointer;
using cuda::driver::Result;

// As cuda.h has it.
struct AllocationProperties {
  int type;
  int handle_types;
  cuda::driver::Location location;
  void* unused;
  unsigned char flags[8];
};

}  // namespace

Cuda::Cuda() {
  api_.check(api_.init(0), "cuInit");
  int count = 0;
  api_.check(api_.device_get_count(&count), "cuDeviceGetCount");
  contexts_.resize(static_cast<size_t>(count));
}

Cuda* Cuda::get(std::string& why_not) {
  static std::string reason;
  static Cuda* const cuda = []() -> Cuda* {
    try {
      return new Cuda;
    } catch (const std::exception& error) {
      reason = error.what();
      return nullptr;
    }
  }();
  why_not = reason;
  return cuda != nullptr && cuda->gpus() != 0 ? cuda : nullptr;
}

Context Cuda::current() const {
  Context context = nullptr;
  api_.library.symbol<Result (*)(Context*)>("cuCtxGetCurrent")(&context);
  return context;
}

void Cuda::use(uint32_t gpu) {
  Context& context = contexts_.at(gpu);
  if (context == nullptr)
    api_.check(api_.primary_retain(&context, static_cast<int>(gpu)), "cuDevicePrimaryCtxRetain");
  api_.check(api_.library.symbol<Result (*)(Context)>("cuCtxSetCurrent")(context), "cuCtxSetCurrent");
}

GpuMemory::GpuMemory(Cuda& cuda, uint32_t gpu, uint64_t bytes, Sort sort)
    : cuda_(cuda), gpu_(gpu), bytes_(bytes), sort_(sort) {
  cuda.use(gpu);
  const auto& api = cuda.api();
  Pointer pointer = 0;
  if (sort == Sort::kPlain) {
    api.check(api.memory_alloc(&pointer, bytes), "cuMemAlloc");
    address_ = pointer;
    return;
  }
  if (sort == Sort::kPool) {
    const auto allocate =
        api.library.symbol<Result (*)(Pointer*, size_t, cuda::driver::Stream)>("cuMemAllocAsync");
    api.check(allocate(&pointer, bytes, nullptr), "cuMemAllocAsync");
    api.check(api.stream_synchronize(nullptr), "cuMemAllocAsync");
    address_ = pointer;
    return;
  }
  const AllocationProperties properties{
      1, cuda::driver::kHandlePosixFd, {1, static_cast<int>(gpu)}, nullptr, {}};
  const auto create =
      api.library.symbol<Result (*)(Handle*, size_t, const AllocationProperties*, unsigned long long)>(
          "cuMemCreate");
  Handle handle = 0;
  api.check(create(&handle, bytes, &properties, 0), "cuMemCreate");
  api.check(api.vmm_reserve(&pointer, bytes, 0, 0, 0), "cuMemAddressReserve");
  api.check(api.vmm_map(pointer, bytes, 0, handle, 0), "cuMemMap");
  api.vmm_release(handle);
  address_ = pointer;
  if (sort == Sort::kVmmClosed) return;
  const cuda::driver::AccessDescriptor access{{1, static_cast<int>(gpu)}, 3};
  api.check(api.vmm_set_access(pointer, bytes, &access, 1), "cuMemSetAccess");
}

GpuMemory::~GpuMemory() {
  const auto& api = cuda_.api();
  cuda_.use(gpu_);
  if (sort_ == Sort::kPlain || sort_ == Sort::kPool) {
    api.memory_free(address_);
    return;
  }
  api.vmm_unmap(address_, bytes_);
  api.vmm_free(address_, bytes_);
}

void GpuMemory::put(const std::vector<uint8_t>& bytes) {
  cuda_.use(gpu_);
  const auto& api = cuda_.api();
  api.check(api.memory_copy_async(address_, reinterpret_cast<Pointer>(bytes.data()), bytes.size(), nullptr),
            "put");
  api.check(api.stream_synchronize(nullptr), "put");
}

std::vector<uint8_t> GpuMemory::get() const {
  cuda_.use(gpu_);
  std::vector<uint8_t> bytes(bytes_);
  const auto& api = cuda_.api();
  api.check(api.memory_copy_async(reinterpret_cast<Pointer>(bytes.data()), address_, bytes_, nullptr), "get");
  api.check(api.stream_synchronize(nullptr), "get");
  return bytes;
}

Stream::Stream(Cuda& cuda, uint32_t gpu) : cuda_(cuda), gpu_(gpu) {
  cuda.use(gpu);
  cuda.api().check(cuda.api().stream_create(&stream_, cuda::driver::kStreamNonBlocking), "cuStreamCreate");
}

Stream::~Stream() {
  cuda_.use(gpu_);
  const auto& library = cuda_.api().library;
  if (executable_ != nullptr) library.symbol<Result (*)(Executable*)>("cuGraphExecDestroy")(executable_);
  if (graph_ != nullptr) library.symbol<Result (*)(cuda::driver::Graph)>("cuGraphDestroy")(graph_);
  cuda_.api().stream_destroy(stream_);
}

void Stream::fill(uint64_t address, unsigned word, uint64_t bytes) {
  cuda_.use(gpu_);
  cuda_.api().check(cuda_.api().memory_set32_async(address, word, bytes / 4, stream_), "cuMemsetD32Async");
}

void Stream::copy(uint64_t to, uint64_t from, uint64_t bytes) {
  cuda_.use(gpu_);
  cuda_.api().check(cuda_.api().memory_copy_async(to, from, bytes, stream_), "cuMemcpyAsync");
}

void Stream::drain() {
  cuda_.use(gpu_);
  cuda_.api().check(cuda_.api().stream_synchronize(stream_), "cuStreamSynchronize");
}

// In the mode that minds what other threads do meanwhile.
void Stream::record() {
  cuda_.use(gpu_);
  const auto begin =
      cuda_.api().library.symbol<Result (*)(cuda::driver::Stream, int)>("cuStreamBeginCapture_v2");
  cuda_.api().check(begin(stream_, cuda::driver::kCaptureGlobal), "cuStreamBeginCapture");
}

void Stream::end_record() {
  const auto& api = cuda_.api();
  using cuda::driver::Graph;
  api.check(
      api.library.symbol<Result (*)(cuda::driver::Stream, Graph*)>("cuStreamEndCapture")(stream_, &graph_),
      "cuStreamEndCapture");
  const auto instantiate =
      api.library.symbol<Result (*)(Executable**, Graph, unsigned long long)>("cuGraphInstantiateWithFlags");
  api.check(instantiate(&executable_, graph_, 0), "cuGraphInstantiate");
}

void Stream::replay() {
  cuda_.use(gpu_);
  const auto& api = cuda_.api();
  api.check(api.library.symbol<Result (*)(Executable*, cuda::driver::Stream)>("cuGraphLaunch")(executable_,
                                                                                               stream_),
            "cuGraphLaunch");
  drain();
}

}  // namespace towline::gpu_test
