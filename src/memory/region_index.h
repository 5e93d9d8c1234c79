// Finds the region that covers a range of addresses, among regions that may overlap one another.
#pragma once

#include <towline/plugin/plan.h>

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <unordered_map>

namespace towline {

// Throws Error naming the value that is wrong: empty or too long, wrapping round, without address, unknown
// kind, access or flags. `what` begins the sentence ("region", "region 3 of peer x"). A region ends at 2^63
// at most.
void validate_region(const towline_region_ref& region, const std::string& what);

// For a region described by another agent, perhaps of a newer version: clears unknown flags and access
// rights. False if the rest is not a valid region.
[[nodiscard]] bool keep_what_is_known(towline_region_ref& region);

// Regions by address, one space for each (kind, device). Not synchronised: users that share it must lock it.
//
// If several regions cover a range, the choice depends on the set alone, not on the order of insertion:
// first those with all access rights, then those with more of `preferred`; unguarded before guarded; then the
// larger, if one lies in the other; then the one that begins last; of equal ones the lowest key.
//
// Within one class of equal rights and flags, only regions that lie in no other region of the class can be
// chosen. Sorted by beginning they are also sorted by end, so a look-up is one search in each class. Covered
// regions are kept in a set and become visible when the covering region is erased; inserting and erasing cost
// a search, and a step for each region that becomes covered or visible.
class RegionIndex {
 public:
  RegionIndex() = default;
  // A peer's regions, say. Throws Error as validate_region does, and for a key that comes twice.
  explicit RegionIndex(std::span<const towline_region_ref> regions);

  // The region must be valid (validate_region). Throws Error(kAlreadyExists) when its key is there.
  void insert(const towline_region_ref& region);
  // False when no region has the key.
  bool erase(uint64_t key) noexcept;

  // A region with [address, address + bytes) inside it, or null. The pointer holds until the region is
  // erased. No range wraps round: bytes beyond the end of the address space are covered by nothing.
  [[nodiscard]] const towline_region_ref* find(uint32_t kind, uint64_t device, uint64_t address,
                                               uint64_t bytes, uint32_t preferred = 3) const noexcept;
  // Whether all regions of this kind and device have the same rights and flags, so that one that covers a
  // range is as good as any other.
  [[nodiscard]] bool one_class(uint32_t kind, uint64_t device) const noexcept;
  [[nodiscard]] const towline_region_ref* find_key(uint64_t key) const noexcept;

  // For error messages: the nearest regions, or that this kind and device has no regions.
  [[nodiscard]] std::string describe_near(uint32_t kind, uint64_t device, uint64_t address) const;

  [[nodiscard]] uint64_t size() const noexcept { return by_key_.size(); }

 private:
  static constexpr uint32_t kClasses = 8;  // access (0 to 3) and guarded or not

  // Ordered so that what may cover comes before what it covers: by address, longer first, then by key.
  struct Entry {
    uint64_t address;
    uint64_t bytes;
    uint64_t key;
    const towline_region_ref* region;
    friend bool operator<(const Entry& a, const Entry& b) noexcept {
      if (a.address != b.address) return a.address < b.address;
      if (a.bytes != b.bytes) return a.bytes > b.bytes;
      return a.key < b.key;
    }
  };
  using Entries = std::set<Entry>;
  struct Class {
    Entries visible;  // in no other of the class; both addresses and ends ascend
    Entries covered;
  };
  struct SpaceKey {
    uint32_t kind;
    uint64_t device;
    friend auto operator<=>(const SpaceKey&, const SpaceKey&) = default;
  };
  using Space = std::array<Class, kClasses>;

  static uint32_t class_of(const towline_region_ref& region) noexcept;
  static const Entry* find_in(const Class& entries, uint64_t address, uint64_t bytes) noexcept;
  static bool is_covered(const Class& entries, const Entry& entry) noexcept;
  static void show(Class& entries, Entries::node_type node) noexcept;
  static void uncover(Class& entries, const Entry& gone) noexcept;

  std::map<SpaceKey, Space> spaces_;
  std::unordered_map<uint64_t, towline_region_ref> by_key_;  // nodes do not move
};

}  // namespace towline
