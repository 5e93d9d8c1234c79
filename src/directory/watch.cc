// Results that wait to be taken: outcomes of calls, events of watches.
#include <algorithm>

#include "base/error.h"
#include "directory/directory.h"

namespace towline {
namespace {

constexpr size_t kMostKeys = 1 << 17;
constexpr size_t kMostWaitingBytes = size_t{256} << 20;
constexpr uint64_t kLookNs = 100 * kMillisecondNs;  // how often a wait checks whether the agent was closed

// Waits for `ready` under `lock`. An agent that its caller drives makes progress meanwhile.
template <class Ready>
bool wait_for(Agent& agent, std::unique_lock<std::mutex>& lock, std::condition_variable& changed,
              uint64_t timeout_ns, Ready&& ready) {
  const Deadline deadline = Deadline::after(monotonic_now_ns(), timeout_ns);
  while (!ready()) {
    const uint64_t left_ns = deadline.remaining_ns(monotonic_now_ns());
    if (left_ns == 0 || agent.usable() == Status::kForked) return false;
    if (agent.hosted() || agent.closed()) {
      changed.wait_for(lock, std::chrono::nanoseconds(std::min(left_ns, kLookNs)));
      continue;
    }
    lock.unlock();
    control_pause(agent, agent.progress());
    lock.lock();
  }
  return true;
}

}  // namespace

// ---- DirectoryCall

Status DirectoryCall::poll() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

Status DirectoryCall::wait(uint64_t timeout_ns) {
  std::unique_lock lock(mutex_);
  const auto ended = [this] { return status_ != Status::kInProgress; };
  return wait_for(directory_->agent(), lock, ended_, timeout_ns, ended) ? status_ : Status::kNotYet;
}

void DirectoryCall::cancel() {
  if (poll() == Status::kInProgress) directory_->cancel(numbers_);
}

const std::string& DirectoryCall::error() const {
  static const std::string none;
  return poll() == Status::kInProgress ? none : error_;
}

const std::vector<DirectoryEntry>& DirectoryCall::entries() const {
  static const std::vector<DirectoryEntry> none;
  return poll() == Status::kOk ? entries_ : none;
}

Peer* DirectoryCall::peer() const { return poll() == Status::kOk ? peer_ : nullptr; }

void DirectoryCall::part_ended(Status status, std::string text, std::vector<DirectoryEntry> entries,
                               Peer* peer) {
  const std::lock_guard lock(mutex_);
  if (status == Status::kNotFound && ignore_missing_) status = Status::kOk;
  if (status != Status::kOk && part_status_ == Status::kOk) {
    part_status_ = status;
    error_ = std::move(text);
  }
  if (entries_.empty())
    entries_ = std::move(entries);
  else
    std::move(entries.begin(), entries.end(), std::back_inserter(entries_));
  if (peer != nullptr) peer_ = peer;
  if (--parts_left_ != 0) return;
  status_ = part_status_;
  ended_.notify_all();
  for (TicketHold& ticket : told_) EventQueue::tell(std::move(ticket), status_, error_);
  told_.clear();
}

void DirectoryCall::tell(TicketHold ticket) {
  const std::lock_guard lock(mutex_);
  if (status_ == Status::kInProgress)
    told_.push_back(std::move(ticket));
  else
    EventQueue::tell(std::move(ticket), status_, error_);
}

// ---- DirectoryWatch

Status DirectoryWatch::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

void DirectoryWatch::tell(TicketHold ticket) {
  const std::lock_guard lock(mutex_);
  told_.push_back(std::move(ticket));
  if (!waiting_.empty() || is_error(status_)) tell_locked();
}

void DirectoryWatch::released() noexcept {
  const std::lock_guard lock(mutex_);
  for (TicketHold& ticket : told_) EventQueue::tell(std::move(ticket), Status::kCancelled);
  told_.clear();
}

void DirectoryWatch::tell_locked() {
  news_.notify_all();
  for (TicketHold& ticket : told_) EventQueue::tell(std::move(ticket), Status::kOk);
  told_.clear();
}

Status DirectoryWatch::next(uint64_t timeout_ns, Event& event, std::string& why) {
  std::unique_lock lock(mutex_);
  const auto ready = [this] { return !waiting_.empty() || is_error(status_); };
  if (!wait_for(*agent_, lock, news_, timeout_ns, ready)) return Status::kNotYet;
  if (waiting_.empty()) {
    why = why_;
    return status_;
  }
  event = {waiting_.front().kind, std::move(waiting_.front().entry)};
  waiting_bytes_ -= event.entry.key.size() + event.entry.value.size();
  waiting_by_key_.erase(event.entry.key);
  waiting_.pop_front();
  return Status::kOk;
}

bool DirectoryWatch::on_event(uint32_t kind, const towline_directory_item* item, Status status,
                              const char* text) {
  const std::lock_guard lock(mutex_);
  if (is_error(status_)) return false;
  switch (kind) {
    case TOWLINE_DIRECTORY_PUT_SEEN:
      put_seen(*item);
      break;
    case TOWLINE_DIRECTORY_GONE_SEEN:
      gone_seen({static_cast<const char*>(item->key), item->key_bytes}, item->revision);
      break;
    case TOWLINE_DIRECTORY_RESET:
      ++round_;
      break;
    case TOWLINE_DIRECTORY_SYNCED:
      synced();
      break;
    case TOWLINE_DIRECTORY_ONLINE:
      status_ = Status::kOk;
      break;
    case TOWLINE_DIRECTORY_OFFLINE:
      status_ = Status::kInProgress;
      break;
    case TOWLINE_DIRECTORY_ENDED:
      end_locked(status, text == nullptr ? "" : text);
      break;
    default:  // from a newer plugin
      break;
  }
  return !is_error(status_);
}

void DirectoryWatch::put_seen(const towline_directory_item& item) {
  std::string key(static_cast<const char*>(item.key), item.key_bytes);
  Known& known = known_[key];
  const bool news = known.revision != item.revision;
  known = {item.revision, round_};
  if (!news) return;
  if (known_.size() > kMostKeys) {
    return end_locked(Status::kLimitExceeded,
                      fmt::format("there are more than {} keys under the prefix", kMostKeys));
  }
  queue(TOWLINE_WATCH_PUT,
        {std::move(key), std::string(static_cast<const char*>(item.value), item.value_bytes), item.revision});
}

void DirectoryWatch::gone_seen(std::string_view key, uint64_t revision) {
  const auto known = known_.find(key);
  if (known == known_.end()) return;
  known_.erase(known);
  queue(TOWLINE_WATCH_GONE, {std::string(key), "", revision});
}

void DirectoryWatch::synced() {
  for (auto known = known_.begin(); known != known_.end();) {
    const auto next = std::next(known);
    if (known->second.round != round_) {
      const std::string key = known->first;
      gone_seen(key, 0);
    }
    known = next;
  }
  if (std::exchange(synced_told_, true)) return;
  waiting_.push_back({TOWLINE_WATCH_SYNCED, {}});
  tell_locked();
}

void DirectoryWatch::queue(uint32_t kind, DirectoryEntry entry) {
  const size_t bytes = entry.key.size() + entry.value.size();
  if (const auto waiting = waiting_by_key_.find(entry.key); waiting != waiting_by_key_.end()) {
    DirectoryEntry& older = waiting->second->entry;
    waiting_bytes_ -= older.key.size() + older.value.size();
    *waiting->second = {kind, std::move(entry)};
  } else {
    const std::string key = entry.key;
    waiting_.push_back({kind, std::move(entry)});
    waiting_by_key_[key] = std::prev(waiting_.end());
  }
  waiting_bytes_ += bytes;
  if (waiting_bytes_ > kMostWaitingBytes) {
    return end_locked(Status::kLimitExceeded,
                      fmt::format("more than {} bytes of events wait to be taken", kMostWaitingBytes));
  }
  tell_locked();
}

void DirectoryWatch::end(Status status, const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (!is_error(status_)) end_locked(status, text);
}

void DirectoryWatch::end_locked(Status status, const std::string& text) {
  status_ = status;
  why_ = text;
  known_.clear();
  tell_locked();
}

}  // namespace towline
