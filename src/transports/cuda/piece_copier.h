// Copies lists of pieces, a few lists at a time: by one GPU, or where none is needed by threads of the host.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "gpu/device.h"
#include "transports/cuda/copy_team.h"

namespace towline::cuda {

// The limit for one copy through host memory: a slot, in at most this many stretches.
inline constexpr uint32_t kDetourSlots = 8;
inline constexpr uint64_t kDetourSlotBytes = 1 << 20;
inline constexpr uint32_t kMostStretches = 2048;
// A broken GPU sets no flag: the queue is asked for its state so often.
inline constexpr uint64_t kAskAfterNs = 2 * kMillisecondNs;
inline constexpr uint32_t kMostListPieces = kMostStretches + kDetourSlotBytes / kLongestPiece;

// One worker, under its lock. Each slot is a list of its own: written, started, looked at until it is over.
class PieceCopier {
 public:
  // The host copies: addresses are its own. The team outlives it.
  PieceCopier(CopyTeam& team, bool past_caches);
  // Throws Error.
  PieceCopier(Device& device, uint32_t gpu, bool after_default, uint32_t blocks,
              const ReserveWish& wish = {});
  // Into contiguous host memory for each list, which must be wished for: gathered on the GPU and sent by the copy
  // engine (to_host.h), so that no kernel stores to host memory. Throws Error.
  static std::unique_ptr<PieceCopier> make_gathering(Device& device, uint32_t gpu, uint32_t blocks,
                                                     const ReserveWish& wish);
  PieceCopier(const PieceCopier&) = delete;
  PieceCopier& operator=(const PieceCopier&) = delete;
  ~PieceCopier();

  // An empty list, in place of the slot's.
  void clear(uint32_t slot) noexcept;
  // At most kMostStretches calls, and by a GPU kDetourSlotBytes in all.
  void add(uint32_t slot, uint64_t to, uint64_t from, uint64_t bytes) noexcept;
  // 0: begun.
  [[nodiscard]] Code start(uint32_t slot) noexcept;
  // 0: over; CopyQueue::kBusy; or what broke.
  [[nodiscard]] Code look(uint32_t slot, uint64_t now_ns) noexcept;
  // Waits until nothing is under way.
  void drain() noexcept;

 private:
  struct List {
    Piece* pieces = nullptr;
    uint32_t count = 0;
    uint64_t bytes = 0;
    uint64_t bits = 0;  // of all addresses and lengths
    uint64_t to = 0;    // where it begins, if it is gathered
    uint64_t value = 0;
    uint64_t asked_ns = 0;  // when the queue's state was last looked at
    CopyQueue::List room;
    CopyTeam::Job job;  // the host's
    bool under_way = false;
  };

  CopyTeam* const team_ = nullptr;  // null: the queue's GPU
  std::unique_ptr<CopyQueue> queue_;
  uint32_t blocks_ = 0;
  bool gathering_ = false;
  uint64_t last_value_ = 0;
  std::vector<List> lists_;
  std::vector<Piece> host_pieces_;
};

}  // namespace towline::cuda
