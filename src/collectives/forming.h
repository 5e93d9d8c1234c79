// The store while a communicator forms. A rank that fails leaves its reason there, and every rank that waits for a key of
// another one looks for such a reason now and then. So all of them fail at once, with the rank's number and its reason,
// wherever they were.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/error.h"
#include "rendezvous/store.h"
#include "towline/plugin/collective.h"

namespace towline::collectives {

inline constexpr const char* kFailedKey = "failed";  // where a rank leaves its reason

// Another store, whose waits look now and then for what may end them.
class LookingStore : public rendezvous::Store {
 public:
  void set(const std::string& key, std::span<const uint8_t> value) override { store_->set(key, value); }
  rendezvous::Bytes get(const std::string& key, Deadline deadline) override;
  std::optional<rendezvous::Bytes> peek(const std::string& key) override { return store_->peek(key); }
  [[nodiscard]] std::string describe() const override { return store_->describe(); }
  [[nodiscard]] std::string local_host() const override { return store_->local_host(); }

 protected:
  LookingStore(std::shared_ptr<rendezvous::Store> store, int rank) : store_(std::move(store)), rank_(rank) {}
  // Throws Error if the wait shall end.
  virtual void look() = 0;

  const std::shared_ptr<rendezvous::Store> store_;
  const int rank_;
};

// The application can end its waits (interrupt.h): Error(kCancelled).
class AskingStore final : public LookingStore {
 public:
  AskingStore(std::shared_ptr<rendezvous::Store> store, int rank) : LookingStore(std::move(store), rank) {}

 private:
  void look() override;
};

class FormingStore final : public LookingStore {
 public:
  FormingStore(std::shared_ptr<rendezvous::Store> store, int rank) : LookingStore(std::move(store), rank) {}

  // Error as well when another rank has failed: kUnsupported if that is its reason, since ranks then look for another
  // way together, else kPeerLost. kFailedKey has no value here: this error comes, or kTimedOut at once.
  rendezvous::Bytes get(const std::string& key, Deadline deadline) override;

  // Tells the others, unless a rank has told already. Of a rank that is lost, others_failure() knows the reason then.
  void refuse(const Error& error) noexcept;
  // From now on ranks that wait look for nothing but their keys.
  void formed() noexcept { formed_.store(true, std::memory_order_relaxed); }
  // What another rank failed with, as get() said it, if this rank knows of one.
  [[nodiscard]] std::optional<Error> others_failure() const;

 private:
  [[nodiscard]] std::optional<rendezvous::Bytes> told();
  void look() override;

  std::atomic<bool> formed_ = false;
  mutable std::mutex mutex_;
  std::optional<Error> others_failure_;
};

// The same for a backend that goes on after a failure until the others know.
void refuse_to_form(const towline_collective_host_v1_t& host, int rank, const Error& error) noexcept;
// Throws Error if another rank is known to have failed. For backends that wait for others elsewhere than in the store.
inline void check_forming(const towline_collective_host_v1_t& host) {
  uint8_t none = 0;
  size_t bytes = 0;
  const int32_t status =
      host.store_get(host.context, kFailedKey, monotonic_now_ns(), &none, sizeof none, &bytes);
  if (status < 0 && Status{status} != Status::kTimedOut) fail(Status{status}, "another rank failed");
}

}  // namespace towline::collectives
