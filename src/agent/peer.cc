#include "agent/peer.h"

#include <algorithm>

#include "agent/agent.h"
#include "agent/link.h"

namespace towline {

namespace {

towline_identity identity_of(const metadata::PeerIdentity& from, const std::string& name) {
  return {{from.incarnation.hi, from.incarnation.lo},
          {from.host.boot_id.hi, from.host.boot_id.lo},
          from.host.pid,
          from.host.pid_namespace,
          from.host.process_start_time,
          from.host.network_namespace,
          from.caller_driven ? 1u : 0u,
          from.workers,
          name.c_str()};
}

}  // namespace

Peer::Peer(Agent& agent, const metadata::PeerMetadata& metadata)
    : agent_(agent),
      name_(metadata.identity.name),
      identity_(identity_of(metadata.identity, name_)),
      incarnation_text_(metadata.identity.incarnation.to_hex()) {
  merge(metadata);
}

Peer::~Peer() = default;

void Peer::merge(const metadata::PeerMetadata& metadata) {
  std::lock_guard lock(mutex_);
  index_.reset();
  reach_.clear();
  if (!metadata.listen.empty()) listen_addresses_ = metadata.listen;
  for (const metadata::BackendMetadata& backend : metadata.backends)
    addresses_[backend.name] = backend.address;
  for (const metadata::RegionMetadata& region : metadata.regions) {
    auto& known = regions_[region.region.key];
    if (known != nullptr) continue;
    known = std::make_shared<RemoteRegion>();
    known->ref = region.region;
    for (const metadata::RegionToken& token : region.tokens) {
      if (token.backend < metadata.backends.size())
        known->tokens[metadata.backends[token.backend].name] = token.bytes;
    }
  }
}

std::vector<std::string> Peer::listen_addresses() const {
  std::lock_guard lock(mutex_);
  return listen_addresses_;
}

void Peer::end(Status why) noexcept {
  Status expected = Status::kOk;
  ended_.compare_exchange_strong(expected, why, std::memory_order_acq_rel);
}

bool Peer::address(const std::string& backend, std::vector<uint8_t>& address) const {
  std::lock_guard lock(mutex_);
  const auto found = addresses_.find(backend);
  if (found == addresses_.end()) return false;
  address = found->second;
  return true;
}

std::vector<std::shared_ptr<RemoteRegion>> Peer::regions() const {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<RemoteRegion>> result;
  result.reserve(regions_.size());
  for (const auto& [key, region] : regions_) result.push_back(region);
  return result;
}

std::shared_ptr<RemoteRegion> Peer::region(uint64_t key) const {
  std::lock_guard lock(mutex_);
  const auto found = regions_.find(key);
  return found == regions_.end() ? nullptr : found->second;
}

std::shared_ptr<const RegionIndex> Peer::region_index() const {
  std::lock_guard lock(mutex_);
  if (index_ == nullptr) {
    std::vector<towline_region_ref> refs;
    refs.reserve(regions_.size());
    for (const auto& [key, region] : regions_) refs.push_back(region->ref);
    index_ = std::make_shared<const RegionIndex>(refs);
  }
  return index_;
}

std::shared_ptr<RemoteRegion> Peer::forget_region(uint64_t key) {
  std::lock_guard lock(mutex_);
  const auto found = regions_.find(key);
  if (found == regions_.end()) return nullptr;
  index_.reset();
  std::shared_ptr<RemoteRegion> region = std::move(found->second);
  regions_.erase(found);
  region->revoked.store(true, std::memory_order_release);
  return region;
}

Peer::Reach Peer::reach(const Backend& backend) const {
  std::lock_guard lock(mutex_);
  const Reach reach = backend.index < reach_.size() ? reach_[backend.index] : Reach::kUnknown;
  return reach == Reach::kNo && has_up_link_locked(backend) ? Reach::kMaybe : reach;
}

void Peer::set_reach(const Backend& backend, Reach reach) {
  std::lock_guard lock(mutex_);
  if (backend.index >= reach_.size()) reach_.resize(backend.index + 1, Reach::kUnknown);
  reach_[backend.index] = reach;
}

bool Peer::has_up_link(const Backend& backend) const {
  std::lock_guard lock(mutex_);
  return has_up_link_locked(backend);
}

bool Peer::has_up_link_locked(const Backend& backend) const noexcept {
  return std::any_of(links_.begin(), links_.end(),
                     [&](const auto& link) { return &link->backend() == &backend && link->up(); });
}

Link* Peer::find_link(const Backend& backend, uint32_t worker) const {
  std::lock_guard lock(mutex_);
  for (const auto& link : links_) {
    if (&link->backend() == &backend && link->worker().index() == worker) return link.get();
  }
  return nullptr;
}

Link& Peer::link(Backend& backend, uint32_t worker) {
  if (Link* known = find_link(backend, worker)) return *known;
  std::lock_guard lock(mutex_);
  links_.push_back(std::make_unique<Link>(*this, backend, *agent_.workers()[worker]));
  return *links_.back();
}

Link& Peer::link_for_incoming(Backend& backend, uint32_t worker) {
  {
    std::lock_guard lock(mutex_);
    for (const auto& link : links_) {
      if (&link->backend() == &backend && link->worker().index() == worker &&
          link->state() == Link::State::kDown) {
        return *link;
      }
    }
  }
  std::lock_guard lock(mutex_);
  links_.push_back(std::make_unique<Link>(*this, backend, *agent_.workers()[worker]));
  return *links_.back();
}

Link* Peer::up_link(uint32_t worker) const noexcept {
  std::lock_guard lock(mutex_);
  Link* found = nullptr;
  for (const auto& link : links_) {
    if (!link->up()) continue;
    if (link->worker().index() == worker) return link.get();
    if (found == nullptr) found = link.get();
  }
  return found;
}

std::vector<Link*> Peer::links() const {
  std::lock_guard lock(mutex_);
  std::vector<Link*> result;
  result.reserve(links_.size());
  for (const auto& link : links_) result.push_back(link.get());
  return result;
}

}  // namespace towline
