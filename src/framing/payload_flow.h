// A lane's second stream, which carries nothing but payload: that of large frames whose headers go on the lane itself.
// So a NIC can put it where it belongs while headers stay with the processor. Payload arrives as fragments of a pool
// of memory, each held by a token until its bytes were copied out; which pool, and how fragments are learnt of, is the
// transport's affair (transports/tcpx).
//
// Frames follow one another on both streams in the same order. A header names its payload's length, so the flow has
// no framing of its own. Neither stream waits for room in the other.
//
// Threads and rules as for a Lane.
#pragma once

#include <towline/plugin/landing.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "framing/lane.h"

namespace towline::framing {

class Lander;

class PayloadFlow {
 public:
  PayloadFlow() = default;
  PayloadFlow(const PayloadFlow&) = delete;
  PayloadFlow& operator=(const PayloadFlow&) = delete;
  virtual ~PayloadFlow() = default;

  // False: it is still coming up. Then nothing is sent on it, and reads answer kAgain.
  [[nodiscard]] virtual bool open() const noexcept = 0;
  // Payload of fewer bytes goes with its header.
  [[nodiscard]] virtual uint32_t least_bytes() const noexcept = 0;

  // As a lane's.
  [[nodiscard]] virtual IoResult write(std::span<const iovec> pieces) noexcept = 0;
  // May memory on this GPU be sent as it lies, without being gathered? All of the pieces. False: gather them.
  [[nodiscard]] virtual bool sends_from(uint64_t /*device*/,
                                        std::span<const towline_landing_piece> /*pieces*/) noexcept {
    return false;
  }
  // As the lane's write_lent(), of addresses on a GPU that sends_from() has taken. The lane's lent() and returned() count
  // these calls.
  [[nodiscard]] virtual IoResult write_from(std::span<const iovec> /*pieces*/) noexcept {
    return IoResult::error(Status::kUnsupported, 0);
  }
  // True: sends_from() may be. The same as long as the flow lives.
  [[nodiscard]] virtual bool lends() const noexcept { return false; }
  // Fills a prefix of host memory with what arrives; its fragments are free again when this returns.
  [[nodiscard]] virtual IoResult read(std::span<const iovec> pieces) noexcept = 0;
  // Takes at most so many bytes off the flow and forgets them.
  [[nodiscard]] virtual IoResult drop(std::size_t bytes) noexcept = 0;

  // For GPU memory: adds at most `bytes` of what arrives to the slot's list of fragments. `staging`: where these
  // bytes would lie in the slot's staging memory; fragments that must not be kept are copied there, and so is what
  // did not arrive in the pool.
  [[nodiscard]] virtual IoResult collect(uint32_t slot, uint8_t* staging, std::size_t bytes) noexcept = 0;
  // The slot's fragments in order: addresses in the pool or in staging memory.
  [[nodiscard]] virtual std::span<const towline_landing_piece> fragments(uint32_t slot) const noexcept = 0;
  // Their bytes were copied out, or nobody wants them.
  virtual void release(uint32_t slot) noexcept = 0;
  // Before the first collect() of a frame: the GPU that it is for, and the GPU's side of this connection, which makes the
  // pool reachable. It lives until all slots were released.
  virtual void offer(Lander& lander, uint64_t device) noexcept = 0;
};

}  // namespace towline::framing
