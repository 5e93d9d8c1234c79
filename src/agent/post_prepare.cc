// Posts: preparing their plans at backends, and releasing them.
#include <algorithm>

#include "agent/agent.h"
#include "agent/link.h"
#include "agent/post.h"
#include "agent/route_planner.h"
#include "agent/staged_transfer.h"
#include "agent/worker.h"
#include "base/containers/small_array.h"
#include "base/error.h"
#include "base/sync/in_use.h"

namespace towline {

namespace {

// Null if the region is not registered with the backend.
towline_registration* registration_of(const Region& region, const Backend& backend) noexcept {
  if (backend.index >= region.registrations.size()) return nullptr;
  return static_cast<towline_registration*>(region.registrations[backend.index].registration);
}

}  // namespace

void Post::use_backend(Backend& backend) noexcept {
  backend_ = &backend;
  prices_ = &price_row(backend, *remote().peer(), need_of(route_.op(), local(), remote(), plan_.bytes()));
}

// Prepares on a connection that is up; on failure the caller finds the reason.
bool Post::prepared_at_once(Part& part) noexcept {
  Peer& peer = *remote().peer();
  Worker::Guard guard(*part.worker);
  part.link = peer.find_link(*backend_, part.worker->index());
  if (part.link == nullptr || !part.link->up() || peer.ended() != Status::kOk) return false;
  try {
    return prepare_part(part) == Status::kOk;
  } catch (const std::exception&) {
    return false;
  }
}

Status Post::prepare_on(Backend& backend, PriceRow& prices, LateDeadline& deadline, bool& taken_as_it_is,
                        std::string& reason) {
  backend_ = &backend;
  prices_ = &prices;
  Status status = Status::kOk;
  for (uint32_t i = 0; i < part_count_; ++i) {
    Part& part = parts_[i];
    part.attempt = 0;
    if (prepared_at_once(part)) continue;
    part.link = nullptr;
    const uint64_t deadline_ns = deadline.ns();
    bool later = false;
    agent().drive_until(
        [&] {
          Worker::Guard guard(*part.worker);
          take_failure_text();
          status = establish_part(part, deadline_ns);
          reason = take_failure_text();  // also of what it waits for
          if (agent().closed()) status = Status::kClosed;
          later = status == Status::kInProgress && waited_enough(part);
          return later || status != Status::kInProgress;
        },
        deadline_ns);
    if (later) status = Status::kOk;
    taken_as_it_is = taken_as_it_is || later;
    if (status != Status::kOk) break;
  }
  if (status == Status::kOk) return status;
  if (status == Status::kInProgress)
    reason = reason.empty() ? "not connected before the deadline" : reason + "; the deadline has passed";
  if (reason.empty()) reason = status_text(status);
  release_parts();
  return status;
}

// No byte of this or an earlier post has been moved, and the other parts' workers do not use it until they
// get their parts again.
bool Post::try_next_backend(Worker& worker) noexcept {
  if (backend_ == nullptr || ended_.load(std::memory_order_acquire)) return false;
  if (remote().peer()->ended() != Status::kOk) return false;
  for (uint32_t i = 0; i < part_count_; ++i)
    if (!parts_[i].refused || parts_[i].prepared != nullptr) return false;
  try {
    std::string reason = take_failure_text();
    if (reason.empty())
      reason = status_text(static_cast<Status>(first_error_.load(std::memory_order_relaxed)));
    Backend* const next = route_.after(*backend_, std::move(reason));
    if (next == nullptr) return false;
    const std::lock_guard lock(agent().transfer_details_mutex());
    use_backend(*next);
  } catch (const std::bad_alloc&) {
    return false;
  }
  failed_count_ = 0;
  first_error_.store(0, std::memory_order_relaxed);
  bytes_.store(0, std::memory_order_relaxed);
  fences_.store(kAllFences, std::memory_order_relaxed);
  parts_left_.store(part_count_, std::memory_order_relaxed);
  for (uint32_t i = 0; i < part_count_; ++i) {
    parts_[i].link = nullptr;
    parts_[i].attempt = 0;
    parts_[i].refused = false;
    if (paced_) restore_part(i);
  }
  for (uint32_t i = 0; i < part_count_; ++i) {  // not all can end before this worker's lock is given up
    Part& part = parts_[i];
    if (part.worker == &worker) {
      worker.establish_later(part);
    } else if (part.worker->enqueue(&part)) {
      part.worker->wake();
    } else {
      part_ended(part, {kResultBytes, TOWLINE_AGAIN, 0, kAllFences, 0, 0, part.begin, part.end});
    }
  }
  return true;
}

// Keeps what a part waited for until its deadline, if that was more than a connection.
void Post::note_wait(Part& part) noexcept {
  if (staged_ != nullptr || part.link == nullptr || !part.link->up() || usable(part)) return;
  try {
    (void)take_failure_text();  // left by others
    if (prepare_part(part) != Status::kAgain) return;
    auto text = std::make_unique<std::string>(take_failure_text());
    if (text->empty()) return;
    const std::lock_guard lock(failure_lock_);
    waited_for_ = std::move(text);
  } catch (const std::exception&) {
    return;  // told without it
  }
}

void Post::forget_wait() noexcept {
  const std::lock_guard lock(failure_lock_);
  waited_for_.reset();
}

// True if it has waited long enough for a connection; under the part's worker's lock.
bool Post::waited_enough(const Part& part) const noexcept {
  const uint64_t wait_ns = agent().tuning().connect_wait_ns;
  if (wait_ns == UINT64_MAX || part.link == nullptr || part.link->state() != Link::State::kConnecting)
    return false;
  return agent().now_ns() - part.link->connecting_since_ns() >= wait_ns;
}

Status Post::establish_part(Part& part, uint64_t deadline_ns) noexcept {
  Peer& peer = *remote().peer();
  if (peer.ended() != Status::kOk) return peer.ended();
  try {
    if (part.link == nullptr) part.link = &peer.link(*backend_, part.worker->index());
    Link& link = *part.link;
    if (link.state() == Link::State::kDown) {
      // It ended at the deadline of another operation, and this one has time left.
      const bool cut_short = link.last_error() == Status::kTimedOut && agent().now_ns() < deadline_ns;
      if (part.attempt == 0 || part.attempt != link.attempts() || cut_short) {
        link.connect(deadline_ns);
        part.attempt = link.attempts();
      }
      if (link.state() == Link::State::kDown) {
        set_failure_text(link.last_error_text());
        return is_error(link.last_error()) ? link.last_error() : Status::kPeerLost;
      }
    }
    if (link.state() == Link::State::kConnecting && part.attempt == 0) part.attempt = link.attempts();
    if (!link.up()) return Status::kInProgress;
    const Status status = prepare_part(part);
    if (status == Status::kAgain) return Status::kInProgress;
    part.attempt = 0;
    return status;
  } catch (const std::exception& error) {
    set_failure_text(error.what());
    return Status::kInternal;
  }
}

Status Post::prepare_part(Part& part) {
  Link& link = *part.link;
  if (part.prepared != nullptr) {
    if (part.link_generation == link.generation() && !part.outdated) return Status::kOk;
    forget_immediate(part);
    backend_->data->unprepare(std::exchange(part.prepared, nullptr));
    link.remove_prepared(part);
  }
  SmallArray<towline_import*, 8> imports(remote().remote_regions().size());
  for (const auto& region : remote().remote_regions()) {
    towline_import* import = nullptr;
    const Status status = link.import(region, &import);
    if (status != Status::kOk) return status;
    imports.add(import);
  }
  SmallArray<towline_registration*, 8> registrations(local().view().region_count);
  for (uint64_t i = 0; i < local().view().region_count; ++i) {
    const uint64_t key = local().view().regions[i].key;
    if (key == kNotRegistered) {  // a direct leg
      registrations.add(nullptr);
      continue;
    }
    // A list may be older than the deregistration of its region, which still exists while it is being deregistered.
    bool usable = false;
    (void)agent().regions().look_at(key, [&](const Region& region) {
      usable = !region.retired;  // else its registrations are being emptied, without the table's lock
      if (usable) registrations.add(registration_of(region, *backend_));
    });
    if (!usable) {
      set_failure_text(fmt::format("this agent has deregistered the region with key {}", key));
      return Status::kStale;
    }
  }
  const towline_prepare_args args = {
      sizeof(towline_prepare_args), &plan_.view(), registrations.data(), imports.data(), route_.op(), 0};
  const auto status = static_cast<Status>(backend_->data->prepare(link.connection(), &args, &part.prepared));
  if (status != Status::kOk) return status;
  if (part.prepared->struct_size < TOWLINE_PREPARED_MINIMUM) {
    set_failure_text("the backend's prepared plan has no struct_size");
    backend_->data->unprepare(std::exchange(part.prepared, nullptr));
    return Status::kInternal;
  }
  part.link_generation = link.generation();
  part.outdated = false;
  try {
    link.add_prepared(part);
  } catch (...) {
    backend_->data->unprepare(std::exchange(part.prepared, nullptr));
    throw;
  }
  take_short_way(part);
  route_.stay();
  // Other parts belong to other workers, and a transfer with several parts takes the long path anyway.
  int32_t expected = kRelink;
  if (part_count_ == 1) gate_.compare_exchange_strong(expected, kOpen, std::memory_order_seq_cst);
  return Status::kOk;
}

// As far as the prepared plan allows it.
void Post::take_short_way(Part& part) noexcept {
  if (part_count_ != 1) return;  // and never was: several workers may be here at once
  immediate_ = nullptr;
  short_way_.store(false, std::memory_order_relaxed);
  constexpr uint32_t kShortWay = TOWLINE_PREPARED_CONCURRENT | TOWLINE_PREPARED_IMMEDIATE;
  if ((part.prepared->flags & kShortWay) != kShortWay || wants_delivery()) return;
  if (paced_ || agent().limits().any()) return;
  immediate_ = part.prepared;
  immediate_submit_ = backend_->data->submit;
  immediate_tries_ = (part.prepared->flags & TOWLINE_PREPARED_TRY) != 0;
  immediate_args_ = {sizeof(towline_submit_args),
                     reinterpret_cast<uint64_t>(&part),
                     part.begin,
                     part.end,
                     nullptr,
                     0,
                     (immediate_tries_ ? uint32_t{TOWLINE_SUBMIT_TRY} : 0) |
                         (options_.urgent ? uint32_t{TOWLINE_SUBMIT_URGENT} : 0),
                     0,
                     nullptr};
  // The posts of a plan have picks of their own, which only the thread with the phase may set.
  short_way_.store(handle_ != nullptr && !has_message() && !immediate_tries_, std::memory_order_release);
}

// Only the thread that has the phase uses what is prepared: the worker does not release it meanwhile.
void Post::aim(uint32_t parts) noexcept {
  divide(parts);
  if (parts > 1) {  // each by its worker, since their connections may end meanwhile
    immediate_ = nullptr;
    for (uint32_t i = 0; i < parts; ++i) parts_[i].repick = true;
    return;
  }
  Part& part = parts_[0];
  follow_picks(part);
  if (part.prepared == nullptr) return;
  if (part.outdated)
    immediate_ = nullptr;
  else
    take_short_way(part);
}

void Post::follow_route() noexcept {
  if (Backend* const backend = route_.backend(); backend != nullptr) use_backend(*backend);
  is_made();
}

// Threads that describe the route may still look at the legs of the run before.
void Post::make_legs(LateDeadline deadline) {
  divide(1);
  auto legs = std::make_shared<StagedTransfer>(*this, plan_, route_.op(), route_.held_local(),
                                               route_.held_remote(), *route_.legs());
  legs->establish(std::string(route_.forced()), deadline.ns());
  {
    const std::lock_guard lock(agent().transfer_details_mutex());
    staged_.swap(legs);
  }
  parts_[0].link = staged_->far_link();
}

std::shared_ptr<StagedTransfer> Post::held_legs() const {
  const std::lock_guard lock(agent().transfer_details_mutex());
  return staged_;
}

void Post::release_parts() noexcept {
  for (uint32_t i = 0; i < part_room_; ++i) {
    Part& part = parts_[i];
    Worker::Guard guard(*part.worker);
    if (part.prepared == nullptr) continue;
    forget_immediate(part);
    backend_->data->unprepare(std::exchange(part.prepared, nullptr));
    part.link->remove_prepared(part);
  }
}

// Called until it is true. Under the part's worker's lock.
bool Post::settled(const Part& part) const noexcept {
  return part.prepared == nullptr || backend_->data->settle == nullptr ||
         backend_->data->settle(part.prepared) != TOWLINE_AGAIN;
}

bool Post::all_settled() const noexcept {
  if (backend_ == nullptr || backend_->data->settle == nullptr) return true;  // without the locks
  for (uint32_t i = 0; i < part_room_; ++i) {
    const Worker::Guard guard(*parts_[i].worker);
    if (!settled(parts_[i])) return false;
  }
  return true;
}

bool Post::try_release(Part& part) noexcept {
  // Busy means a post that may be inside the backend, which must be waited for, or one on the long path (it
  // has shares), which uses its plans only under this lock.
  if (InUse::by_any(this)) return false;
  const bool mine = take(kHeld);
  if (!mine && shares_.load(std::memory_order_acquire) == 0) return false;
  forget_immediate(part);
  const bool still = part.submitted || !settled(part);
  if (part.prepared != nullptr && !still) {
    backend_->data->unprepare(std::exchange(part.prepared, nullptr));
    part.link->remove_prepared(part);
  }
  if (mine) phase_.store(kReady, std::memory_order_release);
  return !still;
}

void Post::release_at_last(Part& part) noexcept {
  if (try_release(part) || part.prepared == nullptr || part.submitted) return;
  backend_->data->unprepare(std::exchange(part.prepared, nullptr));
  part.link->remove_prepared(part);
}

}  // namespace towline
