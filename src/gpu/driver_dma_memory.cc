#include "gpu/driver_dma_memory.h"

#include <fmt/format.h>

#include "base/error.h"
#include "gpu/driver_queue.h"

namespace towline::cuda {
namespace {

using driver::Api;

int attribute(const Api& api, int which, uint32_t gpu) noexcept {
  int value = 0;
  return api.device_get_attribute(&value, which, static_cast<int>(gpu)) == driver::kSuccess ? value : 0;
}

void check_dma_bufs(const Api& api, uint32_t gpu) {
  if (api.range_handle == nullptr)
    fail(Status::kUnsupported, "cuda: the driver has no cuMemGetHandleForAddressRange");
  if (attribute(api, driver::kAttributeDmaBuf, gpu) == 0)
    fail(Status::kUnsupported, "cuda: GPU {} has no memory that is a dma-buf, by this driver and kernel",
         gpu);
}

class DriverDmaMemory final : public DmaMemory {
 public:
  DriverDmaMemory(const Api& api, driver::Context context, uint32_t gpu, uint64_t bytes)
      : api_(api), context_(context) {
    driver::AllocationProperties wish;
    wish.location.id = static_cast<int>(gpu);
    wish.flags[driver::kFlagForOtherDevices] = 1;
    const Current current(api_, context_);
    size_t unit = 0;
    api_.check(api_.vmm_granularity(&unit, &wish, driver::kLeastGranularity),
               "cuMemGetAllocationGranularity");
    bytes_ = (bytes + unit - 1) / unit * unit;
    try {
      allocate(wish, gpu);
      int fd = -1;
      api_.check(api_.range_handle(&fd, address_, bytes_, driver::kRangeDmaBuf, 0),
                 "making GPU memory a dma-buf (needs the open kernel modules of NVIDIA's driver)");
      dma_buf_.reset(fd);
    } catch (...) {
      undo();
      throw;
    }
  }
  ~DriverDmaMemory() override { undo(); }

  [[nodiscard]] uint64_t address() const noexcept override { return address_; }
  [[nodiscard]] uint64_t bytes() const noexcept override { return bytes_; }
  [[nodiscard]] int dma_buf() const noexcept override { return dma_buf_.get(); }

 private:
  void allocate(const driver::AllocationProperties& wish, uint32_t gpu) {
    driver::Handle handle = 0;
    api_.check(api_.vmm_reserve(&address_, bytes_, 0, 0, 0), "cuMemAddressReserve");
    api_.check(api_.vmm_create(&handle, bytes_, &wish, 0), "cuMemCreate");
    const driver::Result mapped = api_.vmm_map(address_, bytes_, 0, handle, 0);
    api_.vmm_release(handle);  // the mapping keeps it
    api_.check(mapped, "cuMemMap");
    mapped_ = true;
    const driver::AccessDescriptor access{{driver::kLocationGpu, static_cast<int>(gpu)},
                                          driver::kAccessReadWrite};
    api_.check(api_.vmm_set_access(address_, bytes_, &access, 1), "cuMemSetAccess");
  }
  void undo() noexcept {
    const Current current(api_, context_);
    dma_buf_.reset();
    if (mapped_) api_.vmm_unmap(address_, bytes_);
    if (address_ != 0) api_.vmm_free(address_, bytes_);
  }

  const Api& api_;
  const driver::Context context_;
  driver::Pointer address_ = 0;
  uint64_t bytes_ = 0;
  bool mapped_ = false;
  UniqueFd dma_buf_;
};

}  // namespace

std::string pci_address_of(const Api& api, driver::Device gpu) {
  int domain = 0;
  int bus = 0;
  int device = 0;
  const bool known =
      api.device_get_attribute(&domain, driver::kAttributePciDomain, gpu) == driver::kSuccess &&
      api.device_get_attribute(&bus, driver::kAttributePciBus, gpu) == driver::kSuccess &&
      api.device_get_attribute(&device, driver::kAttributePciDevice, gpu) == driver::kSuccess;
  return known ? fmt::format("{:04x}:{:02x}:{:02x}.0", domain, bus, device) : std::string{};
}

std::unique_ptr<DmaMemory> make_driver_dma_memory(const Api& api, driver::Context context, uint32_t gpu,
                                                  uint64_t bytes) {
  check_dma_bufs(api, gpu);
  if (attribute(api, driver::kAttributeForOtherDevices, gpu) == 0)
    fail(Status::kUnsupported, "cuda: memory of GPU {} is out of other devices' reach", gpu);
  return std::make_unique<DriverDmaMemory>(api, context, gpu, bytes);
}

// The driver takes whole pages of the host. Ranges of several allocations are the driver's to refuse: it takes those that
// are mapped side by side, and none of several cudaMalloc.
DmaExport export_driver_memory(const Api& api, driver::Context context, uint32_t gpu, uint64_t address,
                               uint64_t bytes) {
  constexpr int kOrderedForItself = 100;
  check_dma_bufs(api, gpu);
  // Bytes that are said to be there must be there for the next kernel, and nobody here would flush.
  if (attribute(api, driver::kAttributeWritesOrdering, gpu) < kOrderedForItself)
    fail(Status::kUnsupported,
         "cuda: GPU {} does not order what NICs write to its memory with its own reads (it would need a "
         "flush)",
         gpu);
  const uint64_t begin = address / kHostPage * kHostPage;
  const uint64_t end = (address + bytes + kHostPage - 1) / kHostPage * kHostPage;
  const Current current(api, context);
  int fd = -1;
  const driver::Result made = api.range_handle(&fd, begin, end - begin, driver::kRangeDmaBuf, 0);
  if (made != driver::kSuccess)
    fail(Status::kUnsupported,
         "cuda: cuMemGetHandleForAddressRange makes no dma-buf of {} bytes at {:#x} on GPU {}: {} (it needs "
         "the open "
         "kernel modules of NVIDIA's driver)",
         bytes, address, gpu, api.text(made));
  // The driver's synchronous copies then wait for one another, as memory of NICs wants it. Mapped memory has no such
  // attribute, and its refusal is no reason against the export.
  if (unsigned on = 1; api.pointer_set_attribute != nullptr)
    (void)api.pointer_set_attribute(&on, driver::kSyncMemops, address);
  return {UniqueFd{fd}, address - begin};
}

}  // namespace towline::cuda
