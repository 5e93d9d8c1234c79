#include "base/os/prefer_node.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace towline {

namespace {

constexpr uint32_t kPolicyNodes = 1024;  // what kernels are built for at most
constexpr uint32_t kWordBits = 8 * sizeof(unsigned long);

struct NodeMask {
  explicit NodeMask(uint32_t node) noexcept { words[node / kWordBits] = 1ul << node % kWordBits; }
  unsigned long words[kPolicyNodes / kWordBits] = {};
};

}  // namespace

// glibc has no wrappers for these; libnuma would be one more dependency. The kernel reads one bit less than
// it is told there are.
PreferNode::PreferNode(std::optional<uint32_t> node) noexcept {
  if (!node || *node >= kMostNodes) return;
  if (syscall(SYS_get_mempolicy, &mode_, nodes_, kMostNodes, nullptr, 0) != 0) return;
  const NodeMask wanted{*node};
  changed_ = syscall(SYS_set_mempolicy, MPOL_PREFERRED, wanted.words, kMostNodes + 1) == 0;
}

PreferNode::~PreferNode() {
  if (changed_) syscall(SYS_set_mempolicy, mode_, nodes_, kMostNodes + 1);
}

void prefer_node_for(void* address, uint64_t bytes, std::optional<uint32_t> node) noexcept {
  if (!node || *node >= kPolicyNodes) return;
  const NodeMask wanted{*node};
  (void)syscall(SYS_mbind, address, bytes, MPOL_PREFERRED, wanted.words, kPolicyNodes + 1, 0);
}

}  // namespace towline
