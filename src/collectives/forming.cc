#include "collectives/forming.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "collectives/interrupt.h"

namespace towline::collectives {
namespace {

constexpr uint64_t kFormingLookNs = 50 * kMillisecondNs;
constexpr uint64_t kLongestLookNs = 500 * kMillisecondNs;
constexpr uint64_t kGoneTellsNs = 500 * kMillisecondNs;
constexpr size_t kLongestFailureText = 1024;

struct FailureHead {
  int32_t rank = 0;
  int32_t status = 0;
};

rendezvous::Bytes encode_failure(int rank, const Error& error) {
  const FailureHead head{rank, static_cast<int32_t>(error.code())};
  const std::string text = error.message().substr(0, kLongestFailureText);
  rendezvous::Bytes made(sizeof head + text.size());
  std::memcpy(made.data(), &head, sizeof head);
  std::copy(text.begin(), text.end(), made.begin() + sizeof head);
  return made;
}

}  // namespace

// Slices become longer, since a store far away, or on a busy machine, may need longer than one for an answer.
rendezvous::Bytes LookingStore::get(const std::string& key, Deadline deadline) {
  for (uint64_t slice_ns = kFormingLookNs;; slice_ns = std::min(2 * slice_ns, kLongestLookNs)) {
    try {
      return store_->get(key, Deadline::at(std::min(deadline.ns(), monotonic_now_ns() + slice_ns)));
    } catch (const Error& error) {
      if (error.code() != Status::kTimedOut) throw;
      look();
      if (deadline.passed(monotonic_now_ns())) throw;
    }
  }
}

void AskingStore::look() {
  if (Interrupt::asked())
    fail(Status::kCancelled, "rank {} was interrupted while it waited for other ranks", rank_);
}

rendezvous::Bytes FormingStore::get(const std::string& key, Deadline deadline) {
  if (formed_.load(std::memory_order_relaxed)) return store_->get(key, deadline);
  if (key == kFailedKey) {
    look();
    fail(Status::kTimedOut, "no rank has failed");
  }
  return LookingStore::get(key, deadline);
}

std::optional<rendezvous::Bytes> FormingStore::told() {
  try {
    return store_->peek(kFailedKey);
  } catch (const Error&) {
    return std::nullopt;
  }
}

void FormingStore::look() {
  const std::optional<rendezvous::Bytes> known = told();
  FailureHead head;
  if (!known || known->size() < sizeof head) return;
  const rendezvous::Bytes& found = *known;
  std::memcpy(&head, found.data(), sizeof head);
  if (head.rank == rank_) return;
  const Status status{head.status};
  const Error failure(
      status == Status::kUnsupported ? status : Status::kPeerLost,
      fmt::format("rank {} failed: {}", head.rank, std::string(found.begin() + sizeof head, found.end())));
  {
    const std::lock_guard lock(mutex_);
    others_failure_ = failure;
  }
  throw failure;
}

void FormingStore::refuse(const Error& error) noexcept {
  try {
    if (error.code() == Status::kPeerLost) {  // that rank tells its reason after it has freed what it had
      const Deadline patience = Deadline::after(monotonic_now_ns(), kGoneTellsNs);
      while (!told() && !patience.passed(monotonic_now_ns()))
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      look();
    }
    if (!told()) store_->set(kFailedKey, encode_failure(rank_, error));
  } catch (const std::exception&) {  // known now, or the store is gone: the others time out
  }
}

std::optional<Error> FormingStore::others_failure() const {
  const std::lock_guard lock(mutex_);
  return others_failure_;
}

void refuse_to_form(const towline_collective_host_v1_t& host, int rank, const Error& error) noexcept {
  try {
    check_forming(host);
    const rendezvous::Bytes told = encode_failure(rank, error);
    (void)host.store_set(host.context, kFailedKey, told.data(), told.size());
  } catch (const std::exception&) {  // another rank told already
  }
}

}  // namespace towline::collectives
