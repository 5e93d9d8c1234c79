// A store of the application, as a place where ranks meet.
#pragma once

#include <mutex>
#include <span>
#include <string>

#include "rendezvous/store.h"
#include "towline/collectives.h"

namespace towline::capi {

class ApplicationStore final : public rendezvous::Store {
 public:
  explicit ApplicationStore(const towline_collective_store_t& callbacks) : callbacks_(callbacks) {}
  ~ApplicationStore() override {
    if (callbacks_.release != nullptr) callbacks_.release(callbacks_.context);
  }
  void set(const std::string& key, std::span<const uint8_t> value) override;
  rendezvous::Bytes get(const std::string& key, Deadline deadline) override;
  std::string describe() const override { return "store of the application"; }

 private:
  const towline_collective_store_t callbacks_;
  std::mutex mutex_;
};

}  // namespace towline::capi
