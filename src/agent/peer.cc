#include "agent/peer.h"

#include <algorithm>
#include <utility>

#include "agent/agent.h"
#include "agent/link.h"
#include "memory/region_table.h"

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
      incarnation_text_(metadata.identity.incarnation.to_hex()),
      reach_(std::make_unique<std::atomic<Reach>[]>(agent.backends().backends().size())) {
  merge(metadata);
}

Peer::~Peer() {
  for (Link* link = first_link_.load(std::memory_order_relaxed); link != nullptr;)
    delete std::exchange(link, link->next());
}

void Peer::merge(const metadata::PeerMetadata& metadata) {
  std::lock_guard lock(mutex_);
  known_.clear();
  for (size_t i = 0; i < agent_.backends().backends().size(); ++i)
    reach_[i].store(Reach::kUnknown, std::memory_order_relaxed);
  if (!metadata.listen.empty()) listen_addresses_ = metadata.listen;
  for (const metadata::BackendMetadata& backend : metadata.backends)
    addresses_[backend.name] = backend.address;
  for (const metadata::RegionMetadata& region : metadata.regions) {
    if (was_forgotten(region.region.key)) continue;
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

void Peer::make_known() const {
  std::lock_guard lock(mutex_);
  if (!known_.empty()) return;
  std::vector<towline_region_ref> refs;
  refs.reserve(regions_.size());
  for (const auto& [key, region] : regions_) refs.push_back(region->ref);
  known_.set({regions_, RegionIndex(refs)});
}

bool Peer::was_forgotten(uint64_t key) const {
  const auto found = forgotten_.find(index_of_key(key));
  return found != forgotten_.end() && found->second >= generation_of_key(key);
}

std::shared_ptr<RemoteRegion> Peer::forget_region(uint64_t key) {
  std::lock_guard lock(mutex_);
  if (const uint32_t index = index_of_key(key); index < RegionTable::kMaxRegions) {
    uint32_t& newest = forgotten_[index];
    newest = std::max(newest, generation_of_key(key));
  }
  const auto found = regions_.find(key);
  if (found == regions_.end()) return nullptr;
  known_.clear();
  std::shared_ptr<RemoteRegion> region = std::move(found->second);
  regions_.erase(found);
  region->revoked.store(true, std::memory_order_release);
  return region;
}

template <class Wanted>
Link* Peer::first_link(Wanted wanted) const noexcept {
  Link* link = first_link_.load(std::memory_order_acquire);
  while (link != nullptr && !wanted(*link)) link = link->next();
  return link;
}

Peer::Reach Peer::reach(const Backend& backend) const noexcept {
  const Reach reach = reach_[backend.index].load(std::memory_order_relaxed);
  return reach == Reach::kNo && has_up_link(backend) ? Reach::kMaybe : reach;
}

void Peer::set_reach(const Backend& backend, Reach reach) noexcept {
  reach_[backend.index].store(reach, std::memory_order_relaxed);
}

bool Peer::has_up_link(const Backend& backend) const noexcept {
  return first_link([&](const Link& link) { return &link.backend() == &backend && link.up(); }) != nullptr;
}

Link* Peer::find_link(const Backend& backend, uint32_t worker) const noexcept {
  return first_link(
      [&](const Link& link) { return &link.backend() == &backend && link.worker().index() == worker; });
}

Link& Peer::add_link(Backend& backend, uint32_t worker) {
  auto made = std::make_unique<Link>(*this, backend, *agent_.workers()[worker]);
  std::lock_guard lock(mutex_);
  Link* last = first_link_.load(std::memory_order_relaxed);
  while (last != nullptr && last->next() != nullptr) last = last->next();
  Link* const added = made.release();
  if (last == nullptr) {
    first_link_.store(added, std::memory_order_release);
  } else {
    last->set_next(added);
  }
  return *added;
}

Link& Peer::link(Backend& backend, uint32_t worker) {
  Link* const known = find_link(backend, worker);
  return known != nullptr ? *known : add_link(backend, worker);
}

Link& Peer::link_for_incoming(Backend& backend, uint32_t worker) {
  Link* const free = first_link([&](const Link& link) {
    return &link.backend() == &backend && link.worker().index() == worker &&
           link.state() == Link::State::kDown;
  });
  return free != nullptr ? *free : add_link(backend, worker);
}

Link* Peer::up_link(uint32_t worker) const noexcept {
  Link* const own =
      first_link([&](const Link& link) { return link.up() && link.worker().index() == worker; });
  return own != nullptr ? own : first_link([](const Link& link) { return link.up(); });
}

std::vector<Link*> Peer::links() const {
  std::vector<Link*> result;
  for (Link* link = first_link_.load(std::memory_order_acquire); link != nullptr; link = link->next())
    result.push_back(link);
  return result;
}

}  // namespace towline
