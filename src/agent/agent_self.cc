// Agent: what it tells others of itself, itself as its own peer, and backends that come later.
#include <algorithm>
#include <optional>
#include <utility>

#include "agent/agent.h"
#include "agent/block_list.h"
#include "agent/host_services.h"
#include "agent/metadata_service.h"
#include "base/config/settings_table.h"
#include "base/error.h"

namespace towline {

// ---- metadata

std::vector<uint8_t> Agent::metadata(const std::vector<uint64_t>* keys) {
  check_usable();
  for (const uint64_t key : keys != nullptr ? *keys : std::vector<uint64_t>{}) {
    const std::shared_ptr<Region> region = regions().find(key);
    if (region == nullptr || region->ref.access != TOWLINE_ACCESS_NONE) continue;
    fail(Status::kPermissionDenied,
         "region {:#x} at [{:#x}, {:#x}) was registered without access, for this agent's use only, so that "
         "peers can't be told of it: register it with read or write access",
         key, region->ref.address, region->ref.address + region->ref.bytes);
  }
  Worker::Guard guard(*workers_[0]);
  return metadata_locked(keys);
}

std::vector<uint8_t> Agent::metadata_locked(const std::vector<uint64_t>* keys) {
  return metadata::encode(describe_self(keys, false));
}

std::vector<std::shared_ptr<Region>> Agent::described(const std::vector<uint64_t>* keys, bool for_self) {
  std::vector<std::shared_ptr<Region>> described;
  if (for_self) {
    for (const uint64_t key : *keys)
      if (auto region = regions().find(key); region != nullptr && regions().is_published(key))
        described.push_back(std::move(region));
    return described;
  }
  described = regions().published();
  std::erase_if(described, [keys](const auto& region) {
    const bool asked = keys == nullptr || std::ranges::find(*keys, region->ref.key) != keys->end();
    return !asked || !region->for_peers();
  });
  return described;
}

metadata::PeerMetadata Agent::describe_self(const std::vector<uint64_t>* keys, bool for_self) {
  metadata::PeerMetadata self;
  self.identity.name = name();
  self.identity.incarnation = incarnation_;
  self.identity.host = {{identity_.host[0], identity_.host[1]},
                        static_cast<uint32_t>(identity_.pid),
                        identity_.pid_namespace,
                        identity_.network_namespace,
                        identity_.start_time};
  self.identity.caller_driven = identity_.caller_driven != 0;
  self.identity.workers = identity_.workers;
  self.partial = keys != nullptr;
  if (metadata_service_ != nullptr) self.listen = metadata_service_->addresses();
  std::vector<uint8_t> address(TOWLINE_MAX_ADDRESS_BYTES);
  std::vector<uint32_t> told;  // the backends' own numbers, in the blob's order
  for (const auto& backend : backends_->backends()) {
    if (!backend->open() || (backend->storage != nullptr && !for_self)) continue;
    size_t bytes = address.size();
    if (backend->connection->address(backend->handle, address.data(), &bytes) != TOWLINE_OK) continue;
    if (bytes == 0 || bytes > address.size()) continue;
    told.push_back(backend->index);
    self.backends.push_back({backend->name,
                             backend->plugin->version,
                             {address.begin(), address.begin() + static_cast<ptrdiff_t>(bytes)}});
  }
  for (const auto& region : described(keys, for_self)) {
    metadata::RegionMetadata entry;
    entry.region = region->ref;
    if (region->label != nullptr)
      self.names.push_back({static_cast<uint32_t>(self.regions.size()), *region->label});
    (void)regions().look_at(region->ref.key, [&](const Region& present) {
      for (uint32_t i = 0; i < told.size(); ++i) {
        if (told[i] >= present.registrations.size() || present.registrations[told[i]].token.empty()) continue;
        entry.tokens.add(i, present.registrations[told[i]].token);
      }
    });
    self.regions.push_back(std::move(entry));
  }
  return self;
}

// ---- this agent as its own peer

std::shared_ptr<BlockList> Agent::as_remote(const std::shared_ptr<BlockList>& list) {
  Peer* self = own_peer_.load(std::memory_order_acquire);
  if (self != nullptr && self->ended() != Status::kOk) self = nullptr;
  std::vector<towline_region_ref> refs;
  std::vector<uint64_t> unknown;
  bool renamed = false;
  for (const towline_region_ref& ref : list->resolved().regions()) {
    const std::shared_ptr<Region> region = regions_->for_self(ref.key);
    if (region == nullptr) fail(Status::kStale, "the region with key {} has been deregistered", ref.key);
    refs.push_back(region->ref);
    renamed = renamed || region->ref.key != ref.key;
    if (self == nullptr || self->region(region->ref.key) == nullptr) unknown.push_back(region->ref.key);
  }
  if (!unknown.empty()) {
    Worker::Guard guard(*workers_[0]);
    self = &learn(describe_self(&unknown, true), false);
    own_peer_.store(self, std::memory_order_release);
  }
  RemoteRegions regions;
  for (const towline_region_ref& ref : refs) {
    std::shared_ptr<RemoteRegion> region = self->region(ref.key);
    if (region == nullptr) fail(Status::kStale, "the region with key {} has been deregistered", ref.key);
    regions.push_back(std::move(region));
  }
  std::shared_ptr<const ResolvedList> same(list, &list->resolved());
  if (renamed) same = ResolvedList::renamed(list->resolved(), refs);
  return std::make_shared<BlockList>(std::move(same), self, std::move(regions));
}

void Agent::forget_own_region(uint64_t key) noexcept {
  if (Peer* self = own_peer_.load(std::memory_order_acquire); self != nullptr) (void)self->forget_region(key);
}

// ---- backends that come later

namespace {

// Settings that come with the name of a plugin. They are taken back unless kept.
class AddedSettings {
 public:
  // "ucx?transports=tcp&slice_bytes=64KiB" sets tuning.ucx.transports and tuning.ucx.slice_bytes.
  AddedSettings(const std::string& named, Config& config) : config_(config), plugin_(named) {
    const auto mark = named.find('?');
    const std::string name = named.substr(0, mark);
    if (mark == std::string::npos || name.find_first_of("/.") != std::string::npos) return;
    plugin_ = name;
    try {
      for (std::size_t at = mark + 1; at < named.size();) {
        const std::size_t end = std::min(named.find('&', at), named.size());
        const std::string setting = named.substr(at, end - at);
        const auto equal = setting.find('=');
        if (equal == 0 || equal == std::string::npos)
          fail(Status::kInvalidArgument, "{}: \"{}\" is no setting; write NAME=VALUE", named, setting);
        const std::string key = setting_name(name + "." + setting.substr(0, equal));
        before_.emplace_back(key, config.exchange(key, setting.substr(equal + 1)));
        at = end + 1;
      }
      config.refuse_unknown_keys();
    } catch (...) {
      take_back();
      throw;
    }
  }
  AddedSettings(const AddedSettings&) = delete;
  AddedSettings& operator=(const AddedSettings&) = delete;
  ~AddedSettings() { take_back(); }

  [[nodiscard]] const std::string& plugin() const noexcept { return plugin_; }  // "ucx"
  void keep() noexcept { before_.clear(); }

 private:
  void take_back() {
    for (; !before_.empty(); before_.pop_back())
      config_.exchange(before_.back().first, std::move(before_.back().second));
  }

  Config& config_;
  std::string plugin_;
  std::vector<std::pair<std::string, std::optional<std::string>>> before_;
};

}  // namespace

void Agent::add_backend(const std::string& named) {
  check_usable();
  const auto registering = regions_->hold();
  AddedSettings settings(named, options_.config);
  const auto locked = [this](auto&& call) {
    for (auto& worker : workers_) worker->lock();
    call();
    for (auto& worker : workers_) worker->unlock();
  };
  for (Backend* const backend :
       backends_->load_more(settings.plugin(), options_.config.get_string("faults"), host_services())) {
    locked([&] { backends_->open_loaded(*backend); });
    backends_->check_open(*backend);
    regions_->register_all_with(*backend);
    backends_->put_in_order(*backend, options_.backends.empty());
    for (auto& worker : workers_) worker->wake();
    settings.keep();
  }
}

}  // namespace towline
