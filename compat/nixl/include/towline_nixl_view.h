// A view of memory as code on a GPU reads it: what a nixlMemViewH of Towline's own backends points to. Host memory that the
// GPU reaches, written before the handle is given out. nixl_device.cuh reads it; programs need not.
#pragma once

#include <stdint.h>

namespace towline::nixl {

struct ViewEntry {
  uint64_t address;  // on the GPU that the view is for; 0: no agent
  uint64_t bytes;
};

struct ViewTable {
  uint64_t magic;  // kViewMagic
  uint64_t count;  // of entries, which follow
};

inline constexpr uint64_t kViewMagic = 0x31305745'49564c54;  // "TLVIEW01"

}  // namespace towline::nixl
