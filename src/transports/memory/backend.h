// One agent's instance of the memory transport: its mailbox in the process, and its connections by worker.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/containers/pass_list.h"
#include "framing/fault_options.h"
#include "towline/plugin/backend.hpp"
#include "transports/memory/connection.h"
#include "transports/memory/directory.h"

namespace towline::memory {

class Backend : public plugin::BackendBase {
 public:
  using Connection = memory::Connection;

  explicit Backend(const plugin::Host& host);
  ~Backend();

  int32_t add(const towline_region_args& args, towline_registration** registration, void* token,
              size_t* token_bytes);
  void remove(towline_registration*) noexcept {}
  int32_t address(void* address, size_t* bytes);
  int32_t probe(const towline_identity& peer, const void* address, size_t bytes);
  int32_t connect(uint32_t worker, const towline_identity& identity, const void* address, size_t bytes,
                  uint64_t deadline_ns, void* peer, Connection** connection);
  uint32_t progress(uint32_t worker, uint64_t now_ns) noexcept;
  bool arm(uint32_t worker) noexcept;
  void disarm(uint32_t worker) noexcept;

  // For connections.

  [[nodiscard]] uint64_t inline_bytes() const noexcept { return inline_bytes_; }
  [[nodiscard]] bool framed_only() const noexcept { return framed_only_; }
  // For the lane of a new connection: the configured ones, with a seed of its own.
  [[nodiscard]] framing::FaultOptions next_faults() noexcept;

  // Around everything on a worker that may call the host back: connections that are disconnected meanwhile
  // are deleted when the outermost one ends.
  class Scope : PassList<Connection>::Pass {
   public:
    Scope(Backend& backend, uint32_t worker) noexcept : Pass(backend.workers_[worker].connections) {}
  };
  // Called by disconnect(), which is the connection's last word.
  void release(Connection* connection) noexcept {
    workers_[connection->worker()].connections.release(connection);
  }

 private:
  struct Worker {
    PassList<Connection> connections;
  };

  uint32_t answer_calls(uint32_t worker) noexcept;

  uint64_t inline_bytes_ = 0;
  uint32_t ring_bytes_ = 0;
  bool framed_only_ = false;
  framing::FaultOptions faults_;
  std::atomic<uint64_t> fault_seeds_{0};
  std::vector<Worker> workers_;
  std::shared_ptr<Mailbox> mailbox_;
};

}  // namespace towline::memory
