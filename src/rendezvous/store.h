// The store in which ranks meet: small values under keys, which stay after the operation that put them.
// Control path only.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/config/config.h"

namespace towline::rendezvous {

using Bytes = std::vector<uint8_t>;

// Any thread. Throws Error.
class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, std::span<const uint8_t> value) = 0;
  // Waits until the key is there; Error(kTimedOut) at the deadline.
  virtual Bytes get(const std::string& key, Deadline deadline) = 0;
  // What the key has now. Nothing: it has no value, or the store did not answer soon.
  virtual std::optional<Bytes> peek(const std::string& key);
  virtual std::string describe() const = 0;
  // The local address on the route to the store, "10.0.0.7"; "" if the store is not on a network.
  virtual std::string local_host() const { return {}; }
};

// A store within this process: for a single rank, and for ranks that are threads.
class MemoryStore final : public Store {
 public:
  void set(const std::string& key, std::span<const uint8_t> value) override;
  Bytes get(const std::string& key, Deadline deadline) override;
  std::string describe() const override { return "memory"; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Bytes> values_;
};

// A folder that all ranks can reach; each key is a file that is created atomically.
class FileStore final : public Store {
 public:
  explicit FileStore(std::string folder);
  void set(const std::string& key, std::span<const uint8_t> value) override;
  Bytes get(const std::string& key, Deadline deadline) override;
  std::string describe() const override { return "file:" + folder_; }

 private:
  std::string path(const std::string& key) const;
  const std::string folder_;
};

// A part of another store.
class PrefixStore final : public Store {
 public:
  PrefixStore(std::shared_ptr<Store> store, std::string prefix)
      : store_(std::move(store)), prefix_(std::move(prefix)) {}
  void set(const std::string& key, std::span<const uint8_t> value) override {
    store_->set(prefix_ + key, value);
  }
  Bytes get(const std::string& key, Deadline deadline) override {
    return store_->get(prefix_ + key, deadline);
  }
  std::optional<Bytes> peek(const std::string& key) override { return store_->peek(prefix_ + key); }
  std::string describe() const override { return store_->describe(); }
  std::string local_host() const override { return store_->local_host(); }

 private:
  const std::shared_ptr<Store> store_;
  const std::string prefix_;
};

// Opens a store by address, as described at towline_communicator_options_t.bootstrap; not directories. `meanwhile` is called
// now and then while no rank serves it yet, and may throw. Throws Error.
std::shared_ptr<Store> open_store(const std::string& address, int rank, const Config& config,
                                  Deadline deadline, const std::function<void()>& meanwhile = {});

}  // namespace towline::rendezvous
