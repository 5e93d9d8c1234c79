// Turns a plan into segments: (local, remote, length) triples in the plan's order, a batch at a time.
// Header-only C++20, needs nothing but plan.h, so that any backend, also out of tree, can use it.
//
//   towline::plugin::Cursor cursor{*plan, args->begin, args->end};
//   towline_segment batch[64];
//   while (size_t count = cursor.next(batch, 64, max_bytes)) { ... }
//
// Positions are bytes of the plan: 0 is the first byte of its first pair of blocks, plan->bytes the end.
//
// How it is fast. If both lists are extents, it looks for *rows*: blocks that follow each other with one
// constant stride on both sides. A row that is contiguous on both sides becomes one segment at once; any
// other costs two additions per block. If runs or rows are short, blocks are taken in batches, inside the
// caller's batch: first the indices of the blocks are stored there, then one loop each turns them into local
// and remote addresses (divisions by an extent's shape are multiplications, prepared when the shape was first
// seen), and a last loop joins neighbours. No allocation, no lock, no call out of line per block.
//
// The plan must be well-formed, which every plan that Towline hands to a backend is: indices within the
// lists, pairs of equal length, sums as stated, at most 2^32 - 1 blocks in a list.
#pragma once

#include <towline/plugin/plan.h>

#include <cstddef>
#include <cstdint>

namespace towline::plugin {

namespace detail {

__extension__ typedef unsigned __int128 Wide;  // NOLINT(modernize-use-using): __extension__ needs it

// Divides 32-bit numbers by a fixed one with a multiplication, exactly for every divisor from 1 to 2^32
// (Robison: N-bit unsigned division via N-bit multiply-add, 2005; with a reciprocal twice as long as the
// dividend the result is exact: the reciprocal's error, times a dividend below 2^32, stays under 1 /
// divisor).
class Divider {
 public:
  constexpr Divider() noexcept = default;
  explicit constexpr Divider(uint64_t divisor) noexcept
      : divisor_(divisor), reciprocal_(UINT64_MAX / divisor) {}

  [[nodiscard]] constexpr uint64_t divisor() const noexcept { return divisor_; }
  [[nodiscard]] constexpr uint64_t quotient(uint64_t dividend) const noexcept {
    return static_cast<uint64_t>((static_cast<Wide>(reciprocal_) * (dividend + 1)) >> 64);
  }

 private:
  uint64_t divisor_ = 1;
  uint64_t reciprocal_ = UINT64_MAX;
};

// Consecutive blocks with a constant stride (which has no meaning for a single block).
struct Row {
  uint64_t address;
  uint64_t stride;
  uint64_t blocks;
  uint64_t length;
  uint32_t region;

  [[nodiscard]] constexpr bool contiguous() const noexcept { return stride == length || blocks == 1; }
};

// Finds the blocks of one list. Keeps what it learned about the extents' shape; not for two threads at once.
class ListReader {
 public:
  explicit ListReader(const towline_list& list) noexcept : list_(&list), extent_(list.extents) {
    if (extent_ != nullptr && list.extent_count > 1 && list.blocks_per_extent != 0)
      per_extent_ = Divider{list.blocks_per_extent};
  }

  [[nodiscard]] bool is_flat() const noexcept { return list_->flat != nullptr; }

  [[nodiscard]] uint64_t length(uint64_t block) noexcept {
    if (is_flat()) return list_->flat[block].length;
    return find(block).length;
  }

  // Segments hold block indices in place of addresses: replaces them by the addresses, and sets the regions.
  // The loops keep their inputs in locals, since the compiler must assume that the stores change members.
  template <uint64_t towline_segment::*kAddress, uint32_t towline_segment::*kRegion>
  void resolve(towline_segment* segments, size_t count) noexcept {
    if (const towline_flat_block* const flat = list_->flat; flat != nullptr) {
      for (size_t i = 0; i < count; ++i) {
        const towline_flat_block entry = flat[segments[i].*kAddress];
        segments[i].*kAddress = entry.address;
        segments[i].*kRegion = entry.region;
      }
    } else if (list_->extent_count == 1 && extent_->dimensions <= 1) {
      const towline_extent extent = *extent_;
      for (size_t i = 0; i < count; ++i) {
        segments[i].*kAddress = extent.address + segments[i].*kAddress * extent.stride[0];
        segments[i].*kRegion = extent.region;
      }
    } else if (list_->extent_count > 1 && list_->blocks_per_extent != 0) {
      const towline_extent* const extents = list_->extents;
      const Divider per_extent = per_extent_;
      for (size_t i = 0; i < count; ++i) {
        const uint64_t block = segments[i].*kAddress;
        const towline_extent& extent = extents[per_extent.quotient(block)];
        segments[i].*kRegion = extent.region;
        segments[i].*kAddress = address_of(extent, block);
      }
    } else {
      for (size_t i = 0; i < count; ++i) {
        const uint64_t block = segments[i].*kAddress;
        const towline_extent& extent = find(block);
        segments[i].*kRegion = extent.region;
        segments[i].*kAddress = address_of(extent, block);
      }
    }
  }

  // The blocks block, block + step, ... as far as one stride leads from each to the next.
  [[nodiscard]] Row row(uint64_t block, uint64_t step) noexcept {
    if (is_flat()) {
      const towline_flat_block& entry = list_->flat[block];
      return {entry.address, 0, 1, entry.length, entry.region};
    }
    const towline_extent& extent = find(block);
    uint64_t index = block - extent.first_block;
    if (extent.dimensions <= 1) {
      return {extent.address + index * extent.stride[0], step * extent.stride[0],
              steps_within(extent.blocks - index, step), extent.length, extent.region};
    }
    learn_shape(extent);
    // A step by whole rows does not change the inner indices: the row then lies along an outer dimension.
    uint32_t along = extent.dimensions - 1;
    while (step != 1 && along > 0 && step % extent.count[along] == 0) step /= extent.count[along--];
    uint64_t address = extent.address;
    uint64_t index_along = 0;
    for (uint32_t d = extent.dimensions; d-- > 0;) {
      const uint64_t outer = d == 0 ? 0 : shape_[d].quotient(index);
      const uint64_t here = index - outer * extent.count[d];
      address += here * extent.stride[d];
      if (d == along) index_along = here;
      index = outer;
    }
    return {address, step * extent.stride[along], steps_within(extent.count[along] - index_along, step),
            extent.length, extent.region};
  }

 private:
  // How many of 0, step, 2 * step, ... lie below `count`. With step 0 a block follows itself for ever.
  static constexpr uint64_t steps_within(uint64_t count, uint64_t step) noexcept {
    if (step == 1) return count;
    return step == 0 ? UINT64_MAX : (count - 1) / step + 1;
  }

  [[nodiscard]] const towline_extent& find(uint64_t block) noexcept {
    if (block - extent_->first_block < extent_->blocks) return *extent_;
    if (list_->blocks_per_extent != 0)
      extent_ = list_->extents + per_extent_.quotient(block);
    else
      search(block);
    return *extent_;
  }

  void search(uint64_t block) noexcept {
    const towline_extent* const last = list_->extents + (list_->extent_count - 1);
    if (extent_ != last && block - extent_[1].first_block < extent_[1].blocks) {
      ++extent_;
      return;
    }
    uint64_t low = 0;
    uint64_t high = list_->extent_count;  // the extent lies in [low, high)
    while (high - low > 1) {
      const uint64_t middle = low + (high - low) / 2;
      (list_->extents[middle].first_block <= block ? low : high) = middle;
    }
    extent_ = list_->extents + low;
  }

  [[nodiscard]] uint64_t address_of(const towline_extent& extent, uint64_t block) noexcept {
    const uint64_t index = block - extent.first_block;
    if (extent.dimensions <= 1) return extent.address + index * extent.stride[0];
    if (extent.dimensions == 2 && shape_[1].divisor() == extent.count[1]) {
      const uint64_t outer = shape_[1].quotient(index);
      return extent.address + outer * extent.stride[0] + (index - outer * extent.count[1]) * extent.stride[1];
    }
    return inner_address(extent, index);
  }

  [[nodiscard]] uint64_t inner_address(const towline_extent& extent, uint64_t index) noexcept {
    learn_shape(extent);
    uint64_t address = extent.address;
    for (uint32_t d = extent.dimensions - 1; d > 0; --d) {
      const uint64_t outer = shape_[d].quotient(index);
      address += (index - outer * extent.count[d]) * extent.stride[d];
      index = outer;
    }
    return address + index * extent.stride[0];
  }

  void learn_shape(const towline_extent& extent) noexcept {
    for (uint32_t d = 1; d < extent.dimensions; ++d)
      if (shape_[d].divisor() != extent.count[d]) shape_[d] = Divider{extent.count[d]};
  }

  const towline_list* list_;
  const towline_extent* extent_;  // found last
  Divider per_extent_;
  Divider shape_[TOWLINE_EXTENT_DIMENSIONS];  // by count[d] of the extent met last; [0] is not used
};

// A byte position of a plan as a place in its runs.
struct Place {
  uint64_t run = 0;
  uint64_t in_run = 0;    // blocks of the run before it
  uint64_t in_block = 0;  // bytes of the block before it
  uint64_t block = 0;     // blocks of the plan before it
};

// With equal lengths and runs of one block, or one run: constant time. Otherwise the runs up to it are
// walked, and with lengths that differ their blocks (rows, in extents).
inline Place find_place(const towline_plan& plan, uint64_t position) noexcept {
  Place place;
  if (position >= plan.bytes) {
    place.run = plan.run_count;
    place.block = plan.blocks;
    return place;
  }
  if (position == 0) return place;
  if (plan.block_length != 0) {
    place.block = position / plan.block_length;
    place.in_block = position - place.block * plan.block_length;
    uint64_t blocks = place.block;
    if (plan.run_count == plan.blocks) {
      place.run = blocks;
      return place;
    }
    while (blocks >= plan.runs[place.run].count) blocks -= plan.runs[place.run++].count;
    place.in_run = blocks;
    return place;
  }
  ListReader local{*plan.local};
  for (;;) {
    const towline_run& run = plan.runs[place.run];
    while (place.in_run < run.count) {
      const Row row = local.row(run.local_block + place.in_run * plan.local_step, plan.local_step);
      const uint64_t blocks = row.blocks < run.count - place.in_run ? row.blocks : run.count - place.in_run;
      const uint64_t whole = position < blocks * row.length ? position / row.length : blocks;
      position -= whole * row.length;
      place.in_run += whole;
      place.block += whole;
      if (whole < blocks) {
        place.in_block = position;
        return place;
      }
    }
    ++place.run;
    place.in_run = 0;
  }
}

}  // namespace detail

// The block that holds this byte, counted in the order of the plan; plan.blocks at the end. For failed
// ranges: slow if lengths differ.
inline uint64_t position_to_block(const towline_plan& plan, uint64_t position) noexcept {
  if (position >= plan.bytes) return plan.blocks;
  if (plan.block_length != 0) return position / plan.block_length;
  return detail::find_place(plan, position).block;
}

// Walks the bytes [begin, end) of a plan. A value, some hundred bytes; cheap to make (a few nanoseconds where
// find_place is constant time), so one per submit is fine. One thread at a time; the plan must outlive it.
class Cursor {
 public:
  // begin <= end <= plan.bytes; larger values are limited to plan.bytes.
  Cursor(const towline_plan& plan, uint64_t begin, uint64_t end) noexcept
      : plan_(&plan), local_(*plan.local), remote_(*plan.remote) {
    seek(begin, end);
  }
  explicit Cursor(const towline_plan& plan) noexcept : Cursor(plan, 0, plan.bytes) {}

  // Restarts at `begin`, until `end`. Costs nothing if begin is the current position.
  void seek(uint64_t begin, uint64_t end) noexcept {
    end_ = end < plan_->bytes ? end : plan_->bytes;
    if (begin > end_) begin = end_;
    if (begin == position_) return;
    position_ = begin;
    place(detail::find_place(*plan_, begin));
  }

  [[nodiscard]] uint64_t position() const noexcept { return position_; }
  [[nodiscard]] uint64_t end() const noexcept { return end_; }
  [[nodiscard]] bool done() const noexcept { return position_ == end_; }

  // Fills out[0, capacity) with the next segments and moves on behind them. Together they hold at most
  // max_bytes, and exactly that unless the end or the capacity comes first; a block may be cut anywhere.
  // Neighbours that are contiguous on both sides in the same regions are one segment. Returns their number; 0
  // only at the end, or for a capacity or max_bytes of 0.
  size_t next(towline_segment* out, size_t capacity, uint64_t max_bytes) noexcept {
    Batch batch{out, capacity, 0, end_ - position_};
    if (max_bytes < batch.budget) batch.budget = max_bytes;
    const uint64_t allowed = batch.budget;
    while (batch.budget != 0) {
      const size_t count_before = batch.count;
      const uint64_t budget_before = batch.budget;
      if (in_block_ != 0 || batch.budget < plan_->block_length)
        take_piece(batch);
      else if (!take_row(batch) && !take_batch(batch))
        take_piece(batch);
      if (batch.budget == budget_before && batch.count == count_before) break;  // full
    }
    position_ += allowed - batch.budget;
    return batch.count;
  }

 private:
  static constexpr uint64_t kShortRow = 8;
  static constexpr size_t kBatchBlocks = 64;

  struct Batch {
    towline_segment* out;
    size_t capacity;
    size_t count;
    uint64_t budget;  // bytes that may still be taken

    // Joins the bytes to the last segment or begins one; false when there is no room.
    bool append(uint64_t local, uint64_t remote, uint64_t length, uint32_t local_region,
                uint32_t remote_region) noexcept {
      if (count != 0) {
        towline_segment& last = out[count - 1];
        if (continues(last, {local, remote, length, local_region, remote_region})) {
          last.length += length;
          return true;
        }
      }
      if (count == capacity) return false;
      out[count++] = {local, remote, length, local_region, remote_region};
      return true;
    }

    // The same for `blocks` segments that are already stored after the last one.
    void join(size_t blocks) noexcept {
      towline_segment* const end = out + count + blocks;
      towline_segment* from = out + count;
      if (count == 0) ++from;
      // Usually no neighbours join: find the first that do.
      for (; from < end; ++from)
        if (continues(from[-1], *from)) break;
      towline_segment* last = from - 1;
      for (; from < end; ++from) {
        if (continues(*last, *from))
          last->length += from->length;
        else
          *++last = *from;
      }
      count = static_cast<size_t>(last - out) + 1;
    }

    static bool continues(const towline_segment& before, const towline_segment& next) noexcept {
      return before.local + before.length == next.local && before.remote + before.length == next.remote &&
             before.local_region == next.local_region && before.remote_region == next.remote_region;
    }
  };

  void place(const detail::Place& place) noexcept {
    run_ = place.run;
    in_run_ = place.in_run;
    in_block_ = place.in_block;
  }

  void advance_in_run(uint64_t blocks) noexcept {
    in_run_ += blocks;
    if (in_run_ == plan_->runs[run_].count) {
      ++run_;
      in_run_ = 0;
    }
  }

  // Takes the rest of the current block, or as much of it as the budget allows.
  void take_piece(Batch& batch) noexcept {
    const towline_run& run = plan_->runs[run_];
    const detail::Row local = local_.row(run.local_block + in_run_ * plan_->local_step, plan_->local_step);
    const detail::Row remote =
        remote_.row(run.remote_block + in_run_ * plan_->remote_step, plan_->remote_step);
    const uint64_t rest = local.length - in_block_;
    const uint64_t length = rest < batch.budget ? rest : batch.budget;
    if (!batch.append(local.address + in_block_, remote.address + in_block_, length, local.region,
                      remote.region))
      return;
    batch.budget -= length;
    in_block_ += length;
    if (length == rest) {
      in_block_ = 0;
      advance_in_run(1);
    }
  }

  // Takes whole blocks of one row. False, with nothing taken, if a batch is better or no block fits.
  bool take_row(Batch& batch) noexcept {
    const towline_run& run = plan_->runs[run_];
    const uint64_t left = run.count - in_run_;
    if (left < kShortRow || short_rows_ || local_.is_flat() || remote_.is_flat()) return false;
    const detail::Row local = local_.row(run.local_block + in_run_ * plan_->local_step, plan_->local_step);
    const detail::Row remote =
        remote_.row(run.remote_block + in_run_ * plan_->remote_step, plan_->remote_step);
    const uint64_t length = local.length;
    uint64_t blocks = local.blocks < remote.blocks ? local.blocks : remote.blocks;
    if (blocks > left) blocks = left;
    const bool one_segment = blocks == 1 || (local.stride == length && remote.stride == length);
    if (blocks < kShortRow && blocks < left) {
      short_rows_ = true;
      return false;
    }
    if (batch.budget < blocks * length) blocks = batch.budget / length;
    if (blocks == 0) return false;
    if (one_segment) {
      if (batch.append(local.address, remote.address, blocks * length, local.region, remote.region)) {
        batch.budget -= blocks * length;
        advance_in_run(blocks);
      }
      return true;
    }
    if (!batch.append(local.address, remote.address, length, local.region, remote.region)) return true;
    const size_t room = batch.capacity - batch.count;
    if (blocks - 1 > room) blocks = room + 1;
    towline_segment* out = batch.out + batch.count;
    uint64_t local_address = local.address;
    uint64_t remote_address = remote.address;
    for (uint64_t i = 1; i < blocks; ++i) {
      local_address += local.stride;
      remote_address += remote.stride;
      *out++ = {local_address, remote_address, length, local.region, remote.region};
    }
    batch.count += blocks - 1;
    batch.budget -= blocks * length;
    advance_in_run(blocks);
    return true;
  }

  // Takes whole blocks at any place. False, with nothing taken, if there is no room or the first does not fit
  // into the budget.
  bool take_batch(Batch& batch) noexcept {
    size_t wanted = batch.capacity - batch.count;
    if (wanted > kBatchBlocks) wanted = kBatchBlocks;
    towline_segment* const segments = batch.out + batch.count;
    size_t taken = collect(segments, wanted);
    if (const uint64_t length = plan_->block_length; length != 0) {
      if (batch.budget < taken * length) taken = static_cast<size_t>(batch.budget / length);
      for (size_t i = 0; i < taken; ++i) segments[i].length = length;
      batch.budget -= taken * length;
    } else {
      const size_t collected = taken;
      for (taken = 0; taken < collected; ++taken) {
        const uint64_t block_length = local_.length(segments[taken].local);
        if (block_length > batch.budget) break;
        segments[taken].length = block_length;
        batch.budget -= block_length;
      }
    }
    if (taken == 0) return false;
    local_.resolve<&towline_segment::local, &towline_segment::local_region>(segments, taken);
    remote_.resolve<&towline_segment::remote, &towline_segment::remote_region>(segments, taken);
    batch.join(taken);
    advance(taken);
    return true;
  }

  // Stores the indices of the next blocks, up to `wanted`, or up to a run that is better taken by rows.
  size_t collect(towline_segment* segments, size_t wanted) noexcept {
    if (plan_->run_count == plan_->blocks) {
      const towline_run* const runs = plan_->runs + run_;
      const uint64_t left = plan_->run_count - run_;
      if (left < wanted) wanted = static_cast<size_t>(left);
      for (size_t i = 0; i < wanted; ++i) {
        segments[i].local = runs[i].local_block;
        segments[i].remote = runs[i].remote_block;
      }
      return wanted;
    }
    const bool by_rows = !short_rows_ && !local_.is_flat() && !remote_.is_flat();
    short_rows_ = false;
    const uint64_t local_step = plan_->local_step;
    const uint64_t remote_step = plan_->remote_step;
    size_t count = 0;
    uint64_t in_run = in_run_;
    for (uint64_t r = run_; r < plan_->run_count && count < wanted; ++r, in_run = 0) {
      const towline_run run = plan_->runs[r];
      uint64_t blocks = run.count - in_run;
      if (by_rows && blocks >= kShortRow && count != 0) break;
      if (blocks > wanted - count) blocks = wanted - count;
      uint64_t local_block = run.local_block + in_run * local_step;
      uint64_t remote_block = run.remote_block + in_run * remote_step;
      for (const size_t end = count + blocks; count < end; ++count) {
        segments[count].local = local_block;
        segments[count].remote = remote_block;
        local_block += local_step;
        remote_block += remote_step;
      }
    }
    return count;
  }

  void advance(uint64_t blocks) noexcept {
    if (plan_->run_count == plan_->blocks) {
      run_ += blocks;
      return;
    }
    while (blocks != 0) {
      const uint64_t left = plan_->runs[run_].count - in_run_;
      const uint64_t here = blocks < left ? blocks : left;
      advance_in_run(here);
      blocks -= here;
    }
  }

  const towline_plan* plan_;
  detail::ListReader local_;
  detail::ListReader remote_;
  uint64_t position_ = 0;
  uint64_t end_ = 0;
  uint64_t run_ = 0;
  uint64_t in_run_ = 0;
  uint64_t in_block_ = 0;
  bool short_rows_ = false;  // the last row was short: take a batch before trying the next row
};

namespace detail {

struct BlockPlace {
  uint64_t address;
  uint32_t region;
};

// Where one block lies, for callers that ask for no other: most lists are one extent of one dimension, and need no
// reader's state.
[[nodiscard]] inline BlockPlace place_of(const towline_list& list, uint64_t block) noexcept {
  if (list.flat != nullptr) return {list.flat[block].address, list.flat[block].region};
  if (list.extent_count == 1 && list.extents->dimensions <= 1)
    return {list.extents->address + block * list.extents->stride[0], list.extents->region};
  const Row row = ListReader{list}.row(block, 1);
  return {row.address, row.region};
}

}  // namespace detail

// Whether the whole plan is one segment, and which.
inline bool one_segment(const towline_plan& plan, towline_segment& segment) noexcept {
  if (plan.blocks == 1) {  // most such plans
    const detail::BlockPlace local = detail::place_of(*plan.local, plan.runs->local_block);
    const detail::BlockPlace remote = detail::place_of(*plan.remote, plan.runs->remote_block);
    segment = {local.address, remote.address, plan.bytes, local.region, remote.region};
    return true;
  }
  towline_segment segments[2];
  Cursor cursor{plan};
  if (cursor.next(segments, 2, plan.bytes) != 1 || !cursor.done()) return false;
  segment = segments[0];
  return true;
}

}  // namespace towline::plugin
