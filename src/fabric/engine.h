// Moves lists of segments between engines over every rail that two hosts share.
//
// The engine owns what no NIC does the same way: slicing over rails, flow control, selective signalling,
// connections on demand, immediates that count once, retry on another rail, deadlines, cancel, fences. It is
// single-threaded: one core drives one engine with its own domains, so that cores share nothing.
//
// Retry is exact: a connection belongs to its initiator, which alone posts transfers on it. When it
// breaks, the initiator stops its end and asks the responder over the host's control messages to stop the
// other end. The answer says that nothing more is placed, and which records were counted. Only then are
// slices posted again, except those of transfers whose record was counted. So no byte is lost, none is placed
// after the receiver counted it or the sender was told of the fence, and each immediate counts once.
//
// After warm-up, submit() and progress() allocate nothing as long as no connection is made or ends.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "base/containers/slab.h"
#include "fabric/domain.h"
#include "fabric/messages.h"
#include "towline/plugin/plan.h"

namespace towline::fabric {

inline constexpr uint32_t kFencedLocal = 1;   // this side's memory is neither read nor written any more
inline constexpr uint32_t kFencedRemote = 2;  // nor is the peer's
inline constexpr uint32_t kFencedBoth = 3;

struct EngineOptions {
  uint32_t max_transfers = 1024;  // under way
  uint32_t max_connections = 64;  // per rail, in each direction
  uint32_t record_bytes = 1024;   // of a record's receive; messages are 32 bytes shorter
  uint32_t credits = 16;          // records under way per connection
  uint64_t slice_bytes = 0;       // 0: as the domain says
  uint64_t tick_ns = 1 * kMillisecondNs;
  // Whether peers are asked to poll while something is under way to them that moves by their polls; else the host does it.
  bool asks_to_poll = false;
  // The host loses no control message without a say_again(): they are repeated every max_backoff_ns only.
  bool control_kept = false;
  uint64_t control_retry_ns = 20 * kMillisecondNs;  // first; doubles up to max_backoff_ns
  uint64_t connect_timeout_ns = 2 * kSecondNs;      // then another pair of rails is tried, for twice as long
  uint64_t stall_ns = 1 * kSecondNs;         // without progress: ask whether the peer lives; twice it: break
  uint64_t lost_ns = 5 * kSecondNs;          // without an answer: the peer is lost
  uint64_t give_up_ns = 10 * kSecondNs;      // without any path: what waits fails
  uint64_t fence_ns = 1 * kSecondNs;         // after cancel; then its connections are broken
  uint64_t backoff_ns = 1 * kMillisecondNs;  // after a path failed; doubles up to
  uint64_t max_backoff_ns = 1 * kSecondNs;
  uint64_t evict_idle_ns = 10 * kMillisecondNs;  // a connection in use within this is not evicted
};

// Memory of this side, registered with every rail.
struct LocalMemory {
  uint64_t address = 0;
  uint64_t bytes = 0;
  bool remote_read = false;
  bool remote_write = false;
  uint32_t rails = 0;
  std::array<Registration, kMaxRails> keys{};

  bool contains(uint64_t at, uint64_t length) const noexcept {
    return at >= address && at - address <= bytes && length <= bytes - (at - address);
  }
};

// Fills out[0, capacity) with the next segments and returns their number; 0 at the end.
struct SegmentSource {
  std::size_t (*next)(void* context, towline_segment* out, std::size_t capacity) = nullptr;
  void* context = nullptr;
};

enum class TransferOp : uint8_t { kNone, kWrite, kRead };

// The memory that it points to stays valid until the transfer is fenced. Segments lie in the memories that they name:
// their maker has checked that.
struct TransferRequest {
  Handle peer;
  TransferOp op = TransferOp::kNone;  // kNone: counts or message only
  SegmentSource segments;
  const LocalMemory* const* local = nullptr;    // by towline_segment::local_region
  const RemoteMemory* const* remote = nullptr;  // by remote_region
  uint64_t bytes = 0;                           // of all segments
  uint32_t immediate = 0;            // the peer's counter that `count` is added to, after every byte
  uint32_t count = 0;                // 0: no counting
  std::span<const uint8_t> message;  // delivered after every byte
  bool has_message = false;
  uint32_t rails = UINT32_MAX;  // of this side, preferred: a bit each
  bool urgent = false;          // before those to the peer that are not, but for one turn in eight
  uint64_t deadline_ns = kNoDeadline;
  uint64_t cookie = 0;
};

struct TransferResult {
  Status status = Status::kOk;
  uint32_t fences = 0;
  uint64_t bytes = 0;         // known to have arrived
  uint64_t failed_begin = 0;  // everything outside of this range of the list has arrived
  uint64_t failed_end = 0;
};

// Called by progress(), and by functions of the control path. May call submit(), cancel() and abandon(), nothing else.
class EngineHost {
 public:
  virtual ~EngineHost() = default;
  // Once per accepted transfer. Without both fences, fenced() follows.
  virtual void complete(uint64_t cookie, const TransferResult& result) noexcept = 0;
  // fences: all that will ever be known. A lost peer's memory is not fenced by it.
  virtual void fenced(uint64_t cookie, uint32_t fences) noexcept = 0;
  virtual void counted(Handle peer, uint32_t immediate, uint32_t count) noexcept = 0;
  virtual void received(Handle peer, std::span<const uint8_t> message) noexcept = 0;
  virtual void lost(Handle peer, Status status, std::string_view why) noexcept = 0;
  // To the peer's engine, whose host gives it to on_control(). May be lost, repeated, reordered.
  virtual void send_control(Handle peer, std::span<const uint8_t> message) noexcept = 0;
};

struct RailCounters {
  uint64_t requests = 0;
  uint64_t posts = 0;
  uint64_t bytes = 0;
  uint64_t connections = 0;  // open now, both directions
  uint64_t breaks = 0;
  uint64_t evictions = 0;
  uint64_t retried = 0;           // requests
  uint64_t longest_pause_ns = 0;  // from a connection's break until what it carried was posted again
  bool down = false;
};

class Engine {
 public:
  // domains: one per rail, at least one. host outlives the engine.
  Engine(EngineOptions options, std::vector<std::unique_ptr<Domain>> domains, EngineHost& host);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const Id& id() const noexcept;
  EngineAddress address() const;
  std::size_t rails() const noexcept;
  const DomainTraits& traits(std::size_t rail) const;
  RailCounters counters(std::size_t rail) const;
  std::size_t max_message() const noexcept;

  // Control path, on the engine's thread. Throw Error.
  LocalMemory register_memory(const MemoryToRegister& memory);
  void deregister_memory(const LocalMemory& memory) noexcept;
  static RemoteMemory describe(const LocalMemory& memory);
  Handle add_peer(const EngineAddress& address);
  // Ends what is under way to it with kClosed.
  void remove_peer(Handle peer) noexcept;
  // The host knows that it is gone: ends what is under way with kPeerLost.
  void peer_lost(Handle peer, std::string_view why) noexcept;
  // The host can't keep what this peer sends: the next progress() ends it as peer_lost() does.
  void abandon(Handle peer) noexcept;
  // Ends all connections and tells nobody; memory may be deregistered then. Only destruction may follow.
  void close() noexcept;
  void on_control(Handle peer, std::span<const uint8_t> message) noexcept;
  // kOk, kPeerLost, kStale: whether anything can come from it, or go to it.
  [[nodiscard]] Status state_of(Handle peer) const noexcept;
  // Control messages to the peer may have been lost: sends those again that wait for an answer.
  void say_again(Handle peer) noexcept;

  // kInProgress: complete() follows, never from within. kAgain: too many are under way. kPeerLost, kStale,
  // kInvalidArgument, kLimitExceeded: not accepted.
  [[nodiscard]] Status submit(const TransferRequest& request, Handle* transfer = nullptr) noexcept;
  // Its outcome becomes kCancelled unless it comes first.
  void cancel(Handle transfer) noexcept;

  // Returns the number of things that happened.
  std::size_t progress(uint64_t now_ns) noexcept;
  // When progress() is needed even if no completion comes; kNoDeadline: never.
  uint64_t next_timer_ns() const noexcept;
  // Something is under way. Else the timers are of rails that are down.
  bool busy() const noexcept;
  // Descriptors of the rails that tell of completions, after arm() returned true. False: go on polling. Rails that are down
  // are waited for by the timer.
  void event_fds(std::vector<int>& fds) const;
  bool has_descriptors() const noexcept;  // every rail has one
  bool arm() noexcept;
  // Something is under way, from here or from a peer that asked, that moves by the polls of both sides.
  bool needs_polls() const noexcept;

  std::size_t known_peers() const noexcept;             // and room for those that come
  uint32_t connections_to(Handle peer) const noexcept;  // ready ones, as initiator
  std::string describe() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace towline::fabric
