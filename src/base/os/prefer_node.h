// The preferred NUMA node for new memory.
#pragma once

#include <cstdint>
#include <optional>

namespace towline {

// During its lifetime, pages that the calling thread touches first come from `node`, if there is room; the
// destructor restores the old policy. Only a preference: it has no effect if the node does not exist or the
// system does not allow it. Made and destroyed by one thread.
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

// The same for one piece of mapped memory, whichever thread touches it first: for as long as it is mapped. `address` is a
// multiple of the page size.
void prefer_node_for(void* address, uint64_t bytes, std::optional<uint32_t> node) noexcept;

}  // namespace towline
