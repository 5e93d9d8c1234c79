// One end of a connection between two agents of this process (or of one agent with itself).
//
//   connector   kCalling --accepted--> kUp --+
//                   |                        +--> kDown --disconnect()--> gone
//                   +--- refused or late ----+
//   acceptor                           kUp --+
//
// Everything but submit of a concurrent plan is called by the worker, under its lock. Callbacks of the host
// may call anything of the connection, also disconnect(): it then stays allocated but ignores all events,
// until the backend's outermost call on this worker returns (Backend::Scope).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "framing/connection.h"
#include "towline/plugin/backend.hpp"
#include "transports/direct/paths.h"
#include "transports/memory/copy_queue.h"
#include "transports/memory/ends.h"

namespace towline::memory {

class Backend;
struct Call;

// A peer's region as this connection reaches it.
struct Import {
  towline_region_ref region = {};
  bool framed = false;             // only its owner may touch it
  uint64_t request = 0;            // of the pin, otherwise
  Status status = Status::kAgain;  // of the pin
  uint64_t delta = 0;              // added to the owner's addresses
};

class Connection {
 public:
  // side 0: the connector. peer: the core's cookie, null until it is asked.
  Connection(Backend& backend, uint32_t worker, std::shared_ptr<Ends> ends, uint32_t side, void* peer);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection();

  void call(uint64_t deadline_ns) noexcept { deadline_ns_ = deadline_ns; }
  // The acceptor's start: asks the core. False: refused, to be deleted.
  bool accept(const Call& call);

  [[nodiscard]] const plugin::Host& host() const noexcept;
  int32_t import(const towline_region_args& args, const void* token, size_t token_bytes,
                 towline_import** import, char how[64]);
  void unimport(towline_import* import) noexcept;
  void disconnect() noexcept;
  [[nodiscard]] std::string describe() const;
  [[nodiscard]] uint64_t connection_id() const noexcept { return ends_->id(); }

  int32_t prepare(const towline_prepare_args& args, towline_prepared** prepared);
  static void unprepare(towline_prepared* prepared) noexcept;
  static int32_t repick(towline_prepared* prepared, const towline_plan* plan) noexcept;
  static int32_t submit(towline_prepared* prepared, const towline_submit_args& args) noexcept {
    auto* mine = static_cast<Prepared*>(prepared);
    return mine->framed == nullptr ? mine->queue->submit(*mine, args)
                                   : framing::Connection::submit(mine->framed, args);
  }
  int32_t send(const void* message, size_t bytes) noexcept;
  void cancel(uint64_t cookie) noexcept;

  // From the backend.
  uint32_t progress(uint64_t now_ns) noexcept;
  [[nodiscard]] bool arm() noexcept;  // true: there is work
  void disarm() noexcept;
  [[nodiscard]] uint32_t worker() const noexcept { return worker_; }

 private:
  enum class State { kCalling, kUp, kDown };

  static void wake_peer(void* self) noexcept;
  void start_engine();
  std::unique_ptr<framing::Lane> make_lane(framing::RingView outgoing, framing::RingView incoming,
                                           const char* what);
  uint32_t wait_for_answer(uint64_t now_ns) noexcept;
  uint32_t run_framed(uint64_t now_ns) noexcept;
  uint32_t read_letters() noexcept;
  void on_pin(const Letter& letter) noexcept;
  void post(const Letter& letter) noexcept;
  void give_pins_back() noexcept;
  void peer_gone() noexcept;
  void fail(Status status, const char* text) noexcept;

  Backend& backend_;
  const uint32_t worker_;
  const std::shared_ptr<Ends> ends_;
  const uint32_t side_;
  void* peer_;
  State state_ = State::kCalling;
  bool disconnected_ = false;
  uint64_t deadline_ns_ = UINT64_MAX;

  CopyQueue copies_;
  direct::Paths paths_;
  uint64_t last_request_ = 0;
  std::map<uint64_t, Import*> asking_;  // by request: pins of the peer's regions not yet answered
  std::map<uint64_t, void*> pins_;      // by the peer's request: of our regions
};

}  // namespace towline::memory
