// Why a communicator broke: set once, to the same reason on every rank.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "towline/status.h"

namespace towline::collectives {

struct Breakage {
  Status status = Status::kOk;
  std::string text;
  // The claim of a rank that timed out: the ranks that it waited for, which may be waiting for others. Empty in a reason
  // that is settled.
  std::vector<int> awaited = {};
};
// A claim as a reason: its text names the ranks.
inline Breakage settled(Breakage claim) {
  for (size_t i = 0; i < claim.awaited.size(); ++i)
    claim.text += (i == 0 ? ": no sign of rank " : ", ") + std::to_string(claim.awaited[i]);
  claim.awaited.clear();
  return claim;
}

// Any thread.
class Breaker {
 public:
  // Agrees on a reason with the other ranks and returns it; the result is recorded. The backend sets it
  // before ranks work together.
  using Agree = std::function<Breakage(Breakage)>;
  void set_agree(Agree agree) { agree_ = std::move(agree); }
  // Called once, after it is recorded, with nothing held.
  void set_listener(std::function<void(const Breakage&)> listener) { listener_ = std::move(listener); }

  bool broken() const noexcept { return status_.load(std::memory_order_acquire) != 0; }
  Status status() const noexcept { return Status{status_.load(std::memory_order_acquire)}; }
  Breakage breakage() const {
    const std::lock_guard lock(mutex_);
    return {status(), breakage_.text};
  }

  // Breaks it unless it is broken; returns the recorded reason.
  Status raise(Status status, std::string text) { return raise(Breakage{status, std::move(text)}); }
  Status raise(Breakage reason) {
    if (broken()) return status();
    return record(agree_ ? agree_(std::move(reason)) : settled(std::move(reason)));
  }
  // Another rank timed out: ranks that wait claim now whom they wait for, as if their time had passed. Any thread.
  void hurry() noexcept { hurried_.store(true, std::memory_order_release); }
  bool hurried() const noexcept { return hurried_.load(std::memory_order_relaxed); }
  // The same where nothing may be thrown. Without memory for text() it breaks here, with the status alone.
  template <class Text>
  Status raise_or_break(Status status, Text text) noexcept {
    try {
      return raise(status, text());
    } catch (const std::exception&) {
      int32_t expected = 0;
      status_.compare_exchange_strong(expected, static_cast<int32_t>(status), std::memory_order_acq_rel);
      return this->status();
    }
  }
  // The same for a reason that is already agreed on.
  Status record(Breakage agreed) {
    {
      const std::lock_guard lock(mutex_);
      if (broken()) return status();
      breakage_ = std::move(agreed);
      status_.store(static_cast<int32_t>(breakage_.status), std::memory_order_release);
    }
    if (listener_) listener_(breakage_);
    return breakage_.status;
  }

 private:
  Agree agree_;
  std::function<void(const Breakage&)> listener_;
  mutable std::mutex mutex_;
  Breakage breakage_;
  std::atomic<int32_t> status_{0};
  std::atomic<bool> hurried_{false};
};

}  // namespace towline::collectives
