// Owns what has threads. A forked child has none of them, and leaves it as it is: joining them, or destroying what they
// wait for, would never end.
#pragma once

#include <unistd.h>

#include <memory>

namespace towline::nixl {

template <class T>
class OfThisProcess {
 public:
  OfThisProcess() = default;
  OfThisProcess(const OfThisProcess&) = delete;
  OfThisProcess& operator=(const OfThisProcess&) = delete;
  ~OfThisProcess() {
    if (here())
      owned_.reset();
    else
      (void)owned_.release();
  }

  T* operator->() noexcept { return owned_.get(); }
  const T* operator->() const noexcept { return owned_.get(); }
  void stop() {
    if (here()) owned_->stop();
  }

 private:
  [[nodiscard]] bool here() const noexcept { return ::getpid() == process_; }

  std::unique_ptr<T> owned_ = std::make_unique<T>();
  const pid_t process_ = ::getpid();
};

}  // namespace towline::nixl
