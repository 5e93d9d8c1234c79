// The configuration of one instance, keys "shm.*"; README.md explains them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "towline/plugin/backend.hpp"

namespace towline::shm {

// The ways to a peer's region.
enum class Path { kMapped, kProcessVm, kRing };

struct Settings {
  std::vector<Path> paths;               // tried in this order for each region
  uint64_t inline_bytes = 0;             // plans up to this size are copied inside submit when mapped
  uint64_t process_vm_inline_bytes = 0;  // likewise where process_vm takes part
  uint32_t ring_bytes = 0;               // of each direction's ring
  std::string socket_dir;                // empty: the abstract namespace
  bool any_user = false;                 // let processes of other users connect
  bool map_unsealed = false;             // share and map files that are not sealed
  bool allow_ptracer = true;             // tell Yama that peers may use process_vm on this process

  // Throws plugin::Failure naming key and value.
  static Settings read(const plugin::Host& host);

  [[nodiscard]] bool allows(Path path) const noexcept {
    for (const Path allowed : paths)
      if (allowed == path) return true;
    return false;
  }
};

}  // namespace towline::shm
