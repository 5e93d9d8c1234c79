// Memory of a fake GPU that other devices can fill.
#pragma once

#include <cstdint>
#include <cstring>

#include "base/error.h"
#include "base/os/dma_buf.h"
#include "base/os/memfd.h"
#include "gpu/device.h"

namespace towline::cuda::fake {

// A dma-buf of the whole memfd where the kernel makes those, else the memfd: then tests can use it, and no NIC.
inline UniqueFd dma_buf_of(int memfd) {
  try {
    return make_dma_buf(memfd, file_bytes(memfd));
  } catch (const core::Error&) {
    return duplicate_fd(memfd);
  }
}

// Mapped twice: where "the GPU" finds it is not where the processor does.
class FakeDmaMemory final : public DmaMemory {
 public:
  explicit FakeDmaMemory(uint64_t bytes)
      : file_(create_memfd("fake-gpu-dma", (bytes + kHostPage - 1) / kHostPage * kHostPage)),
        gpu_(Mapping::map_shared(file_.get(), file_bytes(file_.get()), MapAccess::kReadWrite)),
        host_(Mapping::map_shared(file_.get(), file_bytes(file_.get()), MapAccess::kReadWrite)) {
    std::memset(host_.address(), 0, host_.bytes());
    dma_buf_ = dma_buf_of(file_.get());
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
