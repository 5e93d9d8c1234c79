// A lane: one reliable, ordered, nonblocking byte stream to a peer, below the framed engine. Today's lanes
// are stream sockets (transports/tcp) and pairs of shared-memory or in-process rings (ring_lane.h);
// faulty_lane.h decorates any.
//
// Threads: one at a time, the worker that owns the connection. Nothing here blocks, allocates after
// construction or throws.
//
// A possible further lane, which needs no change above it:
//  - io_uring: write and read return the results of earlier submissions and submit new ones. A lane that keeps
//    reading from the caller's memory after write() returned must copy, or answer kAgain until the kernel has
//    finished: the caller may change the bytes that write() reports. Only those of write_lent() stay as they are.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "towline/status.h"

namespace towline::framing {

// The result of a read or write. status kOk: `bytes` (> 0) were moved. kAgain: it would block. kClosed: end
// of stream, or the peer has closed its end. Other errors carry the system's code; the lane is then unusable.
// bytes is 0 unless kOk. `detail` may point to a constant text that says more.
struct IoResult {
  std::size_t bytes = 0;
  Status status = Status::kOk;
  int vendor_code = 0;
  const char* detail = nullptr;

  static IoResult moved(std::size_t bytes) noexcept { return {bytes, Status::kOk, 0, nullptr}; }
  static IoResult again() noexcept { return {0, Status::kAgain, 0, nullptr}; }
  static IoResult closed() noexcept { return {0, Status::kClosed, 0, nullptr}; }
  static IoResult error(Status status, int vendor_code, const char* detail = nullptr) noexcept {
    return {0, status, vendor_code, detail};
  }
};

class PayloadFlow;

// Asked between two steps of a long copy, whether something waits that is worth stopping for.
struct Interrupt {
  bool (*asked)(const void* context) noexcept = nullptr;
  const void* context = nullptr;
};

class Lane {
 public:
  // Hints to the engine; they change speed, never meaning.
  struct Traits {
    uint32_t frame_bytes = 1u << 20;        // preferred payload of one frame
    uint32_t read_ahead_bytes = 64u << 10;  // how much to read at once while frames are small; what lies
                                            // beyond a small frame is copied once more
    uint32_t payload_alignment = 1;  // a power of two, at most a page: of where a large frame's payload
                                     // begins in the frame, and the next frame in the stream
    bool calls_are_cheap = false;    // no system call: each small frame goes out by itself, and an empty read
                                     // costs nothing; else frames of one pass are gathered
  };

  Lane() = default;
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;
  virtual ~Lane() = default;

  // Takes a prefix of the given bytes, in order; at most IOV_MAX pieces, none empty.
  [[nodiscard]] virtual IoResult write(std::span<const iovec> pieces) noexcept = 0;
  // As write(), of bytes that stay as they are after it, until returned() has reached what lent() answers now.
  [[nodiscard]] virtual IoResult write_lent(std::span<const iovec> pieces) noexcept { return write(pieces); }
  // A lane that reads after write_lent() counts its calls. True: it may do so in the next one. A lane that never does
  // answers false from the beginning.
  [[nodiscard]] virtual bool lends() const noexcept { return false; }
  [[nodiscard]] virtual uint64_t lent() const noexcept { return 0; }
  // The bytes of so many calls, from the first one on, are not read any more. Rises to lent() without further calls;
  // after abandon() at once, or as soon as a device has let go of them; after close() when the peer has them too.
  [[nodiscard]] virtual uint64_t returned() noexcept { return 0; }
  // Fills a prefix of the given space, in order; at most IOV_MAX pieces, none empty.
  [[nodiscard]] virtual IoResult read(std::span<const iovec> pieces) noexcept = 0;

  // True if read() would find nothing, if checking is cheaper than reading. A hint: false if unknown.
  [[nodiscard]] virtual bool looks_empty() const noexcept { return false; }

  // True if bytes or a count wait to be read, if looking is cheap; else false.
  [[nodiscard]] virtual bool has_news() const noexcept { return false; }
  // From now on a read or write that copies for long stops after a step when asked to. A hint.
  virtual void stop_when(Interrupt) noexcept {}

  // Polls for a while, far less than a microsecond, if polling is cheap.
  virtual void look_longer() const noexcept {}

  // Sends a count to the peer beside the stream, replacing the one before, if the lane can do this more
  // cheaply than a frame and the peer looks for it. False: a frame must carry it.
  [[nodiscard]] virtual bool tell_count(uint32_t) noexcept { return false; }
  // The last count that the peer sent, if it is new and everything that the peer wrote before it has been
  // read. Unchecked: a hostile peer can send any number.
  [[nodiscard]] virtual std::optional<uint32_t> told_count() noexcept { return std::nullopt; }
  // From now on told_count() is called whenever the stream has been read to its end.
  virtual void look_for_counts() noexcept {}

  // The worker is about to sleep: wake it when bytes or a count arrive, and with `want_write` also when bytes
  // can be written. True: there is work after all (or the lane does not know): don't sleep.
  [[nodiscard]] virtual bool arm(bool want_write) noexcept = 0;
  // The worker is awake: no wake-up is needed. Also called without an arm() before.
  virtual void disarm() noexcept = 0;

  // Ends the stream in both directions. Bytes written before may still reach the peer. Idempotent; reads and
  // writes answer kClosed from then on.
  virtual void close() noexcept = 0;
  // Like close(), for a stream that is given up: drops written bytes that have not left this machine, if
  // possible, and tells the peer at once.
  virtual void abandon() noexcept { close(); }

  // The stream that large payload goes on; null: payload goes with its header. The same as long as the lane lives.
  [[nodiscard]] virtual PayloadFlow* payload_flow() noexcept { return nullptr; }

  // For people, a few words: "tcp 10.0.0.7:7777 -> 10.0.0.9:41002".
  [[nodiscard]] virtual std::string describe() const = 0;
  [[nodiscard]] virtual Traits traits() const noexcept { return {}; }
};

}  // namespace towline::framing
