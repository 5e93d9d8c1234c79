#include "capi/application_store.h"

#include "base/error.h"

namespace towline::capi {

void ApplicationStore::set(const std::string& key, std::span<const uint8_t> value) {
  const std::lock_guard lock(mutex_);
  const int32_t status = callbacks_.set(callbacks_.context, key.c_str(), value.data(), value.size());
  if (status < 0)
    fail(Status{status}, "the application's store did not take \"{}\": {}", key, status_text(Status{status}));
}

rendezvous::Bytes ApplicationStore::get(const std::string& key, Deadline deadline) {
  const std::lock_guard lock(mutex_);
  rendezvous::Bytes value(4096);
  for (;;) {
    size_t bytes = 0;
    const uint64_t now = monotonic_now_ns();
    const int32_t status = callbacks_.get(callbacks_.context, key.c_str(), deadline.remaining_ns(now),
                                          value.data(), value.size(), &bytes);
    if (status < 0)
      fail(Status{status}, "the application's store did not give \"{}\": {}", key,
           status_text(Status{status}));
    if (bytes <= value.size()) {
      value.resize(bytes);
      return value;
    }
    value.resize(bytes);
  }
}

}  // namespace towline::capi
