#include "capi/application_store.h"

#include <algorithm>

#include "base/error.h"

namespace towline::capi {
namespace {

// The longest that one thread's wait for a key holds up another's call.
constexpr uint64_t kTurnNs = 50 * kMillisecondNs;

}  // namespace

ApplicationStore::Turn::Turn(ApplicationStore& store) : store_(store) {
  std::unique_lock lock(store.mutex_);
  store.next_.wait(lock, [&store, mine = store.asked_++] { return store.served_ == mine; });
}

ApplicationStore::Turn::~Turn() {
  {
    const std::lock_guard lock(store_.mutex_);
    ++store_.served_;
  }
  store_.next_.notify_all();
}

void ApplicationStore::set(const std::string& key, std::span<const uint8_t> value) {
  const Turn turn(*this);
  const int32_t status = callbacks_.set(callbacks_.context, key.c_str(), value.data(), value.size());
  if (status < 0)
    fail(Status{status}, "the application's store did not take \"{}\": {}", key, status_text(Status{status}));
}

rendezvous::Bytes ApplicationStore::get(const std::string& key, Deadline deadline) {
  rendezvous::Bytes value(4096);
  for (;;) {
    size_t bytes = 0;
    int32_t status = 0;
    {
      const Turn turn(*this);
      const uint64_t left_ns = deadline.remaining_ns(monotonic_now_ns());
      status = callbacks_.get(callbacks_.context, key.c_str(), std::min(left_ns, kTurnNs), value.data(),
                              value.size(), &bytes);
    }
    // A store may have waited longer than it was asked to, and may take no time at all for no limit.
    if (status == TOWLINE_TIMED_OUT && !deadline.passed(monotonic_now_ns())) continue;
    if (status < 0)
      fail(Status{status}, "the application's store did not give \"{}\": {}", key,
           status_text(Status{status}));
    const bool whole = bytes <= value.size();
    value.resize(bytes);
    if (whole) return value;
  }
}

}  // namespace towline::capi
