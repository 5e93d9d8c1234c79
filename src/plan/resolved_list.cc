#include "plan/resolved_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "base/check.h"
#include "base/error.h"
#include "memory/kind_name.h"
#include "plan/overlap.h"

namespace towline {

namespace {

constexpr uint32_t kNoRegion = UINT32_MAX;
constexpr uint32_t kFewRegions = 8;
constexpr uint64_t kMaxExtents = 1 << 20;
// An extent takes as much memory as so many flat blocks.
constexpr uint64_t kFlatBlocksPerExtent = sizeof(towline_extent) / sizeof(towline_flat_block);
constexpr uint64_t kMaxListBytes = uint64_t{1} << 63;

uint64_t load_strided(const uint64_t* values, size_t stride_bytes, uint64_t i) noexcept {
  uint64_t value = 0;
  std::memcpy(&value, reinterpret_cast<const uint8_t*>(values) + i * stride_bytes, sizeof(value));
  return value;
}

// From the first to the last byte of all blocks; does not overflow for a validated extent.
uint64_t span_of(const towline_extent& extent, uint32_t from_dimension = 0) noexcept {
  uint64_t span = extent.length;
  for (uint32_t d = from_dimension; d < extent.dimensions; ++d)
    span += (extent.count[d] - 1) * extent.stride[d];
  return span;
}

// Drops dimensions of one, and joins two where the inner one's blocks simply go on in the outer one.
void simplify(towline_extent& extent) noexcept {
  uint32_t used = 0;
  for (uint32_t d = 0; d < extent.dimensions; ++d) {
    if (extent.count[d] == 1) continue;
    if (used != 0 && extent.stride[used - 1] == extent.count[d] * extent.stride[d]) {
      extent.count[used - 1] *= extent.count[d];
      extent.stride[used - 1] = extent.stride[d];
    } else {
      extent.count[used] = extent.count[d];
      extent.stride[used] = extent.stride[d];
      ++used;
    }
  }
  extent.dimensions = used;
  for (uint32_t d = used; d < TOWLINE_EXTENT_DIMENSIONS; ++d) extent.count[d] = extent.stride[d] = 0;
}

// Throws unless the entry makes sense by itself.
towline_extent extent_of(const towline_blocks_t& entry, uint64_t index) {
  if (entry.kind > TOWLINE_MEMORY_OBJECT)
    fail(Status::kInvalidArgument, "entry {} has memory kind {}: the kinds are 0 (dram) to {} (object)",
         index, entry.kind, static_cast<uint32_t>(TOWLINE_MEMORY_OBJECT));
  if (entry.length == 0)
    fail(Status::kInvalidArgument, "entry {} at {:#x} has blocks of 0 bytes", index, entry.address);
  if (entry.dimensions > TOWLINE_MAX_DIMENSIONS)
    fail(Status::kInvalidArgument, "entry {} has {} dimensions: {} are the most", index, entry.dimensions,
         TOWLINE_MAX_DIMENSIONS);
  towline_extent extent = {};
  extent.address = entry.address;
  extent.length = entry.length;
  extent.blocks = 1;
  extent.dimensions = entry.dimensions;
  Wide end = Wide{entry.address} + entry.length;
  for (uint32_t d = 0; d < entry.dimensions; ++d) {
    if (entry.count[d] == 0) fail(Status::kInvalidArgument, "entry {} has count 0 in dimension {}", index, d);
    if (entry.count[d] > kMaxListBlocks || extent.blocks * entry.count[d] > kMaxListBlocks)
      fail(Status::kLimitExceeded, "entry {} has more than {} blocks (dimension {} counts {})", index,
           kMaxListBlocks, d, entry.count[d]);
    extent.blocks *= entry.count[d];
    extent.count[d] = entry.count[d];
    extent.stride[d] = entry.stride[d];
    end += Wide{entry.count[d] - 1} * entry.stride[d];
    if (end > kMaxBlockBytes) break;
  }
  if (end > kMaxBlockBytes)
    fail(Status::kOutOfRange,
         "entry {} at {:#x} with blocks of {} bytes ends beyond 2^63: are length, counts and strides (in "
         "bytes) right?",
         index, entry.address, entry.length);
  simplify(extent);
  return extent;
}

}  // namespace

class ResolvedListBuilder {
 public:
  // `list` is empty.
  ResolvedListBuilder(ResolvedList& list, const RegionIndex& index) : index_(index), list_(list) {}

  void from_blocks(std::span<const towline_blocks_t> blocks);
  void from_flat(const FlatBlocks& blocks);
  void from_pieces(std::span<const towline_flat_block> pieces, std::span<const towline_region_ref> regions);
  void from_cut(const ResolvedList& whole, uint64_t parts);
  void from_other(const ResolvedList& other, std::span<const towline_region_ref> regions);

 private:
  // The state of the flat loop.
  struct FlatShape {
    bool fits = true;     // every length in 32 bits
    uint64_t breaks = 0;  // places where neither distance nor length nor region go on as before
    bool alike = true;    // all of one length
    uint64_t bytes = 0;   // of all together, where every length fits
  };

  void set_space(uint32_t kind, uint64_t device) {
    kind_ = kind;
    device_ = device;
    any_region_will_do_ = index_.one_class(kind, device);
    current_ = kNoRegion;
  }

  [[nodiscard]] bool covers(uint32_t region, uint64_t address, uint64_t bytes) const noexcept {
    const towline_region_ref& known = list_.regions_[region];
    const uint64_t before = address - known.address;
    return address >= known.address && before <= known.bytes && bytes <= known.bytes - before;
  }

  // A region that may stand for any later block it covers: there can be no better one.
  [[nodiscard]] bool is_best(const towline_region_ref& region) const noexcept {
    return any_region_will_do_ ||
           (region.access == TOWLINE_ACCESS_ALL && (region.flags & TOWLINE_REGION_GUARDED) == 0);
  }

  // The list's number of a region that covers these bytes, or kNoRegion.
  uint32_t region_at(uint64_t address, uint64_t bytes) {
    if (current_ != kNoRegion) {
      if (covers(current_, address, bytes)) return current_;
      // Lists often visit regions in turn: try the one that came after this one last time.
      const uint32_t next = current_ < after_.size() ? after_[current_] : kNoRegion;
      if (next != kNoRegion && covers(next, address, bytes)) return current_ = next;
    }
    return look_up(address, bytes);
  }

  uint32_t look_up(uint64_t address, uint64_t bytes) {
    const towline_region_ref* found = index_.find(kind_, device_, address, bytes);
    if (found == nullptr) return kNoRegion;
    const uint32_t number = number_of(*found);
    if (is_best(*found)) {
      if (current_ != kNoRegion) {
        if (after_.size() <= current_) after_.resize(list_.regions_.size(), kNoRegion);
        after_[current_] = number;
      }
      current_ = number;
    } else {
      current_ = kNoRegion;
    }
    return number;
  }

  // The list's number of a region, which it gets here if it has none. The first few are looked for one by
  // one: most lists have no more.
  uint32_t number_of(const towline_region_ref& region) {
    auto& regions = list_.regions_;
    const uint32_t searched = std::min<uint32_t>(kFewRegions, static_cast<uint32_t>(regions.size()));
    for (uint32_t i = 0; i < searched; ++i)
      if (regions[i].key == region.key) return i;
    const auto next = static_cast<uint32_t>(regions.size());
    if (next >= kFewRegions) {
      const auto [place, fresh] = numbers_.try_emplace(region.key, next);
      if (!fresh) return place->second;
    }
    regions.push_back(region);
    return next;
  }

  void place(const towline_extent& extent, uint64_t entry, uint64_t first_in_entry);
  void push(towline_extent extent, uint32_t region);
  void flatten();
  void one_block(uint32_t kind, uint64_t device, uint64_t address, uint64_t length);
  // Throws unless the block makes sense, and unless it lies in a region.
  static void check_block(uint64_t entry, uint64_t address, uint64_t length);
  uint32_t checked_region_at(uint64_t entry, uint64_t address, uint64_t length);
  FlatShape fill_flat(const FlatBlocks& blocks);
  void group_flat();
  void measure_flat();
  void finish();

  [[noreturn]] void fail_uncovered(uint64_t entry, uint64_t block, uint64_t address, uint64_t bytes) const {
    fail(Status::kOutOfRange, "block {} of entry {}, [{:#x}, {:#x}) of {}, lies in no registered region: {}",
         block, entry, address, address + bytes, kind_text(kind_, device_),
         index_.describe_near(kind_, device_, address));
  }

  const RegionIndex& index_;
  ResolvedList& list_;
  uint32_t kind_ = 0;
  uint64_t device_ = 0;
  bool any_region_will_do_ = false;
  uint32_t current_ = kNoRegion;
  std::vector<uint32_t> after_;                     // by number: the region that followed it last, if any did
  std::unordered_map<uint64_t, uint32_t> numbers_;  // by key, of those beyond the first few
};

// ---- nested entries

void ResolvedListBuilder::from_blocks(std::span<const towline_blocks_t> blocks) {
  if (blocks.empty()) fail(Status::kInvalidArgument, "a block list needs at least one entry");
  if (blocks.data() == nullptr) fail(Status::kInvalidArgument, "the entries' address is null");
  const bool plain = blocks.size() > 1 && std::all_of(blocks.begin(), blocks.end(), [&](const auto& entry) {
                       return entry.dimensions == 0 && entry.kind == blocks.front().kind &&
                              entry.device == blocks.front().device;
                     });
  if (plain) {
    const size_t stride = sizeof(towline_blocks_t);
    return from_flat({blocks.front().kind, blocks.front().device, blocks.size(), &blocks.front().address,
                      stride, &blocks.front().length, stride});
  }
  uint64_t total = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const towline_blocks_t block = blocks[i];  // read once: the application may write to it meanwhile
    const towline_extent extent = extent_of(block, i);
    if (total + extent.blocks > kMaxListBlocks)
      fail(Status::kLimitExceeded, "entries 0 to {} have {} blocks: a list has at most {}", i,
           total + extent.blocks, kMaxListBlocks);
    total += extent.blocks;
    if (i == 0 || block.kind != kind_ || block.device != device_) set_space(block.kind, block.device);
    place(extent, i, 0);
  }
  if (list_.extents_.size() * kFlatBlocksPerExtent > total && list_.extents_.size() > 1) flatten();
  finish();
}

// Whole if its hull lies in one region, else along its outermost dimension in pieces that do, else piece by
// piece.
void ResolvedListBuilder::place(const towline_extent& extent, uint64_t entry, uint64_t first_in_entry) {
  if (const uint32_t region = region_at(extent.address, span_of(extent)); region != kNoRegion) {
    push(extent, region);
    return;
  }
  if (extent.blocks == 1) fail_uncovered(entry, first_in_entry, extent.address, extent.length);
  towline_extent inner = extent;
  inner.blocks = extent.blocks / extent.count[0];
  inner.dimensions = extent.dimensions - 1;
  std::copy(extent.count + 1, extent.count + TOWLINE_EXTENT_DIMENSIONS, inner.count);
  std::copy(extent.stride + 1, extent.stride + TOWLINE_EXTENT_DIMENSIONS, inner.stride);
  inner.count[TOWLINE_EXTENT_DIMENSIONS - 1] = inner.stride[TOWLINE_EXTENT_DIMENSIONS - 1] = 0;
  const uint64_t inner_span = span_of(inner);
  for (uint64_t i = 0; i < extent.count[0];) {
    inner.address = extent.address + i * extent.stride[0];
    const uint32_t region = region_at(inner.address, inner_span);
    if (region == kNoRegion) {
      place(inner, entry, first_in_entry + i * inner.blocks);
      ++i;
      continue;
    }
    const towline_region_ref& known = list_.regions_[region];
    const uint64_t room = known.address + known.bytes - inner.address - inner_span;
    uint64_t count = extent.count[0] - i;
    if (extent.stride[0] != 0) count = std::min(count, room / extent.stride[0] + 1);
    towline_extent piece = extent;
    piece.address = inner.address;
    piece.count[0] = count;
    piece.blocks = count * inner.blocks;
    simplify(piece);
    push(piece, region);
    i += count;
  }
}

// Single blocks at a constant distance become one extent; others are left as given.
void ResolvedListBuilder::push(towline_extent extent, uint32_t region) {
  extent.region = region;
  auto& extents = list_.extents_;
  if (!extents.empty() && extent.blocks == 1) {
    towline_extent& last = extents.back();
    const bool alike =
        last.length == extent.length && last.region == region && extent.address >= last.address;
    if (alike && last.blocks == 1) {
      last.dimensions = 1;
      last.count[0] = last.blocks = 2;
      last.stride[0] = extent.address - last.address;
      return;
    }
    if (alike && last.dimensions == 1 && extent.address == last.address + last.count[0] * last.stride[0]) {
      last.blocks = ++last.count[0];
      return;
    }
  }
  if (extents.size() == kMaxExtents)
    fail(Status::kLimitExceeded,
         "the list comes to more than {} extents: register larger regions, or use less entries", kMaxExtents);
  extents.push_back(extent);
}

// Gives up extents for flat blocks where that takes less memory.
void ResolvedListBuilder::flatten() {
  uint64_t blocks = 0;
  for (const towline_extent& extent : list_.extents_) {
    if (extent.length > UINT32_MAX) return;
    blocks += extent.blocks;
  }
  if (blocks > kMaxFlatBlocks) return;
  auto flat = std::make_unique_for_overwrite<towline_flat_block[]>(blocks);
  uint64_t next = 0;
  for (const towline_extent& extent : list_.extents_) {
    uint64_t index[TOWLINE_EXTENT_DIMENSIONS] = {};
    for (uint64_t block = 0; block < extent.blocks; ++block) {
      uint64_t address = extent.address;
      for (uint32_t d = 0; d < extent.dimensions; ++d) address += index[d] * extent.stride[d];
      flat[next++] = {address, static_cast<uint32_t>(extent.length), extent.region};
      for (uint32_t d = extent.dimensions; d-- > 0 && ++index[d] == extent.count[d];) index[d] = 0;
    }
  }
  list_.flat_ = std::move(flat);
  list_.view_.blocks = blocks;
  list_.extents_.clear();
  measure_flat();
}

// ---- plain blocks

void ResolvedListBuilder::from_flat(const FlatBlocks& blocks) {
  if (blocks.count == 0) fail(Status::kInvalidArgument, "a block list needs at least one entry");
  if (blocks.count > kMaxFlatBlocks)
    fail(Status::kLimitExceeded,
         "{} plain blocks: a list has at most {}; describe regular ones as nested entries", blocks.count,
         kMaxFlatBlocks);
  if (blocks.addresses == nullptr || blocks.lengths == nullptr)
    fail(Status::kInvalidArgument, "{} blocks, but the array of {} is null", blocks.count,
         blocks.addresses == nullptr ? "addresses" : "lengths");
  if (blocks.kind > TOWLINE_MEMORY_OBJECT)
    fail(Status::kInvalidArgument, "memory kind {}: the kinds are 0 (dram) to {} (object)", blocks.kind,
         static_cast<uint32_t>(TOWLINE_MEMORY_OBJECT));
  if (blocks.count == 1)
    return one_block(blocks.kind, blocks.device, load_strided(blocks.addresses, 0, 0),
                     load_strided(blocks.lengths, 0, 0));
  set_space(blocks.kind, blocks.device);
  list_.flat_ = std::make_unique_for_overwrite<towline_flat_block[]>(blocks.count);
  list_.view_.blocks = blocks.count;
  const FlatShape shape = fill_flat(blocks);
  if (!shape.fits) {
    list_.flat_.reset();
    for (uint64_t i = 0; i < blocks.count; ++i) {
      towline_extent extent = {};
      extent.address = load_strided(blocks.addresses, blocks.address_stride_bytes, i);
      extent.length = load_strided(blocks.lengths, blocks.length_stride_bytes, i);
      extent.blocks = 1;
      // Read for the second time: the application may have written to its arrays in between.
      push(extent, checked_region_at(i, extent.address, extent.length));
    }
  } else if (shape.breaks == 0 || (shape.breaks + 1) * kFlatBlocksPerExtent <= blocks.count) {
    group_flat();
  } else {
    list_.view_.block_length = shape.alike ? list_.flat_[0].length : 0;
    list_.bytes_ = shape.bytes;
  }
  finish();
}

// Many lists have no more: nothing is learned for blocks that follow.
void ResolvedListBuilder::one_block(uint32_t kind, uint64_t device, uint64_t address, uint64_t length) {
  kind_ = kind;
  device_ = device;
  check_block(0, address, length);
  const towline_region_ref* const region = index_.find(kind, device, address, length);
  if (region == nullptr) fail_uncovered(0, 0, address, length);
  list_.regions_.push_back(*region);
  towline_extent extent = {};
  extent.address = address;
  extent.length = length;
  extent.blocks = 1;
  list_.extents_.push_back(extent);
  finish();
}

void ResolvedListBuilder::check_block(uint64_t entry, uint64_t address, uint64_t length) {
  if (length == 0) fail(Status::kInvalidArgument, "entry {} at {:#x} has 0 bytes", entry, address);
  if (length > kMaxBlockBytes || address > kMaxBlockBytes - length)
    fail(Status::kOutOfRange, "entry {} at {:#x} with {} bytes ends beyond 2^63: is the length right?", entry,
         address, length);
}

uint32_t ResolvedListBuilder::checked_region_at(uint64_t entry, uint64_t address, uint64_t length) {
  check_block(entry, address, length);
  const uint32_t region = region_at(address, length);
  if (region == kNoRegion) fail_uncovered(entry, 0, address, length);
  return region;
}

// Most blocks are as long as the one before and lie in its region. For these the inner loop checks nothing
// else: programs make lists of thousands for one transfer, so each instruction counts.
ResolvedListBuilder::FlatShape ResolvedListBuilder::fill_flat(const FlatBlocks& blocks) {
  FlatShape shape;
  towline_flat_block* const flat = list_.flat_.get();
  const auto address_of = [&](uint64_t i) {
    return load_strided(blocks.addresses, blocks.address_stride_bytes, i);
  };
  const auto length_of = [&](uint64_t i) {
    return load_strided(blocks.lengths, blocks.length_stride_bytes, i);
  };
  uint64_t last_address = 0;
  uint64_t last_length = length_of(0);
  uint64_t last_distance = 0;
  uint32_t last_region = kNoRegion;
  uint64_t lengths = 0;      // all of them, or-ed
  uint64_t differences = 0;  // between neighbours' lengths, or-ed
  for (uint64_t i = 0; i < blocks.count;) {
    uint64_t address = address_of(i);
    const uint64_t length = length_of(i);
    const uint32_t region = checked_region_at(i, address, length);
    const towline_flat_block like = {0, static_cast<uint32_t>(length), region};
    // Without a best region every block is looked up anew.
    const bool keep = current_ == region;
    const uint64_t covering_address = keep ? list_.regions_[region].address : address;
    const uint64_t room = keep ? list_.regions_[region].bytes - length : 0;
    const uint64_t first = i;
    uint64_t distance = address - last_address;
    const uint64_t change = length ^ last_length;
    // The first has no neighbour, the second no distance to compare with. Distances go upwards only.
    const uint64_t turn = i > 1 ? distance ^ last_distance : 0;
    const bool goes_on = (change | turn | (region ^ last_region)) == 0 && distance < kMaxBlockBytes;
    shape.breaks += goes_on || i == 0 ? 0 : 1;
    flat[i] = {address, like.length, region};
    differences |= change;
    lengths |= length;
    if (++i == 1 && keep && blocks.count > 1) distance = address_of(1) - address;
    for (; keep && i < blocks.count; ++i) {
      const uint64_t next = address_of(i);
      if (length_of(i) != length || next - covering_address > room) break;
      flat[i] = {next, like.length, region};
      const uint64_t next_distance = next - address;
      shape.breaks += ((next_distance ^ distance) | next_distance / kMaxBlockBytes) != 0 ? 1 : 0;
      distance = next_distance;
      address = next;
    }
    shape.bytes += (i - first) * length;
    last_distance = distance;
    last_address = address;
    last_length = length;
    last_region = region;
  }
  shape.fits = lengths <= UINT32_MAX;
  shape.alike = differences == 0;
  return shape;
}

// Flat blocks that go on at a constant distance become extents.
void ResolvedListBuilder::group_flat() {
  const auto flat = std::move(list_.flat_);
  const uint64_t count = list_.view_.blocks;
  for (uint64_t i = 0; i < count;) {
    const towline_flat_block& first = flat[i];
    towline_extent extent = {};
    extent.address = first.address;
    extent.length = first.length;
    extent.region = first.region;
    extent.blocks = 1;
    uint64_t last = first.address;
    for (uint64_t next = i + 1; next < count; ++next) {
      const towline_flat_block& entry = flat[next];
      const uint64_t distance = entry.address - last;
      if (entry.length != first.length || entry.region != first.region || distance >= kMaxBlockBytes) break;
      if (extent.blocks > 1 && distance != extent.stride[0]) break;
      extent.stride[0] = distance;
      extent.dimensions = 1;
      extent.count[0] = ++extent.blocks;
      last = entry.address;
    }
    i += extent.blocks;
    list_.extents_.push_back(extent);
  }
}

void ResolvedListBuilder::from_pieces(std::span<const towline_flat_block> pieces,
                                      std::span<const towline_region_ref> regions) {
  if (pieces.size() > kMaxFlatBlocks)
    fail(Status::kLimitExceeded, "{} pieces: a list has at most {}", pieces.size(), kMaxFlatBlocks);
  list_.regions_ = {regions.begin(), regions.end()};
  list_.flat_ = std::make_unique_for_overwrite<towline_flat_block[]>(pieces.size());
  std::copy(pieces.begin(), pieces.end(), list_.flat_.get());
  list_.view_.blocks = pieces.size();
  finish();
}

// ---- both

// The length and bytes of flat blocks.
void ResolvedListBuilder::measure_flat() {
  const towline_flat_block* const flat = list_.flat_.get();
  uint64_t differences = 0;
  uint64_t bytes = 0;  // of less than 2^24 lengths of less than 2^32
  for (uint64_t i = 0; i < list_.view_.blocks; ++i) {
    differences |= flat[i].length ^ flat[0].length;
    bytes += flat[i].length;
  }
  list_.view_.block_length = differences == 0 ? flat[0].length : 0;
  list_.bytes_ = bytes;
}

void ResolvedListBuilder::finish() {
  ResolvedList& list = list_;
  towline_list& view = list.view_;
  Wide bytes = 0;
  if (list.flat_ != nullptr) {
    view.flat = list.flat_.get();
    view.extent_count = view.blocks;
    view.blocks_per_extent = 1;
    bytes = list.bytes_;
  } else {
    list.extents_.shrink_to_fit();
    view.extents = list.extents_.data();
    view.extent_count = list.extents_.size();
    view.block_length = list.extents_.front().length;
    view.blocks_per_extent = list.extents_.front().blocks;
    view.blocks = 0;
    for (towline_extent& extent : list.extents_) {
      extent.first_block = view.blocks;
      view.blocks += extent.blocks;
      bytes += Wide{extent.blocks} * extent.length;
      if (extent.length != view.block_length) view.block_length = 0;
      if (extent.blocks != view.blocks_per_extent) view.blocks_per_extent = 0;
    }
  }
  if (bytes > kMaxListBytes)
    fail(Status::kLimitExceeded, "the list's blocks come to more than 2^63 bytes together");
  list.bytes_ = static_cast<uint64_t>(bytes);
  view.regions = list.regions_.data();
  view.region_count = list.regions_.size();
  list.common_access_ = TOWLINE_ACCESS_ALL;
  for (const towline_region_ref& region : list.regions_) list.common_access_ &= region.access;
}

void ResolvedListBuilder::from_cut(const ResolvedList& whole, uint64_t parts) {
  const towline_list& view = whole.view_;
  const bool flat = view.flat != nullptr;
  const uint64_t limit = flat ? kMaxFlatBlocks : kMaxListBlocks;
  if (parts > limit / view.blocks)
    fail(Status::kLimitExceeded,
         "{} blocks of {} bytes must each be cut into {} to fit the other side: more than the {} a list can "
         "have",
         view.blocks, view.block_length, parts, limit);
  ResolvedList& list = list_;
  list.regions_ = whole.regions_;
  list.view_.blocks = view.blocks * parts;
  if (flat) {
    list.flat_ = std::make_unique_for_overwrite<towline_flat_block[]>(view.blocks * parts);
    towline_flat_block* next = list.flat_.get();
    for (uint64_t i = 0; i < view.blocks; ++i) {
      const towline_flat_block& block = view.flat[i];
      const auto length = static_cast<uint32_t>(block.length / parts);
      for (uint64_t part = 0; part < parts; ++part)
        *next++ = {block.address + part * length, length, block.region};
    }
    measure_flat();
  } else {
    list.extents_ = whole.extents_;
    for (towline_extent& extent : list.extents_) {
      extent.length /= parts;
      extent.blocks *= parts;
      extent.count[extent.dimensions] = parts;
      extent.stride[extent.dimensions] = extent.length;
      ++extent.dimensions;
      simplify(extent);
    }
  }
  finish();
}

void ResolvedList::fill(std::span<const towline_blocks_t> blocks, const RegionIndex& regions) {
  ResolvedListBuilder(*this, regions).from_blocks(blocks);
}

void ResolvedList::fill(const FlatBlocks& blocks, const RegionIndex& regions) {
  ResolvedListBuilder(*this, regions).from_flat(blocks);
}

std::shared_ptr<const ResolvedList> ResolvedList::from_blocks(std::span<const towline_blocks_t> blocks,
                                                              const RegionIndex& regions) {
  auto list = std::make_shared<ResolvedList>();
  list->fill(blocks, regions);
  return list;
}

std::shared_ptr<const ResolvedList> ResolvedList::from_flat(const FlatBlocks& blocks,
                                                            const RegionIndex& regions) {
  auto list = std::make_shared<ResolvedList>();
  list->fill(blocks, regions);
  return list;
}

std::shared_ptr<const ResolvedList> ResolvedList::from_pieces(std::span<const towline_flat_block> pieces,
                                                              std::span<const towline_region_ref> regions) {
  auto list = std::make_shared<ResolvedList>();
  ResolvedListBuilder(*list, RegionIndex{}).from_pieces(pieces, regions);
  return list;
}

bool ResolvedList::overlaps() const {
  if (view_.blocks == 1) return false;
  Overlap known = overlap_.load(std::memory_order_relaxed);
  if (known == Overlap::kUnknown) {
    known = list_overlaps(view_, kMaxFlatBlocks) ? Overlap::kYes : Overlap::kNo;
    overlap_.store(known, std::memory_order_relaxed);
  }
  return known == Overlap::kYes;
}

void ResolvedListBuilder::from_other(const ResolvedList& other, std::span<const towline_region_ref> regions) {
  const towline_list& view = other.view_;
  list_.regions_ = other.regions_;
  std::ranges::copy(regions, list_.regions_.data());
  list_.view_.blocks = view.blocks;
  if (view.flat != nullptr) {
    list_.flat_ = std::make_unique_for_overwrite<towline_flat_block[]>(view.blocks);
    std::copy_n(view.flat, view.blocks, list_.flat_.get());
    measure_flat();
  } else {
    list_.extents_ = other.extents_;
  }
  finish();
}

std::shared_ptr<const ResolvedList> ResolvedList::renamed(const ResolvedList& of,
                                                          std::span<const towline_region_ref> regions) {
  TOWLINE_CHECK(regions.size() == of.regions_.size(), "{} regions instead of {}", regions.size(),
                of.regions_.size());
  auto made = std::make_shared<ResolvedList>();
  ResolvedListBuilder(*made, RegionIndex{}).from_other(of, regions);
  return made;
}

const ResolvedList& ResolvedList::cut(uint64_t parts) const {
  TOWLINE_CHECK(view_.block_length != 0 && parts != 0 && view_.block_length % parts == 0,
                "cutting blocks of {} bytes into {}", view_.block_length, parts);
  std::lock_guard lock(cuts_mutex_);
  auto& kept = cuts_[parts];
  if (kept == nullptr) {
    auto made = std::make_unique<ResolvedList>();
    ResolvedListBuilder(*made, RegionIndex{}).from_cut(*this, parts);
    kept = std::move(made);
  }
  return *kept;
}

}  // namespace towline
