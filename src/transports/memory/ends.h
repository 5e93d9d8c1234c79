// The shared state of both ends of a connection within one process: two byte rings, a mailbox each for pins,
// and the entry check that makes it safe to copy directly into the other's memory. Lives until both ends have
// released it.
//
// The entry check. A thread that copies enters first and then checks whether the owner has closed; an owner that
// closes sets this first and then waits until no thread is inside. One of the two always sees the other, so
// no byte is copied after close() has returned. The wait is for one slice of a copy at most.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include "base/id.h"
#include "base/sync/spin.h"
#include "framing/ring_lane.h"
#include "towline/plugin/backend.hpp"

namespace towline::memory {

// Between the ends, on behalf of imports. The owner calls its host only on its own worker, so pins are asked
// for.
struct Letter {
  enum class Kind { kPin, kPinned, kUnpin };
  Kind kind;
  uint64_t request;           // the importer's number for it
  towline_region_ref region;  // kPin
  Status status;              // kPinned
  uint64_t pointer;           // kPinned: where the region's first byte is
};

class Ends {
 public:
  static constexpr uint32_t kExpressRingBytes = 64u << 10;
  enum class Answer { kNone, kAccepted, kRefused };

  // The incarnations of the connector and of the agent that it calls. Throws Error.
  Ends(uint32_t ring_bytes, const uint64_t connector[2], const uint64_t acceptor[2])
      : ring_bytes_(ring_bytes),
        id_(Id::random().lo),
        incarnations_{{connector[0], connector[1]}, {acceptor[0], acceptor[1]}} {
    constexpr std::align_val_t kAlignment{kNoSharingBytes};
    const size_t bytes = 2 * (framing::ring_bytes(ring_bytes) + framing::ring_bytes(kExpressRingBytes));
    memory_.reset(static_cast<uint8_t*>(::operator new(bytes, kAlignment)));
    std::memset(memory_.get(), 0, bytes);
  }

  [[nodiscard]] uint64_t id() const noexcept { return id_; }
  [[nodiscard]] const uint64_t* incarnation(uint32_t side) const noexcept { return incarnations_[side]; }

  // Side 0 is the connector's.
  [[nodiscard]] framing::RingView outgoing(uint32_t side) const noexcept {
    return framing::ring_view(memory_.get() + side * framing::ring_bytes(ring_bytes_), ring_bytes_);
  }
  [[nodiscard]] framing::RingView incoming(uint32_t side) const noexcept { return outgoing(1 - side); }
  // Behind them, those of urgent parts.
  [[nodiscard]] framing::RingView outgoing_express(uint32_t side) const noexcept {
    uint8_t* const begin = memory_.get() + 2 * framing::ring_bytes(ring_bytes_);
    return framing::ring_view(begin + side * framing::ring_bytes(kExpressRingBytes), kExpressRingBytes);
  }

  // The end `side` is here, on this worker; wake() of the other end reaches it until it closes.
  void attach(uint32_t side, const plugin::Host& host, uint32_t worker) {
    const std::lock_guard lock(ends_[side].mutex);
    ends_[side].host.reset(new plugin::Host(host));
    ends_[side].worker = worker;
  }

  void wake(uint32_t side) noexcept {
    const std::lock_guard lock(ends_[side].mutex);
    if (ends_[side].host != nullptr) ends_[side].host->wake(ends_[side].worker);
  }

  // To the end `side`; dropped when it has closed.
  void post(uint32_t side, const Letter& letter) {
    End& end = ends_[side];
    const std::lock_guard lock(end.mutex);
    if (end.host == nullptr) return;
    end.letters.push_back(letter);
    end.has_letters.store(true, std::memory_order_release);
    end.host->wake(end.worker);
  }
  [[nodiscard]] bool has_letters(uint32_t side) const noexcept {
    return ends_[side].has_letters.load(std::memory_order_acquire);
  }
  std::vector<Letter> take(uint32_t side) {
    const std::lock_guard lock(ends_[side].mutex);
    ends_[side].has_letters.store(false, std::memory_order_relaxed);
    return std::move(ends_[side].letters);
  }

  // The acceptor's answer to the connector.
  void answer(Answer answer, Status status) noexcept {
    refusal_.store(static_cast<int32_t>(status), std::memory_order_relaxed);
    answer_.store(answer, std::memory_order_release);
    wake(0);
  }
  [[nodiscard]] Answer answer() const noexcept { return answer_.load(std::memory_order_acquire); }
  [[nodiscard]] Status refusal() const noexcept {
    return static_cast<Status>(refusal_.load(std::memory_order_relaxed));
  }

  // The end `side` copies from or to the other's memory. False: the other end has closed; don't.
  [[nodiscard]] bool enter(uint32_t side) noexcept {
    ends_[side].inside.fetch_add(1, std::memory_order_seq_cst);
    if (!ends_[1 - side].closed.load(std::memory_order_seq_cst)) return true;
    leave(side);
    return false;
  }
  void leave(uint32_t side) noexcept { ends_[side].inside.fetch_sub(1, std::memory_order_release); }

  // The end `side` goes away: after this returns no thread copies in its memory.
  void close(uint32_t side) noexcept {
    {
      const std::lock_guard lock(ends_[side].mutex);
      ends_[side].host.reset();
    }
    if (ends_[side].closed.exchange(true, std::memory_order_seq_cst)) return;
    SpinWait spin;
    while (ends_[1 - side].inside.load(std::memory_order_seq_cst) != 0)
      if (!spin.again()) spin.reset();
    wake(1 - side);
  }
  [[nodiscard]] bool closed(uint32_t side) const noexcept {
    return ends_[side].closed.load(std::memory_order_acquire);
  }

 private:
  struct End {
    alignas(kNoSharingBytes) std::atomic<uint32_t> inside{0};
    alignas(kNoSharingBytes) std::atomic<bool> closed{false};
    std::atomic<bool> has_letters{false};
    std::mutex mutex;
    std::unique_ptr<plugin::Host> host;  // null: not here yet, or gone
    uint32_t worker = 0;
    std::vector<Letter> letters;
  };
  struct Freer {
    void operator()(uint8_t* memory) const noexcept {
      ::operator delete (memory, std::align_val_t{kNoSharingBytes});
    }
  };

  const uint32_t ring_bytes_;
  const uint64_t id_;
  const uint64_t incarnations_[2][2];
  std::unique_ptr<uint8_t, Freer> memory_;
  End ends_[2];
  std::atomic<Answer> answer_{Answer::kNone};
  std::atomic<int32_t> refusal_{0};
};

}  // namespace towline::memory
