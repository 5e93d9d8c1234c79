// Routes as JSON, for people: the backend or the legs, what they cost, and the ways not taken.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "agent/agent.h"
#include "agent/link.h"
#include "agent/post_plan.h"
#include "agent/route_planner.h"
#include "agent/staged_transfer.h"
#include "agent/worker.h"

namespace towline {

namespace {

using nlohmann::json;

// Which way bytes move, before the peer's name.
const char* direction_of(uint32_t op) noexcept { return op == TOWLINE_WRITE ? "to" : "from"; }

std::string way_of(const StagedTransfer::Description& staged) {
  return fmt::format("{} then {}", staged.fill->backend_name(), staged.drain->backend_name());
}

json json_of(const Price& price) {
  return {{"ns", static_cast<uint64_t>(price.ns)},
          {"error_ns", static_cast<uint64_t>(price.error_ns)},
          {"samples", price.samples},
          {"from", price.samples != 0 ? "measured"
                   : price.nearby     ? "measured at another size"
                                      : "declared"}};
}

// Names may hold any byte; JSON wants UTF-8.
std::string text_of(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

json json_of(const std::vector<Route::Way>& ways) {
  json all = json::array();
  for (const Route::Way& way : ways) {
    json entry = {{"backend", way.backend->name}, {"taken", way.taken}};
    if (way.possible) entry["price"] = json_of(way.price);
    if (!way.reason.empty()) entry["reason"] = way.reason;
    all.push_back(std::move(entry));
  }
  return all;
}

json not_taken(const std::vector<Route::Way>& ways) {
  json all = json::array();
  for (const Route::Way& way : ways)
    if (!way.taken) all.push_back(way.backend->name + ": " + way.reason);
  return all;
}

// What it makes, or "" without memory.
template <class Make>
std::string text_if_memory(const Make& make) noexcept {
  try {
    return make();
  } catch (const std::bad_alloc&) {
    return {};
  }
}

}  // namespace

std::vector<Route::Way> Route::ways(uint64_t bytes) const {
  const Need need = need_of(op_, *local_, *remote_, bytes);
  const std::string& forced = forced_text();
  std::unique_lock lock(agent_->transfer_details_mutex());
  const Backend* const taken = backend();
  const auto rejected = others_ == nullptr ? decltype(others_->rejected){} : others_->rejected;
  lock.unlock();  // checking a backend takes a worker's lock; threads that change these hold one
  std::vector<Way> result;
  for (Backend* const backend : agent_->backends().backends()) {
    if (backend != taken && !forced.empty() && backend->name != forced) continue;
    Way way{backend, backend == taken, true, {}, price_row(*backend, peer(), need).of(need.bytes)};
    if (!way.taken) {
      const auto tried = std::find_if(rejected.begin(), rejected.end(),
                                      [&](const auto& entry) { return entry.first == backend; });
      way.reason = tried != rejected.end() ? tried->second : reason_against(*backend, peer(), need, forced);
      if (const std::string own = backend->name + ": "; way.reason.starts_with(own))
        way.reason.erase(0, own.size());  // each place that shows it names the backend
      way.possible = way.reason.empty();
      if (way.possible && taken != nullptr)
        way.reason = fmt::format("not tried: '{}' comes before it", taken->name);
    }
    result.push_back(std::move(way));
  }
  return result;
}

std::string Route::why(const std::vector<Way>& ways) const {
  uint8_t passed = kNobody;
  {
    const std::lock_guard lock(agent_->transfer_details_mutex());
    passed = passed_;
  }
  for (const Way& way : ways)
    if (way.backend->index == passed)
      return fmt::format("a backend that reaches every region, measured as cheaper than '{}'",
                         way.backend->name);
  if (!forced_text().empty()) return "it was asked for";
  const bool only =
      std::none_of(ways.begin(), ways.end(), [](const Way& way) { return way.possible && !way.taken; });
  if (only) return "the only backend that reaches every region";
  return agent_->backends().in_order_of_cost() ? "the cheapest backend that reaches every region"
                                               : "the first of the named backends that reaches every region";
}

Price Post::price_of(uint64_t bytes) const {
  const std::lock_guard lock(agent().transfer_details_mutex());
  return prices_ != nullptr ? prices_->of(bytes) : Price{};
}

std::string Post::staged_route(const StagedTransfer& legs) const {
  const StagedTransfer::Description staged = legs.describe();
  const double mebibytes = static_cast<double>(staged.bytes) / (1 << 20);
  const std::vector<Route::Way> ways = route_.ways(staged.plan_bytes);
  const json result = {{"schema", TOWLINE_JSON_SCHEMA},
                       {"peer", remote().peer()->name()},
                       {"direction", direction_of(route_.op())},
                       {"backend", "staged"},
                       {"why", fmt::format("staged through {:g} MiB: {}; no backend does it in one step",
                                           mebibytes, way_of(staged))},
                       {"bytes", staged.plan_bytes},
                       {"blocks", staged.plan_blocks},
                       {"runs", staged.plan_runs},
                       {"price", json_of(legs.price())},
                       {"staging",
                        {{"memory", staged.staging},
                         {"bytes", staged.bytes},
                         {"chunk_bytes", staged.chunk_bytes},
                         {"slots", staged.slots}}},
                       {"straight", staged.has_straight ? json{{"bytes", staged.straight_bytes}} : json()},
                       {"legs", {json::parse(staged.fill->route()), json::parse(staged.drain->route())}},
                       {"ways", json_of(ways)},
                       {"not_taken", not_taken(ways)}};
  return text_of(result);
}

std::string Post::backend_name() const {
  const std::lock_guard lock(agent().transfer_details_mutex());
  // Without a backend: its legs could not be made.
  return staged_ != nullptr || backend_ == nullptr ? "staged" : backend_->name;
}

std::string Post::way_name() const {
  const auto legs = held_legs();
  if (legs == nullptr) return backend_name();
  return way_of(legs->describe());
}

std::string Post::gone_region() const {
  for (const auto& region : remote().remote_regions())
    if (region->revoked.load(std::memory_order_acquire))
      return fmt::format("peer '{}' has deregistered the region with key {}", remote().peer()->name(),
                         region->ref.key);
  for (const towline_region_ref& region : local().resolved().regions()) {
    bool there = false;
    (void)agent().regions().look_at(region.key, [&](const Region& own) { there = !own.retired; });
    if (!there && region.key != kNotRegistered)
      return fmt::format("this agent has deregistered the region with key {}", region.key);
  }
  return {};
}

std::string Post::reason_of(Status status) const {
  std::string more;
  const Part& part = parts_[0];
  if (status == Status::kStale) {
    if (const std::string region = gone_region(); !region.empty()) more = fmt::format(" ({})", region);
  } else if (status == Status::kPeerLost || status == Status::kUnreachable) {
    const Worker::Guard guard(*part.worker);
    if (part.link != nullptr && !part.link->last_error_text().empty())
      more = fmt::format(" ({})", part.link->last_error_text());
  }
  return more;
}

std::string Post::failure() const { return failure_itself(reason_of(outcome())); }

std::string Post::failure_itself(const std::string& more) const {
  const Status status = poll_outcome();
  return !is_error(status) || status == Status::kNotFound ? std::string() : sentence(status, more);
}

std::string Post::failure_of(Status status) const noexcept {
  return text_if_memory([&] { return sentence(status, {}); });
}

std::string Post::whole_failure_of(Status status) const noexcept {
  return text_if_memory([&] { return sentence(status, reason_of(status)); });
}

std::string Post::refusal_of(Status status) const noexcept {
  return text_if_memory([&] {
    std::string why = take_failure_text();
    if (status == Status::kBusy) why = "it is in flight; wait for its outcome before it is posted again";
    if (why.empty() && status == Status::kStale) why = gone_region();
    if (why.empty()) why = status_text(status);
    return fmt::format("a {} of {} blocks {} peer '{}' over {} was refused: {}",
                       route_.op() == TOWLINE_WRITE ? "write" : "read", plan_.picked_blocks(),
                       direction_of(route_.op()), remote().peer()->name(), way_name(), why);
  });
}

std::string Post::sentence(Status status, const std::string& more) const {
  std::string where;
  if (ready() && failed_count_ != 0) where = fmt::format(", first at position {}", failed_[0].first);
  if (status == Status::kTimedOut) {
    const std::lock_guard lock(failure_lock_);
    if (waited_for_ != nullptr) where += fmt::format(" ({})", *waited_for_);
  }
  std::string leg;
  const auto legs = held_legs();
  if (legs != nullptr && status != Status::kTimedOut && status != Status::kCancelled)
    if (const Post* const failed = legs->describe().failed; failed != nullptr)
      leg = fmt::format(" in the leg over {}", failed->backend_name());
  // Until its fence the backend has not told of every byte.
  const Status fence = this->fence(TOWLINE_FENCE_LOCAL);
  return fmt::format(
      "{} {} blocks ({} bytes) {} peer '{}' over {}: {}{}{}{}; {}{} bytes have moved; the local memory {}",
      route_.op() == TOWLINE_WRITE ? "writing" : "reading", plan_.picked_blocks(), plan_.bytes(),
      direction_of(route_.op()), remote().peer()->name(), way_name(), status_text(status), leg, more, where,
      fence == Status::kNotYet ? "at least " : "", moved_bytes(), reuse_of(fence));
}

std::string Post::no_fence() const noexcept {
  try {
    const bool direct = staged_ == nullptr && backend_ != nullptr;
    return fmt::format(
        "no fence for {} {} blocks {} peer '{}' over {}: it can't say when nothing moves any more{}{}",
        route_.op() == TOWLINE_WRITE ? "writing" : "reading", plan_.picked_blocks(),
        direction_of(route_.op()), remote().peer()->name(), way_name(), direct ? "; " : "",
        direct ? backend_->plugin->fence_reason : "");
  } catch (const std::bad_alloc&) {
    return {};
  }
}

std::string PostPlan::backend_name() {
  const std::lock_guard lock(making_);
  return at(0).backend_name();
}

std::string PostPlan::route_text() {
  std::unique_lock lock(making_);
  const PlannedPost& first = at(0);
  lock.unlock();  // describing it may end legs
  return first.route();
}

std::string Post::route() const {
  if (const auto legs = held_legs(); legs != nullptr) return staged_route(*legs);
  const std::vector<Route::Way> ways = route_.ways(plan_.bytes());
  json result = {{"schema", TOWLINE_JSON_SCHEMA},
                 {"peer", remote().peer()->name()},
                 {"direction", direction_of(route_.op())},
                 {"backend", backend_name()},
                 {"why", backend_ == nullptr ? "its legs could not be made; the next post tries it again"
                                             : route_.why(ways)},
                 {"bytes", plan_.view().bytes},
                 {"blocks", plan_.view().blocks},
                 {"runs", plan_.view().run_count},
                 {"price", json_of(price_of(plan_.bytes()))},
                 {"parts", json::array()},
                 {"regions", json::array()},
                 {"ways", json_of(ways)},
                 {"not_taken", not_taken(ways)}};
  for (uint32_t i = 0; i < part_count_; ++i) {
    const Part& part = parts_[i];
    Worker::Guard guard(*part.worker);
    json entry = {{"worker", part.worker->index()}, {"begin", part.begin}, {"end", part.end}};
    if (part.link != nullptr) entry["connection"] = json::parse(part.link->describe(), nullptr, false);
    result["parts"].push_back(std::move(entry));
    if (i != 0 || part.link == nullptr) continue;
    for (const auto& region : remote().remote_regions()) {
      result["regions"].push_back({{"key", region->ref.key}, {"how", part.link->how(*region)}});
    }
  }
  return text_of(result);
}

}  // namespace towline
