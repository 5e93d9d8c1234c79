// A store of the application, as a place where ranks meet. Its functions are called one at a time, in the order in which
// threads ask, and a thread that waits for a key lets the others in again and again: one of them may set what another
// rank needs to set that key.
#pragma once

#include <condition_variable>
#include <cstdint>
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
  class Turn {
   public:
    explicit Turn(ApplicationStore& store);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    ApplicationStore& store_;
  };

  const towline_collective_store_t callbacks_;
  std::mutex mutex_;
  std::condition_variable next_;
  uint64_t asked_ = 0;
  uint64_t served_ = 0;
};

}  // namespace towline::capi
