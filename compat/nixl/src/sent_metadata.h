// Metadata that agents have sent, and taken back: dealt with one after another, on a thread of its own, since Towline may
// ask whether the former agent of a name is still there, for up to half a second.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "metadata_calls.h"

namespace towline::nixl {

class SentMetadata {
 public:
  // Runs `work`, which does not throw, after all that is waiting, and waits for it unless that takes longer than a
  // moment. `bytes`: what it keeps. False: too much waits already, or the agent is closing.
  bool run(size_t bytes, std::function<void()> work);
  void stop() { calls_.stop(); }

  // Metadata of another agent than the one that is there under its name. It may be that one restarted, and is kept
  // until the former has left. False: there is no room.
  struct Frame {
    std::string incarnation;
    std::string bytes;
  };
  bool keep(const std::string& sender, Frame frame);
  // That incarnation has taken it back.
  void drop(const std::string& sender, std::string_view incarnation);
  // Those whose sender `may_go_on`.
  [[nodiscard]] std::vector<std::pair<std::string, Frame>> take_kept(
      const std::function<bool(const std::string& sender)>& may_go_on);
  [[nodiscard]] bool keeps_any() const noexcept { return any_.load(std::memory_order_acquire); }

  static constexpr size_t kMostWaiting = 64;  // calls of run(), and the same of frames kept
  static constexpr size_t kMostBytes = size_t{256} << 20;

 private:
  std::mutex mutex_;
  std::condition_variable done_;
  size_t waiting_ = 0;
  size_t waiting_bytes_ = 0;
  std::map<std::string, Frame, std::less<>> kept_;
  size_t kept_bytes_ = 0;
  std::atomic<bool> any_{false};
  MetadataCalls calls_;  // destroyed first
};

}  // namespace towline::nixl
