#include "agent/route_planner.h"

#include <algorithm>

#include "agent/agent.h"
#include "agent/block_list.h"
#include "agent/link.h"
#include "memory/kind_name.h"

namespace towline {

namespace {

constexpr double kClearly = 0.75;  // a measured price is lower: at most so much of the other
constexpr uint32_t kDramOnly = 1u << TOWLINE_MEMORY_DRAM;
constexpr uint32_t kVramOnly = 1u << TOWLINE_MEMORY_VRAM;

uint32_t kinds_of(const BlockList& list) noexcept {
  uint32_t kinds = 0;
  for (uint64_t i = 0; i < list.view().region_count; ++i) kinds |= 1u << list.view().regions[i].kind;
  return kinds;
}

std::string names_of(uint32_t kinds) {
  std::string names;
  for (uint32_t kind = 0; kind < 32; ++kind)
    if ((kinds & (1u << kind)) != 0) names += (names.empty() ? "" : " and ") + std::string(kind_name(kind));
  return names;
}

// TOWLINE_WHERE_*: how far away the peer is.
uint32_t where_is(const Peer& peer, const Agent& agent) noexcept {
  const towline_identity& here = agent.identity();
  const towline_identity& there = peer.identity();
  const bool known = (here.host[0] | here.host[1]) != 0;
  if (!known || here.host[0] != there.host[0] || here.host[1] != there.host[1]) {
    return peer.incarnation() == agent.incarnation() ? TOWLINE_WHERE_SAME_PROCESS : TOWLINE_WHERE_ANY_HOST;
  }
  const bool same_process = here.pid == there.pid && here.pid_namespace == there.pid_namespace &&
                            here.start_time == there.start_time;
  return same_process ? TOWLINE_WHERE_SAME_PROCESS : TOWLINE_WHERE_SAME_HOST;
}

bool moves(const Backend& backend, const Need& need, uint32_t where) noexcept {
  return need.local == 0 || backend.moves_all(need.op, need.local, need.remote, where);
}

// Empty: as far as the backend knows, it can be reached.
std::string ask(Backend& backend, const Peer& peer) {
  if (backend.has_trait(TOWLINE_TRAIT_STORAGE) && peer.incarnation() != backend.agent->incarnation())
    return "it serves this agent's own storage only";
  std::vector<uint8_t> address;
  if (!peer.address(backend.name, address)) return "the peer does not offer it";
  Worker::Guard guard(*backend.agent->workers()[0]);  // probe belongs to its lock
  if (!backend.open()) return backend.why_not_open();
  take_failure_text();
  const int32_t status =
      backend.connection->probe(backend.handle, &peer.identity(), address.data(), address.size());
  if (status == TOWLINE_OK) return {};
  const std::string text = take_failure_text();
  return text.empty() ? status_text(static_cast<Status>(status)) : text;
}

}  // namespace

Need need_of(uint32_t op, const BlockList& local, const BlockList& remote, uint64_t bytes) noexcept {
  return {op, kinds_of(local), kinds_of(remote), bytes};
}

namespace {

// As far as the peer is concerned: the backend is open and moves what is needed.
bool reaches(Backend& backend, Peer& peer, const std::string& forced) {
  if (!forced.empty() && backend.name != forced) return false;
  Peer::Reach reach = peer.reach(backend);
  if (reach == Peer::Reach::kUnknown) {
    reach = ask(backend, peer).empty() ? Peer::Reach::kMaybe : Peer::Reach::kNo;
    peer.set_reach(backend, reach);
    reach = peer.reach(backend);
  }
  return reach == Peer::Reach::kMaybe;
}

bool may_do_at(Backend& backend, Peer& peer, const Need& need, const std::string& forced, uint32_t where) {
  return backend.open() && moves(backend, need, where) && reaches(backend, peer, forced);
}

uint32_t row_of(const Need& need, uint32_t where) noexcept {
  return Prices::number_of_row(where, need.op, ((need.local | need.remote) & kVramOnly) != 0);
}

}  // namespace

bool may_do(Backend& backend, Peer& peer, const Need& need, const std::string& forced) {
  return may_do_at(backend, peer, need, forced, where_is(peer, *backend.agent));
}

std::string reason_against(Backend& backend, Peer& peer, const Need& need, const std::string& forced) {
  if (!forced.empty() && backend.name != forced) return fmt::format("'{}' was asked for", forced);
  if (!backend.open()) return backend.why_not_open();
  const bool writes = need.op == TOWLINE_WRITE;
  if (!moves(backend, need, TOWLINE_WHERE_SAME_PROCESS))
    return fmt::format("it does not {} {} here {} {} there", writes ? "write" : "read", names_of(need.local),
                       writes ? "to" : "from", names_of(need.remote));
  if (!peer.has_up_link(backend)) {
    if (std::string reason = ask(backend, peer); !reason.empty()) return reason;
  }
  if (moves(backend, need, where_is(peer, *backend.agent))) return {};
  return fmt::format(
      "it does not {} {} here {} {} of {}", writes ? "write" : "read", names_of(need.local),
      writes ? "to" : "from", names_of(need.remote),
      where_is(peer, *backend.agent) == TOWLINE_WHERE_ANY_HOST ? "another host" : "another process");
}

PriceRow& price_row(const Backend& backend, const Peer& peer, const Need& need) noexcept {
  return backend.prices->row(row_of(need, where_is(peer, *backend.agent)));
}

// ---- one step

Candidates::Candidates(Peer& peer, const Need& need, const std::string& forced, Order order)
    : peer_(peer),
      need_(need),
      forced_(forced),
      where_(where_is(peer, peer.agent())),
      order_(&peer.agent().backends().backends()) {
  static_assert(kMaxBackends <= 64);  // see tried_
  const bool in_order_of_cost = peer.agent().backends().in_order_of_cost();
  by_price_ = in_order_of_cost && peer.agent().in_real_time();
  if (order == Order::kApplications || in_order_of_cost) return;
  sorted_ = *order_;
  std::stable_sort(sorted_.begin(), sorted_.end(), [](const Backend* one, const Backend* other) {
    return one->prices->cost() < other->prices->cost();
  });
  order_ = &sorted_;
}

// The last of the remaining ways before that place.
const Backend* Candidates::before(std::size_t place) const noexcept {
  while (place-- > 0)
    if (is_left(place) && (*order_)[place]->open() && moves(*(*order_)[place], need_, where_))
      return (*order_)[place];
  return nullptr;
}

// Takes the first of the remaining ways, or one whose measured price is clearly below those before it. Their count: none
// is left.
std::size_t Candidates::take_cheapest() noexcept {
  const std::size_t count = order_->size();
  const uint32_t number = row_of(need_, where_);
  const uint32_t size_class = PriceRow::class_of(need_.bytes);
  std::size_t first = count;
  std::size_t best = count;
  for (std::size_t i = 0; i < count; ++i) {
    if (!is_left(i)) continue;
    const Backend& backend = *(*order_)[i];
    if (!backend.open()) continue;
    PriceRow& row = backend.prices->row(number);
    const bool measured = row.samples_of_class(size_class) >= PriceRow::kEnough;
    if (best != count && !measured) continue;  // it can't go before the one that was found
    if (!moves(backend, need_, where_)) continue;
    if (best == count)
      first = i;
    else if (row.of(need_.bytes).ns >= kClearly * prices_->of(need_.bytes).ns)
      continue;
    best = i;
    prices_ = &row;
    if (!by_price_ || !measured) break;
  }
  passed_ = best != first ? before(best) : nullptr;
  if (best != count) tried_ |= uint64_t{1} << best;
  return best;
}

Backend* Candidates::next() {
  for (;;) {
    const std::size_t best = take_cheapest();
    if (best == order_->size()) return nullptr;
    Backend* const backend = (*order_)[best];
    if (reaches(*backend, peer_, forced_)) return backend;
  }
}

// ---- two steps

Need near_leg(const Need& whole) noexcept {
  return {whole.op == TOWLINE_READ ? uint32_t{TOWLINE_WRITE} : uint32_t{TOWLINE_READ}, kDramOnly, whole.local,
          whole.bytes};
}

Need far_leg(const Need& whole) noexcept { return {whole.op, kDramOnly, whole.remote, whole.bytes}; }

LegsPlan plan_legs(Peer& peer, const Need& need, const std::vector<const Backend*>& unreachable,
                   const BlockList& local) {
  // Staging memory is host memory too: it would be copied once more, over the same backends.
  if (need.local == kDramOnly) return {"host memory is no other to backends than staging memory", {}};
  Agent& agent = peer.agent();
  const Need near = near_leg(need);
  const Need far = far_leg(need);
  const uint32_t where = where_is(peer, agent);
  bool near_moves = false;
  bool far_moves = false;
  bool gpu_near = false;
  bool gpu_far = false;
  for (Backend* const backend : agent.backends().backends()) {
    if (!backend->open()) continue;
    const bool gpus = backend->landing != nullptr;
    if (moves(*backend, near, TOWLINE_WHERE_SAME_PROCESS)) {
      near_moves = true;
      gpu_near = gpu_near || gpus;
    }
    if (std::find(unreachable.begin(), unreachable.end(), backend) != unreachable.end()) continue;
    if (may_do_at(*backend, peer, far, {}, where)) {
      far_moves = true;
      gpu_far = gpu_far || gpus;
    }
  }
  const bool write = need.op == TOWLINE_WRITE;
  if (!near_moves)
    return {fmt::format("no open backend moves {} of this agent {} its staging memory", names_of(need.local),
                        write ? "to" : "from"),
            {}};
  if (!far_moves)
    return {fmt::format("no backend moves staging memory {} {} of the peer", write ? "to" : "from",
                        names_of(need.remote)),
            {}};
  LegsPlan plan;
  if ((need.local & kVramOnly) != 0 && gpu_near) {
    plan.staging.kind = StagingKind::kPinned;
    for (uint64_t i = 0; i < local.view().region_count; ++i)
      if (local.view().regions[i].kind == TOWLINE_MEMORY_VRAM)
        plan.staging.gpu = local.view().regions[i].device;
  } else if ((need.remote & kVramOnly) != 0 && gpu_far) {
    plan.staging.kind = StagingKind::kPinned;
  }
  return plan;
}

}  // namespace towline
