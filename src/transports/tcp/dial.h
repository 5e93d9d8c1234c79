// The connector's side of a handshake.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/os/socket_address.h"
#include "base/os/stream.h"
#include "towline/plugin/backend.hpp"
#include "transports/tcp/options.h"
#include "transports/tcp/packet_reader.h"
#include "transports/tcp/wire.h"

namespace towline::tcp {

// One socket, from connect() to the acceptor's reply.
//
//   kConnecting --> kSecuring --> kConnected --send_hello()--> kAwaiting --> kAnswered
//        \--------------\--------------\--------------------------\--------> kFailed
//
// Without keys it is never kSecuring.
class Dial {
 public:
  enum class State { kConnecting, kSecuring, kConnected, kAwaiting, kAnswered, kFailed };

  // Starts connecting; may be kConnected or kFailed at once. `wake` with `argument` is called on the worker
  // when step() has something to do.
  Dial(const plugin::Host& host, uint32_t worker, const SocketAddress& to, const Options& options,
       towline_ready_fn wake, void* argument);
  Dial(const Dial&) = delete;
  Dial& operator=(const Dial&) = delete;
  ~Dial();

  // Looks at the socket if it stirred.
  State step();
  void send_hello(const Hello& hello, uint64_t now_ns);

  [[nodiscard]] State state() const noexcept { return state_; }
  [[nodiscard]] const SocketAddress& to() const noexcept { return to_; }
  [[nodiscard]] const Reply& reply() const noexcept { return reply_; }  // kAnswered
  [[nodiscard]] Status status() const noexcept { return status_; }      // kFailed
  [[nodiscard]] const std::string& text() const noexcept { return text_; }
  [[nodiscard]] uint64_t hello_sent_ns() const noexcept { return hello_sent_ns_; }
  Stream take();  // kAnswered: no longer watched

 private:
  static void ready(void* self, uint32_t events);
  void fail(Status status, std::string text);
  void watch(uint32_t events);
  void watch_for_answer();
  void begin();
  void shake_hands();
  void write_hello();
  void read_reply();

  const plugin::Host& host_;
  const uint32_t worker_;
  const SocketAddress to_;
  const secure::MaybeKeys keys_;
  const towline_ready_fn wake_;
  void* const argument_;
  Stream stream_;
  bool watched_ = false;
  uint32_t watched_events_ = 0;
  bool stirred_ = false;
  State state_ = State::kConnecting;
  std::vector<uint8_t> hello_;  // what is left of it to send
  PacketReader reader_{kReplyMagic};
  Reply reply_;
  uint64_t hello_sent_ns_ = 0;
  Status status_ = Status::kOk;
  std::string text_;
};

// Finds the peer among its addresses: tries them one after another, the next one when the one before failed
// or has not connected for a moment, and says hello on the first that connects. An address may lead to
// somebody else (another host's address of the same number, a restarted peer): its reply says who is there.
class Connector {
 public:
  Connector(const plugin::Host& host, uint32_t worker, std::vector<SocketAddress> candidates,
            const Options& options, Hello hello, std::string peer_name, uint64_t deadline_ns,
            towline_ready_fn wake, void* argument);

  // kInProgress; kOk: take() has the stream; or why it failed, at the latest at the deadline.
  Status step(uint64_t now_ns);
  // When step() has something to do though nothing stirs.
  [[nodiscard]] uint64_t next_ns() const noexcept;
  [[nodiscard]] const std::string& text() const noexcept { return text_; }
  [[nodiscard]] const SocketAddress& winner() const noexcept { return winner_->to(); }
  // The connection's number in the answered hello.
  [[nodiscard]] const Id& connection() const noexcept { return hello_.connection; }
  [[nodiscard]] uint32_t features() const noexcept { return winner_->reply().features; }  // of the peer
  Stream take() { return winner_->take(); }

 private:
  void start_next(uint64_t now_ns);
  void judge(const Dial& dial);
  void remember(Status status, const std::string& text);
  [[nodiscard]] Status finish(Status status, const std::string& text);
  bool elect(uint64_t now_ns);

  const plugin::Host& host_;
  const uint32_t worker_;
  const std::vector<SocketAddress> candidates_;
  const Options& options_;
  Hello hello_;
  const std::string peer_name_;
  const uint64_t deadline_ns_;
  const towline_ready_fn wake_;
  void* const argument_;
  std::size_t next_ = 0;
  uint64_t next_start_ns_ = 0;
  std::vector<std::unique_ptr<Dial>> dials_;
  Dial* winner_ = nullptr;
  std::optional<Status> verdict_;  // final: no other address can do better
  Status status_ = Status::kUnreachable;
  int rank_ = -1;  // how telling status_ is
  std::string tried_;
  std::string text_;
};

}  // namespace towline::tcp
