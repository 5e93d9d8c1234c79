// One worker's connection to one peer: messages go over the carrier, bytes by the worker's engine.
//
// Each side says hello with what its engine tells of itself. A peer's region is asked for by its key: the owner answers
// with what its engine tells of it, and knows from then on that this side reaches it. All of it is called by the worker,
// under its lock. Callbacks of the host may call anything of the connection, also disconnect(): it stays allocated but
// ignores all events until the backend's outermost call on this worker returns (Backend::Scope).
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "towline/plugin/backend.hpp"
#include "transports/carrier/carrier.h"
#include "transports/nixl/wire.h"
#include "transports/nixl/worker_engine.h"

namespace towline::nixl_net {

class Backend;

// A peer's region as this connection reaches it.
struct Import {
  towline_region_ref region = {};
  bool answered = false;
  Status status = Status::kOk;
  std::string reason;
  std::string public_data;
  nixlBackendMD* metadata = nullptr;
  bool loaded = false;
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
  static void unprepare(towline_prepared* prepared) noexcept;
  static int32_t submit(towline_prepared* prepared, const towline_submit_args& args) noexcept;
  int32_t send(const void* message, size_t bytes) noexcept;
  void cancel(uint64_t cookie) noexcept;

  // From the worker's engine.
  [[nodiscard]] const std::string& engine_name() const noexcept { return engine_name_; }
  void engine_lost() noexcept;

  // From the backend.
  [[nodiscard]] uint32_t worker() const noexcept { return worker_; }
  [[nodiscard]] bool has_unsent() const noexcept { return !unsent_.empty() && carried_ != nullptr; }
  // Tries to send what the carrier had no room for. True: nothing is left.
  bool flush() noexcept;

 private:
  void on_message(const void* data, size_t bytes) override;
  void on_event(uint32_t event, int32_t status, const char* text) override;
  void take(MessageKind kind, std::span<const uint8_t> message);
  void on_hello(const Hello& hello);
  void on_ask(const Ask& ask);
  void on_answer(Answer answer);
  int32_t refuse(Status status, const std::string& text) const;
  void say(std::vector<uint8_t> message);
  void leave_engine(Status status) noexcept;
  void go_down(Status status, const char* why) noexcept;

  Backend& backend_;
  const uint32_t worker_;
  void* peer_;
  const uint64_t incarnation_[2];
  towline_connection* carried_ = nullptr;
  bool up_ = false;
  bool down_ = false;  // told
  bool disconnected_ = false;
  bool greeted_ = false;  // the peer has said hello
  std::string
      engine_name_;        // the peer's; empty: it has not said hello, or this side's engine does not take it
  std::string no_engine_;  // why not
  std::deque<std::vector<uint8_t>> unsent_;
  std::vector<Import*> imports_;
  std::vector<Prepared*> prepared_;
};

}  // namespace towline::nixl_net
