// Connections between ranks that share no memory. Every rank listens. A pair connects when it first has data
// to move; the higher rank dials. In addition, every rank keeps a control connection to rank 0, over which a
// communicator breaks as a whole: a rank proposes a reason, and rank 0 announces one to all (verdict.h).
//
// Threads: pipes belong to the thread that performs, message channels to the message engine, the rest to the
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
#include "base/os/stream.h"
#include "collectives/breaker.h"
#include "collectives/calls/call.h"
#include "collectives/messages.h"
#include "collectives/pipe.h"
#include "collectives/verdict.h"
#include "rendezvous/rank_info.h"
#include "secure/keys.h"

namespace towline::collectives {

class TcpMesh {
 public:
  static constexpr uint64_t kHelloNs = 10 * kSecondNs;
  // Listens. `listen`: "host:port" or "*:0". A connection must send its hello within `hello_ns`.
  TcpMesh(int rank, int size, const std::string& listen, Breaker& breaker, uint64_t hello_ns = kHelloNs,
          secure::MaybeKeys keys = {});
  ~TcpMesh();

  // The addresses at which others reach this rank, best first: the local address on the route to the store
  // comes first.
  std::vector<std::string> endpoints(const std::string& store_host) const;
  // Sets the other ranks and connects to rank 0. `secret` authenticates connections. Throws Error.
  void join(const std::vector<rendezvous::RankInfo>& infos, const Id& secret, Deadline deadline);
  // How long a blocked operation polls before it sleeps. Call before the first operation.
  void set_spin(uint64_t spin_ns) noexcept { spin_ns_ = spin_ns; }
  // The congestion control of connections, by its kernel name; empty: the kernel's choice, or one without
  // pacing between ranks of one machine. Call before join.
  void set_congestion(std::string name) { congestion_ = std::move(name); }
  // On rank 0, after all have joined: true if every rank's control connection is there.
  bool complete();

  // ---- The watcher
  void poll_fds(std::vector<pollfd>& polled);
  void serve();  // accepts and reads; breaks the communicator when a rank is gone
  // Any thread: proposes a reason to break and waits briefly for the agreed one.
  Breakage agree(Breakage reason);
  void leave() noexcept;
  // The performing thread: true if rank 0 broke the communicator and the watcher has not noticed yet.
  bool verdict_waits();

  // ---- The performing thread. Sends `out` to one rank while it receives `in` from another (or the same; -1:
  // none). Both sides give the same header, and the same number of bytes.
  Status exchange(const Header& header, int to, std::span<const uint8_t> out, int from, std::span<uint8_t> in,
                  Deadline deadline);

  // A message to or from a rank; an empty one is a message, too.
  struct Message {
    int peer = -1;
    bool sends = false;
    std::span<const uint8_t> out = {};
    std::span<uint8_t> in = {};
  };
  // Called when the message at a place has moved. True: `message` is the next one there, of the same peer and direction.
  using Next = std::function<bool(size_t place, Message& message)>;
  // Moves all messages at once, each as far as its connection allows: none waits while another could continue.
  Status exchange_all(const Header& header, std::span<const Message> messages, Deadline deadline,
                      const Next& next = {});

  // ---- The message engine. Null until the other side has dialled.
  std::unique_ptr<Channel> message_channel(int peer);

 private:
  enum class Kind : uint8_t { kControl = 0, kPipe = 1, kMessages = 2 };
  struct Arriving {
    Stream stream;
    std::vector<uint8_t> bytes;
    uint64_t due_ns = 0;  // when its hello is due
  };
  struct Control {
    Stream stream;
    std::vector<uint8_t> bytes;
    bool has_come = false;
    bool left = false;
  };

  Stream dial_peer(int peer, Kind kind, Deadline deadline);
  Stream* pipe_to(int peer, const Header& header, Deadline deadline, Status& status);
  void tune(Stream& stream, int peer) const noexcept;
  void take_arrivals(uint64_t now_ns);
  void make_room() noexcept;
  bool greet(Arriving& arriving);
  bool take_in(Stream stream, uint8_t kind, uint32_t peer);
  bool read_control(int peer, Control& control);
  void take_reason(int rank, Breakage reason);
  void announce();
  void settle_claims();
  [[nodiscard]] bool is_late(Deadline deadline, uint64_t now_ns) const noexcept {
    return deadline.passed(now_ns) || breaker_.hurried();
  }
  Status fail_late(const Header& header, int peer);
  Status compare(const Header& header, int from, const PipePrefix& theirs, uint64_t expected);
  struct Moving {
    int peer;
    Stream* stream;
    PipeSend sending;
    PipeReceive receiving;
    uint64_t expected;
    bool compared;
    bool writable = true;
    bool done() const noexcept { return sending.done() && receiving.done(); }
  };
  static Moving moving_of(Stream* pipe, const Header& header, const Message& message) noexcept;
  Status step(const Header& header, Moving& moving, bool& moved);
  Status interrupted(const Header& header);
  void tell(int peer, uint8_t type, const Breakage& reason) noexcept;
  std::string describe(int peer) const;

  const int rank_;
  const int size_;
  Breaker& breaker_;
  const uint64_t hello_ns_;
  const secure::MaybeKeys keys_;  // of every connection
  const size_t most_arriving_;    // connections without a hello, or whose hello can't be judged yet
  ListeningSocket socket_;
  std::vector<rendezvous::RankInfo> infos_;
  Id secret_;
  uint64_t spin_ns_ = 0;
  std::string congestion_;
  std::list<Arriving> arriving_;  // used by the watcher
  std::vector<Moving> moving_;    // used by the performing thread
  std::vector<pollfd> polled_;
  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::vector<Control> controls_;  // rank 0: one for every rank; others: one to rank 0
  std::vector<Stream> pipes_;
  std::vector<Stream> message_streams_;
  std::vector<bool> has_messages_;  // a stream for messages has arrived, even if it was taken since
  Verdict verdict_;
  bool announced_ = false;  // rank 0: to the others
};

}  // namespace towline::collectives
