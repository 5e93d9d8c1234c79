#include "metadata_calls.h"

#include <algorithm>

#include "log.h"

namespace towline::nixl {

nixl_status_t MetadataCalls::begin(std::string what, std::string place, Work work) {
  std::lock_guard lock(mutex_);
  if (stopped_) return NIXL_ERR_NOT_ALLOWED;
  // A thread that is idle may have been woken for a call that was queued before, and not have taken it yet.
  if (idle_ <= queue_.size() && threads_.size() < kMaxThreads) threads_.emplace_back([this] { run(); });
  calls_.push_back({++last_id_, std::move(what), NIXL_IN_PROG, {}});
  // Only ended ones are dropped.
  if (calls_.size() > kKept && calls_.front().status != NIXL_IN_PROG) calls_.pop_front();
  queue_.push_back({last_id_, std::move(place), std::move(work)});
  changed_.notify_one();
  return NIXL_SUCCESS;
}

std::deque<MetadataCalls::Queued>::iterator MetadataCalls::next_locked() {
  return std::ranges::find_if(queue_, [this](const Queued& queued) {
    return std::ranges::find(busy_places_, queued.place) == busy_places_.end();
  });
}

void MetadataCalls::end_locked(uint64_t id, nixl_status_t status, std::string error) {
  const auto call = std::ranges::find(calls_, id, &MetadataCall::id);
  if (call == calls_.end()) return;
  call->status = status;
  call->error = std::move(error);
}

void MetadataCalls::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    auto next = next_locked();
    while (next == queue_.end() && !stopped_) {
      ++idle_;
      changed_.wait(lock);
      --idle_;
      next = next_locked();
    }
    if (stopped_) return;
    Queued call = std::move(*next);
    queue_.erase(next);
    busy_places_.push_back(call.place);
    lock.unlock();
    nixl_status_t status = NIXL_ERR_UNKNOWN;
    std::string error;
    try {
      status = call.work();
      if (status != NIXL_SUCCESS) error = last_error();
    } catch (const std::exception& thrown) {
      error = thrown.what();
    }
    call.work = nullptr;
    lock.lock();
    end_locked(call.id, status, std::move(error));
    busy_places_.erase(std::ranges::find(busy_places_, call.place));
    changed_.notify_all();
  }
}

std::vector<MetadataCall> MetadataCalls::recent() const {
  std::lock_guard lock(mutex_);
  const size_t skipped = calls_.size() > kKept ? calls_.size() - kKept : 0;
  return {calls_.begin() + static_cast<std::ptrdiff_t>(skipped), calls_.end()};
}

void MetadataCalls::stop() {
  std::vector<std::thread> threads;
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
    for (const Queued& queued : queue_) end_locked(queued.id, NIXL_ERR_CANCELED, "the agent is closing");
    queue_.clear();
    threads.swap(threads_);
  }
  changed_.notify_all();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace towline::nixl
