// The target process: owns the remote memory and the responders, and does what the initiator asks on standard
// input.
#pragma once

#include <cstddef>

#include "support/process.h"

namespace bench {

// Made when first asked for: private pages for process_vm, sockets and rings, shared ones for mapped copies.
struct TargetMemory {
  std::size_t span;
  Memory private_pages;
  Memory shared_pages;

  std::byte* anonymous() {
    if (private_pages.data() == nullptr) private_pages = Memory::anonymous(span);
    return private_pages.data();
  }
  const Memory& shared() {
    if (shared_pages.data() == nullptr) shared_pages = Memory::shared("bench-target", span);
    return shared_pages;
  }
};

int run_target(std::size_t span);  // returns the exit code when the initiator closes the channel

}  // namespace bench
