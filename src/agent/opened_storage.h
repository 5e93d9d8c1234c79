// A file, device or object that a backend opened for a region of this agent; closed with the region.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

#include "agent/backend_host.h"
#include "towline/storage.h"

namespace towline {

class OpenedStorage {
 public:
  // Throws Error with the backend's text. Blocks as long as opening does.
  OpenedStorage(Backend& backend, const towline_storage_args& args);
  OpenedStorage(const OpenedStorage&) = delete;
  OpenedStorage& operator=(const OpenedStorage&) = delete;
  ~OpenedStorage() { close(); }

  [[nodiscard]] const towline_storage_attributes& attributes() const noexcept { return attributes_; }
  [[nodiscard]] Backend& backend() const noexcept { return backend_; }
  [[nodiscard]] towline_storage* handle() const noexcept { return handle_; }
  [[nodiscard]] bool replaces() const noexcept { return replaces_; }

  // Throws Error. Any thread.
  void commit();
  // A replacement that is committed.
  [[nodiscard]] bool committed() const noexcept { return committed_.load(std::memory_order_acquire); }
  // Held by the thread that commits a replacement, from before it waits for transfers; not owned: another one does.
  [[nodiscard]] std::unique_lock<std::mutex> begin_replacing() {
    return std::unique_lock(replacing_, std::try_to_lock);
  }
  // From here on no commit begins. False: one is under way, and close() would wait for its end.
  [[nodiscard]] bool end_commits() noexcept;
  // Idempotent; call before the backend closes. Drops an uncommitted replacement.
  void close() noexcept;

 private:
  Backend& backend_;
  const bool replaces_;
  std::atomic<bool> committed_{false};
  std::mutex replacing_;
  std::mutex mutex_;
  bool ended_ = false;  // no commit begins any more
  towline_storage* handle_ = nullptr;
  towline_storage_attributes attributes_ = {};
};

// The storage of the region, opened by `backend`; null for memory and for other backends.
[[nodiscard]] towline_storage* storage_of(const struct Region& region, const Backend& backend) noexcept;

}  // namespace towline
