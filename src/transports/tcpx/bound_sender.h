// One socket's sends from bound memory (bound_memory.h). The kernel reads the memory when it sends, and when it sends again,
// and reports when it has let go.
//
// One thread at a time: the worker of the socket's connection. Nothing here allocates once it is made.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/os/lent_writes.h"
#include "framing/lane.h"
#include "towline/plugin/landing.h"
#include "transports/tcpx/bound_memory.h"

namespace towline::tcpx {

class BoundSender {
 public:
  // `memory`: null: nothing is ever sent so. It outlives this.
  explicit BoundSender(BoundMemory* memory);

  [[nodiscard]] bool may_send() const noexcept { return memory_ != nullptr; }
  // Is all of this bound, and can this socket send it?
  [[nodiscard]] bool takes(int fd, uint64_t device, std::span<const towline_landing_piece> pieces) noexcept;
  // Sends a prefix of pieces that takes() has taken.
  [[nodiscard]] framing::IoResult write(int fd, std::span<const iovec> pieces) noexcept;

  [[nodiscard]] bool all_returned() const noexcept { return lent_.all_returned(); }
  [[nodiscard]] uint64_t lent() const noexcept { return lent_.lent(); }
  // Reads the reports.
  [[nodiscard]] uint64_t returned(int fd) noexcept;
  // The kernel has copied something instead.
  [[nodiscard]] bool copied() const noexcept { return lent_.copied(); }

 private:
  enum class Able : uint8_t { kUnknown, kYes, kNo };

  void look_again() noexcept;
  [[nodiscard]] const BoundRange* find(uint64_t address, uint64_t bytes) noexcept;
  void try_once(int fd, const BoundRange& range) noexcept;

  BoundMemory* const memory_;
  LentWrites lent_;
  Able able_ = Able::kUnknown;
  uint64_t generation_ = 0;         // of ranges_
  std::vector<BoundRange> ranges_;  // at most BoundMemory::kMost
  std::size_t last_ = 0;            // found last
  std::vector<iovec> pieces_;       // scratch
};

}  // namespace towline::tcpx
