#include "agent/inbox.h"

#include <cstdlib>
#include <new>

#include "base/sync/wake_path.h"

namespace towline {

namespace {

void free_list(NoticeNode* node) noexcept {
  while (node != nullptr) {
    NoticeNode* next = node->next;
    std::free(node);
    node = next;
  }
}

}  // namespace

NoticePool::~NoticePool() {
  for (SizeClass& size_class : classes_) {
    free_list(size_class.free);
    free_list(size_class.returned.pop_all());
  }
}

TOWLINE_WAKE_PATH NoticeNode* NoticePool::take(uint32_t bytes) noexcept {
  uint32_t index = 0;
  while (index + 1 < kSizes.size() && kSizes[index] < bytes) ++index;
  SizeClass& size_class = classes_[index];
  if (size_class.free == nullptr) size_class.free = size_class.returned.pop_all();
  if (NoticeNode* node = size_class.free; node != nullptr) {
    size_class.free = node->next;
    return node;
  }
  void* memory = std::malloc(sizeof(NoticeNode) + kSizes[index]);
  if (memory == nullptr) return nullptr;
  auto* node = new (memory) NoticeNode;
  node->size_class = index;
  return node;
}

Inbox::~Inbox() {
  free_list(ordered_);
  free_list(arrived_.pop_all());
}

TOWLINE_WAKE_PATH NoticeNode* Inbox::pull() noexcept {
  if (looks_empty()) return nullptr;
  std::lock_guard lock(consumers_);
  if (ordered_ == nullptr) ordered_ = arrived_.pop_all_in_order();
  NoticeNode* node = ordered_;
  if (node == nullptr) return nullptr;
  ordered_ = node->next;
  count_.fetch_sub(1, std::memory_order_relaxed);
  return node;
}

}  // namespace towline
