// One worker's connection to one peer on this host.
//
//   connector   kConnecting --connected--> kGreeting --WELCOME--> kUp --+
//                    |                         |                        +--> kDown --disconnect()--> gone
//                    +---------- refused, late or broken ---------------+
//   acceptor    (its hello was checked by the backend, worker 0)    kUp --+
//
// Everything but submit of a concurrent plan is called by the worker, under its lock. Callbacks of the host
// may call anything of the connection, also disconnect(): it then stays allocated but ignores all events,
// until the backend's outermost call on this worker returns (Backend::scope).
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/containers/pass_list.h"
#include "base/os/unique_fd.h"
#include "framing/connection.h"
#include "towline/plugin/backend.hpp"
#include "transports/direct/paths.h"
#include "transports/shm/direct_path.h"
#include "transports/shm/mapping_cache.h"
#include "transports/shm/packet_socket.h"
#include "transports/shm/probe_cell.h"
#include "transports/shm/ring_memory.h"
#include "transports/shm/wire.h"

namespace towline::shm {

class Backend;

// A peer's region as this connection reaches it.
struct Import {
  towline_region_ref region = {};
  size_t path = 0;       // index into Settings::paths, of the one being tried
  uint64_t request = 0;  // that the owner was sent; 0: none
  bool answered = false;
  bool stale = false;         // the owner has deregistered it, or keeps it to itself
  bool owner_agrees = false;  // on address and size
  std::string reasons;        // why the paths before would not do
  bool ring = false;          // reached through the framed engine
  RegionWay way;              // otherwise
  MappedRegion mapped;
};

// The backend's data of a client with a valid hello.
struct Greeted {
  UniqueFd socket;
  Hello hello;
  UniqueFd memory;
};

class Connection {
 public:
  Connection(Backend& backend, uint32_t worker, void* peer);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection();

  // The connector's start. Throws when it can't even begin.
  void connect(const towline_identity& peer, const Address& address, uint64_t deadline_ns);
  // The acceptor's: asks the core, then welcomes the connector. False: refused, to be deleted.
  bool accept(Greeted greeted);

  [[nodiscard]] const plugin::Host& host() const noexcept;
  int32_t import(const towline_region_args& args, const void* token, size_t token_bytes,
                 towline_import** import, char how[64]);
  void unimport(towline_import* import) noexcept;
  [[nodiscard]] static int32_t reach(const towline_import* import, uint64_t* address) noexcept;
  void disconnect() noexcept;
  [[nodiscard]] std::string describe() const;
  [[nodiscard]] uint64_t connection_id() const noexcept { return id_; }

  int32_t prepare(const towline_prepare_args& args, towline_prepared** prepared);
  static void unprepare(towline_prepared* prepared) noexcept;
  static int32_t repick(towline_prepared* prepared, const towline_plan* plan) noexcept;
  static int32_t submit(towline_prepared* prepared, const towline_submit_args& args) noexcept {
    auto* mine = static_cast<Prepared*>(prepared);
    if (args.end - args.begin == mine->quick_bytes && args.message_bytes == 0) [[likely]]
      return mine->path->submit_quick(*mine);
    return submit_rest(mine, args);
  }
  [[gnu::noinline]] static int32_t submit_rest(Prepared* mine, const towline_submit_args& args) noexcept {
    return mine->framed == nullptr ? mine->path->submit(*mine, args)
                                   : framing::Connection::submit(mine->framed, args);
  }
  int32_t send(const void* message, size_t bytes) noexcept;
  void cancel(uint64_t cookie) noexcept;

  // For plugin::ready: around a handler, and when it threw.
  [[nodiscard]] PassList<Connection>::Pass scope() noexcept;
  void broken(const char* why) noexcept;

  // From the backend.
  uint32_t progress(uint64_t now_ns) noexcept;
  [[nodiscard]] bool arm() noexcept;  // true: there is work
  void disarm() noexcept;
  [[nodiscard]] uint32_t worker() const noexcept { return worker_; }

 private:
  enum class State { kConnecting, kGreeting, kUp, kDown };

  void socket_ready(uint32_t events);
  void process_ready(uint32_t events);
  void timer_ready(uint32_t events);
  static void wake_peer(void* self);

  // Handshake.
  int try_connect();
  void greet();
  void on_welcome(Packet& packet);
  void on_refuse(const Packet& packet);
  void meet(const towline_identity& peer, const Proof& proof);
  void start_engine();
  [[nodiscard]] Proof own_proof() const noexcept;
  void stop_timer() noexcept;

  // Packets.
  void receive_all();
  void on_packet(Packet& packet);
  void offer_express() noexcept;
  [[nodiscard]] bool wants_express() const noexcept;
  void on_express(Packet& packet);
  std::unique_ptr<framing::Lane> make_lane(const RingMemory& ring, const char* what);
  void on_descriptor_request(const DescriptorRequest& request);
  void answer_requests();
  void on_descriptor_answer(const DescriptorAnswer& answer, Packet& packet);
  uint32_t run_framed(uint64_t now_ns) noexcept;
  void peer_gone(const char* how) noexcept;
  void let_go() noexcept;
  void fail(Status status, const char* text) noexcept;

  // Imports.
  Status try_path(Import& import);
  Status ask_owner(Import& import);
  void map_answer(Import& import, const DescriptorAnswer& answer, UniqueFd fd);
  [[nodiscard]] std::string how(const Import& import) const;

  Backend& backend_;
  const uint32_t worker_;
  void* peer_;
  State state_ = State::kConnecting;
  uint64_t id_ = 0;
  bool disconnected_ = false;

  // The other side's identity and the paths to it.
  Address address_;
  towline_identity identity_ = {};  // name not kept
  uint64_t deadline_ns_ = 0;
  UniqueFd timer_;  // while connecting: retries and the deadline
  PacketSocket socket_;
  PeerProcess process_;
  bool process_watched_ = false;
  int process_vm_error_ = 0;
  const ProbeCell probe_;  // the peer tries process_vm here, perhaps when this connection is gone

  // The connection's own resources come before those that use it.
  std::optional<RingMemory> ring_;
  std::optional<RingMemory> express_ring_;  // once there are urgent parts, where both sides know of it
  uint32_t features_ = 0;                   // that both sides have
  bool connector_side_ = false;
  bool express_tried_ = false;
  DirectPath direct_;
  direct::Paths paths_;

  uint64_t last_request_ = 0;
  std::map<uint64_t, Import*> asking_;  // by request; null: given up before the answer came
  size_t imports_ = 0;
  std::deque<DescriptorRequest> requests_;  // of the peer, while its socket has no room for the answers
};

}  // namespace towline::shm
