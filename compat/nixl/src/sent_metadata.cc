#include "sent_metadata.h"

#include <chrono>
#include <utility>

namespace towline::nixl {

bool SentMetadata::run(size_t bytes, std::function<void()> work) {
  constexpr auto kMoment = std::chrono::milliseconds{20};  // most of it takes microseconds
  std::unique_lock lock(mutex_);
  if (waiting_ == kMostWaiting || (waiting_ != 0 && waiting_bytes_ + bytes > kMostBytes)) return false;
  const nixl_status_t status = calls_.begin("sent metadata", "", [this, bytes, work = std::move(work)] {
    work();
    const std::lock_guard done(mutex_);
    --waiting_;
    waiting_bytes_ -= bytes;
    done_.notify_all();
    return NIXL_SUCCESS;
  });
  if (status != NIXL_SUCCESS) return false;
  waiting_bytes_ += bytes;
  if (waiting_++ == 0) (void)done_.wait_for(lock, kMoment, [this] { return waiting_ == 0; });
  return true;
}

bool SentMetadata::keep(const std::string& sender, Frame frame) {
  const std::lock_guard lock(mutex_);
  const auto known = kept_.find(sender);
  const size_t before = known == kept_.end() ? 0 : known->second.bytes.size();
  if (kept_bytes_ - before + frame.bytes.size() > kMostBytes) return false;
  if (known == kept_.end() && kept_.size() == kMostWaiting) return false;
  const size_t bytes = frame.bytes.size();
  kept_[sender] = std::move(frame);
  kept_bytes_ += bytes - before;
  any_.store(true, std::memory_order_release);
  return true;
}

void SentMetadata::drop(const std::string& sender, std::string_view incarnation) {
  const std::lock_guard lock(mutex_);
  const auto known = kept_.find(sender);
  if (known == kept_.end() || known->second.incarnation != incarnation) return;
  kept_bytes_ -= known->second.bytes.size();
  kept_.erase(known);
  any_.store(!kept_.empty(), std::memory_order_release);
}

std::vector<std::pair<std::string, SentMetadata::Frame>> SentMetadata::take_kept(
    const std::function<bool(const std::string& sender)>& may_go_on) {
  std::vector<std::pair<std::string, Frame>> taken;
  const std::lock_guard lock(mutex_);
  taken.reserve(kept_.size());
  for (auto entry = kept_.begin(); entry != kept_.end();) {
    if (!may_go_on(entry->first)) {
      ++entry;
      continue;
    }
    taken.emplace_back(entry->first, Frame{});
    kept_bytes_ -= entry->second.bytes.size();
    taken.back().second = std::move(entry->second);
    entry = kept_.erase(entry);
  }
  any_.store(!kept_.empty(), std::memory_order_release);
  return taken;
}

}  // namespace towline::nixl
