#include "base/os/prefer_node.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace towline {

// glibc has no wrappers for these; libnuma would be one more dependency. The kernel reads one bit less than
// it is told there are.
PreferNode::PreferNode(std::optional<uint32_t> node) noexcept {
  if (!node || *node >= kMostNodes) return;
  if (syscall(SYS_get_mempolicy, &mode_, nodes_, kMostNodes, nullptr, 0) != 0) return;
  unsigned long wanted[kMostNodes / kBits] = {};
  wanted[*node / kBits] = 1ul << *node % kBits;
  changed_ = syscall(SYS_set_mempolicy, MPOL_PREFERRED, wanted, kMostNodes + 1) == 0;
}

PreferNode::~PreferNode() {
  if (changed_) syscall(SYS_set_mempolicy, mode_, nodes_, kMostNodes + 1);
}

}  // namespace towline
