#include "agent/route.h"

#include <algorithm>

#include "agent/agent.h"
#include "agent/post.h"
#include "agent/route_planner.h"
#include "base/error.h"

namespace towline {

uint64_t LateDeadline::ns() noexcept {
  if (agent_ != nullptr) ns_ = Deadline::after(std::exchange(agent_, nullptr)->now_ns(), ns_).ns();
  return ns_;
}

void Route::establish(Post& post, std::string_view forced_backend, LateDeadline deadline, bool within,
                      uint64_t bytes) {
  Peer& peer = this->peer();
  others_.reset();
  if (!forced_backend.empty()) others().forced = forced_backend;
  const std::string& forced = forced_text();
  const Need need = need_of(op_, *local_, *remote_, bytes != 0 ? bytes : post.plan().bytes());
  std::vector<const Backend*> silent;  // did not reach the peer
  bool stale = false;                  // a region is gone: no backend can help
  bool unreachable = true;             // no tried backend found the peer
  bool lost = false;                   // and one of them had found it before
  Candidates candidates(peer, need, forced,
                        within ? Candidates::Order::kDeclared : Candidates::Order::kApplications);
  while (Backend* const backend = candidates.next()) {
    std::string reason;
    bool taken_as_it_is = false;
    const Backend* const passed = candidates.passed();
    passed_ = passed != nullptr ? static_cast<uint8_t>(passed->index) : kNobody;
    backend_.store(backend, std::memory_order_release);
    const Status status = post.prepare_on(*backend, candidates.prices(), deadline, taken_as_it_is, reason);
    if (status == Status::kOk) {
      if (taken_as_it_is) agent_->check_usable();
      // The next candidates are checked here, since a worker that needs them holds its lock.
      while (Backend* const next = taken_as_it_is ? candidates.next() : nullptr)
        others().next.push_back(next);
      if (others_ != nullptr) {
        std::reverse(others_->next.begin(), others_->next.end());
        may_go_on_.store(!others_->next.empty(), std::memory_order_relaxed);
      }
      post.is_made();
      return;
    }
    stale = stale || status == Status::kStale;
    const bool nobody = status == Status::kUnreachable || status == Status::kPeerLost;
    unreachable = unreachable && nobody;
    lost = lost || status == Status::kPeerLost;
    if (nobody || status == Status::kInProgress || status == Status::kTimedOut) silent.push_back(backend);
    others().rejected.emplace_back(backend, std::move(reason));
    agent_->check_usable();  // it may have been closed meanwhile
    if (peer.ended() != Status::kOk)
      fail(peer.ended(), "peer '{}': {}", peer.name(), status_text(peer.ended()));
  }
  backend_.store(nullptr, std::memory_order_release);
  agent_->check_usable();  // links that close with it are no lack of a way
  if (!forced.empty() && agent_->backends().find(forced) == nullptr) agent_->backends().fail_lacks(forced);
  const LegsPlan legs = plan_legs(peer, need, silent, *local_);
  if (legs.why_not.empty() && !stale) return take_legs(post, legs.staging, deadline);
  Status why = Status::kNoRoute;
  if (unreachable && others_ != nullptr && !others_->rejected.empty())
    why = lost ? Status::kPeerLost : Status::kUnreachable;
  fail_without_route(need.bytes, legs.why_not, deadline, stale ? Status::kStale : why);
}

const std::string& Route::forced_text() const noexcept {
  static const std::string kNone;
  return others_ == nullptr ? kNone : others_->forced;
}

void Route::take_legs(Post& post, const StagingPlace& staging, LateDeadline deadline) {
  try {
    legs_ = staging;
    by_legs_ = true;
    post.make_legs(deadline);
    post.is_made();
  } catch (const Error& error) {
    if (others_ == nullptr || others_->rejected.empty()) {
      if (error.code() != Status::kNoRoute) throw;
      fail(Status::kNoRoute,
           "no backend moves the blocks of peer '{}' in one step, nor in two steps, through staging memory: "
           "{}",
           peer().name(), error.message());
    }
    std::string reasons;
    for (const auto& [backend, reason] : others_->rejected)
      reasons += fmt::format("\n  {}: {}", backend->name, reason);
    fail(error.code(),
         "no backend moves the blocks in one step:{}\nand no two backends do in two steps, through staging "
         "memory: {}",
         reasons, error.message());
  }
}

void Route::fail_without_route(uint64_t bytes, const std::string& legs, LateDeadline& deadline, Status why) {
  std::string reasons;
  for (const Way& way : ways(bytes))
    if (!way.reason.empty()) reasons += fmt::format("\n  {}: {}", way.backend->name, way.reason);
  if (local_->view().region_count != 0 && local_->view().regions[0].kind != TOWLINE_MEMORY_DRAM)
    reasons += "\n  in two steps, through staging memory: " + legs;
  if (why != Status::kStale && agent_->now_ns() >= deadline.ns()) why = Status::kTimedOut;
  fail(why, "no backend reaches the memory of peer '{}':{}", peer().name(), reasons);
}

Backend* Route::after(const Backend& failed, std::string reason) noexcept {
  try {
    const std::lock_guard lock(agent_->transfer_details_mutex());
    Backend* const chosen = backend_.load(std::memory_order_relaxed);
    if (chosen != &failed) return chosen;  // another post has moved on already
    if (!may_go_on()) return nullptr;
    std::vector<Backend*>& next = others_->next;
    others_->rejected.emplace_back(&failed, std::move(reason));
    passed_ = kNobody;
    backend_.store(next.back(), std::memory_order_release);
    next.pop_back();
    if (next.empty()) may_go_on_.store(false, std::memory_order_relaxed);
    return backend_.load(std::memory_order_relaxed);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

}  // namespace towline
