// The side of a communicator over NCCL that watches: operations that do not end, ranks that disagree or do not come, errors
// that NCCL notices by itself; and how a communicator ends.
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/error.h"
#include "collectives/calls/types.h"
#include "collectives/nccl/nccl_backend.h"

namespace towline::collectives::nccl {
namespace {

constexpr uint64_t kWatchNs = 10 * kMillisecondNs;
// From here on an operation counts as late: this rank says what it is at, and asks what the others are at.
constexpr uint64_t kLateNs = 250 * kMillisecondNs;
// The time to wait for a key that may be in the store.
constexpr uint64_t kGlanceNs = kMillisecondNs;
// How long operations in progress may take to end when a communicator closes, and how long the others to leave as well.
constexpr uint64_t kEndWithinNs = 10 * kSecondNs;
constexpr uint64_t kLeaveWithinNs = 2 * kSecondNs;
// A thread in one of NCCL's calls gets so long to leave it before the communicator is taken away under it, as NCCL allows.
constexpr uint64_t kCallNs = kSecondNs;

}  // namespace

NcclBackend::~NcclBackend() {
  // The watcher goes on until everything has ended, so that an operation whose other ranks are gone ends.
  const uint64_t until = monotonic_now_ns() + kEndWithinNs;
  while (!breaker_.broken() && !drained(channel_) && monotonic_now_ns() < until) ::sched_yield();
  {
    const std::lock_guard lock(watch_mutex_);
    stopping_ = true;
  }
  watch_changed_.notify_all();
  watcher_.join();
  // Another rank may still read its last data: leaving together is safe, but no rank waits for long.
  if (!breaker_.broken() && drained(channel_) && others_leave() && !stopped_.exchange(true)) {
    device_.with_gpu(gpu_, [this] { api_.destroy(comm_); });
    return;
  }
  tell_break(Status::kPeerLost, fmt::format("rank {} has left", rank_));
  stop_nccl();
  const uint64_t stopped = monotonic_now_ns() + kEndWithinNs;
  while (!drained(channel_) && monotonic_now_ns() < stopped) ::sched_yield();
}

bool NcclBackend::others_leave() {
  try {
    const cuda::Noticeboard store = board();
    const uint8_t left = 1;
    store.set(fmt::format("nccl/left/{}", rank_), {&left, 1});
    const Deadline until = Deadline::after(monotonic_now_ns(), kLeaveWithinNs);
    for (uint32_t rank = 0; rank < size_; ++rank) (void)store.get(fmt::format("nccl/left/{}", rank), until);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

void NcclBackend::stop_nccl() noexcept {
  if (stopped_.exchange(true)) return;
  const uint64_t until = monotonic_now_ns() + kCallNs;
  bool held = false;
  while (!(held = channel_.mutex.try_lock()) && monotonic_now_ns() < until) ::sched_yield();
  device_.with_gpu(gpu_, [this] { api_.abort(comm_); });
  if (held) channel_.mutex.unlock();
}

// ---- Breaking

bool NcclBackend::store_has(const std::string& key, std::vector<uint8_t>& value, uint64_t wait_ns) {
  value.resize(4096);
  size_t bytes = 0;
  const int32_t status = host_->store_get(host_->context, key.c_str(), monotonic_now_ns() + wait_ns,
                                          value.data(), value.size(), &bytes);
  if (status < 0) return false;
  value.resize(std::min(bytes, value.size()));
  return true;
}

void NcclBackend::tell_break(Status status, const std::string& text) noexcept {
  try {
    std::vector<uint8_t> value;
    if (store_has("nccl/broken", value, kGlanceNs)) return;  // the first reason stays
    value.resize(sizeof status + text.size());
    std::memcpy(value.data(), &status, sizeof status);
    std::memcpy(value.data() + sizeof status, text.data(), text.size());
    (void)host_->store_set(host_->context, "nccl/broken", value.data(), value.size());
  } catch (const std::exception&) {  // the others will time out
  }
}

bool NcclBackend::hear_of_break() {
  std::vector<uint8_t> value;
  if (!store_has("nccl/broken", value, kGlanceNs) || value.size() < sizeof(Status)) return false;
  Status status = Status::kInternal;
  std::memcpy(&status, value.data(), sizeof status);
  break_with(is_error(status) ? status : Status::kInternal,
             std::string(value.begin() + sizeof status, value.end()), false);
  return true;
}

void NcclBackend::break_with(Status status, const std::string& text, bool tell) {
  if (breaker_.broken()) return;
  if (tell) tell_break(status, text);
  breaker_.raise(status, text);
  watch_changed_.notify_all();  // the watcher takes NCCL down
}

void NcclBackend::abort(Status status, const std::string& text) {
  break_with(status,
             status == Status::kCancelled ? fmt::format("rank {} aborted the communicator", rank_) : text,
             true);
}

// ---- Watching

void NcclBackend::follow(const towline_collective_t& call, const Mark& mark, Deadline deadline,
                         void* stream) {
  const std::lock_guard lock(running_mutex_);
  std::unique_ptr<Running> running;
  if (idle_.empty()) {
    running = std::make_unique<Running>();
    running->ended = device_.make_moment(gpu_);
  } else {
    running = std::move(idle_.back());
    idle_.pop_back();
  }
  running->mark = mark;
  running->text.clear();
  if (mark.message != 0)
    running->text =
        fmt::format("{} of {} {} {} rank {}", op_name(call.op), call.count, datatype_name(call.datatype),
                    call.op == TOWLINE_COLLECTIVE_SEND ? "to" : "from", call.root);
  running->begun_ns = monotonic_now_ns();
  running->deadline = deadline;
  running->told = false;
  if (running->ended->record(stream) == 0)
    running_.push_back(std::move(running));
  else
    idle_.push_back(std::move(running));
}

void NcclBackend::look() noexcept {
  if (breaker_.broken() || stopped_) return;
  Result result = kSuccess;
  const std::unique_lock lock(channel_.mutex, std::try_to_lock);
  if (!lock.owns_lock() || stopped_ || api_.get_async_error(comm_, &result) != kSuccess) return;
  if (result == kSuccess || result == kInProgress) return;
  breaker_.raise_or_break(result == kRemoteError ? Status::kPeerLost : Status::kIo, [&] {
    const std::string text = fmt::format("rank {}: NCCL failed: {}", rank_, api_.text(result, comm_));
    tell_break(result == kRemoteError ? Status::kPeerLost : Status::kIo, text);
    return text;
  });
}

void NcclBackend::watch() {
  std::unique_lock lock(watch_mutex_);
  while (!stopping_) {
    watch_changed_.wait_for(lock, std::chrono::nanoseconds(kWatchNs));
    lock.unlock();
    try {
      watch_once();
    } catch (const std::exception&) {  // no memory now: the next look is soon
    }
    lock.lock();
  }
}

void NcclBackend::watch_once() {
  if (breaker_.broken()) return stop_nccl();
  Running* oldest = nullptr;
  {
    const std::lock_guard lock(running_mutex_);
    while (!running_.empty() && running_.front()->ended->state() != cuda::Moment::kBusy) {
      idle_.push_back(std::move(running_.front()));
      running_.pop_front();
    }
    if (!running_.empty()) oldest = running_.front().get();  // only this thread takes it away
  }
  look();
  const uint64_t now = monotonic_now_ns();
  if (oldest == nullptr || breaker_.broken() || now - oldest->begun_ns < kLateNs) return;
  if (now - looked_ns_ < kLateNs && !oldest->deadline.passed(now)) return;
  looked_ns_ = now;
  late(*oldest, now);
}

void NcclBackend::late(Running& running, uint64_t now) {
  if (hear_of_break()) return;
  if (running.mark.message == 0 && !running.told) {
    const Header& header = running.mark.header;
    (void)host_->store_set(host_->context, fmt::format("nccl/at/{}", rank_).c_str(), &header, sizeof header);
    running.told = true;
  }
  if (running.mark.message == 0 && compare_with_others(running)) return;
  if (!running.deadline.passed(now)) return;
  const std::string text = text_of(running.mark, running.text);
  std::vector<uint8_t> value;
  for (uint32_t rank = 0; rank < size_ && running.mark.message == 0; ++rank) {
    Header theirs;
    const bool said =
        store_has(fmt::format("nccl/at/{}", rank), value, kLateNs) && value.size() == sizeof theirs;
    if (said) std::memcpy(&theirs, value.data(), sizeof theirs);
    if (said && theirs.number == running.mark.header.number) continue;
    // Every rank that waits finds the same one, and says the same.
    return break_with(Status::kTimedOut, fmt::format("timed out in {}: rank {} did not come", text, rank),
                      true);
  }
  break_with(Status::kTimedOut, fmt::format("timed out in {}", text), true);
}

bool NcclBackend::compare_with_others(const Running& running) {
  const Header& mine = running.mark.header;
  std::vector<uint8_t> value;
  for (uint32_t rank = 0; rank < size_; ++rank) {
    Header theirs;
    if (rank == rank_ || !store_has(fmt::format("nccl/at/{}", rank), value, kGlanceNs) ||
        value.size() != sizeof theirs)
      continue;
    std::memcpy(&theirs, value.data(), sizeof theirs);
    if (theirs.number != mine.number || theirs == mine) continue;
    const auto other = static_cast<int>(rank);
    const auto self = static_cast<int>(rank_);
    break_with(Status::kMismatch,
               self < other ? describe_mismatch(self, mine, other, theirs)
                            : describe_mismatch(other, theirs, self, mine),
               true);
    return true;
  }
  return false;
}

}  // namespace towline::collectives::nccl
