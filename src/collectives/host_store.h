// The store that the core gives a backend, as a Store.
#pragma once

#include <span>
#include <string>

#include "base/error.h"
#include "rendezvous/store.h"
#include "towline/plugin/collective.h"

namespace towline::collectives {

class HostStore final : public rendezvous::Store {
 public:
  explicit HostStore(const towline_collective_host_v1_t& host) : host_(host) {}
  void set(const std::string& key, std::span<const uint8_t> value) override {
    if (const int32_t status = host_.store_set(host_.context, key.c_str(), value.data(), value.size());
        status < 0)
      fail(Status{status}, "cannot put \"{}\" into the store: {}", key, status_text(Status{status}));
  }
  rendezvous::Bytes get(const std::string& key, Deadline deadline) override {
    rendezvous::Bytes value(4096);
    for (;;) {
      size_t bytes = 0;
      const int32_t status =
          host_.store_get(host_.context, key.c_str(), deadline.ns(), value.data(), value.size(), &bytes);
      if (status < 0) fail(Status{status}, "\"{}\" did not come: {}", key, status_text(Status{status}));
      const bool whole = bytes <= value.size();
      value.resize(bytes);
      if (whole) return value;
    }
  }
  [[nodiscard]] std::string describe() const override { return "store of the communicator"; }

 private:
  const towline_collective_host_v1_t& host_;
};

}  // namespace towline::collectives
