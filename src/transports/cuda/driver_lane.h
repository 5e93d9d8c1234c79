// A lane on an NVIDIA GPU: a stream of our own, flags in pinned memory, and slabs for lists.
#pragma once

#include <array>
#include <memory>
#include <span>

#include "transports/cuda/device.h"
#include "transports/cuda/driver_api.h"

namespace towline::cuda {

// The kernels as one context has them.
struct Kernels {
  driver::Context context = nullptr;
  std::array<driver::Function, 6> copy = {};  // by form, then whether aligned
};

// Makes a context current for a while.
class Current {
 public:
  Current(const driver::Api& api, driver::Context context) noexcept
      : api_(api), pushed_(api.context_push(context) == 0) {}
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  ~Current() {
    driver::Context popped = nullptr;
    if (pushed_) api_.context_pop(&popped);
  }

 private:
  const driver::Api& api_;
  const bool pushed_;
};

// The context is current.
void load_kernels(const driver::Api& api, std::span<const unsigned char> image, Kernels& kernels);
std::unique_ptr<Lane> make_driver_lane(const driver::Api& api, const Kernels& kernels, bool after_default);

}  // namespace towline::cuda
