// Asynchronous calls that exchange metadata with an address or a directory. Calls to one place run in order;
// a place that does not answer delays no other.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <towline_nixl.h>

namespace towline::nixl {

class MetadataCalls {
 public:
  // Returns the outcome; the thread's last error has the reason of a failure.
  using Work = std::function<nixl_status_t()>;

  MetadataCalls() = default;
  MetadataCalls(const MetadataCalls&) = delete;
  MetadataCalls& operator=(const MetadataCalls&) = delete;
  ~MetadataCalls() { stop(); }

  // NIXL_ERR_NOT_ALLOWED once stopped.
  nixl_status_t begin(std::string what, std::string place, Work work);
  [[nodiscard]] std::vector<MetadataCall> recent() const;
  // Cancels calls that have not begun and waits for the others.
  void stop();

 private:
  static constexpr size_t kMaxThreads = 4;
  static constexpr size_t kKept = 64;

  struct Queued {
    uint64_t id;
    std::string place;
    Work work;
  };
  void run();
  std::deque<Queued>::iterator next_locked();
  void end_locked(uint64_t id, nixl_status_t status, std::string error);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool stopped_ = false;
  uint64_t last_id_ = 0;
  size_t idle_ = 0;
  std::deque<Queued> queue_;
  std::vector<std::string> busy_places_;
  std::deque<MetadataCall> calls_;
  std::vector<std::thread> threads_;
};

}  // namespace towline::nixl
