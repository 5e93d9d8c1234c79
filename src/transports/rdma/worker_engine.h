// One worker's engine of the fabric, and the parts that it moves.
//
// Threads. Everything is called by the worker under its lock, except register_memory(), deregister_memory() and
// counters(), which any thread may call: a lock of its own keeps those apart from the engine. That lock is never
// held while the core is called.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fabric/engine.h"
#include "towline/plugin/backend.hpp"
#include "towline/plugin/cursor.hpp"

namespace towline::rdma {

class Connection;

// A part under way.
struct Job {
  Connection* connection = nullptr;  // null: free
  uint64_t cookie = 0;
  uint64_t begin = 0;
  uint64_t end = 0;
  Handle transfer;
  std::optional<plugin::Cursor> cursor;
  std::vector<uint8_t> message;
  fabric::TransferResult result;
  uint32_t index = 0;
  Job* next = nullptr;
};

class WorkerEngine final : private fabric::EngineHost {
 public:
  // Takes over the rails' domains.
  WorkerEngine(const plugin::Host& host, const fabric::EngineOptions& options,
               std::vector<std::unique_ptr<fabric::Domain>> rails);
  ~WorkerEngine() override;

  [[nodiscard]] fabric::EngineAddress address() const { return engine_.address(); }
  [[nodiscard]] std::size_t rails() const noexcept { return engine_.rails(); }
  [[nodiscard]] const fabric::DomainTraits& traits(std::size_t rail) const { return engine_.traits(rail); }

  // Throw Error.
  fabric::LocalMemory register_memory(const fabric::MemoryToRegister& memory);
  void deregister_memory(const fabric::LocalMemory& memory) noexcept;
  [[nodiscard]] std::vector<fabric::RailCounters> counters() const;

  // Peers. Throws Error.
  Handle add_peer(const fabric::EngineAddress& address, Connection& connection);
  // Parts under way to it end; drop_jobs() completes them. `lost`: control messages do not reach it any more.
  void remove_peer(Handle peer, bool lost, const std::string& why) noexcept;
  void on_control(Handle peer, std::span<const uint8_t> message) noexcept;

  // Starts a part: kInProgress, or why not.
  Status start(Connection& connection, const towline_submit_args& args, const towline_plan& plan,
               fabric::TransferRequest request) noexcept;
  void cancel(const Connection& connection, uint64_t cookie) noexcept;

  // Moves on, and completes what has ended. Callbacks of the core may call anything here.
  uint32_t progress(uint64_t now_ns) noexcept;
  // Completes all ended parts of this connection, without their messages.
  void drop_jobs(const Connection& connection) noexcept;

  [[nodiscard]] uint64_t next_timer_ns() const noexcept { return engine_.next_timer_ns(); }
  void event_fds(std::vector<int>& fds) const { engine_.event_fds(fds); }
  // Before the worker sleeps.
  enum class Sleep : uint8_t {
    kNo,       // something is to be done now
    kWaiting,  // the descriptors tell when something happens
    kPoll,     // some rail has no descriptor: look now and then
  };
  [[nodiscard]] Sleep arm() noexcept;
  // Parts are under way, and some rail has no descriptor: the peer may have to poll for them.
  [[nodiscard]] bool needs_polling_peers() const noexcept { return under_way_ != 0 && polled_; }

 private:
  void complete(uint64_t cookie, const fabric::TransferResult& result) noexcept override;
  void fenced(uint64_t cookie, uint32_t fences) noexcept override;
  void counted(Handle, uint32_t, uint32_t) noexcept override {}         // counters and notices
  void received(Handle, std::span<const uint8_t>) noexcept override {}  // go over the carrier
  void lost(Handle peer, Status status, std::string_view why) noexcept override;
  void send_control(Handle peer, std::span<const uint8_t> message) noexcept override;

  struct Queue {
    Job* head = nullptr;
    Job* tail = nullptr;
    void push(Job* job) noexcept;
    Job* pop() noexcept;
  };
  static std::size_t next_segments(void* context, towline_segment* out, std::size_t capacity);
  [[nodiscard]] Connection* connection_of(Handle peer) const noexcept;
  Job* take_job() noexcept;
  void finish(Job& job) noexcept;
  void take_jobs_of(const Connection& connection, Queue& from, Queue& to) noexcept;
  uint32_t deliver() noexcept;

  struct Known {
    Handle peer;
    Connection* connection = nullptr;
  };
  struct Loss {
    Handle peer;
    std::string why;
  };

  const plugin::Host& host_;
  mutable std::mutex mutex_;
  fabric::Engine engine_;
  bool registers_beside_ = true;  // registrations need no lock
  bool polled_ = false;           // some rail has no descriptor
  std::vector<std::unique_ptr<Job>> jobs_;
  Job* free_ = nullptr;
  uint32_t max_jobs_;
  uint32_t under_way_ = 0;
  Queue ended_;               // to be completed
  Queue waiting_;             // the same, but the carrier has no room for their messages
  std::vector<Known> known_;  // by the peer's index
  std::vector<Loss> losses_;
};

}  // namespace towline::rdma
