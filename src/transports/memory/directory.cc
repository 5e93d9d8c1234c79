#include "transports/memory/directory.h"

#include <map>

#include "base/id.h"

namespace towline::memory {

namespace {

struct Directory {
  std::mutex mutex;
  std::map<Id, std::shared_ptr<Mailbox>> mailboxes;
};

// Never destroyed: agents may outlive static destructors.
Directory& directory() {
  static auto* const the_one = new Directory;
  return *the_one;
}

Id id_of(const uint64_t incarnation[2]) noexcept { return {incarnation[0], incarnation[1]}; }

}  // namespace

Mailbox::Mailbox(const plugin::Host& host)
    : host_(host), workers_(host.worker_count()), slots_(std::make_unique<Slot[]>(host.worker_count())) {}

Status Mailbox::post(uint32_t worker, Call call) {
  const std::lock_guard lock(mutex_);
  if (!open_) return Status::kUnreachable;
  Slot& slot = slots_[worker % workers_];
  slot.calls.push_back(std::move(call));
  slot.full.store(true, std::memory_order_release);
  host_.wake(worker % workers_);
  return Status::kOk;
}

std::vector<Call> Mailbox::take(uint32_t worker) {
  const std::lock_guard lock(mutex_);
  slots_[worker].full.store(false, std::memory_order_relaxed);
  return std::move(slots_[worker].calls);
}

std::vector<Call> Mailbox::close() {
  const std::lock_guard lock(mutex_);
  open_ = false;
  std::vector<Call> left;
  for (uint32_t i = 0; i < workers_; ++i)
    for (Call& call : slots_[i].calls) left.push_back(std::move(call));
  return left;
}

void enter_directory(const uint64_t incarnation[2], std::shared_ptr<Mailbox> mailbox) {
  const std::lock_guard lock(directory().mutex);
  directory().mailboxes[id_of(incarnation)] = std::move(mailbox);
}

void leave_directory(const uint64_t incarnation[2]) {
  const std::lock_guard lock(directory().mutex);
  directory().mailboxes.erase(id_of(incarnation));
}

std::shared_ptr<Mailbox> find_in_directory(const uint64_t incarnation[2]) {
  const std::lock_guard lock(directory().mutex);
  const auto found = directory().mailboxes.find(id_of(incarnation));
  return found == directory().mailboxes.end() ? nullptr : found->second;
}

}  // namespace towline::memory
