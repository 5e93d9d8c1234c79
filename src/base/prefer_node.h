// Where memory comes from on hosts of several NUMA nodes.
#pragma once

#include <cstdint>
#include <optional>

namespace towline {

// While this lives, pages that the calling thread is the first to touch come from `node`, if there is room;
// afterwards from where they came before. A wish: where there is no such node, or the system allows no such
// thing, nothing changes. Made and destroyed by one thread.
class PreferNode {
 public:
  explicit PreferNode(std::optional<uint32_t> node) noexcept;
  PreferNode(const PreferNode&) = delete;
  PreferNode& operator=(const PreferNode&) = delete;
  ~PreferNode();

 private:
  static constexpr uint32_t kMostNodes = 1024;  // what kernels are built for at most
  static constexpr uint32_t kBits = 8 * sizeof(unsigned long);

  int mode_ = 0;  // before
  unsigned long nodes_[kMostNodes / kBits] = {};
  bool changed_ = false;
};

}  // namespace towline
