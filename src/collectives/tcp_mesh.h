// Connections between ranks that share no memory. Every rank listens; a pair is connected when it first has
// something to say, the higher rank dials. Beside, every rank keeps a control connection to rank 0, over
// which a communicator breaks as one: a rank proposes a reason, rank 0 tells everyone the first it got.
//
// Threads: lanes belong to the thread that performs, message channels to the message engine, the rest to the
// backend's watcher.
#pragma once

#include <poll.h>

#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/id.h"
#include "base/socket_address.h"
#include "base/unique_fd.h"
#include "collectives/breaker.h"
#include "collectives/call.h"
#include "collectives/lane.h"
#include "collectives/messages.h"
#include "collectives/topology.h"

namespace towline::collectives {

class TcpMesh {
 public:
  static constexpr uint64_t kHelloNs = 10 * kSecondNs;
  // Listens. `listen`: "host:port" or "*:0". Connections have `hello_ns` to say which rank they are of.
  TcpMesh(int rank, int size, const std::string& listen, Breaker& breaker, uint64_t hello_ns = kHelloNs);
  ~TcpMesh();

  // Where others reach this rank, best first: the address by which the store was reached comes first.
  std::vector<std::string> endpoints(const std::string& store_host) const;
  // Knows the others from here on; connects to rank 0. `secret` is what connections show. Throws Error.
  void join(const std::vector<RankInfo>& infos, const Id& secret, Deadline deadline);
  // How long an operation that can't go on looks again and again before it sleeps. Before the first
  // operation.
  void set_spin(uint64_t spin_ns) noexcept { spin_ns_ = spin_ns; }
  // The congestion control of connections, by its kernel's name; empty: the kernel's choice, between ranks of
  // one machine what does not pace. Before join.
  void set_congestion(std::string name) { congestion_ = std::move(name); }
  // After all have joined, at rank 0: that everyone's control connection is there.
  bool complete();

  // ---- The watcher
  void poll_fds(std::vector<pollfd>& polled);
  void serve();  // accepts, reads what came; breaks the communicator when a rank is gone
  // Any thread: proposes a reason to break and waits, for a moment, for what is agreed on.
  Breakage agree(Breakage reason);
  void leave() noexcept;
  // The performing thread: rank 0 broke the communicator, and the watcher has not taken note of it before.
  bool verdict_waits();

  // ---- The performing thread. Sends `out` to one rank while it receives `in` from another (or the same; -1:
  // none). Both sides give the same header, and the same number of bytes.
  Status exchange(const Header& header, int to, std::span<const uint8_t> out, int from, std::span<uint8_t> in,
                  Deadline deadline);

  // A message to a rank, or one from it; an empty one is a message, too.
  struct Leg {
    int peer = -1;
    bool sends = false;
    std::span<const uint8_t> out = {};
    std::span<uint8_t> in = {};
  };
  // All of them at once, each as far as its connection takes it: nobody waits for one rank while another
  // could go on.
  Status exchange_all(const Header& header, std::span<const Leg> legs, Deadline deadline);

  // ---- The message engine. Null until the other side has dialled.
  std::unique_ptr<Channel> message_channel(int peer);

 private:
  enum class Kind : uint8_t { kControl = 0, kLane = 1, kMessages = 2 };
  struct Arriving {
    UniqueFd socket;
    std::vector<uint8_t> bytes;
    uint64_t due_ns = 0;  // to have said who it is
  };
  struct Control {
    UniqueFd socket;
    std::vector<uint8_t> bytes;
    bool has_come = false;
    bool left = false;
  };

  UniqueFd dial_peer(int peer, Kind kind, Deadline deadline);
  int lane(int peer, const Header& header, Deadline deadline, Status& status);
  void tune(int fd, int peer) const noexcept;
  void take_arrivals(uint64_t now_ns);
  bool greet(Arriving& arriving);
  bool take_in(UniqueFd socket, uint8_t kind, uint32_t peer);
  bool read_control(int peer, Control& control);
  void decide(Breakage reason);
  Status compare(const Header& header, int from, const LanePrefix& theirs, uint64_t expected);
  struct Moving {
    int peer;
    int fd;
    LaneSend sending;
    LaneReceive receiving;
    uint64_t expected;
    bool compared;
    bool writable = true;
    bool done() const noexcept { return sending.done() && receiving.done(); }
  };
  Status step(const Header& header, Moving& leg, bool& moved);
  Status interrupted(const Header& header);
  void tell(int peer, uint8_t type, const Breakage& reason) noexcept;
  std::string describe(int peer) const;

  const int rank_;
  const int size_;
  Breaker& breaker_;
  const uint64_t hello_ns_;
  ListeningSocket socket_;
  std::vector<RankInfo> infos_;
  Id secret_;
  uint64_t spin_ns_ = 0;
  std::string congestion_;
  std::list<Arriving> arriving_;  // the watcher's
  std::vector<Moving> moving_;    // the performing thread's
  std::vector<pollfd> polled_;
  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::vector<Control> controls_;  // rank 0: of everyone; others: of rank 0
  std::vector<UniqueFd> lanes_;
  std::vector<UniqueFd> message_sockets_;
  std::vector<bool> has_messages_;  // a socket for messages has come, taken over since or not
  bool agreed_ = false;
  Breakage agreement_;
};

}  // namespace towline::collectives
