// Sends and receives between pairs of ranks, over channels of bytes. Each message is a header (bytes, tag,
// type) and its data. A receiver takes messages from a channel in order and gives each to the first receive
// with its tag, from its rank or from any rank. A message without a receive is kept until one starts, up to a
// limit; beyond the limit its sender waits for the receive.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "collectives/breaker.h"
#include "towline/status.h"

namespace towline::collectives {

// An ordered stream of bytes to and from one rank. Used under the engine's lock.
class Channel {
 public:
  virtual ~Channel() = default;
  virtual size_t write(const void* data, size_t bytes) = 0;  // returns how many were written
  virtual size_t read(void* data, size_t bytes) = 0;         // returns how many were read
  virtual bool can_write() = 0;
  virtual bool can_read() = 0;
  // The descriptor to poll; -1 for memory, or if not connected yet.
  virtual int fd() const { return -1; }
};

// A channel from a rank to itself.
class LocalChannel final : public Channel {
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
  uint64_t order = 0;  // position among all started messages
};
constexpr int kAnyPeer = -1;

// Any thread.
class MessageEngine {
 public:
  using Open = std::function<std::unique_ptr<Channel>(int peer)>;
  // `open` makes the channel to a rank when it is first used.
  MessageEngine(int rank, int size, Open open, Breaker& breaker);

  void start(Message& message);
  // Makes progress on all messages; kInProgress, kOk, or why the communicator broke.
  Status test(Message& message);
  // Removes a message that has not ended; after this its memory is not used any more.
  void forget(Message& message);
  // True if test would make progress. Otherwise appends the descriptors to poll.
  bool ready(std::vector<int>& read_fds, std::vector<int>& write_fds);

 private:
  struct Wire {
    uint64_t bytes;
    uint64_t tag;
    uint32_t datatype;
    uint32_t reserved;
  };
  static constexpr uint64_t kWithHeader = 256;  // up to here a message goes to the channel in one piece
  struct Kept {
    Wire wire;
    std::vector<uint8_t> data;
  };
  struct Peer {
    std::unique_ptr<Channel> channel;
    std::deque<Message*> sends;
    std::list<Message*> receives;
    std::deque<Kept> kept;
    uint64_t kept_bytes = 0;
    // The message that is arriving.
    Wire wire = {};
    uint64_t wire_bytes = 0;    // of the header
    bool accepted = false;      // its data has a destination
    Message* target = nullptr;  // null: into `arriving`
    std::vector<uint8_t> arriving;
    uint64_t arrived = 0;
  };
  // Limits for each rank: bytes, and messages, since empty ones take memory too.
  static constexpr uint64_t kMostKept = 64u << 20;
  static constexpr std::size_t kMostKeptMessages = 1u << 20;

  bool move();
  bool move_out(Peer& peer);
  bool move_in(int rank, Peer& peer);
  void activate(int rank);
  bool receives(const Peer& peer) const { return !peer.receives.empty() || !any_.empty(); }
  Message* match(Peer& peer, int rank, uint64_t tag);
  bool fits(const Wire& wire, int rank, const Message& message);
  bool take_kept(Peer& peer, int rank);
  bool accept(int rank, Peer& peer);
  void finish_in(int rank, Peer& peer);

  const int rank_;
  const Open open_;
  Breaker& breaker_;
  std::mutex mutex_;
  std::vector<Peer> peers_;
  std::vector<int> active_;  // peers with something to move
  std::list<Message*> any_;  // receives from any rank
  uint64_t started_ = 0;
};

}  // namespace towline::collectives
