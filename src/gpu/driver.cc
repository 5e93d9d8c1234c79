#include "gpu/driver.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>

#include "base/error.h"
#include "base/os/memfd.h"
#include "gpu/driver_api.h"
#include "gpu/driver_dma_memory.h"
#include "gpu/driver_queue.h"
#include "gpu/driver_valve.h"
#include "gpu/kernel_image.h"

namespace towline::cuda {

namespace {

using driver::Api;
using driver::kSuccess;

class Nvidia;

// Gpu::whole_lines. Where atomics reach other GPUs, NVLink joins them; over PCIe a store is cut. Of GPUs of compute capability 9
// alone it was tried, and GPUs that are hidden from this process can't be asked.
bool stores_whole_lines(const Api& api, int gpu, int count) {
  constexpr int kTried = 9;
  int major = 0;
  if (api.device_get_attribute(&major, driver::kAttributeMajor, gpu) != kSuccess || major != kTried)
    return false;
  for (int other = 0; other < count; ++other) {
    if (other == gpu) continue;
    int atomics = 0;
    if (api.device_get_p2p_attribute(&atomics, driver::kPeerAtomics, gpu, other) != kSuccess || atomics == 0)
      return false;
  }
  return count > 1;
}

// Peers' GPU memory: by descriptor, in one reserved range.
class DescriptorMapping : public Mapped {
 public:
  DescriptorMapping(const Api& api, uint32_t gpu, std::span<const Shared> parts, bool writable) : api_(api) {
    for (const Shared& part : parts) bytes_ += part.bytes;
    try {
      api.check(api.vmm_reserve(&base_, bytes_, 0, 0, 0), "reserving addresses for a peer's memory");
      for (const Shared& part : parts) {
        driver::Handle handle = 0;
        void* const fd = reinterpret_cast<void*>(static_cast<intptr_t>(part.fd.get()));
        api.check(api.vmm_import(&handle, fd, driver::kHandlePosixFd), "importing a peer's memory");
        const driver::Result mapped = api.vmm_map(base_ + mapped_, part.bytes, 0, handle, 0);
        api.vmm_release(handle);  // the mapping keeps it
        api.check(mapped, "mapping a peer's memory");
        mapped_ += part.bytes;
      }
      const driver::AccessDescriptor access{{driver::kLocationGpu, static_cast<int>(gpu)},
                                            writable ? driver::kAccessReadWrite : driver::kAccessRead};
      api.check(api.vmm_set_access(base_, bytes_, &access, 1),
                "access to a peer's memory (is there a path between the GPUs?)");
    } catch (...) {
      undo();
      throw;
    }
  }
  ~DescriptorMapping() override { undo(); }
  [[nodiscard]] uint64_t address() const noexcept override { return base_; }

 private:
  void undo() noexcept {
    if (mapped_ != 0) api_.vmm_unmap(base_, mapped_);
    if (base_ != 0) api_.vmm_free(base_, bytes_);
  }

  const Api& api_;
  driver::Pointer base_ = 0;
  uint64_t bytes_ = 0;
  uint64_t mapped_ = 0;
};

class Nvidia final : public Device {
 public:
  Nvidia() {
    if (kernel_image().empty())
      fail(Status::kUnsupported, "cuda: this plugin was built without CUDA's compiler: it has no kernels");
  }

  void start() override {
    const std::lock_guard lock(mutex_);
    if (started_) return;
    api_.check(api_.init(0), "cuInit");
    int count = 0;
    api_.check(api_.device_get_count(&count), "cuDeviceGetCount");
    if (count == 0) fail(Status::kUnsupported, "cuda: the driver shows this process no GPU");
    gpus_.resize(static_cast<size_t>(count));
    contexts_ = std::vector<Kernels>(gpus_.size());
    for (int i = 0; i < count; ++i) {
      Gpu& gpu = gpus_[static_cast<size_t>(i)];
      char name[128] = "";
      int multiprocessors = 0;
      api_.check(api_.device_get_name(name, sizeof name, i), "cuDeviceGetName");
      identify(api_, i, gpu);
      api_.check(api_.device_get_attribute(&multiprocessors, driver::kAttributeMultiprocessors, i),
                 "cuDeviceGetAttribute");
      gpu.name = name;
      gpu.multiprocessors = static_cast<uint32_t>(multiprocessors);
      int same = 0;
      same_addresses_ = api_.device_get_attribute(&same, driver::kAttributeHostPointers, i) == kSuccess &&
                        same != 0 && same_addresses_;
      int node = -1;
      if (api_.device_get_attribute(&node, driver::kAttributeHostNode, i) == kSuccess && node >= 0)
        gpu.host_node = static_cast<uint32_t>(node);
      gpu.pci_address = pci_address_of(api_, i);
      gpu.whole_lines = stores_whole_lines(api_, i, count);
    }
    started_ = true;
  }

  void load(uint32_t gpu) override { (void)context(gpu); }

  [[nodiscard]] const std::vector<Gpu>& gpus() const noexcept override { return gpus_; }

  [[nodiscard]] bool same_addresses() const noexcept override { return same_addresses_; }

  [[nodiscard]] bool in_use(uint32_t gpu) const noexcept override {
    unsigned flags = 0;
    int active = 0;
    return gpu < gpus_.size() && api_.primary_get_state(static_cast<int>(gpu), &flags, &active) == kSuccess &&
           active != 0;
  }

  [[nodiscard]] Allocation locate(uint64_t address) const override {
    Allocation result;
    unsigned type = 0;
    int ordinal = 0;
    unsigned managed = 0;
    size_t bytes = 0;
    driver::Pointer start = 0;
    int wanted[] = {driver::kMemoryType, driver::kDeviceOrdinal, driver::kRangeStart, driver::kRangeSize,
                    driver::kIsManaged};
    void* answers[] = {&type, &ordinal, &start, &bytes, &managed};
    // Asked in this form, memory that the driver does not know is no error.
    if (api_.pointer_get_attributes(std::size(wanted), wanted, answers, address) != kSuccess || type == 0)
      return result;
    if (type == driver::kMemoryTypeDevice && bytes == 0)
      return result;  // an attribute it can't tell is left as it was
    result.gpu = static_cast<uint32_t>(ordinal);
    result.address = start;
    result.bytes = bytes;
    result.where = managed != 0                        ? Where::kManaged
                   : type == driver::kMemoryTypeDevice ? Where::kGpu
                                                       : Where::kHost;
    return result;
  }

  [[nodiscard]] Allocation look_up(uint64_t address) const override {
    Allocation result = locate(address);
    if (result.where != Where::kUnknown) api_.pointer_get_attribute(&result.id, driver::kBufferId, address);
    if (result.where == Where::kGpu) find_sharing(address, result);
    return result;
  }

  [[nodiscard]] Shared share(const Allocation& allocation) const override {
    Shared shared;
    shared.sharing = allocation.sharing;
    shared.address = allocation.address;
    shared.bytes = allocation.bytes;
    shared.id = allocation.id;
    if (allocation.sharing == Sharing::kDescriptor) {
      driver::Handle handle = 0;
      int fd = -1;
      api_.check(api_.vmm_retain(&handle, reinterpret_cast<void*>(allocation.address)),
                 "finding a VMM allocation");
      const driver::Result exported = api_.vmm_export(&fd, handle, driver::kHandlePosixFd, 0);
      api_.vmm_release(handle);
      api_.check(exported, "exporting a VMM allocation as a file descriptor");
      shared.fd.reset(fd);
    } else if (allocation.sharing == Sharing::kHandle) {
      const Current current(api_, context(allocation.gpu).context);
      driver::IpcHandle handle{};
      api_.check(api_.ipc_get_handle(&handle, allocation.address), "cuIpcGetMemHandle");
      std::memcpy(shared.handle.data(), handle.bytes, shared.handle.size());
    } else {
      fail(Status::kUnsupported, "cuda: {}", allocation.why_not);
    }
    return shared;
  }

  std::unique_ptr<Mapped> map(uint32_t gpu, std::span<const Shared> parts, bool writable) override {
    const Kernels& kernels = context(gpu);
    if (parts.front().sharing == Sharing::kDescriptor)
      return std::make_unique<DescriptorMapping>(api_, gpu, parts, writable);
    if (parts.size() != 1)
      fail(Status::kUnsupported,
           "cuda: a region over several cudaMalloc allocations can't be mapped as one; register each");
    driver::IpcHandle handle{};
    std::memcpy(handle.bytes, parts.front().handle.data(), sizeof handle.bytes);
    const Current current(api_, kernels.context);
    driver::Pointer address = 0;
    api_.check(api_.ipc_open_handle(&address, handle, driver::kIpcLazyPeerAccess), "cuIpcOpenMemHandle");
    return std::make_unique<HandleMapping>(*this, kernels.context, address);
  }

  [[nodiscard]] bool may_reach(uint32_t gpu, const Uuid& other) const noexcept override {
    for (uint32_t i = 0; i < gpus_.size(); ++i) {
      if (i == gpu || gpus_[i].uuid != other) continue;
      int can = 1;
      return api_.device_can_access_peer(&can, static_cast<int>(gpu), static_cast<int>(i)) != kSuccess ||
             can != 0;
    }
    return true;  // the same, or one that is hidden from this process
  }

  std::unique_ptr<Pinned> find_pinned(uint64_t address, uint64_t bytes) override;
  std::unique_ptr<Pinned> pin(uint64_t address, uint64_t bytes) override;
  [[nodiscard]] bool unpinning_waits() const noexcept override { return true; }

  std::unique_ptr<DmaMemory> make_dma_memory(uint32_t gpu, uint64_t bytes) override {
    return make_driver_dma_memory(api_, context(gpu).context, gpu, bytes);
  }
  [[nodiscard]] DmaExport export_memory(uint32_t gpu, uint64_t address, uint64_t bytes) override {
    return export_driver_memory(api_, context(gpu).context, gpu, address, bytes);
  }

  std::unique_ptr<CopyQueue> make_queue(uint32_t gpu, bool after_default, const ReserveWish& wish,
                                        bool urgent) override {
    const Kernels& kernels = context(gpu);
    Green green;
    if (wish.any() && !after_default) green = find_green(gpu, wish).green;
    return make_driver_queue(api_, kernels, after_default, urgent, green);
  }

  [[nodiscard]] Reserve reserve(uint32_t gpu, const ReserveWish& wish) override {
    if (!wish.any()) return {0, "not asked for"};
    (void)context(gpu);
    const Reserved& reserved = find_green(gpu, wish);
    return {reserved.green.sms, reserved.why_not};
  }

  [[nodiscard]] StreamState stream_state(uint32_t gpu, void* stream) override {
    const driver::Context mine = context(gpu).context;
    const Current current(api_, mine);
    return look_at_stream(api_, mine, stream);
  }

  Valve& take_valve(uint32_t gpu) override {
    const Kernels& kernels = context(gpu);
    const std::lock_guard lock(valves_mutex_);
    auto& pool = valves_[gpu];
    if (pool == nullptr) pool = std::make_unique<DriverValves>(api_, kernels);
    return pool->take();
  }
  void give_valve_back(Valve& valve) noexcept override {
    const std::lock_guard lock(valves_mutex_);
    static_cast<DriverValve&>(valve).give_back();
  }

  [[nodiscard]] std::string code_text(Code code) const override { return api_.text(code); }

  [[nodiscard]] const Api& api() const noexcept { return api_; }
  [[nodiscard]] driver::Context primary(uint32_t gpu) const { return context(gpu).context; }
  driver::GreenContext green(uint32_t gpu, const ReserveWish& wish) {
    if (!wish.any()) return nullptr;
    (void)context(gpu);
    return find_green(gpu, wish).green.context;
  }

 protected:
  void enable_peer(uint32_t gpu, uint32_t other) override {
    check_path(gpu, other);
    const driver::Context theirs = context(other).context;
    const Current current(api_, context(gpu).context);
    const driver::Result result = api_.context_enable_peer(theirs, 0);
    if (result != driver::kPeerAccessAlreadyEnabled) api_.check(result, "cuCtxEnablePeerAccess");
  }

  [[nodiscard]] std::optional<Use> access(uint32_t gpu, const Allocation& allocation) const override {
    driver::Location location{driver::kLocationGpu, static_cast<int>(gpu)};
    unsigned long long flags = 0;
    if (allocation.made == Made::kMapped) {
      api_.check(api_.vmm_get_access(&flags, &location, allocation.address), "cuMemGetAccess");
    } else {
      int of_pool = 0;
      api_.check(api_.pool_get_access(&of_pool, pool_of(allocation), &location), "cuMemPoolGetAccess");
      flags = static_cast<unsigned>(of_pool);
    }
    if (flags == driver::kAccessNone) return std::nullopt;
    return flags == driver::kAccessReadWrite ? Use::kWrite : Use::kRead;
  }

  void grant(uint32_t gpu, const Allocation& allocation) override {
    if (gpu != allocation.gpu) check_path(gpu, allocation.gpu);
    const driver::AccessDescriptor access{{driver::kLocationGpu, static_cast<int>(gpu)},
                                          driver::kAccessReadWrite};
    if (allocation.made == Made::kMapped)
      api_.check(api_.vmm_set_access(allocation.address, allocation.bytes, &access, 1), "cuMemSetAccess");
    else
      api_.check(api_.pool_set_access(pool_of(allocation), &access, 1), "cuMemPoolSetAccess");
  }

 private:
  class HandleMapping : public Mapped {
   public:
    HandleMapping(const Nvidia& device, driver::Context context, driver::Pointer address)
        : device_(device), context_(context), address_(address) {}
    ~HandleMapping() override {
      const Current current(device_.api_, context_);
      device_.api_.ipc_close_handle(address_);
    }
    [[nodiscard]] uint64_t address() const noexcept override { return address_; }

   private:
    const Nvidia& device_;
    driver::Context context_;
    driver::Pointer address_;
  };

  struct Reserved {
    Green green;
    std::string why_not;
  };

  // The GPU's context is there.
  const Reserved& find_green(uint32_t gpu, const ReserveWish& wish) {
    const std::lock_guard lock(mutex_);
    const auto [found, fresh] = reserved_.try_emplace({gpu, wish});
    if (!fresh) return found->second;
    try {
      found->second.green = make_green(gpu, wish);
    } catch (const core::Error& error) {
      found->second.why_not = error.message();
    }
    return found->second;
  }

  // The driver deals out multiprocessors in a fixed order: a context of as many as the application's gets the same
  // ones, and what is left over is nobody else's.
  Green make_green(uint32_t gpu, const ReserveWish& wish) const {
    if (api_.green_stream_create == nullptr)
      fail(Status::kUnsupported, "cuda: the driver (CUDA {}.{}) has no green contexts: 12.5 is needed",
           api_.version / 1000, api_.version % 1000 / 10);
    if (wish.context != 0) return given_green(gpu, wish.context);
    const unsigned wanted = wish.sms != 0 ? wish.sms : wish.application_sms;
    driver::Resource all;
    driver::Resource part;
    driver::Resource rest;
    unsigned parts = 1;
    api_.check(api_.device_get_resource(static_cast<int>(gpu), &all, driver::kMultiprocessors),
               "cuDeviceGetDevResource (a GPU that is partitioned by MIG or a hypervisor may refuse)");
    api_.check(api_.split_multiprocessors(&part, &parts, &all, &rest, 0, wanted),
               "splitting the GPU's multiprocessors");
    driver::Resource& mine = wish.sms != 0 ? part : rest;
    if (parts == 0 || mine.type != driver::kMultiprocessors || mine.multiprocessors == 0)
      fail(Status::kUnsupported, "cuda: {} of the GPU's {} multiprocessors leave none to reserve", wanted,
           all.multiprocessors);
    driver::ResourceDescriptor descriptor = nullptr;
    Green green{nullptr, mine.multiprocessors};
    api_.check(api_.describe_resource(&descriptor, &mine, 1), "cuDevResourceGenerateDesc");
    api_.check(
        api_.green_create(&green.context, descriptor, static_cast<int>(gpu), driver::kGreenDefaultStream),
        "cuGreenCtxCreate");
    return green;
  }

  Green given_green(uint32_t gpu, uint64_t given) const {
    const auto green = reinterpret_cast<driver::GreenContext>(given);
    driver::Context context = nullptr;
    driver::Device device = -1;
    driver::Resource resource;
    api_.check(api_.context_of_green(&context, green), "tuning.cuda.green_context: cuCtxFromGreenCtx");
    {
      const Current current(api_, context);
      api_.check(api_.context_get_device(&device), "tuning.cuda.green_context: cuCtxGetDevice");
    }
    if (device != static_cast<int>(gpu))
      fail(Status::kUnsupported, "cuda: tuning.cuda.green_context is one of GPU {}, not of GPU {}", device,
           gpu);
    api_.check(api_.green_get_resource(green, &resource, driver::kMultiprocessors),
               "tuning.cuda.green_context: cuGreenCtxGetDevResource");
    return {green, resource.multiprocessors};
  }

  void check_path(uint32_t gpu, uint32_t other) const {
    int can = 0;
    api_.check(api_.device_can_access_peer(&can, static_cast<int>(gpu), static_cast<int>(other)),
               "cuDeviceCanAccessPeer");
    if (can == 0)
      fail(Status::kUnsupported, "cuda: GPU {} has no path to the memory of GPU {} (no peer access)", gpu,
           other);
  }

  [[nodiscard]] driver::MemoryPool pool_of(const Allocation& allocation) const {
    driver::MemoryPool pool = nullptr;
    api_.check(api_.pointer_get_attribute(&pool, driver::kPoolHandle, allocation.address),
               "which pool GPU memory is of");
    return pool;
  }

  // For VMM memory the range is the reserved addresses, which may contain many allocations, and holes.
  void find_mapping(uint64_t address, Allocation& result) const {
    driver::Pointer start = 0;
    size_t bytes = 0;
    uint64_t id = 0;
    if (api_.pointer_get_attribute(&start, driver::kMappingStart, address) != kSuccess || start == 0 ||
        api_.pointer_get_attribute(&bytes, driver::kMappingSize, address) != kSuccess || bytes == 0)
      return;
    result.address = start;
    result.bytes = bytes;
    if (api_.pointer_get_attribute(&id, driver::kBlockId, address) == kSuccess) result.id = id;
  }

  void find_sharing(uint64_t address, Allocation& result) const {
    unsigned handles = 0;
    unsigned legacy = 0;
    api_.pointer_get_attribute(&handles, driver::kAllowedHandleTypes, address);
    api_.pointer_get_attribute(&legacy, driver::kLegacyIpcCapable, address);
    driver::MemoryPool pool = nullptr;
    if (legacy == 0) {
      api_.pointer_get_attribute(&pool, driver::kPoolHandle, address);
      result.made = pool != nullptr ? Made::kPool : Made::kMapped;
      find_mapping(address, result);
    }
    if ((handles & driver::kHandlePosixFd) != 0)
      result.sharing = Sharing::kDescriptor;
    else if (legacy != 0)
      result.sharing = Sharing::kHandle;
    else
      result.why_not = fmt::format(
          "the allocation at {:#x} was not made to be shared between processes (a VMM or pool allocation "
          "without "
          "a POSIX handle type; for torch's expandable segments, allow sharing them or switch them off)",
          result.address);
  }

  // The primary context, which the application has made: it holds memory there. Or the settings say so.
  const Kernels& context(uint32_t gpu) const {
    const std::lock_guard lock(mutex_);
    if (gpu >= contexts_.size())
      fail(Status::kInvalidArgument, "cuda: there is no GPU {}: the driver shows this process {}", gpu,
           contexts_.size());
    Kernels& kernels = contexts_[gpu];
    if (kernels.context != nullptr) return kernels;
    driver::Context context = nullptr;
    api_.check(api_.primary_retain(&context, static_cast<int>(gpu)), "cuDevicePrimaryCtxRetain");
    const Current current(api_, context);
    load_kernels(api_, kernel_image(), kernels);
    kernels.context = context;
    return kernels;
  }

  const Api api_;
  mutable std::mutex mutex_;
  bool started_ = false;
  bool same_addresses_ = true;
  std::vector<Gpu> gpus_;
  mutable std::vector<Kernels> contexts_;  // by ordinal
  std::map<std::pair<uint32_t, ReserveWish>, Reserved> reserved_;
  std::mutex valves_mutex_;
  std::map<uint32_t, std::unique_ptr<DriverValves>> valves_;
};

class HostRegistration : public Pinned {
 public:
  // Never with CU_MEMHOSTREGISTER_READ_ONLY, which would do for files mapped for reading too: of a private
  // mapping of a file, driver 580 on Linux 6.18.44 did not come back from it, faulting on one page again and
  // again.
  HostRegistration(const Api& api, uint64_t begin, uint64_t bytes) : api_(api), begin_(begin) {
    api.check(api.host_register(reinterpret_cast<void*>(begin), bytes, driver::kHostPortableMapped),
              "pinning host memory (cuMemHostRegister)");
    driver::Pointer pointer = 0;
    const driver::Result result = api.host_device_pointer(&pointer, reinterpret_cast<void*>(begin), 0);
    if (result != kSuccess) api.host_unregister(reinterpret_cast<void*>(begin));
    api.check(result, "cuMemHostGetDevicePointer");
    delta_ = pointer - begin;
  }
  ~HostRegistration() override { api_.host_unregister(reinterpret_cast<void*>(begin_)); }
  [[nodiscard]] uint64_t delta() const noexcept override { return delta_; }

 private:
  const Api& api_;
  uint64_t begin_;
  uint64_t delta_ = 0;
};

class PinnedAlready : public Pinned {
 public:
  explicit PinnedAlready(Use use) : use_(use) {}
  [[nodiscard]] uint64_t delta() const noexcept override { return 0; }
  [[nodiscard]] Use use() const noexcept override { return use_; }

 private:
  const Use use_;
};

std::unique_ptr<Pinned> Nvidia::find_pinned(uint64_t address, uint64_t bytes) {
  const Allocation first = look_up(address);
  if (first.where != Where::kHost) return nullptr;
  if (first.address + first.bytes >= address + bytes) {
    // A GPU that writes where it may only read fails, and not at once.
    int access = driver::kAccessReadWrite;
    api_.pointer_get_attribute(&access, driver::kAccessFlags, address);
    return std::make_unique<PinnedAlready>(access == driver::kAccessReadWrite ? Use::kWrite : Use::kRead);
  }
  fail(Status::kUnsupported, "cuda: only the first {} of {} bytes at {:#x} are pinned",
       first.address + first.bytes - address, bytes, address);
}

std::unique_ptr<Pinned> Nvidia::pin(uint64_t address, uint64_t bytes) {
  // Any context does: the registration is portable.
  uint32_t gpu = 0;
  while (gpu < gpus_.size() && !in_use(gpu)) ++gpu;
  if (gpu == gpus_.size())
    fail(Status::kUnsupported,
         "cuda: this process uses no GPU, so it can't pin memory for one: use one first");
  const Current current(api_, context(gpu).context);
  const HostPages pages = pages_around(address, bytes);
  return std::make_unique<HostRegistration>(api_, pages.begin, pages.bytes());
}

}  // namespace

namespace {
Nvidia& nvidia() {
  // Never destroyed: the driver may be gone by then.
  static Nvidia* const device = new Nvidia;
  return *device;
}
}  // namespace

Device& nvidia_device() { return nvidia(); }
const driver::Api& nvidia_api() { return nvidia().api(); }
driver::Context nvidia_context(uint32_t gpu) { return nvidia().primary(gpu); }
driver::GreenContext nvidia_green(uint32_t gpu, const ReserveWish& wish) { return nvidia().green(gpu, wish); }

StreamState look_at_stream(const driver::Api& api, driver::Context mine, void* stream) {
  auto* const theirs = static_cast<driver::Stream>(stream);
  driver::CaptureStatus capture = driver::kCaptureNone;
  const driver::Result asked = api.stream_is_capturing(theirs, &capture);
  if (asked == driver::kInvalidHandle || asked == driver::kInvalidContext ||
      asked == driver::kContextIsDestroyed)
    fail(Status::kInvalidArgument, "cuda: there is no stream {}: it was destroyed, or never was one ({})",
         fmt::ptr(stream), api.text(asked));
  api.check(asked, "asking whether the stream records a graph");
  if (capture == driver::kCaptureInvalidated)
    fail(Status::kInvalidArgument, "cuda: the graph that the stream records was spoilt before");
  if (reinterpret_cast<uintptr_t>(stream) > driver::kLastSpecialStream) {
    driver::Context its = nullptr;
    api.check(api.stream_get_context(theirs, &its), "cuStreamGetCtx");
    if (its != mine) return StreamState::kForeign;
  }
  return capture == driver::kCaptureActive ? StreamState::kRecords : StreamState::kRuns;
}

void identify(const driver::Api& api, driver::Device device, Gpu& gpu) {
  driver::Uuid uuid{};
  driver::Uuid whole{};
  api.check(api.device_get_uuid(&uuid, device), "cuDeviceGetUuid");
  std::memcpy(gpu.uuid.data(), uuid.bytes, gpu.uuid.size());
  gpu.partitioned = api.device_get_whole_uuid != nullptr &&
                    api.device_get_whole_uuid(&whole, device) == driver::kSuccess &&
                    std::memcmp(whole.bytes, uuid.bytes, sizeof whole.bytes) != 0;
}

}  // namespace towline::cuda
