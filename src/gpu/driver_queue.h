// A queue on an NVIDIA GPU: a stream of our own, flags in pinned memory, and slabs for lists.
#pragma once

#include <array>
#include <memory>
#include <span>

#include "gpu/device.h"
#include "gpu/driver_api.h"

namespace towline::cuda {

// The kernels as one context has them.
struct Kernels {
  driver::Context context = nullptr;
  std::array<driver::Function, 6> copy = {};  // by form, then whether aligned
  driver::Function valve = nullptr;
};

// Makes a context current for its lifetime. The thread's calls meanwhile do not disturb a graph that another
// thread is recording, and do not become part of it.
class Current {
 public:
  Current(const driver::Api& api, driver::Context context) noexcept : api_(api) {
    driver::Context now = nullptr;
    if (api.context_get_current(&now) != 0 || now != context) pushed_ = api.context_push(context) == 0;
    api_.exchange_capture_mode(&mode_);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  ~Current() {
    api_.exchange_capture_mode(&mode_);
    driver::Context popped = nullptr;
    if (pushed_) api_.context_pop(&popped);
  }

 private:
  const driver::Api& api_;
  bool pushed_ = false;
  driver::CaptureMode mode_ = driver::kCaptureRelaxed;
};

// The same for calls that a capture elsewhere doesn't forbid (launches, records, waits of streams), and without a call of the
// driver's where the context is current already, as it is in an application's thread.
class CurrentForLaunch {
 public:
  CurrentForLaunch(const driver::Api& api, driver::Context context) noexcept : api_(api) {
    driver::Context now = nullptr;
    if (api.context_get_current(&now) != 0 || now != context) pushed_ = api.context_push(context) == 0;
  }
  CurrentForLaunch(const CurrentForLaunch&) = delete;
  CurrentForLaunch& operator=(const CurrentForLaunch&) = delete;
  ~CurrentForLaunch() {
    driver::Context popped = nullptr;
    if (pushed_) api_.context_pop(&popped);
  }

 private:
  const driver::Api& api_;
  bool pushed_ = false;
};

// The context is current.
void load_kernels(const driver::Api& api, std::span<const unsigned char> image, Kernels& kernels);

// Multiprocessors of a GPU that are ours. `context` null: none.
struct Green {
  driver::GreenContext context = nullptr;
  uint32_t sms = 0;
};
std::unique_ptr<CopyQueue> make_driver_queue(const driver::Api& api, const Kernels& kernels,
                                             bool after_default, bool urgent, const Green& green);

}  // namespace towline::cuda
