// Options of a region that peers may read and write, for tests that speak C.
#pragma once

#include <towline/towline.h>

namespace towline::testing {

inline const towline_region_options_t* open_to_peers() {
  static const towline_region_options_t options = [] {
    towline_region_options_t open{};
    open.struct_size = sizeof open;
    open.access = TOWLINE_ACCESS_ALL;
    return open;
  }();
  return &options;
}

}  // namespace towline::testing
