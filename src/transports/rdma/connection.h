// One worker's connection to one peer: messages go over the carrier, bytes by the worker's engine.
//
// Each side says hello with its engine's address. A peer's region is asked for by its key: the owner answers with
// what the rails call it, and knows from then on that this side reaches it. All of it is called by the worker,
// under its lock. Callbacks of the host may call anything of the connection, also disconnect(): it stays
// allocated but ignores all events until the backend's outermost call on this worker returns (Backend::Scope).
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "fabric/engine.h"
#include "towline/plugin/backend.hpp"
#include "transports/carrier/carrier.h"
#include "transports/rdma/wire.h"

namespace towline::rdma {

class Backend;

// A peer's region as this connection reaches it.
struct Import {
  towline_region_ref region = {};
  bool answered = false;
  Status status = Status::kOk;
  std::string reason;
  fabric::RemoteMemory memory;
};

struct Prepared : plugin::PreparedBase {
  fabric::TransferOp op = fabric::TransferOp::kNone;
  uint32_t rails = UINT32_MAX;  // preferred: a bit each
  std::vector<const fabric::LocalMemory*> local;
  std::vector<const fabric::RemoteMemory*> remote;
};

class Connection final : private carrier::CarrierEvents {
 public:
  Connection(Backend& backend, uint32_t worker, const towline_identity& identity, void* peer);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() = default;

  // The connector's start; a status.
  int32_t connect(const towline_identity& identity, const std::vector<uint8_t>& carrier_address,
                  uint64_t deadline_ns);
  // The acceptor's: asks the core.
  int32_t accept(towline_connection* carried, const towline_identity& identity);
  [[nodiscard]] carrier::CarrierEvents* events() noexcept { return this; }

  [[nodiscard]] const plugin::Host& host() const noexcept;
  int32_t import(const towline_region_args& args, const void* token, size_t token_bytes,
                 towline_import** import, char how[64]);
  void unimport(towline_import* import) noexcept;
  void disconnect() noexcept;
  [[nodiscard]] std::string describe() const;
  // The carrier's number of it: both ends end together.
  [[nodiscard]] uint64_t connection_id() const noexcept;

  int32_t prepare(const towline_prepare_args& args, towline_prepared** prepared);
  static void unprepare(towline_prepared* prepared) noexcept { delete static_cast<Prepared*>(prepared); }
  static int32_t submit(towline_prepared* prepared, const towline_submit_args& args) noexcept;
  int32_t send(const void* message, size_t bytes) noexcept;
  void cancel(uint64_t cookie) noexcept;

  // From the worker's engine.
  void send_control(std::span<const uint8_t> message) noexcept;
  void engine_lost(const std::string& why) noexcept;

  // From the backend.
  [[nodiscard]] uint32_t worker() const noexcept { return worker_; }
  [[nodiscard]] bool has_unsent() const noexcept { return !unsent_.empty() && carried_ != nullptr; }
  // While parts of it are under way over rails that wake nobody: asks the peer, now and then, to poll.
  uint32_t ask_to_poll(uint64_t now_ns) noexcept;
  void part_begun() noexcept { ++parts_; }
  void part_ended() noexcept { --parts_; }
  // Tries to send what the carrier had no room for. True: nothing is left.
  bool flush() noexcept;
  // Registrations have been made, or have failed: answers what waited for them. Returns how many.
  uint32_t answer_asks() noexcept;

 private:
  void on_message(const void* data, size_t bytes) override;
  void on_event(uint32_t event, int32_t status, const char* text) override;
  void take(MessageKind kind, std::span<const uint8_t> message);
  void on_hello(std::span<const uint8_t> message);
  void on_ask(const Ask& ask);
  bool answer(uint64_t key);
  void on_answer(const Answer& answer);
  int32_t begin(const Prepared& prepared, const towline_submit_args& args) noexcept;
  int32_t refuse(Status status, const std::string& text) const;
  void say(std::vector<uint8_t> message);
  void say_hello();
  void leave_engine(bool lost, const char* why) noexcept;
  void go_down(Status status, const char* why) noexcept;

  Backend& backend_;
  const uint32_t worker_;
  void* peer_;
  const std::vector<std::string> kinds_;  // of rails that may reach it
  towline_connection* carried_ = nullptr;
  bool up_ = false;
  bool down_ = false;  // told
  bool disconnected_ = false;
  bool hello_sent_ = false;
  Handle engine_peer_;       // none: it has not said hello, or has no rail in common
  std::string no_rail_;      // why not
  std::string their_rails_;  // for people
  std::deque<std::vector<uint8_t>> unsent_;
  std::vector<uint64_t> asks_;  // keys of our regions that are being registered
  std::vector<Import*> imports_;
  uint32_t parts_ = 0;  // that the engine has
  uint64_t asked_to_poll_ns_ = 0;
};

}  // namespace towline::rdma
