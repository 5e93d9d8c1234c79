// An io_uring that receives without copies: requests name sockets, completions say where in an area of memory bytes have
// arrived, and pages go back by a refill ring. Tests bring a ring of their own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace towline::tcpx {

struct ZcrxCompletion {
  uint32_t user = 0;    // whose request
  int32_t result = 0;   // bytes that arrived; in a last one 0 at the stream's end, or a negated errno
  bool more = false;    // the request goes on
  uint64_t offset = 0;  // as the kernel says it
};

// The offset in the area of a completion's bytes. Empty: not in it.
[[nodiscard]] std::optional<uint64_t> place_in_area(const ZcrxCompletion& completion,
                                                    uint64_t area_bytes) noexcept;

// All but poke() is for the one thread that made it: the kernel lets no other in.
class ZcrxRing {
 public:
  ZcrxRing() = default;
  ZcrxRing(const ZcrxRing&) = delete;
  ZcrxRing& operator=(const ZcrxRing&) = delete;
  virtual ~ZcrxRing() = default;

  // Receives from this socket until a completion without `more`.
  virtual void receive(int socket, uint32_t user) noexcept = 0;
  virtual void cancel(uint32_t user) noexcept = 0;
  // Hands over what was asked for; blocks until a completion, or only a poke, is there. 0, or an errno.
  virtual int wait(bool for_completions) noexcept = 0;
  [[nodiscard]] virtual bool next(ZcrxCompletion& out) noexcept = 0;
  // Gives bytes of the area back. False: the kernel has not taken the last ones yet.
  [[nodiscard]] virtual bool refill(uint64_t offset, uint32_t bytes) noexcept = 0;
  // Makes the kernel take what was given back, where no NIC asks for it.
  virtual void flush(bool full) noexcept = 0;
  // Ends wait(). Any thread.
  virtual void poke() noexcept = 0;
};

struct ZcrxQueue {
  uint32_t interface = 0;  // 0: no NIC; the kernel copies what arrives into the area
  uint32_t queue = 0;
  uint32_t refills = 4096;  // a power of two
  int dma_buf = -1;         // the area's, where it is memory of a GPU
};

// Over `area`, whole pages that outlive it. Throws Error that says why not.
[[nodiscard]] std::unique_ptr<ZcrxRing> open_zcrx_ring(std::span<uint8_t> area, const ZcrxQueue& queue);

using OpenZcrxRing = std::function<std::unique_ptr<ZcrxRing>(std::span<uint8_t> area, uint32_t refills)>;

}  // namespace towline::tcpx
