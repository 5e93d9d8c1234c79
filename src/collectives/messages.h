// Sends and receives between pairs of ranks, over channels of bytes. Each message is a header (bytes, tag,
// type) and its data. A receiver takes messages from a channel in order and gives each to the first receive
// with its tag, from its rank or from any rank. A message without a receive is kept until one starts, up to a
// limit; beyond the limit its sender waits for the receive.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/id.h"
#include "base/sync/light_lock.h"
#include "collectives/breaker.h"
#include "towline/collectives.h"
#include "towline/status.h"

namespace towline::collectives {

// An ordered stream of bytes to and from one rank. Used under the engine's lock.
class Channel {
 public:
  virtual ~Channel() = default;
  virtual size_t write(const void* data, size_t bytes) = 0;  // returns how many were written
  virtual size_t read(void* data, size_t bytes) = 0;         // returns how many were read
  virtual bool can_write() = 0;                              // between ranks also without the lock
  virtual bool can_read() = 0;
  // The descriptor to poll; -1 for memory, or if not connected yet.
  virtual int fd() const { return -1; }
};

// A channel from a rank to itself.
class LocalChannel : public Channel {
 public:
  size_t write(const void* data, size_t bytes) override {
    const auto* from = static_cast<const uint8_t*>(data);
    bytes_.insert(bytes_.end(), from, from + bytes);
    return bytes;
  }
  size_t read(void* data, size_t bytes) override {
    const size_t count = std::min(bytes, bytes_.size());
    std::copy_n(bytes_.begin(), count, static_cast<uint8_t*>(data));
    bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<ptrdiff_t>(count));
    return count;
  }
  bool can_write() override { return true; }
  bool can_read() override { return !bytes_.empty(); }

 private:
  std::deque<uint8_t> bytes_;
};

struct Message {
  bool is_send = false;
  int peer = 0;  // kAnyPeer until a message is matched
  uint64_t tag = 0;
  uint32_t datatype = 0;
  uint8_t* data = nullptr;
  uint64_t bytes = 0;
  uint64_t done = 0;  // bytes of the header, then of the data
  bool ended = false;
  uint64_t order = 0;          // position among all started messages
  Channel* channel = nullptr;  // to its rank, if that is known, another one and connected
};
constexpr int kAnyPeer = -1;

// The message of a checked send or receive.
Message message_of(const towline_collective_t& call);

// Any thread.
class MessageEngine {
 public:
  using Open = std::function<std::unique_ptr<Channel>(int peer)>;
  // `open` makes the channel to a rank when it is first used.
  MessageEngine(int rank, int size, Open open, Breaker& breaker);

  // All or nothing.
  void start(Message& message);
  // Starts it and looks once whether it can end at once; then as test. The caller forgets a message that has not ended,
  // also if this throws.
  Status run(Message& message);
  // Makes progress on all messages; kInProgress, kOk, or why the communicator broke.
  Status test(Message& message);
  // Whether a test may find more than the last one did. It takes no lock and may miss what another thread has done, so call
  // test from time to time anyway. Call run or test first.
  bool may_move(const Message& message) const {
    Channel* const channel = message.channel;
    return channel == nullptr || (message.is_send ? channel->can_write() : channel->can_read());
  }
  // Removes a message that has not ended; after this its memory is not used any more.
  void forget(Message& message);
  // True if test would make progress, or messages have ended since the call that left `seen`: another message's test may
  // have ended the caller's. Otherwise appends the descriptors to poll.
  bool ready(std::vector<int>& read_fds, std::vector<int>& write_fds, uint64_t& seen);

 private:
  struct Wire {
    uint64_t bytes;
    uint64_t tag;
    uint32_t datatype;
    uint32_t reserved;
  };
  static constexpr uint64_t kWithHeader = 256;  // up to here a message goes through the channel in one piece
  static constexpr size_t kPiece = sizeof(Wire) + kWithHeader;
  struct Kept {
    Wire wire;
    std::vector<uint8_t> data;
  };
  struct Peer {
    std::unique_ptr<Channel> channel;
    std::deque<Message*> sends;
    std::vector<Message*> receives;
    std::deque<Kept> kept;
    uint64_t kept_bytes = 0;
    // Bytes read from the channel and not used yet: a small message takes one read.
    std::array<uint8_t, kPiece> ahead;
    size_t ahead_begin = 0;
    size_t ahead_end = 0;
    // The message that is arriving.
    Wire wire = {};
    uint64_t wire_bytes = 0;    // of the header
    bool accepted = false;      // its data has a destination
    Message* target = nullptr;  // null: into `arriving`, unless it is dropped
    bool dropped = false;       // its receive was forgotten
    std::vector<uint8_t> arriving;
    uint64_t arrived = 0;
  };
  // Limits for each rank: bytes, and messages, since empty ones take memory too.
  static constexpr uint64_t kMostKept = 64u << 20;
  static constexpr std::size_t kMostKeptMessages = 1u << 20;

  void add(Message& message);
  void end(Message& message) {
    message.ended = true;
    ++ended_;
  }
  bool connected(int rank, Peer& peer);  // opens the channel if that rank has come
  bool move();
  bool move_out(Peer& peer);
  bool move_in(int rank, Peer& peer);
  size_t read(Peer& peer, uint8_t* to, size_t bytes);
  size_t drop(Peer& peer, uint64_t bytes);
  void activate(int rank);
  void activate(const Message& message);  // the ranks that it may go to or come from
  bool receives(const Peer& peer) const { return !peer.receives.empty() || !any_.empty(); }
  Message* match(Peer& peer, int rank, uint64_t tag);
  bool fits(const Wire& wire, int rank, const Message& message);
  bool take_kept(Peer& peer, int rank);
  bool accept(int rank, Peer& peer);
  void finish_in(int rank, Peer& peer);

  const int rank_;
  const Open open_;
  Breaker& breaker_;
  LightLock mutex_;
  std::vector<Peer> peers_;
  std::vector<int> active_;    // peers with something to move
  std::vector<Message*> any_;  // receives from any rank
  uint64_t started_ = 0;
  // Messages that have ended, but not from 0 on: a thread that has waited at another engine knows none of these numbers.
  uint64_t ended_ = random_u64();
};

}  // namespace towline::collectives
