// A validated list of blocks with the regions they lie in: what plans are compiled from.
#pragma once

#include <towline/plugin/plan.h>
#include <towline/towline.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>

#include "base/containers/small_vector.h"
#include "memory/region_index.h"

namespace towline {

// Sums and products of what callers say, without overflow.
__extension__ using Wide = unsigned __int128;

inline constexpr uint64_t kMaxFlatBlocks = 10'000'000;
inline constexpr uint64_t kMaxListBlocks = UINT32_MAX;
inline constexpr uint64_t kMaxBlockBytes = uint64_t{1} << 63;

// Plain blocks in arrays, as towline_block_list_create_flat takes them.
struct FlatBlocks {
  uint32_t kind = 0;
  uint64_t device = 0;
  uint64_t count = 0;
  const uint64_t* addresses = nullptr;
  size_t address_stride_bytes = sizeof(uint64_t);
  const uint64_t* lengths = nullptr;
  size_t length_stride_bytes = sizeof(uint64_t);  // 0: one length for all
};

// Immutable once made: any thread. Every block lies in one region of the index it was made with;
// which regions is remembered by key, so the list outlives them (who uses it then finds the key stale).
//
// Regular input is kept as extents, also flat input with constant distances. Irregular input is kept
// flat, 16 bytes a block.
class ResolvedList {
 public:
  // Blocks of entries count through them in order. Throws Error naming the first entry (and block) that is
  // wrong and its values: kInvalidArgument, kOutOfRange (wraps round, or no region covers it),
  // kLimitExceeded.
  static std::shared_ptr<const ResolvedList> from_blocks(std::span<const towline_blocks_t> blocks,
                                                         const RegionIndex& regions);
  static std::shared_ptr<const ResolvedList> from_flat(const FlatBlocks& blocks, const RegionIndex& regions);
  // The same in place, once, of an empty list; one that threw is of no use.
  void fill(std::span<const towline_blocks_t> blocks, const RegionIndex& regions);
  void fill(const FlatBlocks& blocks, const RegionIndex& regions);
  // From blocks that are known to lie in the regions they number; kept flat. Throws Error(kLimitExceeded).
  static std::shared_ptr<const ResolvedList> from_pieces(std::span<const towline_flat_block> pieces,
                                                         std::span<const towline_region_ref> regions);

  // The same blocks in the same memory, which these regions name as `of`'s do, one for each.
  static std::shared_ptr<const ResolvedList> renamed(const ResolvedList& of,
                                                     std::span<const towline_region_ref> regions);

  ResolvedList() = default;  // empty
  ResolvedList(const ResolvedList&) = delete;
  ResolvedList& operator=(const ResolvedList&) = delete;

  [[nodiscard]] const towline_list& view() const noexcept { return view_; }
  [[nodiscard]] uint64_t blocks() const noexcept { return view_.blocks; }
  [[nodiscard]] uint64_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::span<const towline_region_ref> regions() const noexcept {
    return {regions_.data(), regions_.size()};
  }

  // The access rights that all of its regions grant.
  [[nodiscard]] uint32_t common_access() const noexcept { return common_access_; }

  // Do two blocks of the list share a byte for certain? Found out when first asked (the list is then sorted,
  // if it must be). Exact up to 10 million blocks; beyond that only what the extents' shapes tell.
  [[nodiscard]] bool overlaps() const;

  // The same memory as blocks 1/parts the length (which parts divides, in every block): block i becomes i *
  // parts and those after it. Made once for each `parts` and kept as long as this. Throws
  // Error(kLimitExceeded).
  [[nodiscard]] const ResolvedList& cut(uint64_t parts) const;

 private:
  friend class ResolvedListBuilder;
  enum class Overlap : uint8_t { kUnknown, kNo, kYes };

  towline_list view_ = plugin::sized<towline_list>();
  uint64_t bytes_ = 0;
  uint32_t common_access_ = 0;
  SmallVector<towline_extent, 1> extents_;
  std::unique_ptr<towline_flat_block[]> flat_;
  SmallVector<towline_region_ref, 1> regions_;
  mutable std::atomic<Overlap> overlap_{Overlap::kUnknown};
  mutable std::mutex cuts_mutex_;
  mutable std::map<uint64_t, std::unique_ptr<const ResolvedList>> cuts_;
};

}  // namespace towline
