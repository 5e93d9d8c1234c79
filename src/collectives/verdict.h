// Why a communicator of several hosts breaks, as rank 0 settles it.
//
// A reason other than a timeout applies at once. A rank that timed out only claims that it has no sign of some others, and
// those may be waiting themselves, for one that stands still. So rank 0 asks every rank that waits to claim at once, and
// names ranks that make no claim: they are stopped, or at no operation.
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "collectives/breaker.h"

namespace towline::collectives {

class Verdict {
 public:
  // How long rank 0 waits for other claims; and a rank with a claim for rank 0, which answers unless it stands still itself.
  static constexpr uint64_t kClaimNs = 400 * kMillisecondNs;
  static constexpr uint64_t kAnswerNs = 900 * kMillisecondNs;

  explicit Verdict(int size) : claimed_(static_cast<size_t>(size)) {}
  [[nodiscard]] bool settled() const noexcept { return settled_; }
  [[nodiscard]] const Breakage& reason() const noexcept { return reason_; }  // once settled
  // The reason that applies, as rank 0 announced it.
  void settle(Breakage reason);
  // On rank 0: a rank's reason. True: ask all ranks that wait.
  bool take(int rank, Breakage reason, uint64_t now_ns);
  // True while claims are collected; then call look() until it has settled, at the latest by due_ns().
  [[nodiscard]] bool waits() const noexcept { return !claims_.empty() && !settled_; }
  [[nodiscard]] uint64_t due_ns() const noexcept { return due_ns_; }
  void look(uint64_t now_ns);

 private:
  [[nodiscard]] bool silent(int rank) const noexcept {
    return rank >= 0 && static_cast<size_t>(rank) < claimed_.size() && !claimed_[static_cast<size_t>(rank)];
  }

  std::vector<bool> claimed_;  // by rank
  std::vector<Breakage> claims_;
  uint64_t due_ns_ = kNoDeadline;
  bool settled_ = false;
  Breakage reason_;
};

}  // namespace towline::collectives
