#include "agent/region_reaper.h"

#include <exception>
#include <string>
#include <utility>

#include "agent/own_regions.h"
#include "agent/own_thread.h"
#include "base/clock.h"

namespace towline {

namespace {
constexpr uint64_t kTryNs = 20 * kMillisecondNs;  // one region's turn; others wait meanwhile
}  // namespace

void RegionReaper::add(std::shared_ptr<Region> region, Released released, void* owner) {
  const Entry entry{std::move(region), released, owner};
  std::unique_lock lock(mutex_);
  if (state_ == State::kOpen) {
    lock.unlock();
    if (reap(entry, 0)) return;
    lock.lock();
  }
  if (state_ == State::kFinished) {
    lock.unlock();
    if (released != nullptr) released(owner);
    return;
  }
  waiting_.push_back(entry);
  if (state_ != State::kOpen || !in_real_time_) return;
  try {
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  } catch (const std::exception&) {
    return;  // the system gives no thread now: the next one tries again, or the agent's end does it
  }
  changed_.notify_one();
}

bool RegionReaper::reap(const Entry& entry, uint64_t timeout_ns) noexcept {
  try {
    std::string why;
    if (regions_.remove(entry.region, timeout_ns, why) == Status::kNotYet) return false;
  } catch (const std::exception&) {
    return false;  // no memory: tried again
  }
  if (entry.released != nullptr) entry.released(entry.owner);
  return true;
}

void RegionReaper::run() noexcept {
  const OwnThread mark(agent_);
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return state_ != State::kOpen || !waiting_.empty(); });
    if (state_ != State::kOpen) return;
    std::list<Entry> turn;
    turn.splice(turn.end(), waiting_, waiting_.begin());
    lock.unlock();
    if (reap(turn.front(), kTryNs)) turn.clear();
    lock.lock();
    waiting_.splice(waiting_.end(), turn);
  }
}

void RegionReaper::stop() noexcept {
  std::thread thread;
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::kOpen) state_ = State::kStopping;
    thread = std::exchange(thread_, {});
  }
  changed_.notify_all();
  if (thread.joinable()) thread.join();
}

void RegionReaper::finish() noexcept {
  stop();
  std::list<Entry> left;
  {
    const std::lock_guard lock(mutex_);
    state_ = State::kFinished;
    left.swap(waiting_);
  }
  for (const Entry& entry : left)
    if (entry.released != nullptr) entry.released(entry.owner);
}

}  // namespace towline
