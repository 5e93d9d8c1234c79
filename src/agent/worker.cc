#include "agent/worker.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "agent/agent.h"
#include "agent/ending.h"
#include "agent/link.h"
#include "agent/own_thread.h"
#include "agent/part.h"
#include "agent/staged_transfer.h"
#include "base/error.h"
#include "base/log.h"
#include "base/os/futex.h"
#include "base/os/prefer_node.h"
#include "base/sync/wake_path.h"
#include "base/ticks.h"

namespace towline {

namespace {

constexpr std::size_t kQueueCapacity = 4096;
// How long the hosted thread pauses while applications drive, before it checks whether they still do.
constexpr uint64_t kShortestParkNs = 50 * kMicrosecondNs;
constexpr uint64_t kLongestParkNs = kMillisecondNs;
constexpr uint64_t kMaintenanceNs = 2 * kMillisecondNs;  // the interval for heartbeats, teardown and the like
// A busy worker polls epoll after this many passes and this time, since the system call takes as long as ten
// empty passes.
constexpr uint32_t kPassesPerPoll = 64;
constexpr uint64_t kPollNs = 20 * kMicrosecondNs;
constexpr uint32_t kPassesBeforePoll = 4;  // after a sleep
// Crowds of strangers cause many events. After some of them, peers in the middle of transfers have their turn. Every fetched
// event must be handled, since some are edge-triggered: so only a few are fetched at once.
constexpr std::size_t kEventsAtOnce = 2;
constexpr std::size_t kMostEvents = 64;
constexpr uint64_t kMostEventsNs = 50 * kMicrosecondNs;
constexpr uint32_t kPassesOfInterest = 64;
constexpr uint32_t kMostThrows = 8;     // in a row, of one handler
constexpr uint64_t kFreshTicks = 2000;  // less than a microsecond or so

}  // namespace

Worker::Worker(Agent& agent, uint32_t index, WorkerPlace place)
    : agent_(agent), index_(index), queue_(kQueueCapacity), place_(std::move(place)) {
  poller_.add(wake_.fd(), EPOLLIN, nullptr);
  poller_.add(kick_.fd(), EPOLLIN, &kick_);
}

Worker::~Worker() { stop_thread(); }

void Worker::start_thread() {
  thread_ = std::thread([this] { run_thread(); });
}

void Worker::stop_thread() noexcept {
  if (!thread_.joinable()) return;
  stop_.store(true, std::memory_order_seq_cst);
  park_word_.fetch_add(1, std::memory_order_seq_cst);
  futex_wake_all(park_word_);
  kick_.signal();
  thread_.join();
}

void Worker::lock() noexcept {
  if (try_lock()) return;
  waiting_lockers_.fetch_add(1, std::memory_order_relaxed);
  SpinWait spin;
  while (!try_lock()) {
    if (!spin.again()) {
      const timespec pause{0, 20'000};
      nanosleep(&pause, nullptr);
    }
  }
  waiting_lockers_.fetch_sub(1, std::memory_order_relaxed);
}

TOWLINE_WAKE_PATH void Worker::unlock() noexcept {
  Ending* list = finished_;
  finished_ = nullptr;
  finished_tail_ = &finished_;
  locked_.store(false, std::memory_order_release);
  // A poster that found the lock taken has queued its work by now, or will see the lock free. The queue is
  // checked again by the next thread that polls: drive(), the hosted thread, or after the poster's wake().
  if (list != nullptr) deliver(list);
}

void Worker::deliver(Ending* list) noexcept {
  while (list != nullptr) {
    Ending* ending = list;
    list = ending->finished_next;
    ending->finished_next = nullptr;
    ending->deliver();
  }
}

void Worker::finished(Ending& ending) noexcept {
  ending.finished_next = nullptr;
  *finished_tail_ = &ending;
  finished_tail_ = &ending.finished_next;
}

TOWLINE_WAKE_PATH uint32_t Worker::drive() noexcept {
  if (!try_lock()) return 0;
  driven_.store(driven_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);  // under the lock
  if (arming_ == Arming::kAsleep) {
    // The sleeper must arm again once this thread stops driving: wake it from epoll now.
    disarm();
    kick_.signal();
  }
  const uint32_t done = pass(time_to_poll());
  unlock();
  return done;
}

void Worker::wake() noexcept {
  if (sleeping_.load(std::memory_order_seq_cst)) wake_.signal();
}

void Worker::hand_over() noexcept {
  if (!hosted()) return;
  park_word_.fetch_add(1, std::memory_order_seq_cst);
  futex_wake_all(park_word_);
}

bool Worker::enqueue(Part* part) noexcept { return queue_.try_push(part); }

// ---- under the lock

int32_t Worker::watch(int fd, uint32_t events, towline_ready_fn ready, void* argument, bool again) noexcept {
  try {
    // The descriptor was closed without unwatch(), and its number was reused.
    if (!again) unwatch(fd);
    auto found = watches_.find(fd);
    if (found == watches_.end()) {
      dead_watches_.reserve(std::bit_ceil(dead_watches_.size() + watches_.size() + 1));  // for unwatch()
      found = watches_.emplace(fd, std::make_unique<Watch>()).first;
    }
    Watch& watch = *found->second;
    watch.ready = ready;
    watch.argument = argument;
    watch.fd = fd;
    if (again && events == 0) {
      if (watch.listed) poller_.remove(fd);
      watch.listed = false;
    } else if (watch.listed) {
      poller_.modify(fd, events, &watch);
    } else {
      poller_.add(fd, events, &watch);
      watch.listed = true;
    }
    return TOWLINE_OK;
  } catch (const std::exception& error) {
    set_failure_text(error.what());
    unwatch(fd);  // epoll may still name it
    return TOWLINE_IO;
  }
}

void Worker::unwatch(int fd) noexcept {
  const auto found = watches_.find(fd);
  if (found == watches_.end()) return;
  poller_.remove(fd);
  found->second->dead = true;
  // An event for it may already have been fetched. watch() reserved room here.
  dead_watches_.push_back(std::move(found->second));
  watches_.erase(found);
}

void Worker::track(Part& part) noexcept {
  in_flight_.push(part);
  if (part.deadline_ns < next_deadline_ns_) next_deadline_ns_ = part.deadline_ns;
}

void Worker::untrack(Part& part) noexcept { in_flight_.remove(part); }

void Worker::establish_later(Part& part) noexcept {
  if (part.waiting) return;
  part.waiting = true;
  part.hook = {};
  *establishing_tail_ = &part;
  establishing_tail_ = &part.hook.next;
}

// Takes all of them. They stay linked until they wait again.
Part* Worker::take_establishing() noexcept {
  establishing_tail_ = &establishing_;
  return std::exchange(establishing_, nullptr);
}

// Reading the clock takes a tenth of an idle pass: it is read again only after it can have moved much.
TOWLINE_WAKE_PATH uint64_t Worker::read_clock() noexcept {
  if (kHasTicks && agent_.in_real_time()) {
    const uint64_t now = ticks();
    if (now - clock_read_at_ < kFreshTicks) return now_ns_;
    clock_read_at_ = now;
  }
  return now_ns_ = agent_.now_ns();
}

TOWLINE_WAKE_PATH uint32_t Worker::pass(bool poll_descriptors) noexcept {
  if (retired_) return 0;
  const bool woken = std::exchange(woken_, false);
  if (!woken && arming_ == Arming::kLeft) disarm();
  uint32_t done = drain_queue();
  const uint64_t now_ns = read_clock();
  done += progress_backends(now_ns, woken ? Until::kOneHadWork : Until::kAllHadATurn);
  // Work that woke the thread goes out first. The rest of a pass is not in the processor's caches, and waits for
  // the next pass.
  if (woken && done != 0) return done;
  // Upkeep judges peers by their silence: what they have sent is looked at first, however long the passes are.
  if (poll_descriptors || now_ns >= next_maintenance_ns_) done += handle_events(0);
  if (now_ns >= next_step_ns_) next_step_ns_ = UINT64_MAX;
  if (establishing_ != nullptr) done += step_establishing(now_ns);
  if (!staged_.empty()) done += step_staged(now_ns);
  if (now_ns >= next_deadline_ns_) check_deadlines(now_ns);
  if (now_ns >= next_maintenance_ns_ || maintenance_due_.load(std::memory_order_acquire)) {
    maintenance_due_.store(false, std::memory_order_relaxed);
    next_maintenance_ns_ = now_ns + kMaintenanceNs;
    for (std::size_t i = 0; i < links_.size(); ++i) done += links_[i]->maintain(now_ns);
    if (index_ == 0) agent_.expire_listener(now_ns);
  }
  return done;
}

// Every pass serves backends in use. A backend that had no work for a while and has no part is
// checked only after the pass's clock was read again, which is within a microsecond.
TOWLINE_WAKE_PATH uint32_t Worker::progress_backends(uint64_t now_ns, Until until) noexcept {
  uint32_t done = 0;
  for (const Backend* const each : agent_.backends().backends()) {
    const Backend& backend = *each;
    if (!backend.open()) continue;
    Interest& interest = interest_[backend.index];
    const bool waits = interest.empty_passes >= kPassesOfInterest && interest.in_flight == 0;
    if (waits && interest.looked_ns == now_ns && agent_.in_real_time()) continue;
    interest.looked_ns = now_ns;
    const uint32_t here = backend.data->progress(backend.handle, index_, now_ns);
    interest.empty_passes = here == 0 ? interest.empty_passes + 1 : 0;
    done += here;
    if (here != 0 && until == Until::kOneHadWork) break;
  }
  return done;
}

TOWLINE_WAKE_PATH uint32_t Worker::drain_queue() noexcept {
  uint32_t done = 0;
  if (urgent_waits()) urgent_waits_.store(false, std::memory_order_relaxed);
  while (!queue_.looks_empty()) {
    std::optional<Part*> part = queue_.try_pop();
    if (!part) break;
    ++done;
    if (!(*part)->owner->step_part(**part, agent_.now_ns())) establish_later(**part);
  }
  return done;
}

uint32_t Worker::step_establishing(uint64_t now_ns) noexcept {
  uint32_t done = 0;
  for (Part* part = take_establishing(); part != nullptr;) {
    Part* const next = part->hook.next;
    part->waiting = false;
    if (part->owner->step_part(*part, now_ns))
      ++done;
    else
      establish_later(*part);
    part = next;
  }
  return done;
}

void Worker::add_staged(StagedTransfer& transfer) noexcept {
  staged_.push(transfer);
  staged_waits_ = true;
}

void Worker::remove_staged(StagedTransfer& transfer) noexcept { staged_.remove(transfer); }

uint32_t Worker::step_staged(uint64_t now_ns) noexcept {
  uint32_t done = 0;
  staged_waits_ = false;
  for (StagedTransfer* transfer = staged_.first(); transfer != nullptr;) {
    StagedTransfer* next = transfer->hook.next;  // it may end and leave the list
    done += transfer->step(now_ns);
    transfer = next;
  }
  return done;
}

// The links are shut, which ended the legs of staged transfers. These notice it here, since no pass follows.
void Worker::retire() noexcept {
  while (!staged_.empty() && step_staged(agent_.now_ns()) != 0) continue;
  retired_ = true;
}

void Worker::check_deadlines(uint64_t now_ns) noexcept {
  next_deadline_ns_ = UINT64_MAX;
  for (Part* part = in_flight_.first(); part != nullptr;) {
    Part* next = part->hook.next;
    if (part->deadline_ns <= now_ns) {
      part->deadline_ns = UINT64_MAX;
      part->owner->expire(*part);
    } else if (part->deadline_ns < next_deadline_ns_) {
      next_deadline_ns_ = part->deadline_ns;
    }
    part = next;
  }
}

TOWLINE_WAKE_PATH bool Worker::time_to_poll() noexcept {
  if (++passes_since_poll_ < kPassesPerPoll) return false;
  return !agent_.in_real_time() || now_ns_ >= next_poll_ns_;
}

uint32_t Worker::handle_events(uint64_t timeout_ns) noexcept {
  passes_since_poll_ = 0;
  next_poll_ns_ = now_ns_ + kPollNs;
  const uint64_t began_ns = monotonic_now_ns();
  std::array<PollEvent, kEventsAtOnce> events;
  uint32_t done = 0;
  for (std::size_t handled = 0; handled < kMostEvents;) {
    const std::size_t count = poller_.wait(events, timeout_ns);
    for (std::size_t i = 0; i < count; ++i) {
      // A signal to the sleeper, readable until it has run. It does not count as an event: no thread should spin for it.
      if (events[i].context == &kick_) continue;
      ++done;
      auto* watch = static_cast<Watch*>(events[i].context);
      if (watch == nullptr) {
        wake_.drain();
      } else if (!watch->dead) {
        call(*watch, events[i].events);
      }
    }
    dead_watches_.clear();
    handled += count;
    if (count < events.size() || monotonic_now_ns() - began_ns > kMostEventsNs) break;
    timeout_ns = 0;
  }
  return done;
}

// Descriptors, timers and strangers cause calls of handlers. A backend ends the connection whose handler throws
// (plugin::ready). A handler whose exception reaches this point is called again a few times, since memory may
// be short for a moment; then its descriptor is no longer watched. The process and all other connections
// continue.
void Worker::call(Watch& watch, uint32_t events) noexcept {
  const auto failed = [&](const char* why) {
    const bool over = ++watch.throws == kMostThrows;
    TOWLINE_LOG(kError, "the handler of file descriptor {} failed: {}{}", watch.fd, why,
                over ? "; it will not be called again" : "");
    if (over && !watch.dead) unwatch(watch.fd);
  };
  try {
    watch.ready(watch.argument, events);
    watch.throws = 0;
  } catch (const std::exception& error) {
    failed(error.what());
  } catch (...) {
    failed("it threw an unknown exception");
  }
}

bool Worker::arm() noexcept {
  disarm();  // a backend may still be armed from the last sleep
  arming_ = Arming::kAsleep;
  note_wake_pages();
  bool work = false;
  for (const auto& backend : agent_.backends().backends()) {
    if (backend->open() && backend->data->arm(backend->handle, index_) != 0) work = true;
  }
  if (!work && queue_.looks_empty()) return true;
  disarm();
  return false;
}

// What its first pass touches, less what backends note when they are armed.
void Worker::note_wake_pages() const noexcept {
  WakePages& pages = wake_pages();
  pages.clear();
  pages.add_object(*this);
  pages.add_object(agent_);
  pages.add(interest_.data(), interest_.size() * sizeof(Interest));
  for (const Backend* const backend : agent_.backends().backends()) {
    if (!backend->open()) continue;
    pages.add_object(*backend);
    pages.add(backend->handle, 1);
  }
  for (std::size_t i = 0; i < links_.size() && !pages.full(); ++i) {
    pages.add_object(*links_[i]);
    pages.add_object(links_[i]->peer());
  }
}

void Worker::disarm() noexcept {
  if (arming_ == Arming::kNone) return;
  arming_ = Arming::kNone;
  for (const auto& backend : agent_.backends().backends()) {
    if (backend->open()) backend->data->disarm(backend->handle, index_);
  }
}

uint64_t Worker::sleep_limit_ns(uint64_t now_ns) const noexcept {
  if (establishing_ != nullptr || staged_waits_)
    return std::min(kMillisecondNs, next_step_ns_ > now_ns ? next_step_ns_ - now_ns : 0);
  uint64_t limit = kNoDeadline;
  if (next_deadline_ns_ != UINT64_MAX) limit = next_deadline_ns_ > now_ns ? next_deadline_ns_ - now_ns : 0;
  const uint64_t beat_ns = agent_.tuning().heartbeat_ns / 2;
  for (const Link* link : links_) {
    if (link->state() == Link::State::kDown) continue;
    limit = std::min(limit, link->has_chores() ? kMaintenanceNs : beat_ns);
  }
  return limit;
}

void Worker::fail_everything(int32_t status) noexcept {
  while (std::optional<Part*> part = queue_.try_pop()) establish_later(**part);
  for (Part* part = take_establishing(); part != nullptr;) {
    Part* const next = part->hook.next;
    part->waiting = false;
    part->owner->end(static_cast<Status>(status), this);
    (void)part->owner->step_part(*part, agent_.now_ns());  // removes an ended one
    part = next;
  }
  for (Part* part = in_flight_.first(); part != nullptr;) {
    Part* next = part->hook.next;
    part->owner->end(static_cast<Status>(status), this);
    part->owner->hurry(*part);
    part = next;
  }
}

// ---- the hosted thread

void Worker::park(uint64_t ns) noexcept {
  const uint32_t seen = park_word_.load(std::memory_order_seq_cst);
  if (stop_.load(std::memory_order_seq_cst)) return;
  futex_wait(park_word_, seen, monotonic_now_ns() + ns);
}

// Called with backends armed. Events are level-triggered: the next poll sees them again. A peer that wakes this worker has left
// its data where the next pass looks. System calls are slow on a processor that has just woken up, so a few
// passes come before the poll.
TOWLINE_WAKE_PATH void Worker::sleep_in_epoll(uint64_t limit_ns) noexcept {
  PollEvent event = {};
  const WakePages& pages = wake_pages();
  const bool woken = poller_.wait({&event, 1}, limit_ns) != 0;
  pages.ask();
  if (woken && event.context == &kick_) kick_.drain();
  sleeping_.store(false, std::memory_order_seq_cst);
  if (!try_lock()) return;
  woken_ = woken && arming_ == Arming::kAsleep;
  if (woken_)
    arming_ = Arming::kLeft;
  else
    disarm();
  passes_since_poll_ = woken ? kPassesPerPoll - kPassesBeforePoll : kPassesPerPoll;
  next_poll_ns_ = 0;
  unlock();
}

void Worker::run_thread() noexcept {
  const OwnThread mark(&agent_);
  const PreferNode prefer(place_.node);
  if (!place_.cpus.empty()) {
    if (const int error = run_on(place_.cpus); error != 0)
      TOWLINE_LOG(kWarning, "worker {} could not be bound to {}: {}", index_, place_.why, errno_text(error));
  }
  uint64_t seen_driven = driven_.load(std::memory_order_relaxed);
  uint64_t idle_since_ns = monotonic_now_ns();
  uint64_t park_ns = kShortestParkNs;
  while (!stop_.load(std::memory_order_relaxed)) {
    const uint64_t driven = driven_.load(std::memory_order_relaxed);
    if (driven != seen_driven) {
      // Applications drive: leave them the core, and check again later, soon at first.
      seen_driven = driven;
      kick_.drain();
      park(park_ns);
      park_ns = std::min(park_ns * 2, kLongestParkNs);
      idle_since_ns = monotonic_now_ns();
      continue;
    }
    park_ns = kShortestParkNs;
    if (waiting_lockers_.load(std::memory_order_relaxed) != 0 || !try_lock()) {
      sched_yield();
      continue;
    }
    const uint32_t done = pass(time_to_poll());
    if (done != 0) {
      unlock();
      idle_since_ns = monotonic_now_ns();  // after the work, which may have taken as long as the spin time
      continue;
    }
    const uint64_t now_ns = agent_.in_real_time() ? now_ns_ : monotonic_now_ns();
    // The pass's clock may be older than idle_since_ns.
    if (now_ns < Deadline::after(idle_since_ns, agent_.tuning().spin_ns).ns()) {
      unlock();
      cpu_pause();
      continue;
    }
    // Nothing to do: sleep. A poster stores its work and then reads sleeping_; this thread stores sleeping_
    // and then reads the queue.
    sleeping_.store(true, std::memory_order_seq_cst);
    if (stop_.load(std::memory_order_seq_cst) || handle_events(0) != 0 || !arm()) {
      sleeping_.store(false, std::memory_order_seq_cst);
      unlock();
      idle_since_ns = monotonic_now_ns();
      continue;
    }
    const uint64_t limit_ns = sleep_limit_ns(agent_.now_ns());
    unlock();
    sleep_in_epoll(limit_ns);
    idle_since_ns = monotonic_now_ns();
  }
}

TOWLINE_WAKE_PATH void Worker::sleep_driving(uint64_t deadline_ns) noexcept {
  if (!try_lock()) {
    cpu_pause();
    return;
  }
  if (retired_) {  // nothing wakes it any more
    unlock();
    sched_yield();
    return;
  }
  sleeping_.store(true, std::memory_order_seq_cst);
  const bool asleep = pass(true) == 0 && arm();
  // Computed after the pass, which may have found work with a deadline.
  uint64_t limit_ns = asleep ? sleep_limit_ns(now_ns_) : 0;
  unlock();
  if (asleep) {
    const uint64_t now_ns = monotonic_now_ns();
    const uint64_t left_ns = deadline_ns <= now_ns ? 0 : deadline_ns - now_ns;
    if (left_ns < limit_ns) limit_ns = left_ns;
    sleep_in_epoll(limit_ns);
  } else {
    sleeping_.store(false, std::memory_order_seq_cst);
  }
}

}  // namespace towline
