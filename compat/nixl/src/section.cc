#include "section.h"

#include <algorithm>

namespace towline::nixl {

void Section::add(nixl_mem_t type, Memory memory) {
  Kind& kind = kinds_[type];
  kind.longest = std::max(kind.longest, memory.desc.len);
  const Key key = key_of(memory.desc);
  kind.memories.emplace(key, std::move(memory));
}

const Memory* Section::covering(nixl_mem_t type, const nixlBasicDesc& desc) const {
  const auto kind = kinds_.find(type);
  if (kind == kinds_.end() || desc.addr > UINTPTR_MAX - desc.len) return nullptr;
  auto next = kind->second.memories.upper_bound(Key{desc.devId, desc.addr, SIZE_MAX});
  while (next != kind->second.memories.begin()) {
    const Memory& memory = (--next)->second;
    if (memory.desc.devId != desc.devId || desc.addr - memory.desc.addr > kind->second.longest)
      return nullptr;
    const size_t into = desc.addr - memory.desc.addr;
    if (into <= memory.desc.len && desc.len <= memory.desc.len - into) return &memory;
  }
  return nullptr;
}

const Memory* Section::exact(nixl_mem_t type, const nixlBasicDesc& desc) const {
  const auto kind = kinds_.find(type);
  if (kind == kinds_.end()) return nullptr;
  const auto found = kind->second.memories.find(key_of(desc));
  return found == kind->second.memories.end() ? nullptr : &found->second;
}

bool Section::take(nixl_mem_t type, const nixlBasicDesc& desc, Memory& taken) {
  const auto kind = kinds_.find(type);
  if (kind == kinds_.end()) return false;
  const auto found = kind->second.memories.find(key_of(desc));
  if (found == kind->second.memories.end()) return false;
  taken = std::move(found->second);
  kind->second.memories.erase(found);
  return true;
}

bool describe(const Section& section, nixl_mem_t type, const Rows& rows, bool own, nixl_meta_dlist_t& list,
              size_t& missing) {
  list.reserve(rows.count);
  const Memory* in = nullptr;  // rows that follow each other lie in the same memory most times
  for (size_t i = 0; i < rows.count; ++i) {
    const nixlBasicDesc row = rows[i];
    if (in == nullptr || row.addr > UINTPTR_MAX - row.len || !in->desc.covers(row))
      in = section.covering(type, row);
    if (in == nullptr) {
      missing = i;
      return false;
    }
    list.emplace(row.addr, row.len, row.devId, own ? in->own : in->metadata);
  }
  return true;
}

}  // namespace towline::nixl
