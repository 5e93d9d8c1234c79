// This agent's own regions: memory and storage as backends know them, from registration until no peer, no transfer and no
// backend uses them any more.
//
// Regions and backends come and go one at a time, under one lock that is taken before every worker's lock and under
// none: while a backend registers a terabyte, workers go on.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "memory/region_table.h"
#include "towline/storage.h"
#include "towline/towline.h"

namespace towline {

class Agent;
struct Backend;

class OwnRegions {
 public:
  explicit OwnRegions(Agent& agent) : agent_(agent) {}
  OwnRegions(const OwnRegions&) = delete;
  OwnRegions& operator=(const OwnRegions&) = delete;

  // These throw Error.
  std::shared_ptr<Region> add(void* address, uint64_t bytes, const towline_region_options_t& options);
  // Memory of the agent itself: registered with backends, but not found by lists and not in metadata.
  std::shared_ptr<Region> add_private(void* address, uint64_t bytes);
  // kNotYet, with a text that names the peer that still holds it: not deregistered yet; call again.
  Status remove(const std::shared_ptr<Region>& region, uint64_t timeout_ns, std::string& why);

  // The region by which the agent, as its own peer, reaches the one with this key: that one, or, if it was registered
  // without access, another one of the same memory, whose key nobody else learns. Null: it is not published (any more).
  std::shared_ptr<Region> for_self(uint64_t key);

  // Storage; own_storage.cc. Opens and registers what is at the URI with the backend of its scheme.
  std::shared_ptr<Region> add_storage(const char* uri, const towline_storage_options_t& options);
  void query_storage(const char* uri, towline_storage_info_t& info);
  void list_storage(const char* prefix, towline_storage_found_t found, void* argument);
  void commit_storage(const std::shared_ptr<Region>& region, uint64_t timeout_ns);

  // Nothing is registered, and no backend added, while this lives.
  [[nodiscard]] std::unique_lock<std::mutex> hold() { return std::unique_lock(registration_mutex_); }
  // Under hold(): registers all regions with a backend that has come.
  void register_all_with(const Backend& backend);
  // Under hold(), when the agent closes: ends all of them, those of staging memory too.
  void end() noexcept;

  [[nodiscard]] RegionTable& table() noexcept { return table_; }

 private:
  // These under hold().
  std::shared_ptr<Region> take_on_unpublished(Region region);
  // Throws Error(kAlreadyExists) if another region that peers can find has the name.
  void check_name_is_free(const std::string& name);
  void register_with_backends(Region& region);
  [[nodiscard]] RegionRegistration register_with(const Backend& backend, const Region& region);
  void unregister_from_backends(Region& region);

  [[nodiscard]] std::shared_ptr<Region> twin_of(uint64_t key);
  std::shared_ptr<Region> take_on(Region region);
  void ask_peers_to_let_go(const Region& region);
  [[nodiscard]] std::string peer_holding(uint64_t key);
  [[nodiscard]] bool release_transfers_of(uint64_t key);
  [[nodiscard]] Backend& storage_backend(const char* uri);
  // False: a commit is under way.
  [[nodiscard]] static bool end_commits(Region& region) noexcept;
  static void close_storage(Region& region) noexcept;
  // Null without a name. Throws Error for what is wrong with them; check_layout also for a region of so many bytes.
  static std::shared_ptr<const RegionLabel> label_from(const char* name, const towline_layout_t* layout);
  static void check_layout(const RegionLabel* label, uint64_t bytes);

  Agent& agent_;
  RegionTable table_;
  std::mutex registration_mutex_;
  std::map<uint64_t, std::shared_ptr<Region>> twins_;  // by the key of the region without access
  std::map<std::string, uint64_t> names_;              // keys of the regions that have or had them
  std::atomic<uint64_t> last_device_{0};               // numbers given to storage regions
};

}  // namespace towline
