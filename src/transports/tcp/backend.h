// One agent's tcp: it listens, and keeps for each worker the connections that are polled.
//
// A connection is polled in each progress() while it has something to do, and left to epoll once it has been
// quiet for a millisecond: so many idle peers cost nothing, and a busy one no epoll.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/id.h"
#include "base/os/alarm.h"
#include "base/sync/inbox.h"
#include "towline/plugin/backend.hpp"
#include "transports/tcp/acceptor.h"
#include "transports/tcp/connection.h"
#include "transports/tcp/flows.h"
#include "transports/tcp/options.h"

namespace towline::tcp {

class Backend : public plugin::BackendBase {
 public:
  using Connection = tcp::Connection;

  explicit Backend(const plugin::Host& host) : Backend(host, "tcp", nullptr) {}
  ~Backend();

  // The tables; see v1.h.
  int32_t add(const towline_region_args& args, towline_registration** registration, void* token,
              size_t* token_bytes);
  void remove(towline_registration*) noexcept {}
  int32_t address(void* address, size_t* bytes);
  int32_t probe(const towline_identity& peer, const void* address, size_t bytes);
  int32_t connect(uint32_t worker, const towline_identity& peer, const void* address, size_t bytes,
                  uint64_t deadline_ns, void* cookie, Connection** connection);
  uint32_t progress(uint32_t worker, uint64_t now_ns) noexcept;
  bool arm(uint32_t worker) noexcept;
  void disarm(uint32_t worker) noexcept;

  // May this GPU memory of ours be moved? TOWLINE_OK, or a reason through host().fail.
  [[nodiscard]] int32_t check_landing(const towline_region_ref& region) const;

  // For connections.
  [[nodiscard]] const Options& options() const noexcept { return options_; }
  void count_connection(uint32_t worker, int change) noexcept { workers_[worker]->connections += change; }
  [[nodiscard]] Flows* flows() const noexcept { return flows_; }
  void add_active(Connection& connection) noexcept;
  // Takes it out of every list and deletes it, at once or when progress() of its worker returns.
  void retire(Connection& connection) noexcept;
  // Connected to this address: warns, once, where that leaves the host.
  void note_open(const SocketAddress& address, int fd);
  uint64_t next_fault_seed() noexcept { return fault_seeds_.fetch_add(1, std::memory_order_relaxed); }

 protected:
  // For a backend with another name, under which its settings are found, and with flows, or null; they outlive it.
  Backend(const plugin::Host& host, const char* name, Flows* flows);

 private:
  struct Worker {
    Inbox<Arrival> inbox;  // from worker 0

    std::size_t connections = 0;
    std::vector<Connection*> active;  // null: retired during progress()
    std::unordered_map<Id, Connection*> accepted;
    std::vector<std::unique_ptr<Connection>> retired;
    bool in_progress = false;
    Alarm alarm;  // wakes the worker when something's time is over
  };

  void deliver(Arrival arrival);
  uint32_t take_arrivals(uint32_t index);
  void take_arrival(uint32_t index, Arrival arrival);
  std::unique_ptr<Connection> make_connection(uint32_t index, void* peer);
  void set_timer(uint32_t index, uint64_t next_ns, uint64_t now_ns) noexcept;

  const char* const name_;
  Flows* const flows_;
  const Options options_;
  Sources sources_;  // outlives the connections
  std::vector<std::unique_ptr<Worker>> workers_;
  std::unique_ptr<Acceptor> acceptor_;
  std::atomic<bool> warned_{false};
  std::atomic<uint64_t> fault_seeds_{0};
};

// On one kernel, in whatever namespaces.
bool is_same_host(const towline_identity& self, const towline_identity& peer) noexcept;

// Puts endpoints at our `own` addresses before the others.
void put_own_first(std::vector<std::string>& endpoints, const std::vector<SocketAddress>& own);

// The addresses worth trying for this peer, best first: a Unix socket on the same host, loopback within the
// same network namespace, then the others; loopback of another host only where there is nothing else. Texts
// that are no numeric address are left out.
std::vector<SocketAddress> choose_candidates(const towline_identity& self, const towline_identity& peer,
                                             const std::vector<std::string>& endpoints);

}  // namespace towline::tcp
