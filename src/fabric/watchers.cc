#include "fabric/watchers.h"

#include "base/error.h"
#include "fabric/pin_thread.h"

namespace towline::fabric {

Watchers::Watchers(WatcherOptions options)
    : options_(options), words_(Mapping::map_private(kHostBytes)), watched_(kWords) {
  if (options_.device != nullptr) pinned_ = options_.device->pin(word_address(0), kHostBytes);
  thread_ = std::thread([this] { run(); });
  if (const int error = pin_thread(thread_, options_.cpu); error != 0) {
    end();
    fail_errno(error, "the watchers' thread can't run on processor {}", options_.cpu);
  }
}

Watchers::~Watchers() { end(); }

void Watchers::end() noexcept {
  {
    // Not between the thread's look at it and its wait, which would miss the call.
    const std::lock_guard held{mutex_};
    closing_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

uint64_t Watchers::word_address(uint32_t index) const noexcept {
  return reinterpret_cast<uint64_t>(words_.address()) + index * sizeof(uint64_t);
}

std::unique_lock<std::mutex> Watchers::hold() {
  if (std::this_thread::get_id() == thread_.get_id()) return {};
  return std::unique_lock{mutex_};
}

Watchers::Word Watchers::watch(Changed changed) {
  const auto held = hold();
  if (closing_) fail(Status::kClosed, "words are not watched any more");
  uint32_t index = 0;
  while (index < kWords && watched_[index].used) ++index;
  if (index == kWords) fail(Status::kLimitExceeded, "all {} words are watched", kWords);
  const uint64_t address = word_address(index);
  auto* word = reinterpret_cast<uint64_t*>(address);
  std::atomic_ref<uint64_t>{*word}.store(0, std::memory_order_release);
  watched_[index] = {true, true, ++last_number_, 0, std::move(changed)};
  ++in_use_;
  changed_.notify_all();
  return {index, word, address + (pinned_ != nullptr ? pinned_->delta() : 0)};
}

void Watchers::unwatch(uint32_t index) {
  const auto held = hold();
  if (index >= kWords || !watched_[index].used) fail(Status::kNotFound, "word {} is not watched", index);
  if (watched_[index].watched) --in_use_;
  watched_[index] = {};
}

// True if a word has changed. Under the lock.
bool Watchers::look() noexcept {
  bool any = false;
  for (uint32_t index = 0; index < kWords; ++index) {
    Watched& watched = watched_[index];
    if (!watched.watched) continue;
    const uint64_t value = std::atomic_ref<uint64_t>{*reinterpret_cast<uint64_t*>(word_address(index))}.load(
        std::memory_order_acquire);
    if (value == watched.seen) continue;
    any = true;
    const uint64_t before = std::exchange(watched.seen, value);
    const uint64_t number = watched.number;
    Changed changed = std::move(watched.changed);
    const bool goes_on = changed(before, value);
    if (watched.number != number) continue;  // it unwatched its word
    watched.changed = std::move(changed);
    if (goes_on) continue;
    watched.watched = false;
    --in_use_;
  }
  return any;
}

void Watchers::run() noexcept {
  std::unique_lock held{mutex_};
  while (!closing_) {
    if (in_use_ == 0) {
      changed_.wait(held);
      continue;
    }
    const bool busy = look() || options_.cpu >= 0;
    if (closing_) break;
    if (!busy) {
      changed_.wait_for(held, std::chrono::nanoseconds{options_.nap_ns});
      continue;
    }
    held.unlock();  // watch() and unwatch() get their turn
    std::this_thread::yield();
    held.lock();
  }
}

}  // namespace towline::fabric
