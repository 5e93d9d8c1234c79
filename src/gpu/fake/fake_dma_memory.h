// Memory of a fake GPU that other devices can fill.
#pragma once

#include <cstdint>
#include <cstring>

#include "base/error.h"
#include "base/os/dma_buf.h"
#include "base/os/memfd.h"
#include "gpu/device.h"

namespace towline::cuda::fake {

// Mapped twice: where "the GPU" finds it is not where the processor does. A dma-buf where the kernel makes those, else a
// memfd: then tests can use it, and no NIC.
class FakeDmaMemory final : public DmaMemory {
 public:
  explicit FakeDmaMemory(uint64_t bytes)
      : file_(create_memfd("fake-gpu-dma", (bytes + kHostPage - 1) / kHostPage * kHostPage)),
        gpu_(Mapping::map_shared(file_.get(), file_bytes(file_.get()), MapAccess::kReadWrite)),
        host_(Mapping::map_shared(file_.get(), file_bytes(file_.get()), MapAccess::kReadWrite)) {
    std::memset(host_.address(), 0, host_.bytes());
    try {
      dma_buf_ = make_dma_buf(file_.get(), host_.bytes());
    } catch (const core::Error&) {
      dma_buf_ = duplicate_fd(file_.get());
    }
  }
  [[nodiscard]] uint64_t address() const noexcept override {
    return reinterpret_cast<uint64_t>(gpu_.address());
  }
  [[nodiscard]] uint64_t bytes() const noexcept override { return gpu_.bytes(); }
  [[nodiscard]] int dma_buf() const noexcept override { return dma_buf_.get(); }
  [[nodiscard]] void* host() const noexcept override { return host_.address(); }

 private:
  const UniqueFd file_;
  const Mapping gpu_;
  const Mapping host_;
  UniqueFd dma_buf_;
};

}  // namespace towline::cuda::fake
