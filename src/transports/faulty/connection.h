// One connection of the inner transport as the core sees it, with faults between.
//
// Parts and messages pass through; what the inner transport reports of them may be held back for a while.
// Everything is called by the connection's worker, under its lock.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "towline/plugin/v1.h"

namespace towline::faulty {

class Backend;
class Connection;

// A part the inner transport has accepted. Its address is the inner cookie.
struct Part {
  Connection* connection = nullptr;
  uint64_t cookie = 0;  // the core's
  uint64_t bytes = 0;
};

struct Import {
  towline_import* inner = nullptr;
};

struct Prepared {
  towline_prepared base = plugin::sized<towline_prepared>();
  towline_prepared* inner = nullptr;
  const towline_data_table_v1* table = nullptr;  // the connection may be gone when it is released
};

class Connection {
 public:
  Connection(Backend& backend, uint32_t worker, void* peer)
      : backend_(backend), worker_(worker), peer_(peer) {}
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection();

  static Connection* from(towline_connection* handle) noexcept {
    return reinterpret_cast<Connection*>(handle);
  }
  towline_connection* handle() noexcept { return reinterpret_cast<towline_connection*>(this); }

  // The tables; see v1.h.
  int32_t import(const towline_region_args* args, const void* token, size_t token_bytes,
                 towline_import** import, char how[64]);
  void unimport(towline_import* import) noexcept;
  void disconnect() noexcept;
  int32_t describe(char* json, size_t capacity);
  [[nodiscard]] uint64_t connection_id() const noexcept;
  int32_t prepare(const towline_prepare_args* args, towline_prepared** prepared);
  static void unprepare(towline_prepared* prepared) noexcept;
  int32_t submit(towline_prepared* prepared, const towline_submit_args* args);
  int32_t send(const void* message, size_t bytes);
  void cancel(uint64_t cookie) noexcept;

  // Callbacks of the inner transport.
  void on_complete(Part& part, const towline_part_result& result);
  void on_message(const void* data, size_t bytes);
  void on_served(uint32_t direction, uint64_t bytes) const;
  void on_heard() const;
  void on_granted(uint64_t key) const;
  [[nodiscard]] void* core_peer() const noexcept { return peer_; }
  void on_event(uint32_t event, int32_t status, const char* text);

  // From the backend's progress(); both may end with the connection disconnected and deleted.
  bool deliver_due(uint64_t now_ns);
  bool cut_if_due();
  [[nodiscard]] bool has_held() const noexcept { return !held_.empty() || !messages_.empty() || cut_due_; }

  void set_inner(towline_connection* inner) noexcept { inner_ = inner; }
  [[nodiscard]] towline_connection** inner_slot() noexcept { return &inner_; }
  void set_peer(void* peer) noexcept { peer_ = peer; }
  [[nodiscard]] Backend& backend() const noexcept { return backend_; }
  [[nodiscard]] uint32_t worker() const noexcept { return worker_; }

 private:
  // An outcome that the core has not been told yet.
  struct Held {
    std::unique_ptr<Part> part;
    towline_part_result result = plugin::sized<towline_part_result>();
    uint64_t due_ns = 0;
    bool until_passed = false;  // by the next outcome on this connection
  };
  struct HeldMessage {
    std::vector<uint8_t> bytes;
    uint64_t due_ns = 0;
  };

  std::unique_ptr<Part> take_live(const Part& part) noexcept;
  void settle(std::unique_ptr<Part> part, const towline_part_result& result);
  void report(std::unique_ptr<Part> part, const towline_part_result& result);
  void report_all_held();
  void note_moved(uint64_t bytes) noexcept;
  [[nodiscard]] bool lost() const noexcept { return cut_due_ || cut_; }

  Backend& backend_;
  const uint32_t worker_;
  void* peer_;
  towline_connection* inner_ = nullptr;
  std::vector<std::unique_ptr<Part>> live_;  // with the inner transport
  std::vector<Held> held_;
  std::deque<HeldMessage> messages_;  // in order
  std::vector<std::unique_ptr<Import>> imports_;
  uint64_t moved_ = 0;
  bool cut_due_ = false;
  bool cut_ = false;     // the inner connection is gone
  bool ending_ = false;  // nothing is held back any more
};

}  // namespace towline::faulty
