// The payload flow of a lane: a socket whose payload a source hands over as fragments.
//
// Held fragments are bounded: a frame for GPU memory keeps its fragments until the GPU has copied them out, but at
// most half of a source's tokens are held in that way. Beyond that, and when the pool runs dry, fragments are copied
// to the frame's staging memory and released at once. So a small pool makes transfers slower and never stops them.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/os/unique_fd.h"
#include "framing/landing.h"
#include "framing/payload_flow.h"
#include "transports/tcpx/bound_sender.h"
#include "transports/tcpx/sources/source.h"

namespace towline::tcpx {

// Totals of one flow, or of all flows of a backend. Written by the flows' workers, read by any thread.
struct FlowTotals {
  std::atomic<uint64_t> fragments{0};
  std::atomic<uint64_t> fragment_bytes{0};  // that arrived in the pool
  std::atomic<uint64_t> linear_bytes{0};    // that did not
  std::atomic<uint64_t> kept_bytes{0};      // in fragments that were left to a GPU
  std::atomic<uint64_t> copied_bytes{0};    // for GPU memory, that the processor copied to staging memory
  std::atomic<uint64_t> fetched_bytes{0};   // from a pool on a GPU, by that GPU, for the processor
  std::atomic<uint64_t> dry{0};             // polls that found every token held
  std::atomic<uint64_t> held{0};            // tokens, now
  std::atomic<uint64_t> sent_bytes{0};      // that the processor copied to the kernel
  std::atomic<uint64_t> bound_bytes{0};     // sent from bound memory, as it lies
  std::atomic<uint64_t> bound_copied{0};    // flows of which the kernel copied such bytes nevertheless
};

class PayloadSocket final : public framing::PayloadFlow {
 public:
  // `totals`: of the backend, or null. `bound`: memory that is sent as it lies, or null. Both outlive this.
  PayloadSocket(uint32_t least_bytes, bool keep_fragments, FlowTotals* totals, BoundMemory* bound = nullptr)
      : least_bytes_(least_bytes), keep_fragments_(keep_fragments), totals_(totals), sender_(bound) {
    for (List& list : lists_) {
      list.pieces.reserve(kMostPieces);
      list.tokens.reserve(kMostPieces);
    }
    released_.reserve(kMostPieces);
    to_read_.reserve(kMostPieces);
  }

  // The socket is up. Control path.
  void attach(UniqueFd socket, std::unique_ptr<Source> source);
  // No byte moves any more, but those that are lent; the pool stays.
  void close() noexcept;
  void abandon() noexcept;
  [[nodiscard]] int descriptor() const noexcept { return socket_.get(); }
  // Readable when payload may have come: the socket, or its source's descriptor.
  [[nodiscard]] int read_descriptor() const noexcept {
    const int own = source_ != nullptr ? source_->wakes_by() : -1;
    return own >= 0 ? own : socket_.get();
  }
  // Was the last read, or write, refused since nothing was there, or no room?
  [[nodiscard]] bool wants_read() const noexcept { return wants_read_; }
  [[nodiscard]] bool wants_write() const noexcept { return wants_write_; }
  [[nodiscard]] const FlowTotals& statistics() const noexcept { return statistics_; }
  [[nodiscard]] std::string describe() const;
  [[nodiscard]] uint32_t held() const noexcept { return held_; }

  // Of sends from bound memory: how many there were, and of how many the kernel has let go of the bytes.
  [[nodiscard]] uint64_t lent() const noexcept { return sender_.lent(); }
  [[nodiscard]] uint64_t returned() noexcept;
  // The kernel's reports are still to come: they wake who watches the socket, whatever for.
  [[nodiscard]] bool lending() const noexcept { return !sender_.all_returned(); }

  [[nodiscard]] bool open() const noexcept override { return socket_.valid() && !ending_; }
  [[nodiscard]] uint32_t least_bytes() const noexcept override { return least_bytes_; }
  framing::IoResult write(std::span<const iovec> pieces) noexcept override;
  [[nodiscard]] bool sends_from(uint64_t device,
                                std::span<const towline_landing_piece> pieces) noexcept override {
    return open() && sender_.takes(socket_.get(), device, pieces);
  }
  framing::IoResult write_from(std::span<const iovec> pieces) noexcept override;
  [[nodiscard]] bool lends() const noexcept override { return sender_.may_send(); }
  framing::IoResult read(std::span<const iovec> pieces) noexcept override;
  framing::IoResult drop(std::size_t bytes) noexcept override;
  framing::IoResult collect(uint32_t slot, uint8_t* staging, std::size_t bytes) noexcept override;
  [[nodiscard]] std::span<const towline_landing_piece> fragments(uint32_t slot) const noexcept override {
    return lists_[slot].pieces;
  }
  void release(uint32_t slot) noexcept override;
  void offer(framing::Lander& lander, uint64_t device) noexcept override;

 private:
  static constexpr std::size_t kMostPieces = TOWLINE_LANDING_MOST_PIECES;
  static constexpr std::size_t kMostPolled = 128;  // fragments at a time
  static constexpr std::size_t kLinearBytes = 256u << 10;

  // The bytes of a slot's frame that have arrived.
  struct List {
    std::vector<towline_landing_piece> pieces;
    std::vector<uint32_t> tokens;  // that the pieces in the pool are held by
    uint64_t bytes = 0;
    uint8_t* staging = nullptr;
  };

  // The place in the buffers where the bytes of polled fragments are looked up next.
  struct Place {
    std::size_t linear = 0;
    std::size_t fetched = 0;
  };

  [[nodiscard]] Polled poll(std::size_t most) noexcept;
  framing::IoResult read_linear(std::span<const iovec> pieces) noexcept;
  [[nodiscard]] const char* check(const Polled& polled, std::size_t most) const noexcept;
  [[nodiscard]] const uint8_t* bytes_of(const Fragment& fragment, Place& place) const noexcept;
  [[nodiscard]] framing::IoResult fetch(uint32_t count) noexcept;
  [[nodiscard]] framing::IoResult read_pool(uint8_t* to) noexcept;
  [[nodiscard]] bool in_pool(uint64_t address) const noexcept;
  void count(std::atomic<uint64_t> FlowTotals::*which, uint64_t by) noexcept;
  void count_held(uint32_t more, uint32_t fewer) noexcept;
  void give_back(std::span<const Fragment> fragments) noexcept;
  void keep(List& list, const Fragment& fragment, const uint8_t* at) noexcept;
  [[nodiscard]] framing::IoResult copy_out(List& list) noexcept;
  [[nodiscard]] framing::IoResult make_room(List& list, const Polled& polled) noexcept;
  [[nodiscard]] bool holds_much() const noexcept;

  const uint32_t least_bytes_;
  const bool keep_fragments_;
  UniqueFd socket_;
  bool ending_ = false;  // closed, but for what is lent
  std::unique_ptr<Source> source_;
  std::unique_ptr<uint8_t[]> linear_;
  PoolReader* reader_ = nullptr;                // of a pool on a GPU
  std::unique_ptr<uint8_t[]> fetched_;          // what was read from it
  std::vector<towline_landing_piece> to_read_;  // scratch
  std::array<Fragment, kMostPolled> polled_;
  std::array<List, framing::kLandingSlots> lists_;
  std::vector<uint32_t> released_;  // scratch
  framing::Lander* offered_ = nullptr;
  uint64_t offered_device_ = 0;
  bool reachable_ = false;  // the pools, for the GPU of the frame that comes
  bool wants_read_ = false;
  bool wants_write_ = false;
  uint32_t held_ = 0;
  FlowTotals* const totals_;
  BoundSender sender_;
  FlowTotals statistics_;
};

}  // namespace towline::tcpx
