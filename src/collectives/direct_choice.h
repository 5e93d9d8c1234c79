// Whether the large parts of an operation that copies, and the inputs of a reduce, go through the ranks' stages, or are
// read by the kernel straight out of the memory of the rank that gives them (process_vm_readv): one copy instead of two,
// but system calls, and every rank waits until the others have read. Two processors that share a cache are quicker with stages (an all_gather of 1 MiB in
// 48 us instead of 83), two that share none with direct copies. So it is found by trying, for each operation and class of
// sizes: rank 0 of the host decides for all, by the time of the slowest rank.
//
// The ranks' agreement: the first phase of every operation that has the choice carries, in each rank's line, how long its
// last such operation took, and in rank 0's the ways of the next ones. All ranks read them in the same phase, so the same
// operation goes the same way everywhere.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "base/copy/quicker_way.h"

namespace towline::collectives {

enum class SingleCopy { kAuto, kNever, kAlways };

class DirectChoice {
 public:
  enum Operation : uint32_t { kAllGather, kBroadcast, kGather, kScatter, kAllToAll, kReduce, kOperations };
  static constexpr uint64_t kLeastBytes = 32
                                          << 10;  // of one rank's part: below, a system call costs too much

  // What a rank says in the first phase of an operation that has the choice.
  struct Said {
    uint64_t took_ns = 0;  // by its last such operation
    uint64_t ways = 0;     // rank 0: of the next ones, a bit a class, set for direct
  };

  static uint32_t class_of(Operation operation, uint64_t bytes) noexcept {
    uint32_t size = 0;  // 32 KiB, 128 KiB, 512 KiB, 2 MiB, 8 MiB and more
    while (size + 1 < kSizes && bytes >= kLeastBytes << (2 * (size + 1))) ++size;
    return operation * kSizes + size;
  }

  [[nodiscard]] bool direct(uint32_t of_class) const noexcept { return (agreed_ >> of_class & 1) != 0; }

  [[nodiscard]] Said say() const noexcept { return {last_.took_ns, wanted_}; }
  // Rank 0's words, in every rank.
  void agree(uint64_t ways) noexcept { agreed_ = works_ ? ways : 0; }
  // Rank 0: the slowest rank's time of the last operation.
  void slowest_took(uint64_t took_ns, SingleCopy setting) noexcept {
    if (!works_ || last_.bytes == 0) return;
    auto& way = ways_[last_.of_class];
    if (last_.direct != way.second()) return;  // it was under way when the choice changed
    way.took(took_ns * kLeastBytes / last_.bytes);
    want(setting);
  }

  // This rank's operation has ended.
  void ended(uint32_t of_class, bool direct, uint64_t bytes, uint64_t took_ns) noexcept {
    last_ = {of_class, direct, bytes, took_ns};
  }

  [[nodiscard]] bool is_proved() const noexcept { return proved_; }
  [[nodiscard]] bool works() const noexcept { return works_; }
  // Every rank can read every other's memory, or one can't: the same on all ranks.
  void prove(bool works, SingleCopy setting) noexcept {
    proved_ = true;
    works_ = works;
    want(setting);
    if (!works) agreed_ = 0;
  }

 private:
  static constexpr uint32_t kSizes = 5;

  struct Last {
    uint32_t of_class = 0;
    bool direct = false;
    uint64_t bytes = 0;
    uint64_t took_ns = 0;
  };

  void want(SingleCopy setting) noexcept {
    wanted_ = 0;
    if (!works_ || setting == SingleCopy::kNever) return;
    for (uint32_t i = 0; i < ways_.size(); ++i)
      if (setting == SingleCopy::kAlways || ways_[i].second()) wanted_ |= uint64_t{1} << i;
  }

  // Descriptions read them in other threads.
  std::atomic<bool> proved_ = false;
  std::atomic<bool> works_ = false;
  uint64_t agreed_ = 0;
  uint64_t wanted_ = 0;  // rank 0's
  Last last_;
  std::array<QuickerWay<1, 4, 2>, kOperations * kSizes> ways_;
};

}  // namespace towline::collectives
