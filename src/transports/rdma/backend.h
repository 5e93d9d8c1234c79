// One agent's instance of the rdma transport: an engine of the fabric for each worker, the registered regions, and
// the carrier of messages.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/containers/pass_list.h"
#include "base/os/alarm.h"
#include "fabric/topology.h"
#include "towline/plugin/backend.hpp"
#include "transports/carrier/carrier.h"
#include "transports/rdma/connection.h"
#include "transports/rdma/regions.h"
#include "transports/rdma/settings.h"
#include "transports/rdma/worker_engine.h"

namespace towline::rdma {

// The text as it may stand in JSON and in terminals.
std::string printable(std::string_view text);

class Backend : public plugin::BackendBase, private carrier::CarrierOwner, private RegionsOwner {
 public:
  using Connection = rdma::Connection;

  // Throws plugin::Failure.
  Backend(const plugin::Host& host, const Flavour& flavour);
  virtual ~Backend();

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
  // JSON: the rails, what they have carried, and what their sort has never met. info.cc.
  [[nodiscard]] std::string describe() const;

  // For connections.
  [[nodiscard]] const char* name() const noexcept { return flavour_.name; }
  [[nodiscard]] carrier::Carrier& carrier() noexcept { return *carrier_; }
  [[nodiscard]] WorkerEngine& engine(uint32_t worker) noexcept { return *workers_[worker]->engine; }
  [[nodiscard]] const std::string& rails_text() const noexcept { return rails_text_; }
  // The answer to a peer of this worker that asks for a region. None: later, after reanswer().
  [[nodiscard]] std::optional<Answer> answer(uint64_t key, uint32_t worker);
  // Memory of a region of this agent, as this worker's rails know it: kOk, kAgain, or why not. Null `region`: by the key.
  [[nodiscard]] Regions::State local_memory(Registered* region, uint64_t key, uint32_t worker,
                                            const fabric::LocalMemory*& memory);
  // The kinds of rails by which this peer may be reached.
  [[nodiscard]] std::vector<std::string> kinds_for(const towline_identity& peer) const;
  // It has messages that the carrier had no room for.
  void add_eager(Connection& connection);
  void poll_for_a_while(uint32_t worker) noexcept;
  void wake_if_asleep(uint32_t worker) noexcept {
    if (workers_[worker]->armed) host().wake(worker);
  }

 private:
  struct Worker {
    PassList<Connection> connections;
    std::vector<Connection*> eager;
    std::unique_ptr<WorkerEngine> engine;
    std::vector<int> watched;
    Alarm alarm;                             // wakes the worker when something's time is over
    uint64_t poll_until_ns = 0;              // a peer has bytes under way that wake nobody
    uint64_t pause_ns = 1 * kMillisecondNs;  // until rails that wake nobody are looked at again
    bool armed = false;
    std::atomic<bool> settled{false};  // registrations: connections may answer what they put off
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
  std::vector<fabric::LocalMemory> register_memory(const fabric::MemoryToRegister& memory) override;
  void deregister_memory(const std::vector<fabric::LocalMemory>& memory) noexcept override;
  bool run(void (*work)(void* argument), void* argument) noexcept override;
  void settled() noexcept override;
  static void nothing_to_do(void*, uint32_t) {}
  void open_workers();
  std::vector<std::unique_ptr<fabric::Domain>> open_rails();
  void watch_rails(uint32_t index);
  [[nodiscard]] std::string describe_places() const;     // info.cc
  [[nodiscard]] std::string describe_never_met() const;  // the same
  int32_t refuse(Status status, std::string_view text) const {
    return host().refuse(status, fmt::format("{}: {}", name(), text));
  }
  void set_timer(uint32_t index, uint64_t next_ns, uint64_t now_ns) noexcept;

  const Flavour& flavour_;
  Settings settings_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::string rails_text_;
  std::vector<fabric::PciPlace> places_;  // of the rails
  std::vector<std::string> kinds_;
  std::vector<std::string> outside_kinds_;  // of rails that reach other processes only
  std::optional<carrier::Carrier> carrier_;

  std::optional<Regions> regions_;
};

}  // namespace towline::rdma
