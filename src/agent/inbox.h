// Notices that arrived and wait for the application. Workers push, any thread pulls. Nodes come from
// per-worker free lists by size class, so that nothing is allocated once the pool has grown to the
// application's use. The credit of each connection bounds the waiting notices.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "base/sync/treiber_stack.h"

namespace towline {

class Link;
class Peer;

struct NoticeNode {
  NoticeNode* next = nullptr;
  Peer* peer = nullptr;  // held
  Link* link = nullptr;  // to credit; compared with the link's generation before use
  uint32_t link_generation = 0;
  uint32_t worker = 0;
  uint32_t size_class = 0;
  uint32_t bytes = 0;
  uint64_t tag = 0;
  unsigned char* data() noexcept { return reinterpret_cast<unsigned char*>(this + 1); }
};

// Free nodes of one worker. take(): that worker, under its lock; give(): any thread.
class NoticePool {
 public:
  NoticePool() = default;
  NoticePool(const NoticePool&) = delete;
  NoticePool& operator=(const NoticePool&) = delete;
  ~NoticePool();

  // Null if memory is short.
  NoticeNode* take(uint32_t bytes) noexcept;
  void give(NoticeNode* node) noexcept { classes_[node->size_class].returned.push(node); }

 private:
  static constexpr std::array<uint32_t, 6> kSizes = {64, 256, 1024, 4096, 16384, 65536};
  struct SizeClass {
    NoticeNode* free = nullptr;
    TreiberStack<NoticeNode, &NoticeNode::next> returned;
  };
  std::array<SizeClass, kSizes.size()> classes_;
};

// First in, first out per worker. Producers never wait; only consumers share a lock.
class Inbox {
 public:
  Inbox() = default;
  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;
  ~Inbox();

  void push(NoticeNode* node) noexcept {
    count_.fetch_add(1, std::memory_order_relaxed);
    arrived_.push(node);
  }
  // Null if empty.
  NoticeNode* pull() noexcept;
  [[nodiscard]] bool looks_empty() const noexcept { return count_.load(std::memory_order_acquire) == 0; }

 private:
  TreiberStack<NoticeNode, &NoticeNode::next> arrived_;
  std::atomic<uint64_t> count_{0};
  std::mutex consumers_;
  NoticeNode* ordered_ = nullptr;
};

}  // namespace towline
