#include "agent/route_planner.h"

#include <algorithm>
#include <iterator>

#include "agent/agent.h"
#include "agent/block_list.h"
#include "agent/link.h"

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

const char* kind_name(uint32_t kind) noexcept {
  constexpr const char* kNames[] = {"dram", "vram", "file", "block", "object"};
  return kind < std::size(kNames) ? kNames[kind] : "unknown";
}

Need need_of(uint32_t op, const BlockList& local, const BlockList& remote, uint64_t bytes) noexcept {
  return {op, kinds_of(local), kinds_of(remote), bytes};
}

namespace {

bool may_do_at(Backend& backend, Peer& peer, const Need& need, const std::string& forced, uint32_t where) {
  if (!backend.open() || !moves(backend, need, where)) return false;
  if (!forced.empty() && backend.name != forced) return false;
  Peer::Reach reach = peer.reach(backend);
  if (reach == Peer::Reach::kUnknown) {
    reach = ask(backend, peer).empty() ? Peer::Reach::kMaybe : Peer::Reach::kNo;
    peer.set_reach(backend, reach);
    reach = peer.reach(backend);
  }
  return reach == Peer::Reach::kMaybe;
}

PriceRow& row_at(const Backend& backend, const Need& need, uint32_t where) noexcept {
  return backend.prices->row(where, need.op, ((need.local | need.remote) & kVramOnly) != 0);
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
  return row_at(backend, need, where_is(peer, *backend.agent));
}

// ---- one step

Candidates::Candidates(Peer& peer, const Need& need, const std::string& forced, Order order)
    : peer_(peer), need_(need), forced_(forced), where_(where_is(peer, peer.agent())) {
  BackendHost& host = peer.agent().backends();
  by_price_ = host.in_order_of_cost() && peer.agent().in_real_time();
  for (Backend* const backend : host.backends()) left_[count_++] = backend;
  if (order == Order::kApplications || host.in_order_of_cost()) return;
  std::stable_sort(
      left_.begin(), left_.begin() + static_cast<std::ptrdiff_t>(count_),
      [](const Backend* one, const Backend* other) { return one->prices->cost() < other->prices->cost(); });
}

// Picks the first of the remaining ways, or one whose measured price is clearly below those before it.
std::size_t Candidates::cheapest() const noexcept {
  std::size_t best = count_;
  double price = 0;
  for (std::size_t i = 0; i < count_; ++i) {
    const Backend& backend = *left_[i];
    if (!backend.open()) continue;
    const PriceRow& row = row_at(backend, need_, where_);
    const bool measured = row.samples(need_.bytes) >= PriceRow::kEnough;
    if (best != count_ && !measured) continue;  // it can't go before the one that was found
    if (!moves(backend, need_, where_)) continue;
    if (best == count_) {
      best = i;
      if (!by_price_ || !measured) return best;
      price = row.of(need_.bytes).ns;
    } else if (row.of(need_.bytes).ns < kClearly * price) {
      best = i;
      price = row.of(need_.bytes).ns;
    }
  }
  return best;
}

Backend* Candidates::next() {
  passed_ = nullptr;
  for (;;) {
    const std::size_t best = cheapest();
    if (best == count_) return nullptr;
    Backend* const backend = left_[best];
    const Backend* before = nullptr;
    for (std::size_t i = best; before == nullptr && i-- > 0;)
      if (left_[i]->open() && moves(*left_[i], need_, where_)) before = left_[i];
    std::copy(left_.data() + best + 1, left_.data() + count_, left_.data() + best);
    --count_;
    if (!may_do_at(*backend, peer_, need_, forced_, where_)) continue;
    passed_ = before;
    return backend;
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
