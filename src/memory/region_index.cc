#include "memory/region_index.h"

#include <fmt/format.h>
#include <towline/towline.h>

#include "base/check.h"
#include "base/error.h"
#include "memory/kind_name.h"

namespace towline {

namespace {

constexpr uint64_t kAddressEnd = uint64_t{1} << 63;
constexpr uint32_t kKnownFlags = TOWLINE_REGION_GUARDED | TOWLINE_REGION_SHARE;

// The access rights in order of preference, for each set of preferred ones.
constexpr uint32_t kAccessOrder[4][4] = {{3, 1, 2, 0}, {3, 1, 2, 0}, {3, 2, 1, 0}, {3, 1, 2, 0}};

bool covers(uint64_t outer_address, uint64_t outer_bytes, uint64_t address, uint64_t bytes) noexcept {
  const uint64_t before = address - outer_address;
  return address >= outer_address && before <= outer_bytes && bytes <= outer_bytes - before;
}

std::string describe(const towline_region_ref& region) {
  return fmt::format("region {:#x} at [{:#x}, {:#x})", region.key, region.address,
                     region.address + region.bytes);
}

}  // namespace

namespace {

struct Problem {
  Status status = Status::kOk;
  std::string text;
};

template <class... Values>
Problem invalid(fmt::format_string<Values...> text, Values&&... values) {
  return {Status::kInvalidArgument, fmt::format(text, std::forward<Values>(values)...)};
}

Problem problem_of(const towline_region_ref& region) {
  if (region.bytes == 0) return invalid("at {:#x} has 0 bytes: give it at least one", region.address);
  if (region.kind > TOWLINE_MEMORY_OBJECT)
    return invalid("has memory kind {}: the kinds are 0 (dram) to {} (object)", region.kind,
                   static_cast<uint32_t>(TOWLINE_MEMORY_OBJECT));
  if (region.address == 0 && (region.kind == TOWLINE_MEMORY_DRAM || region.kind == TOWLINE_MEMORY_VRAM))
    return invalid("has a null address");
  if (region.bytes > kAddressEnd || region.address > kAddressEnd - region.bytes)
    return {Status::kOutOfRange, fmt::format("at {:#x} with {} bytes ends beyond 2^63: is the size right?",
                                             region.address, region.bytes)};
  if (region.kind == TOWLINE_MEMORY_DRAM && region.device != 0)
    return invalid("is dram on device {}: dram has device 0 only", region.device);
  if ((region.access & ~uint32_t{TOWLINE_ACCESS_ALL}) != 0)
    return invalid("has access {:#x}: 0 gives peers nothing, 1 is read, 2 is write, 3 is both",
                   region.access);
  if ((region.flags & ~kKnownFlags) != 0)
    return invalid("has flags {:#x}, of which {:#x} are not known", region.flags,
                   region.flags & ~kKnownFlags);
  return {};
}

}  // namespace

void validate_region(const towline_region_ref& region, const std::string& what) {
  if (const Problem problem = problem_of(region); problem.status != Status::kOk)
    fail(problem.status, "{} {}", what, problem.text);
}

bool keep_what_is_known(towline_region_ref& region) {
  region.flags &= kKnownFlags;
  region.access &= TOWLINE_ACCESS_ALL;
  return region.access != TOWLINE_ACCESS_NONE && problem_of(region).status == Status::kOk;
}

RegionIndex::RegionIndex(std::span<const towline_region_ref> regions) {
  by_key_.reserve(regions.size());
  for (size_t i = 0; i < regions.size(); ++i) {
    validate_region(regions[i], fmt::format("region {} of {}", i, regions.size()));
    insert(regions[i]);
  }
}

uint32_t RegionIndex::class_of(const towline_region_ref& region) noexcept {
  const uint32_t guarded = (region.flags & TOWLINE_REGION_GUARDED) != 0 ? 1 : 0;
  return (region.access & TOWLINE_ACCESS_ALL) * 2 + guarded;
}

const RegionIndex::Entry* RegionIndex::find_in(const Class& entries, uint64_t address,
                                               uint64_t bytes) noexcept {
  // Among the visible regions that begin at or before the address, the last one reaches furthest.
  auto next = entries.visible.upper_bound(Entry{address, 0, UINT64_MAX, nullptr});
  if (next == entries.visible.begin()) return nullptr;
  const Entry& entry = *--next;
  return covers(entry.address, entry.bytes, address, bytes) ? &entry : nullptr;
}

bool RegionIndex::is_covered(const Class& entries, const Entry& entry) noexcept {
  const Entry* covering = find_in(entries, entry.address, entry.bytes);
  if (covering == nullptr) return false;
  const bool same = covering->address == entry.address && covering->bytes == entry.bytes;
  return !same || covering->key < entry.key;
}

// Makes the entry visible, and marks entries within it as covered.
void RegionIndex::show(Class& entries, Entries::node_type node) noexcept {
  const auto shown = entries.visible.insert(std::move(node)).position;
  const uint64_t end = shown->address + shown->bytes;
  // One of the same range with a higher key sorts behind, a shorter one of the same address too.
  for (auto inner = std::next(shown);
       inner != entries.visible.end() && inner->address + inner->bytes <= end;) {
    const auto covered = inner++;
    entries.covered.insert(entries.visible.extract(covered));
  }
}

// After a visible entry went: what only it covered comes forward.
void RegionIndex::uncover(Class& entries, const Entry& gone) noexcept {
  const uint64_t end = gone.address + gone.bytes;
  auto candidate = entries.covered.lower_bound(Entry{gone.address, UINT64_MAX, 0, nullptr});
  while (candidate != entries.covered.end() && candidate->address < end) {
    const auto entry = candidate++;
    if (!is_covered(entries, *entry)) show(entries, entries.covered.extract(entry));
  }
}

void RegionIndex::insert(const towline_region_ref& region) {
  const auto [place, fresh] = by_key_.try_emplace(region.key, region);
  if (!fresh) fail(Status::kAlreadyExists, "there is a region with key {:#x} already", region.key);
  const Entry entry{region.address, region.bytes, region.key, &place->second};
  try {
    Class& entries = spaces_[{region.kind, region.device}][class_of(region)];
    Entries fresh_entry;
    fresh_entry.insert(entry);
    if (is_covered(entries, entry)) {
      entries.covered.merge(fresh_entry);
    } else {
      show(entries, fresh_entry.extract(fresh_entry.begin()));
    }
  } catch (...) {
    by_key_.erase(place);
    throw;
  }
}

bool RegionIndex::erase(uint64_t key) noexcept {
  const auto place = by_key_.find(key);
  if (place == by_key_.end()) return false;
  const towline_region_ref region = place->second;
  const auto space = spaces_.find({region.kind, region.device});
  TOWLINE_CHECK(space != spaces_.end(), "region {:#x} is in no space", key);
  Class& entries = space->second[class_of(region)];
  const Entry entry{region.address, region.bytes, key, nullptr};
  if (entries.visible.erase(entry) != 0) {
    uncover(entries, entry);
  } else {
    TOWLINE_CHECK(entries.covered.erase(entry) == 1, "region {:#x} is in no class", key);
  }
  by_key_.erase(place);
  bool empty = true;
  for (const Class& one : space->second) empty = empty && one.visible.empty();
  if (empty) spaces_.erase(space);
  return true;
}

const towline_region_ref* RegionIndex::find(uint32_t kind, uint64_t device, uint64_t address, uint64_t bytes,
                                            uint32_t preferred) const noexcept {
  const auto space = spaces_.find({kind, device});
  if (space == spaces_.end()) return nullptr;
  for (const uint32_t access : kAccessOrder[preferred & TOWLINE_ACCESS_ALL]) {
    for (uint32_t guarded = 0; guarded < 2; ++guarded) {
      const Class& entries = space->second[access * 2 + guarded];
      if (entries.visible.empty()) continue;
      if (const Entry* entry = find_in(entries, address, bytes); entry != nullptr) return entry->region;
    }
  }
  return nullptr;
}

bool RegionIndex::one_class(uint32_t kind, uint64_t device) const noexcept {
  const auto space = spaces_.find({kind, device});
  if (space == spaces_.end()) return true;
  uint32_t classes = 0;
  for (const Class& entries : space->second) classes += entries.visible.empty() ? 0 : 1;
  return classes <= 1;
}

const towline_region_ref* RegionIndex::find_key(uint64_t key) const noexcept {
  const auto place = by_key_.find(key);
  return place == by_key_.end() ? nullptr : &place->second;
}

std::string RegionIndex::describe_near(uint32_t kind, uint64_t device, uint64_t address) const {
  const auto space = spaces_.find({kind, device});
  if (space == spaces_.end()) return fmt::format("no region of {} is registered", kind_text(kind, device));
  const towline_region_ref* below = nullptr;
  const towline_region_ref* above = nullptr;
  for (const Class& entries : space->second) {
    auto next = entries.visible.upper_bound(Entry{address, 0, UINT64_MAX, nullptr});
    if (next != entries.visible.end() && (above == nullptr || next->address < above->address))
      above = next->region;
    if (next == entries.visible.begin()) continue;
    --next;
    if (below == nullptr || next->address > below->address) below = next->region;
  }
  if (below == nullptr && above == nullptr)
    return fmt::format("no region of {} is registered any more", kind_text(kind, device));
  if (below == nullptr) return fmt::format("the next is {}", describe(*above));
  if (above == nullptr) return fmt::format("the nearest is {}", describe(*below));
  return fmt::format("the nearest are {} and {}", describe(*below), describe(*above));
}

}  // namespace towline
