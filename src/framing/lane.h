// A lane: one reliable, ordered, nonblocking byte stream to a peer, below the framed engine. Today's lanes
// are stream sockets (transports/tcp) and pairs of shared-memory or in-process rings (ring_lane.h);
// faulty_lane.h decorates any.
//
// Threads: one at a time, the worker that owns the connection. Nothing here blocks, allocates after
// construction or throws.
//
// What may come as further lanes or decorators, without a change above them:
//  - TLS: a decorator whose read and write encrypt over an inner lane; its handshake answers kAgain until
//  done, and
//    arm() asks the inner lane for what the handshake waits for rather than for what the caller wants.
//  - io_uring: write and read hand out what earlier submissions completed and submit anew. A lane that keeps
//  reading
//    from the caller's memory after write() returned must copy, or answer kAgain until the kernel is done
//    with it: the bytes that write() reports are the caller's to change again.
//  - MSG_ZEROCOPY: the same rule; the place for handing memory over for longer is a further trait in Traits,
//  with the
//    engine holding its pins until the lane reports them free.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "towline/status.h"

namespace towline::framing {

// What a read or write did. status kOk: `bytes` (> 0) were moved. kAgain: it would block. kClosed: end of
// stream, or the peer has closed its end. Other errors carry the system's code; the lane is then of no use
// any more. bytes is 0 unless kOk. `detail` may point to a constant text that says more.
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
  // Fills a prefix of the given space, in order; at most IOV_MAX pieces, none empty.
  [[nodiscard]] virtual IoResult read(std::span<const iovec> pieces) noexcept = 0;

  // Whether read() would find nothing, where that can be told for less than by reading. A hint: false where
  // it can't.
  [[nodiscard]] virtual bool looks_empty() const noexcept { return false; }

  // Looks a while, far less than a microsecond, whether something comes, where looking costs nothing.
  virtual void look_longer() const noexcept {}

  // A count that goes to the peer beside the stream and replaces the one before, where the lane can do that
  // for less than a frame costs, and the peer looks for it. False: a frame must carry it.
  [[nodiscard]] virtual bool tell_count(uint32_t) noexcept { return false; }
  // The count that the peer told last, if it is a new one and all that the peer wrote before it has been
  // read. Unchecked: a hostile peer tells what it likes.
  [[nodiscard]] virtual std::optional<uint32_t> told_count() noexcept { return std::nullopt; }
  // From now on told_count() is called whenever the stream has been read to its end.
  virtual void look_for_counts() noexcept {}

  // The worker is about to sleep: wake it when bytes or a count arrive, and with `want_write` also when bytes
  // can be written. True: there is work after all (or the lane can't tell), don't sleep.
  [[nodiscard]] virtual bool arm(bool want_write) noexcept = 0;
  // It is awake: no wake-up is needed. Also called without an arm() before.
  virtual void disarm() noexcept = 0;

  // Ends the stream in both directions. Bytes written before may still reach the peer. Idempotent; reads and
  // writes answer kClosed from then on.
  virtual void close() noexcept = 0;
  // As close(), for a stream that is given up: what was written and has not left this machine is dropped
  // where that can be done, and the peer is told at once.
  virtual void abandon() noexcept { close(); }

  // For people, a few words: "tcp 10.0.0.7:7777 -> 10.0.0.9:41002".
  [[nodiscard]] virtual std::string describe() const = 0;
  [[nodiscard]] virtual Traits traits() const noexcept { return {}; }
};

}  // namespace towline::framing
