#include "agent/peer.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "agent/agent.h"
#include "agent/event_queue.h"
#include "agent/link.h"
#include "agent/split_choice.h"
#include "agent/worker.h"
#include "base/error.h"
#include "base/log.h"
#include "memory/region_table.h"

namespace towline {

namespace {

// Metadata in flight when a region was removed is only a few revocations old, not thousands.
constexpr std::size_t kMostForgotten = 1024;
constexpr std::size_t kMostForgottenOfStrangers = 64;

uint64_t bytes_of(const std::map<std::string, std::vector<uint8_t>>& addresses) noexcept {
  uint64_t bytes = 0;
  for (const auto& [name, address] : addresses) bytes += name.size() + address.size();
  return bytes;
}

// Those that are `wanted`, by this agent's numbers.
template <class Wanted>
metadata::RegionTokens renumbered(const metadata::RegionTokens& given,
                                  const std::vector<std::optional<uint32_t>>& numbers, Wanted wanted) {
  std::vector<metadata::RegionToken> tokens;
  given.for_each([&](const metadata::RegionToken& token) {
    const std::optional<uint32_t> number = numbers[token.backend];
    if (number && wanted(*number)) tokens.push_back({*number, token.bytes});
  });
  std::sort(tokens.begin(), tokens.end(), [](const auto& a, const auto& b) { return a.backend < b.backend; });
  metadata::RegionTokens result;
  for (const metadata::RegionToken& token : tokens) result.add(token.backend, token.bytes);
  return result;
}

towline_identity identity_of(const metadata::PeerIdentity& from, const std::string& name) {
  return {sizeof(towline_identity),
          {from.incarnation.hi, from.incarnation.lo},
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

Peer::Peer(Agent& agent, const metadata::PeerIdentity& identity, Origin origin)
    : splits_(origin == Origin::kAskedFor && agent.workers().size() > 1 ? std::make_unique<SplitChoices>()
                                                                        : nullptr),
      agent_(agent),
      name_(identity.name),
      identity_(identity_of(identity, name_)),
      incarnation_text_(identity.incarnation.to_hex()),
      unsolicited_(origin == Origin::kUnsolicited),
      holders_(unsolicited_ ? std::make_shared<std::atomic<uint32_t>>(0) : nullptr),
      reach_(std::make_unique<std::atomic<Reach>[]>(kMaxBackends)) {}

Peer::~Peer() {
  (void)agent_.limits().set(pace_, 0);
  for (Link* link = first_link_.load(std::memory_order_relaxed); link != nullptr;)
    delete std::exchange(link, link->next());
}

void Peer::merge(const metadata::PeerMetadata& metadata) {
  std::lock_guard lock(mutex_);
  take_addresses(metadata);
  add_regions(metadata);
}

void Peer::offer(const metadata::PeerSummary& summary, std::span<const uint8_t> blob) {
  const bool used = in_use();
  std::lock_guard lock(mutex_);
  if (!used || addresses_.empty()) take_addresses(summary.metadata);
  if (!summary.metadata.partial) {
    if (!used) {
      regions_.clear();
      known_.clear();
    }
    offers_.clear();
    offered_regions_ = 0;
    offered_bytes_ = 0;
  }
  if (summary.regions == 0) return;
  offers_.emplace_back(blob.begin(), blob.end());
  offered_regions_ += summary.regions;
  offered_bytes_ += blob.size() + name_bytes(summary);
}

// One reader at a time: the second one finds the regions already read.
void Peer::read_offers() {
  const std::lock_guard reading(reading_);
  std::vector<std::vector<uint8_t>> offers;
  {
    std::lock_guard lock(mutex_);
    offers.swap(offers_);
    offered_regions_ = 0;
  }
  for (const std::vector<uint8_t>& blob : offers) {
    try {
      const metadata::PeerMetadata metadata = metadata::decode(blob);
      std::lock_guard lock(mutex_);
      add_regions(metadata);
    } catch (const Error& error) {
      TOWLINE_LOG_EVERY(kWarning, 10 * kSecondNs, "the regions of peer '{}' can't be read: {}", name_,
                        error.what());
    }
  }
}

void Peer::take_addresses(const metadata::PeerMetadata& metadata) {
  for (size_t i = 0; i < kMaxBackends; ++i) reach_[i].store(Reach::kUnknown, std::memory_order_relaxed);
  if (!metadata.listen.empty()) listen_addresses_ = metadata.listen;
  if (unsolicited_ && !metadata.partial) addresses_.clear();
  for (const metadata::BackendMetadata& backend : metadata.backends) {
    if (addresses_.size() >= metadata::kMaxBackends && !addresses_.contains(backend.name)) continue;
    addresses_[backend.name] = backend.address;
  }
  address_bytes_ = bytes_of(addresses_);
}

// Skips regions that are invalid here, such as those of a newer peer; the others are used.
void Peer::add_regions(const metadata::PeerMetadata& metadata) {
  known_.clear();
  Numbers numbers;
  for (const metadata::BackendMetadata& backend : metadata.backends)
    numbers.push_back(agent_.backends().number_of(backend.name));
  auto name = metadata.names.begin();
  for (uint32_t i = 0; i < metadata.regions.size(); ++i) {
    const metadata::RegionMetadata& region = metadata.regions[i];
    const uint64_t key = region.region.key;
    const RegionLabel* label = nullptr;
    if (name != metadata.names.end() && name->region == i) label = &(name++)->label;
    if (const auto known = regions_.find(key); known != regions_.end()) {
      if (!unsolicited_) add_tokens(*known->second, region.tokens, numbers);
      continue;
    }
    if (was_forgotten(key)) continue;
    auto made = make_region(region, numbers);
    if (made == nullptr) continue;
    made->order = ++last_order_;
    if (label != nullptr) made->label = label_of(*label, made->ref.bytes);
    regions_.emplace(key, std::move(made));
  }
}

// A layout that does not fit the region is of no use here; the name is.
std::shared_ptr<const RegionLabel> Peer::label_of(const RegionLabel& told, uint64_t region_bytes) const {
  auto label = std::make_shared<RegionLabel>(told);
  if (!label->shaped()) return label;
  if (const std::string why = wrong_with(label->layout, region_bytes); !why.empty()) {
    TOWLINE_LOG_EVERY(kInfo, 10 * kSecondNs, "the layout of region '{}' of peer '{}' is left out: it {}",
                      label->name, name_, why);
    label->layout = {};
  }
  return label;
}

std::shared_ptr<RemoteRegion> Peer::make_region(const metadata::RegionMetadata& region,
                                                const Numbers& numbers) const {
  towline_region_ref ref = region.region;
  if (!keep_what_is_known(ref)) {
    TOWLINE_LOG_EVERY(kInfo, 10 * kSecondNs, "a region of kind {} of peer '{}' makes no sense here: left out",
                      ref.kind, name_);
    return nullptr;
  }
  auto made = std::make_shared<RemoteRegion>();
  made->ref = ref;
  made->tokens = renumbered(region.tokens, numbers, [](uint32_t) { return true; });
  return made;
}

void Peer::add_tokens(RemoteRegion& known, const metadata::RegionTokens& tokens, const Numbers& numbers) {
  auto fresh = renumbered(tokens, numbers, [&](uint32_t number) { return known.token_for(number).empty(); });
  if (fresh.empty()) return;
  auto later = std::make_unique<RemoteRegion::Later>();
  later->tokens = std::move(fresh);
  later->before = std::move(known.later_tokens);
  known.later_tokens = std::move(later);
  known.later.store(known.later_tokens.get(), std::memory_order_release);
}

std::vector<std::string> Peer::listen_addresses() const {
  std::lock_guard lock(mutex_);
  return listen_addresses_;
}

void Peer::end(Status why) noexcept {
  Status expected = Status::kOk;
  ended_.compare_exchange_strong(expected, why, std::memory_order_acq_rel);
  credit_came(why);
}

void Peer::set_health(uint32_t health) noexcept {
  if (health_.exchange(health, std::memory_order_relaxed) != health) agent_.queues().health_changed(*this);
}

void Peer::await_credit(TicketHold ticket) {
  {
    const std::lock_guard lock(mutex_);
    awaiting_credit_.push_back(std::move(ticket));
    credit_waits_.store(awaiting_credit_.size(), std::memory_order_seq_cst);
  }
  if (ended() != Status::kOk) return credit_came(ended());
  if (!any_up_link()) return credit_came(Status::kOk);  // a post connects
  agent_.maintain_soon();
}

void Peer::credit_came(Status status, std::string_view why) noexcept {
  std::vector<TicketHold> told;
  {
    const std::lock_guard lock(mutex_);
    told.swap(awaiting_credit_);
    credit_waits_.store(0, std::memory_order_relaxed);
  }
  for (TicketHold& ticket : told) {
    std::string sentence;
    try {
      if (is_error(status)) sentence = loss(status, why);
    } catch (const std::bad_alloc&) {  // then the status says it
    }
    EventQueue::tell(std::move(ticket), status, std::move(sentence));
  }
}

std::string Peer::loss(Status status, std::string_view why) const {
  const std::string_view text = status_text(status);
  return why.empty() || why == text ? fmt::format("peer '{}': {}", name_, text)
                                    : fmt::format("peer '{}': {} ({})", name_, text, why);
}

bool Peer::address(const std::string& backend, std::vector<uint8_t>& address) const {
  std::lock_guard lock(mutex_);
  const auto found = addresses_.find(backend);
  if (found == addresses_.end()) return false;
  address = found->second;
  return true;
}

bool Peer::has_address(const std::string& backend) const {
  std::lock_guard lock(mutex_);
  return addresses_.contains(backend);
}

std::vector<std::shared_ptr<RemoteRegion>> Peer::regions() {
  if (unsolicited_) read_offers();
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<RemoteRegion>> result;
  result.reserve(regions_.size());
  for (const auto& [key, region] : regions_) result.push_back(region);
  std::sort(result.begin(), result.end(), [](const auto& one, const auto& other) {
    return RegionTable::index_of(one->ref.key) < RegionTable::index_of(other->ref.key);
  });
  return result;
}

std::shared_ptr<RemoteRegion> Peer::region(uint64_t key) {
  if (unsolicited_) read_offers();
  std::lock_guard lock(mutex_);
  const auto found = regions_.find(key);
  return found == regions_.end() ? nullptr : found->second;
}

// The owner may have deregistered a region and registered another under its name, and this agent not have heard of the
// first yet.
std::shared_ptr<RemoteRegion> Peer::region(std::string_view name) {
  std::shared_ptr<RemoteRegion> latest;
  std::string names;
  if (unsolicited_) read_offers();
  const std::lock_guard lock(mutex_);
  for (const auto& [key, region] : regions_) {
    if (region->label == nullptr) continue;
    if (region->label->name == name && (latest == nullptr || latest->order < region->order)) latest = region;
    if (names.size() < 200) names += fmt::format("{}'{}'", names.empty() ? "" : ", ", region->label->name);
  }
  if (latest == nullptr)
    fail(Status::kNotFound, "peer '{}' has no region named '{}'; it has {}", name_, name,
         names.empty() ? "none with a name" : names);
  return latest;
}

std::size_t Peer::region_count() const {
  std::lock_guard lock(mutex_);
  return regions_.size() + offered_regions_;
}

uint64_t Peer::metadata_bytes() const {
  std::lock_guard lock(mutex_);
  return metadata_bytes(regions_.size() + offered_regions_, offered_bytes_ + address_bytes_);
}

uint64_t Peer::address_bytes(const metadata::PeerSummary& summary) noexcept {
  uint64_t bytes = 0;
  for (const metadata::BackendMetadata& backend : summary.metadata.backends)
    bytes += backend.name.size() + backend.address.size();
  return bytes;
}

uint64_t Peer::metadata_bytes_with(const metadata::PeerSummary& summary, uint64_t blob_bytes) const {
  const bool whole = !summary.metadata.partial;
  const bool replaces = whole && !in_use();
  std::lock_guard lock(mutex_);
  return metadata_bytes(summary.regions + (whole ? 0 : offered_regions_) + (replaces ? 0 : regions_.size()),
                        blob_bytes + name_bytes(summary) + (whole ? 0 : offered_bytes_) + address_bytes_ +
                            address_bytes(summary));
}

// If regions differ only in their keys, addresses mean the latest one: its owner may have deregistered the
// memory and registered it again, and this agent may not have heard of the first step yet.
void Peer::make_known() {
  std::lock_guard lock(mutex_);
  if (!known_.empty()) return;
  std::vector<const RemoteRegion*> latest;
  latest.reserve(regions_.size());
  for (const auto& [key, region] : regions_) latest.push_back(region.get());
  const auto place = [](const RemoteRegion* region) {
    const towline_region_ref& ref = region->ref;
    return std::make_tuple(ref.kind, ref.device, ref.address, ref.bytes, ref.access, ref.flags);
  };
  std::sort(latest.begin(), latest.end(), [&](const RemoteRegion* a, const RemoteRegion* b) {
    const auto left = place(a);
    const auto right = place(b);
    return left != right ? left < right : a->order > b->order;
  });
  const auto alike = [&](const RemoteRegion* a, const RemoteRegion* b) { return place(a) == place(b); };
  latest.erase(std::unique(latest.begin(), latest.end(), alike), latest.end());
  std::vector<towline_region_ref> refs;
  refs.reserve(latest.size());
  for (const RemoteRegion* region : latest) refs.push_back(region->ref);
  known_.set({regions_, RegionIndex(refs)});
}

bool Peer::was_forgotten(uint64_t key) const noexcept {
  return std::find(forgotten_.begin(), forgotten_.end(), key) != forgotten_.end();
}

std::shared_ptr<RemoteRegion> Peer::forget_region(uint64_t key) {
  std::lock_guard lock(mutex_);
  const std::size_t most = unsolicited_ ? kMostForgottenOfStrangers : kMostForgotten;
  if (forgotten_.size() < most) {
    forgotten_.push_back(key);
  } else {
    forgotten_[next_forgotten_++ % most] = key;
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

// ---- connections that one of the sides has given up

Link* Peer::find_connection(uint64_t id) const noexcept {
  return first_link([id](const Link& link) { return link.connection_id() == id; });
}

void Peer::remember_ended(uint64_t id) noexcept {
  std::lock_guard lock(mutex_);
  if (std::find(ended_connections_.begin(), ended_connections_.end(), id) != ended_connections_.end()) return;
  ended_connections_[next_ended_++ % ended_connections_.size()] = id;
}

bool Peer::was_ended(uint64_t id) const noexcept {
  std::lock_guard lock(mutex_);
  return id != 0 &&
         std::find(ended_connections_.begin(), ended_connections_.end(), id) != ended_connections_.end();
}

void Peer::confirm_ended(uint64_t id) noexcept {
  for (Link* link = first_link_.load(std::memory_order_acquire); link != nullptr; link = link->next())
    link->ended_at_peer(id);
}

void Peer::given_up_changed() noexcept {
  given_up_changes_.fetch_add(1, std::memory_order_acq_rel);
  for (const Link* link = first_of_links(); link != nullptr; link = link->next()) {
    if (!link->up()) continue;
    link->worker().maintain_soon();
    link->worker().wake();
  }
}

bool Peer::any_up_link() const noexcept {
  return first_link([](const Link& link) { return link.up(); }) != nullptr;
}

bool Peer::connects_over(const Backend& backend) const noexcept {
  return first_link([&](const Link& link) {
           return &link.backend() == &backend && (link.up() || link.state() == Link::State::kConnecting);
         }) != nullptr;
}

// Links first: one that is up may add a holder, and goes down afterwards.
bool Peer::in_use() const noexcept {
  const Link* const not_down =
      first_link([](const Link& link) { return link.state() != Link::State::kDown; });
  return not_down != nullptr || holders_->load(std::memory_order_acquire) != 0;
}

std::vector<Link*> Peer::links() const {
  std::vector<Link*> result;
  for (Link* link = first_link_.load(std::memory_order_acquire); link != nullptr; link = link->next())
    result.push_back(link);
  return result;
}

}  // namespace towline
