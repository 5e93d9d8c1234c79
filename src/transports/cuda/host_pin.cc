#include "transports/cuda/host_pin.h"

#include <exception>
#include <utility>

#include "base/error.h"

namespace towline::cuda {

std::shared_ptr<const Pinned> HostPin::find(Use use) {
  {
    const std::lock_guard lock(mutex_);
    if (pinned_ != nullptr) return pinned_;
    if (!refusal_.empty()) throw core::Error(Status::kUnsupported, refusal_);
  }
  return device_.pinned_ranges().find(device_, address_, bytes_, use);
}

std::shared_ptr<const Pinned> HostPin::now(Use use) {
  const std::lock_guard pinning(pinning_);
  return pin(use);
}

std::shared_ptr<const Pinned> HostPin::pin(Use use) {
  if (auto found = find(use)) {
    settled_.store(true, std::memory_order_release);
    return found;
  }
  if (use_ == PinUse::kNever)
    fail(Status::kUnsupported, "tuning.cuda.pin is \"never\", and host memory is not pinned");
  if (closed_) fail(Status::kStale, "cuda: the region at {:#x} is being deregistered", address_);
  std::shared_ptr<const Pinned> pinned = device_.pinned_ranges().take(device_, address_, bytes_, Use::kWrite);
  const std::lock_guard lock(mutex_);
  pinned_ = pinned;
  settled_.store(true, std::memory_order_release);
  return pinned;
}

// Nothing of it outlives the lock: after close() the memory may be another's.
void HostPin::pin_meanwhile() noexcept {
  const std::lock_guard pinning(pinning_);
  std::string why;
  try {
    (void)pin(Use::kWrite);
    return;
  } catch (const std::exception& error) {
    why = error.what();
  }
  const std::lock_guard lock(mutex_);
  refusal_ = std::move(why);
  settled_.store(true, std::memory_order_release);
}

void HostPin::close() noexcept {
  const std::lock_guard pinning(pinning_);
  std::shared_ptr<const Pinned> going;
  const std::lock_guard lock(mutex_);
  closed_ = true;
  going = std::move(pinned_);
}

PinThread::~PinThread() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  given_.notify_all();
  if (thread_.joinable()) thread_.join();
}

// If no thread can be started, the memory goes on through the pool.
void PinThread::pin(std::shared_ptr<HostPin> memory) noexcept try {
  const std::lock_guard lock(mutex_);
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  queue_.push_back(std::move(memory));
  given_.notify_one();
} catch (const std::exception&) {
}

void PinThread::run() noexcept {
  std::unique_lock lock(mutex_);
  for (;;) {
    given_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    if (stop_) return;
    std::shared_ptr<HostPin> next = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    next->pin_meanwhile();
    next.reset();
    lock.lock();
  }
}

}  // namespace towline::cuda
