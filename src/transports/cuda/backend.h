// One agent's instance of the cuda transport: its regions, its connections by worker, and the socket it gives
// memory out on.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/containers/pass_list.h"
#include "gpu/device.h"
#include "towline/plugin/backend.hpp"
#include "towline/towline.h"
#include "transports/cuda/carrier.h"
#include "transports/cuda/connection.h"
#include "transports/cuda/copy_team.h"
#include "transports/cuda/detour_wire.h"
#include "transports/cuda/host_pin.h"
#include "transports/cuda/landing.h"
#include "transports/cuda/mapping_cache.h"
#include "transports/cuda/memory_service.h"
#include "transports/cuda/settings.h"

namespace towline::cuda {

// Memory of ours, as registered.
struct Region {
  towline_region_args args = {};
  uint32_t gpu = 0;               // of vram
  std::shared_ptr<HostPin> host;  // of dram
  [[nodiscard]] bool vram() const noexcept { return args.region.kind == TOWLINE_MEMORY_VRAM; }
};

class Backend : public plugin::BackendBase, private CarrierOwner {
 public:
  using Connection = cuda::Connection;

  Backend(const plugin::Host& host, Device& device);
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
  void disarm(uint32_t worker) noexcept { carrier_->disarm(worker); }
  // JSON, in an agent's info: who has the right of way beside a model, what is reserved on each GPU, or why
  // nothing is, and why connections got no staging memory. info.cc.
  [[nodiscard]] std::string describe();

  // Landing, for other backends.
  int32_t landing_check(const towline_region_ref& region) noexcept;
  int32_t landing_open(uint64_t gpu, uint32_t slots, uint32_t slot_bytes, Landing*& landing) noexcept;
  int32_t landing_open_pool(const std::string& gpu, uint64_t bytes, int given, LandingPool*& pool,
                            std::span<char> reason) noexcept;
  struct LandingRefusals {
    uint64_t count = 0;
    std::string last;  // what, where and what to do
  };
  [[nodiscard]] LandingRefusals landing_refusals();

  int32_t landing_export(const towline_region_ref& region, towline_landing_export& memory,
                         std::span<char> reason) noexcept;

  // For connections.

  [[nodiscard]] const Settings& settings() const noexcept { return settings_; }
  [[nodiscard]] Device& device() noexcept { return device_; }
  [[nodiscard]] MappingCache& mappings() noexcept { return mappings_; }
  [[nodiscard]] CopyTeam& team() noexcept { return team_; }
  [[nodiscard]] PinThread& pin_thread() noexcept { return pin_thread_; }
  [[nodiscard]] Carrier& carrier() noexcept { return *carrier_; }
  // Offers host memory that a peer may request by this name until it is unshared. Throws Error. Any thread.
  PoolName share_pool(void* address, uint64_t bytes);
  void unshare_pool(uint64_t key) noexcept;
  // The location of a region of this agent; none: host memory. Throws Error if there is no such region.
  [[nodiscard]] std::optional<uint32_t> gpu_of(uint64_t key);
  // None of the GPUs that we would use is known to reach that one.
  [[nodiscard]] bool no_path_to(const Uuid& gpu);
  [[nodiscard]] bool same_process(const towline_identity& peer) const noexcept;
  // Has that agent of this process such a region, which it is not deregistering?
  [[nodiscard]] static bool neighbour_has(const uint64_t incarnation[2], uint64_t key);

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
  int32_t refuse_landing(Status status, const std::string& text, uint64_t gpu) noexcept;
  [[nodiscard]] uint32_t gpu_for_pool(const std::string& gpu) const;
  struct Worker {
    PassList<Connection> connections;
  };

  int32_t on_accepted(uint32_t worker, towline_connection* carried, const towline_identity& identity,
                      CarrierEvents** events) override;
  uint32_t check_vram(const towline_region_ref& region);
  [[nodiscard]] std::vector<Allocation> allocations_of(const towline_region_ref& region) const;
  Answer find_part(const Ask& ask);
  [[nodiscard]] bool may_be_reached(uint64_t key);
  // Null: no such region, or it is being deregistered. Under the regions' lock.
  [[nodiscard]] const Region* region_to_reach(uint64_t key) const;
  static Answer give_pool(const Shared& pool);

  Device& device_;
  const Settings settings_;
  LandingBudget landing_budget_{settings_.landing_bytes};
  Unpackers unpackers_;
  std::mutex refusals_mutex_;
  uint64_t refusals_ = 0;
  uint64_t refusal_logged_ns_ = 0;
  std::string last_refusal_;
  MappingCache mappings_;
  CopyTeam team_;
  PinThread pin_thread_;
  std::vector<Worker> workers_;
  std::optional<Carrier> carrier_;
  std::optional<MemoryService> service_;

  std::mutex regions_mutex_;
  std::unordered_map<uint64_t, std::unique_ptr<Region>> regions_;  // by key
  std::unordered_map<uint64_t, Shared> pools_;                     // the same
  uint64_t last_pool_ = 0;
  std::map<uint32_t, uint64_t> vram_;  // how many regions on each GPU
};

}  // namespace towline::cuda
