// Which of two ways a large copy to the host takes, found by trying them: the GPU's other work can't be asked for,
// but it shows in the copies' own times. One connection and direction; one worker.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace towline::cuda {

enum class HostWay : uint8_t {
  kDirect = 0,    // a kernel stores to host memory, paced
  kGathered = 1,  // to_host.h
};

class WayChoice {
 public:
  static constexpr uint32_t kTries = 2;   // of each way at first
  static constexpr uint32_t kAgain = 64;  // posts until the slower way is tried once more
  // The gathered method disturbs no other kernel: it is chosen unless the other is faster by more than this.
  static constexpr double kWorthDisturbing = 1.1;

  [[nodiscard]] HostWay next() noexcept {
    ++posts_;
    for (const HostWay way : {HostWay::kGathered, HostWay::kDirect})
      if (known(way).count < kTries) return way;
    const HostWay better = this->better();
    if (posts_ % kAgain != 0) return better;
    return better == HostWay::kDirect ? HostWay::kGathered : HostWay::kDirect;
  }
  // For a copy that had the queue for itself. The first of a way is forgotten: it starts threads, and touches memory for
  // the first time.
  void ended(HostWay way, uint64_t bytes, uint64_t ns) noexcept {
    Known& mine = known(way);
    const double took = static_cast<double>(ns) / static_cast<double>(bytes);
    mine.ns_per_byte = mine.count <= 1 ? took : mine.ns_per_byte * 0.7 + took * 0.3;
    ++mine.count;
  }
  [[nodiscard]] HostWay better() const noexcept {
    return known_[0].count != 0 && known_[1].count != 0 &&
                   known_[0].ns_per_byte * kWorthDisturbing < known_[1].ns_per_byte
               ? HostWay::kDirect
               : HostWay::kGathered;
  }
  // 0: not tried.
  [[nodiscard]] double gb_per_s(HostWay way) const noexcept {
    const Known& mine = known_[static_cast<uint32_t>(way)];
    return mine.count == 0 ? 0 : 1 / mine.ns_per_byte;
  }

 private:
  struct Known {
    double ns_per_byte = 0;
    uint32_t count = 0;
  };
  Known& known(HostWay way) noexcept { return known_[static_cast<uint32_t>(way)]; }

  Known known_[2];
  uint64_t posts_ = 0;
};

}  // namespace towline::cuda
