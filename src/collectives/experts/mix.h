// Many words become one (FNV-1a, a word at a time): ranks that mixed the same words have the same.
#pragma once

#include <cstdint>

namespace towline::collectives::experts {

struct Mix {
  uint64_t value = 0xcbf29ce484222325;

  void add(uint64_t word) noexcept { value = (value ^ word) * 0x100000001b3; }
};

}  // namespace towline::collectives::experts
