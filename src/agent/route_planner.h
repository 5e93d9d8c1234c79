// The planner: which way bytes go between two memories.
//
// In one step where a backend moves both ends' kinds of memory as far as the peer is: backends are tried in order
// (does a connection come up, can each region be imported) until one takes the transfer. Else in two steps, *legs*,
// through staging memory of this agent: one leg between staging memory and the local side, the other between staging
// memory and the remote side, each over the backend that the planner finds for it.
//
// The order is that of the declared costs, or of the application if it named backends. With declared costs, a
// backend goes before another where both prices are measured (prices.h) and its own is clearly lower: so nothing
// changes for a way that was never tried, and two ways that cost about the same keep their order.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "agent/backend_host.h"
#include "agent/prices.h"
#include "agent/staging.h"
#include "towline/towline.h"

namespace towline {

class BlockList;
class Peer;

// The requirement for a backend: an operation on these kinds of memory, one bit each. Without kinds:
// messages.
struct Need {
  uint32_t op = TOWLINE_READ;
  uint32_t local = 0;
  uint32_t remote = 0;
  uint64_t bytes = 0;  // for its price
};
Need need_of(uint32_t op, const BlockList& local, const BlockList& remote, uint64_t bytes) noexcept;

// True if the backend is worth trying. `forced`: the only one allowed; empty: any. Cheap: a backend's answer
// about a peer is kept until the peer's metadata changes. The caller holds no worker's lock.
bool may_do(Backend& backend, Peer& peer, const Need& need, const std::string& forced);

// The same for people: the reason against it. Empty: none.
std::string reason_against(Backend& backend, Peer& peer, const Need& need, const std::string& forced);

// The prices of the backend's moves of this sort. It lives as long as the process.
PriceRow& price_row(const Backend& backend, const Peer& peer, const Need& need) noexcept;

// The backends to try for one step, best first. `forced` outlives it. The caller holds no worker's lock.
class Candidates {
 public:
  // The application's order ranks the ways to peers. kDeclared: by declared cost even where it gave one.
  enum class Order : uint8_t { kApplications, kDeclared };
  Candidates(Peer& peer, const Need& need, const std::string& forced, Order order = Order::kApplications);
  Candidates(const Candidates&) = delete;
  Candidates& operator=(const Candidates&) = delete;

  // Null: no more.
  Backend* next();
  // Of what next() returned: the prices of such moves; and the way before which it went by its measured price, null:
  // it was its turn.
  [[nodiscard]] PriceRow& prices() const noexcept { return *prices_; }
  [[nodiscard]] const Backend* passed() const noexcept { return passed_; }

 private:
  [[nodiscard]] std::size_t take_cheapest() noexcept;
  [[nodiscard]] bool is_left(std::size_t place) const noexcept { return (tried_ >> place & 1) == 0; }
  [[nodiscard]] const Backend* before(std::size_t place) const noexcept;

  Peer& peer_;
  const Need need_;
  const std::string& forced_;
  const uint32_t where_;
  bool by_price_;
  PriceRow* prices_ = nullptr;
  const Backend* passed_ = nullptr;
  uint64_t tried_ = 0;  // a bit for each place in the order
  const std::vector<Backend*>* order_;
  std::vector<Backend*>
      sorted_;  // by declared cost, if the agent's order is the application's and does not apply
};

// The legs of a transfer that no backend does in one step.
struct LegsPlan {
  std::string why_not;  // legs can't help, and why; empty: they may
  StagingPlace staging;
};

// `unreachable`: backends that did not reach the peer a moment ago, so that they are not tried again.
LegsPlan plan_legs(Peer& peer, const Need& need, const std::vector<const Backend*>& unreachable,
                   const BlockList& local);

// The needs of both legs: between staging memory and the local side, and the remote side.
Need near_leg(const Need& whole) noexcept;
Need far_leg(const Need& whole) noexcept;

}  // namespace towline
