// The agents whose metadata has been loaded. Towline may know more about them, and more agents. For NIXL's
// interface only loaded metadata exists.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>

#include <towline_nixl.h>
#include <towline/towline.hpp>
#include "frame.h"

namespace towline::nixl {

// The ranges that partial metadata has described.
class LoadedRanges {
 public:
  void add(const FrameRange& range);
  [[nodiscard]] bool covers(nixl_mem_t type, const nixlBasicDesc& desc) const;
  [[nodiscard]] size_t size() const noexcept;

 private:
  using Space = std::tuple<uint32_t, uint64_t>;         // kind, device
  std::map<Space, std::map<uint64_t, uint64_t>> ends_;  // begin to end, disjoint
};

// One agent, one incarnation of it.
class Remote {
 public:
  Remote(Peer peer, const Frame& frame);

  [[nodiscard]] const Peer& peer() const noexcept { return peer_; }
  // True if it is not forgotten and Towline believes that its process is alive.
  [[nodiscard]] bool is_alive() const noexcept;
  // The same, also while it is silent.
  [[nodiscard]] bool is_there() const noexcept;
  // True if it closed, or its process ended, and its metadata was not invalidated after that.
  [[nodiscard]] bool has_left() const noexcept;
  // The same, after a moment if its leaving is still to be noticed: a peer that leaves takes its memory back
  // first, and a call may fail in between.
  [[nodiscard]] bool leaves() const noexcept;
  // Another incarnation has taken its place, since Towline knows that it is not there any more.
  [[nodiscard]] bool is_replaced() const noexcept;
  // About what its metadata takes: of all that has been loaded, however often.
  [[nodiscard]] size_t bytes() const;
  // Adds further metadata.
  void merge(const Frame& frame);
  // The index of the first of `count` descriptors that has not been loaded, else `count`.
  [[nodiscard]] size_t first_unknown(nixl_mem_t type, const Rows& rows) const;
  // All its memory has been loaded; that stays so.
  [[nodiscard]] bool whole() const noexcept { return whole_.load(std::memory_order_acquire); }
  // Forgotten: lists and requests made from it answer NIXL_ERR_NOT_FOUND, even after the agent has been
  // loaded again.
  [[nodiscard]] bool gone() const noexcept { return gone_.load(std::memory_order_acquire); }
  void set_gone() noexcept { gone_.store(true, std::memory_order_release); }

  // Whether transfers with its host memory are copies on one host; set by the last request that checked.
  enum class HostCopy : uint8_t { kUnknown, kNo, kYes };
  [[nodiscard]] HostCopy host_copy() const noexcept { return host_copy_.load(std::memory_order_relaxed); }
  void set_host_copy(bool yes) noexcept {
    host_copy_.store(yes ? HostCopy::kYes : HostCopy::kNo, std::memory_order_relaxed);
  }

 private:
  Peer peer_;
  std::atomic<HostCopy> host_copy_{HostCopy::kUnknown};
  std::atomic<bool> gone_{false};
  std::atomic<bool> whole_{false};
  mutable std::mutex mutex_;
  LoadedRanges ranges_;
};

class Remotes {
 public:
  // Null if the name is unknown.
  [[nodiscard]] std::shared_ptr<Remote> find(const std::string& name) const;
  // Takes over the peer. A new incarnation replaces the old one. NIXL_ERR_NOT_FOUND for a frame without
  // addresses of an agent that is not known. `sent_bytes`: of metadata that its agent sent; 0: the application brought it.
  nixl_status_t load(Peer peer, const Frame& frame, size_t sent_bytes = 0);
  // Of agents that are known because they sent their metadata, but the one of that name.
  struct Sent {
    size_t agents = 0;
    size_t bytes = 0;
    std::string left;  // the name of one that has left, if there is one
  };
  [[nodiscard]] Sent sent(const std::string& but) const;

  // Anybody may send its metadata to an agent that listens.
  static constexpr size_t kMostSent = 4096;
  static constexpr size_t kMostSentBytes = size_t{512} << 20;

  // Null if the name was unknown.
  std::shared_ptr<Remote> forget(const std::string& name);
  void clear();

 private:
  struct Known {
    std::shared_ptr<Remote> remote;
    size_t sent_bytes = 0;  // 0: the application brought it
  };

  mutable std::mutex mutex_;
  std::map<std::string, Known> by_name_;
};

}  // namespace towline::nixl
