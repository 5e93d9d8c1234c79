// A lane over two byte rings, one for each direction, in memory that the caller provides: shared between
// processes, or on the heap between agents of one process.
//
// The peer may be hostile or broken: positions it stores are checked (base/spsc_bytes.h), and the engine
// copies what it reads before it checks it. A ring that breaks the rules ends the lane with kProtocol.
//
// Sleeping: arm() stores "asleep" in the shared header, fences, and polls again, so that either it sees the
// peer's bytes or the peer sees the flag; the peer calls its wake hook only if it sees the flag.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/sync/spsc_bytes.h"
#include "framing/lane.h"

namespace towline::framing {

// One direction, at the start of its memory; a fresh one is all zero bytes. The layout is wire format.
struct RingHeader {
  SpscHeader positions;
  alignas(kNoSharingBytes) std::atomic<uint32_t> producer_closed{0};  // no more bytes will come
  std::atomic<uint32_t> consumer_closed{0};                           // no more bytes are read
  std::atomic<uint32_t> consumer_looks_for_counts{0};
};
static_assert(sizeof(RingHeader) == sizeof(SpscHeader) + kNoSharingBytes);

struct RingView {
  RingHeader* header = nullptr;
  std::span<uint8_t> data;
};

// Memory that one direction of `capacity` bytes (a power of two) needs: a multiple of kNoSharingBytes, so
// that several may follow each other.
constexpr std::size_t ring_bytes(std::size_t capacity) noexcept {
  return sizeof(RingHeader) + (capacity + kNoSharingBytes - 1) / kNoSharingBytes * kNoSharingBytes;
}

// `memory` is aligned to kNoSharingBytes and ring_bytes(capacity) long. The side that makes the memory zeroes
// it.
inline RingView ring_view(void* memory, std::size_t capacity) noexcept {
  return {static_cast<RingHeader*>(memory), {static_cast<uint8_t*>(memory) + sizeof(RingHeader), capacity}};
}

class RingLane final : public Lane {
 public:
  // Wakes the peer's worker. Called under this side's worker's lock; may be null if the peer never sleeps.
  struct WakeHook {
    void (*wake)(void* context) = nullptr;
    void* context = nullptr;
  };

  // The memory outlives the lane.
  RingLane(RingView outgoing, RingView incoming, WakeHook wake_peer, std::string description);
  ~RingLane() override;

  [[nodiscard]] IoResult write(std::span<const iovec> pieces) noexcept override;
  [[nodiscard]] IoResult read(std::span<const iovec> pieces) noexcept override;
  [[nodiscard]] bool looks_empty() const noexcept override;
  [[nodiscard]] bool has_news() const noexcept override {
    return !closed_ && (!consumer_.looks_empty() || consumer_.told() != last_told_);
  }
  void stop_when(Interrupt interrupt) noexcept override { interrupt_ = interrupt; }
  void look_longer() const noexcept override;
  [[nodiscard]] bool tell_count(uint32_t count) noexcept override;
  [[nodiscard]] std::optional<uint32_t> told_count() noexcept override;
  void look_for_counts() noexcept override;
  [[nodiscard]] bool arm(bool want_write) noexcept override;
  void disarm() noexcept override;
  void close() noexcept override;
  [[nodiscard]] std::string describe() const override { return description_; }
  [[nodiscard]] Traits traits() const noexcept override;

 private:
  void wake_peer() noexcept {
    if (wake_peer_.wake != nullptr) wake_peer_.wake(wake_peer_.context);
  }

  [[nodiscard]] bool must_stop() const noexcept {
    return interrupt_.asked != nullptr && interrupt_.asked(interrupt_.context);
  }
  void expect_next_write() const noexcept;

  RingHeader* outgoing_;
  RingHeader* incoming_;
  SpscProducer producer_;
  SpscConsumer consumer_;
  WakeHook wake_peer_;
  std::string description_;
  Interrupt interrupt_;
  std::size_t last_written_ = 0;
  uint32_t last_told_ = 0;  // by the peer
  bool looks_for_counts_ = false;
  bool closed_ = false;
};

}  // namespace towline::framing
