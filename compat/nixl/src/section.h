// Memory that an engine knows: its own, or an agent's, by NIXL's descriptors.
#pragma once

#include <backend/backend_aux.h>

#include <compare>
#include <map>
#include <string>

#include <towline_nixl.h>

namespace towline::nixl {

struct Memory {
  nixlBasicDesc desc;
  nixlBackendMD* metadata = nullptr;  // the engine's
  nixlBackendMD* own = nullptr;       // the same memory as the other side of a transfer within its agent
  std::string public_data;            // for peers
};

// Not locked.
class Section {
 public:
  void add(nixl_mem_t type, Memory memory);
  // Null if none contains the descriptor. Memory may overlap.
  [[nodiscard]] const Memory* covering(nixl_mem_t type, const nixlBasicDesc& desc) const;
  // Null if none has this address, length and device.
  [[nodiscard]] const Memory* exact(nixl_mem_t type, const nixlBasicDesc& desc) const;
  // Takes out one with this address, length and device; false if not found.
  bool take(nixl_mem_t type, const nixlBasicDesc& desc, Memory& taken);
  template <class Visit>
  void each(Visit visit) const {
    for (const auto& [type, kind] : kinds_)
      for (const auto& [key, memory] : kind.memories) visit(type, memory);
  }
  void clear() { kinds_.clear(); }

 private:
  struct Key {
    uint64_t device;
    uintptr_t address;
    size_t bytes;
    auto operator<=>(const Key&) const = default;
  };
  struct Kind {
    std::multimap<Key, Memory> memories;
    size_t longest = 0;  // of all that were added: where the search for a covering one ends
  };
  static Key key_of(const nixlBasicDesc& desc) noexcept { return {desc.devId, desc.addr, desc.len}; }

  std::map<nixl_mem_t, Kind> kinds_;
};

// Adds a descriptor with metadata for each row; false, with `missing`, for a row that lies in no memory. `own`:
// as the other side of a transfer within the agent.
bool describe(const Section& section, nixl_mem_t type, const Rows& rows, bool own, nixl_meta_dlist_t& list,
              size_t& missing);

}  // namespace towline::nixl
