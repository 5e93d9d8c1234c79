// One agent's instance of the transport: an engine of the plugin for each worker, the registered regions, and the
// carrier of messages, an instance of tcp.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/containers/pass_list.h"
#include "base/os/alarm.h"
#include "towline/plugin/backend.hpp"
#include "transports/carrier/carrier.h"
#include "transports/nixl/connection.h"
#include "transports/nixl/settings.h"
#include "transports/nixl/wire.h"

namespace towline::nixl_net {

// Memory of ours.
struct Registered {
  towline_region_ref region = {};
  std::vector<OwnMemory> memory;  // by worker
};

// By which engines know one another: both sides derive it from what the core knows of the peer.
std::string engine_name_of(const uint64_t incarnation[2], uint32_t worker);

class Backend final : public plugin::BackendBase, private carrier::CarrierOwner {
 public:
  using Connection = nixl_net::Connection;

  // Throws plugin::Failure.
  explicit Backend(const plugin::Host& host);
  ~Backend();

  int32_t add(const towline_region_args& args, towline_registration** registration, void* token,
              size_t* token_bytes);
  void remove(towline_registration* registration) noexcept;
  int32_t address(void* address, size_t* bytes);
  int32_t probe(const towline_identity& peer, const void* address, size_t bytes);
  int32_t connect(uint32_t worker, const towline_identity& identity, const void* address, size_t bytes,
                  uint64_t deadline_ns, void* peer, Connection** connection);
  uint32_t progress(uint32_t worker, uint64_t now_ns) noexcept;
  bool arm(uint32_t worker) noexcept;
  void disarm(uint32_t worker) noexcept;
  // JSON: the plugin, and what its engines were given.
  [[nodiscard]] std::string describe() const;

  // For connections.
  [[nodiscard]] carrier::Carrier& carrier() noexcept { return *carrier_; }
  [[nodiscard]] WorkerEngine& engine(uint32_t worker) noexcept { return *workers_[worker]->engine; }
  [[nodiscard]] const std::string& type() const noexcept { return workers_.front()->engine->type(); }
  // The answer to a peer of this worker that asks for a region.
  [[nodiscard]] Answer answer(uint64_t key, uint32_t worker) const;
  // It has messages that the carrier had no room for.
  void add_eager(Connection& connection);
  void wake_if_asleep(uint32_t worker) noexcept {
    if (workers_[worker]->armed) host().wake(worker);
  }

 private:
  struct Worker {
    PassList<Connection> connections;
    std::vector<Connection*> eager;
    std::unique_ptr<WorkerEngine> engine;
    Alarm alarm;  // wakes the worker, to ask the engine
    bool armed = false;
  };

 public:
  // Around everything on a worker that may call the host back: connections that are disconnected meanwhile
  // are deleted when the outermost one ends.
  class Scope : PassList<Connection>::Pass {
   public:
    Scope(Backend& backend, uint32_t worker) noexcept : Pass(backend.workers_[worker]->connections) {}
  };
  // Called by disconnect(), which is the connection's last word.
  void release(Connection* connection) noexcept;

 private:
  int32_t on_accepted(uint32_t worker, towline_connection* carried, const towline_identity& identity,
                      carrier::CarrierEvents** events) override;
  int32_t refuse(Status status, const std::string& text) const {
    return host().refuse(status, std::string(kName) + ": " + text);
  }

  const Settings settings_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::optional<carrier::Carrier> carrier_;

  mutable std::mutex regions_mutex_;
  std::unordered_map<uint64_t, std::unique_ptr<Registered>> regions_;  // by key
};

}  // namespace towline::nixl_net
