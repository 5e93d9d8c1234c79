// One worker's connection to one peer: the handshake, then a framed engine over one socket, and over several
// once it carries bulk data.
//
//   connector   kConnecting --reply--> kUp --+
//                    \--refused, late--------+--> kDown --disconnect()--> gone
//   acceptor    (hello read by Acceptor) kUp-+
//
// Everything is called by the worker, under its lock. Callbacks of the host may call anything of the
// connection, also disconnect(): it then stays allocated but ignores all events, until the backend's
// progress() on this worker returns.
#pragma once

#include <bitset>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/id.h"
#include "base/os/socket_address.h"
#include "framing/connection.h"
#include "towline/plugin/backend.hpp"
#include "transports/tcp/acceptor.h"
#include "transports/tcp/dial.h"
#include "transports/tcp/flows.h"
#include "transports/tcp/sources.h"

namespace towline::tcp {

class Backend;

class Connection {
 public:
  Connection(Backend& backend, uint32_t worker, void* peer);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection();

  // The connector's start.
  void connect(const towline_identity& peer, std::vector<SocketAddress> candidates, uint64_t deadline_ns);
  // The acceptor's: asks the core, then answers. False: refused, to be deleted.
  bool accept(Arrival arrival);
  // One more socket of the connector's.
  void join(Arrival arrival);

  [[nodiscard]] const plugin::Host& host() const noexcept;
  int32_t import(const towline_region_args& args, const void* token, size_t token_bytes,
                 towline_import** import, char how[64]);
  void unimport(towline_import* import) noexcept;
  // A GPU's copy that was begun runs to its end. The kernel has a moment to send what it was lent.
  int32_t settle() noexcept;
  static int32_t settle_prepared(towline_prepared*) noexcept { return TOWLINE_OK; }  // parts end after it
  void disconnect() noexcept;
  [[nodiscard]] std::string describe() const;
  [[nodiscard]] uint64_t connection_id() const noexcept { return hello_.connection.lo; }

  int32_t prepare(const towline_prepare_args& args, towline_prepared** prepared);
  static void unprepare(towline_prepared* prepared) noexcept { framing::Connection::unprepare(prepared); }
  static int32_t repick(towline_prepared* prepared, const towline_plan* plan) noexcept {
    return framing::Connection::repick(prepared, plan);
  }
  static int32_t submit(towline_prepared* prepared, const towline_submit_args& args) noexcept {
    reinterpret_cast<Connection*>(prepared->connection)->activate();
    return framing::Connection::submit(prepared, args);
  }
  int32_t send(const void* message, size_t bytes) noexcept;
  void cancel(uint64_t cookie) noexcept {
    if (framed_ != nullptr) framed_->cancel(cookie);
  }

  // From the backend.
  uint32_t progress(uint64_t now_ns) noexcept;
  [[nodiscard]] bool arm() noexcept;  // true: there is work
  void disarm() noexcept;
  // Nothing has happened for a while: to be left to epoll.
  [[nodiscard]] bool quiet(uint64_t now_ns) const noexcept;
  [[nodiscard]] uint64_t next_ns()
      const noexcept;  // when progress() has something to do though no socket stirs
  [[nodiscard]] uint32_t worker() const noexcept { return worker_; }
  [[nodiscard]] const Id& id() const noexcept { return hello_.connection; }
  // To be polled in each progress() of the worker from now on.
  void activate() noexcept {
    if (!active_) become_active();
  }
  [[nodiscard]] bool active() const noexcept { return active_; }
  void set_inactive() noexcept { active_ = false; }

 private:
  static void stirred(void* self, uint32_t events);

  void become_active() noexcept;
  void wait_for_copies() noexcept;
  uint32_t step_connector(uint64_t now_ns);
  void open(Stream stream);
  framing::Lane& add_lane(Stream stream);
  void add_express_lane(Stream stream);
  std::unique_ptr<framing::Lane> with_faults(std::unique_ptr<framing::Lane> lane);
  void place(uint16_t number, Stream stream);
  void fail(Status status, const char* text) noexcept;
  [[nodiscard]] bool wants_more_lanes() const noexcept;
  void dial(uint16_t begin, uint16_t end, uint64_t now_ns);
  void dial_more_lanes(uint64_t now_ns);
  [[nodiscard]] bool wants_express_lane() const noexcept;
  uint32_t step_more_lanes(uint64_t now_ns);

  Backend& backend_;
  const uint32_t worker_;
  void* peer_;
  bool connector_side_ = false;
  bool active_ = false;
  bool disconnected_ = false;
  bool failed_ = false;  // before it was up
  bool more_lanes_tried_ = false;
  bool express_tried_ = false;  // to be dialled, or taken, once
  uint32_t features_ = 0;       // that both sides have
  Hello hello_;                 // as sent, or as received: names the connection
  SocketAddress address_;       // of the peer, where lane 0 reached it
  bool same_host_ = false;      // as the peer
  std::string congestion_;      // control of its sockets; empty: the kernel's
  uint64_t opened_ns_ = 0;
  uint64_t lent_until_ns_ = 0;  // being ended: a connection that is up keeps what the kernel reads until then
  uint32_t idle_passes_ = 0;
  std::vector<Sources::Slot> slots_;  // of accepted sockets
  std::unique_ptr<framing::Connection> framed_;
  std::unique_ptr<Connector> connector_;
  struct NumberedDial {
    std::unique_ptr<Dial> dial;
    uint16_t number = 0;
  };
  std::vector<NumberedDial> dials_;      // further sockets on their way
  framing::Lane* first_lane_ = nullptr;  // without faults around it; with flows
  std::bitset<kMaxLanes> placed_;        // numbers of sockets that came; with flows
  std::map<uint16_t, Stream> unpaired_;  // whose lane's other socket is still to come
  uint64_t dials_deadline_ns_ = 0;
};

}  // namespace towline::tcp
