#include "plan/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "plan/overlap.h"
#include "plan/picks.h"
#include "towline/plugin/cursor.hpp"

namespace towline {

namespace {

constexpr uint64_t kMaxPlanBytes = uint64_t{1} << 63;

// How messages name this agent's list and the far one: as the application gave them.
constexpr const char* local_name(uint32_t op) noexcept { return op == TOWLINE_READ ? "'to'" : "'from'"; }
constexpr const char* remote_name(uint32_t op) noexcept { return op == TOWLINE_READ ? "'from'" : "'to'"; }

// One side of a plan under construction.
struct Side {
  const char* name;
  const ResolvedList* list;
  Picks picks;
  uint64_t parts = 1;  // each picked block is cut into

  [[nodiscard]] const towline_list& view() const noexcept { return list->view(); }
  // The picks as one range of pieces?
  [[nodiscard]] bool is_regular() const noexcept {
    return picks.is_range() && (parts == 1 || picks.step == 1 || picks.count == 1);
  }
  // The range of pieces, when regular.
  [[nodiscard]] uint64_t first_piece() const noexcept { return picks.start * parts; }
  [[nodiscard]] uint64_t piece_step() const noexcept { return parts == 1 ? picks.step : 1; }
};

// Indices as the pairing loop reads them.
struct IndexArray {
  const uint32_t* indices;
  uint64_t operator[](uint64_t position) const noexcept { return indices[position]; }
};
struct IndexRange {
  uint64_t start;
  uint64_t step;
  uint64_t operator[](uint64_t position) const noexcept { return start + position * step; }
};

template <class Visit>
void with_indices(const Picks& picks, Visit&& visit) {
  if (picks.is_range())
    visit(IndexRange{picks.start, picks.step});
  else
    visit(IndexArray{picks.indices});
}

// "10 'from' blocks of 96 bytes".
std::string text_of(const Side& side) {
  const uint64_t length = side.view().block_length;
  if (length == 0) return fmt::format("{} {} blocks of different lengths", side.picks.count, side.name);
  return fmt::format("{} {} blocks of {} bytes", side.picks.count, side.name, length);
}

// The picked blocks of one side as stretches of consecutive pieces.
class PieceReader {
 public:
  explicit PieceReader(const Side& side) noexcept : side_(side) {}

  // Moves on when the present stretch is used up; call only while pieces are left on this side.
  void settle() noexcept {
    if (left_ != 0) return;
    if (side_.is_regular() && side_.piece_step() == 1) {
      at_ = side_.first_piece();
      left_ = side_.picks.count * side_.parts;
    } else {
      at_ = side_.picks.at(position_++) * side_.parts;
      left_ = side_.parts;
    }
  }
  [[nodiscard]] uint64_t at() const noexcept { return at_; }
  [[nodiscard]] uint64_t left() const noexcept { return left_; }
  void take(uint64_t pieces) noexcept {
    at_ += pieces;
    left_ -= pieces;
  }

 private:
  const Side& side_;
  uint64_t position_ = 0;
  uint64_t at_ = 0;
  uint64_t left_ = 0;
};

}  // namespace

// Scratch memory for compiling.
struct Plan::Memory {
  IndexMemory local;
  IndexMemory remote;
  SeenIndices seen;
};

Plan::Plan() = default;
Plan::~Plan() = default;
Plan::Plan(Plan&& other) noexcept
    : view_(other.view_),
      local_parts_(other.local_parts_),
      one_run_(other.one_run_),
      runs_(std::move(other.runs_)),
      run_capacity_(other.run_capacity_),
      memory_(std::move(other.memory_)) {
  view_.runs = runs();
}

class PlanCompiler {
 public:
  // `keeps`: the plan is compiled again and again, and keeps its memory.
  PlanCompiler(Plan& plan, const Side& local, const Side& remote, SeenIndices& seen, uint32_t op,
               bool keeps) noexcept
      : local_(local), remote_(remote), op_(op), keeps_(keeps), seen_(seen), plan_(plan) {}

  void compile();
  void in_order();

 private:
  void finish();
  [[nodiscard]] Side& target() noexcept { return op_ == TOWLINE_READ ? local_ : remote_; }
  [[nodiscard]] const Side& from() const noexcept { return op_ == TOWLINE_READ ? remote_ : local_; }
  [[nodiscard]] const Side& to() const noexcept { return op_ == TOWLINE_READ ? local_ : remote_; }

  void fit();
  void check_target();
  void check_overlap(const Side& side);
  void pair();
  void one_run();
  template <class Local, class Remote>
  void pair_blocks(const Local& local, const Remote& remote);
  enum class Once : uint8_t { kUnchecked, kLocal, kRemote };  // of which side each block may be picked once
  template <Once once, class Local, class Remote>
  void pair_blocks(const Local& local, const Remote& remote);
  void pair_pieces();
  void reserve_runs(uint64_t count);
  void trim_runs(uint64_t count);
  void measure();
  struct Block {
    uint64_t index;
    uint64_t bytes;
  };
  [[noreturn]] void fail_pair(uint64_t position, Block local, Block remote) const;
  void check_access(const ResolvedList& remote);

  Side local_;
  Side remote_;
  uint32_t op_;
  bool keeps_;
  SeenIndices& seen_;
  Plan& plan_;
};

void PlanCompiler::compile() {
  check_target();
  fit();
  finish();
}

void PlanCompiler::in_order() {
  if (local_.picks.count != remote_.picks.count)
    fail(Status::kMismatch, "{} 'from' blocks against {} 'to' blocks", from().picks.count, to().picks.count);
  finish();
}

void PlanCompiler::finish() {
  plan_.local_parts_ = local_.parts;
  const ResolvedList& local = local_.parts == 1 ? *local_.list : local_.list->cut(local_.parts);
  const ResolvedList& remote = remote_.parts == 1 ? *remote_.list : remote_.list->cut(remote_.parts);
  plan_.view_.local = &local.view();
  plan_.view_.remote = &remote.view();
  plan_.view_.local_step = 1;
  plan_.view_.remote_step = 1;
  plan_.view_.blocks = local_.picks.count * local_.parts;
  pair();
  plan_.view_.runs = plan_.runs();
  measure();
  check_access(remote);
}

// Decides how both sides' blocks are cut so that they pair up.
void PlanCompiler::fit() {
  const uint64_t local_length = local_.view().block_length;
  const uint64_t remote_length = remote_.view().block_length;
  const uint64_t local_count = local_.picks.count;
  const uint64_t remote_count = remote_.picks.count;
  if (local_length == remote_length || local_length == 0 || remote_length == 0) {
    if (local_count != remote_count)
      fail(Status::kMismatch, "{} are paired with {}: pick the same number on both sides", text_of(from()),
           text_of(to()));
    return;
  }
  const Wide local_bytes = Wide{local_count} * local_length;
  const Wide remote_bytes = Wide{remote_count} * remote_length;
  if (local_bytes != remote_bytes)
    fail(Status::kMismatch, "{} and {} hold different amounts: both sides must be equal", text_of(from()),
         text_of(to()));
  const uint64_t piece = std::gcd(local_length, remote_length);
  if (piece != local_length && piece != remote_length && piece < kMinCutBytes)
    fail(Status::kMismatch,
         "'from' blocks of {} bytes and 'to' blocks of {} bytes fit together only in pieces of {} bytes: one "
         "length must divide the other, or their common divisor be at least {} bytes",
         from().view().block_length, to().view().block_length, piece, kMinCutBytes);
  local_.parts = local_length / piece;
  remote_.parts = remote_length / piece;
  const uint64_t limit = local_.is_regular() && remote_.is_regular() ? kMaxListBlocks : kMaxPickedBlocks;
  if (local_.parts > limit / local_count)
    fail(Status::kLimitExceeded, "{} against {} come to more than {} pieces of {} bytes", text_of(from()),
         text_of(to()), limit, piece);
}

// Each byte of the side where bytes land may be written once.
void PlanCompiler::check_target() {
  const Side& side = target();
  if (side.picks.is_range() && side.picks.step == 0 && side.picks.count > 1)
    fail(Status::kInvalidArgument,
         "{} block {} is picked {} times by a range of step 0, but bytes land there: each block may be "
         "picked once",
         side.name, side.picks.start, side.picks.count);
  if (side.list->overlaps()) check_overlap(side);
}

// The list's blocks overlap; do the picked ones? More than can be looked at are let pass: overlap among
// targets is the application's error, not a danger.
void PlanCompiler::check_overlap(const Side& side) {
  if (side.picks.count > kMaxPickedBlocks) return;
  const std::vector<uint32_t> spaces = address_spaces(side.view());
  plugin::detail::ListReader reader(side.view());
  std::vector<Interval> intervals;
  intervals.reserve(side.picks.count);
  for (uint64_t i = 0; i < side.picks.count; ++i) {
    const plugin::detail::Row row = reader.row(side.picks.at(i), 1);
    intervals.push_back({row.address, row.length, spaces[row.region], static_cast<uint32_t>(i)});
  }
  const auto found = find_overlap(intervals);
  if (!found) return;
  const auto [first, second] = *found;
  if (side.picks.at(first) == side.picks.at(second)) fail_duplicate(side.picks, second, side.name);
  const plugin::detail::Row one = reader.row(side.picks.at(first), 1);
  const plugin::detail::Row other = reader.row(side.picks.at(second), 1);
  fail(Status::kInvalidArgument,
       "{} blocks {} and {} (positions {} and {}), [{:#x}, {:#x}) and [{:#x}, {:#x}), overlap, but bytes "
       "land there",
       side.name, side.picks.at(first), side.picks.at(second), first, second, one.address,
       one.address + one.length, other.address, other.address + other.length);
}

void PlanCompiler::pair() {
  if (local_.is_regular() && remote_.is_regular()) {
    one_run();
  } else if (local_.parts == 1 && remote_.parts == 1) {
    with_indices(local_.picks, [&](const auto& local) {
      with_indices(remote_.picks, [&](const auto& remote) { pair_blocks(local, remote); });
    });
  } else {
    pair_pieces();
  }
}

void PlanCompiler::one_run() {
  reserve_runs(1);
  *plan_.runs() = {static_cast<uint32_t>(local_.first_piece()), static_cast<uint32_t>(remote_.first_piece()),
                   static_cast<uint32_t>(plan_.view_.blocks), 0};
  plan_.view_.run_count = 1;
  plan_.view_.local_step = local_.piece_step();
  plan_.view_.remote_step = remote_.piece_step();
}

// Indices are within their lists. Consecutive blocks on both sides are one run.
template <class Local, class Remote>
void PlanCompiler::pair_blocks(const Local& local, const Remote& remote) {
  if (target().picks.is_range())
    return pair_blocks<Once::kUnchecked>(local, remote);  // it names nothing twice
  seen_.begin(plan_.view_.blocks, target().view().blocks);
  if (op_ == TOWLINE_READ)
    pair_blocks<Once::kLocal>(local, remote);
  else
    pair_blocks<Once::kRemote>(local, remote);
  if (keeps_) seen_.forget(target().picks.indices, plan_.view_.blocks);
}

template <PlanCompiler::Once once, class Local, class Remote>
void PlanCompiler::pair_blocks(const Local& local, const Remote& remote) {
  const uint64_t count = plan_.view_.blocks;
  SeenIndices& seen = seen_;
  reserve_runs(count);
  towline_run* run = plan_.runs();
  *run = {static_cast<uint32_t>(local[0]), static_cast<uint32_t>(remote[0]), 0, 0};
  uint32_t next_local = run->local_block;
  uint32_t next_remote = run->remote_block;
  for (uint64_t i = 0; i < count; ++i) {
    const auto local_block = static_cast<uint32_t>(local[i]);
    const auto remote_block = static_cast<uint32_t>(remote[i]);
    if constexpr (once != Once::kUnchecked) {
      if (!seen.add(once == Once::kLocal ? local_block : remote_block)) [[unlikely]]
        fail_duplicate(target().picks, i, target().name);
    }
    if (local_block == next_local && remote_block == next_remote) {
      ++run->count;
    } else {
      *++run = {local_block, remote_block, 1, 0};
    }
    next_local = local_block + 1;
    next_remote = remote_block + 1;
  }
  trim_runs(static_cast<uint64_t>(run - plan_.runs()) + 1);
}

void PlanCompiler::pair_pieces() {
  if (const Side& side = target(); !side.picks.is_range()) {
    SeenIndices& seen = seen_;
    seen.begin(side.picks.count, side.view().blocks);
    for (uint64_t i = 0; i < side.picks.count; ++i)
      if (!seen.add(static_cast<uint32_t>(side.picks.at(i)))) fail_duplicate(side.picks, i, side.name);
  }
  reserve_runs(local_.picks.count + remote_.picks.count);
  PieceReader local(local_);
  PieceReader remote(remote_);
  towline_run* const runs = plan_.runs();
  uint64_t used = 0;
  for (uint64_t left = plan_.view_.blocks; left != 0;) {
    local.settle();
    remote.settle();
    const uint64_t pieces = std::min(local.left(), remote.left());
    const towline_run run = {static_cast<uint32_t>(local.at()), static_cast<uint32_t>(remote.at()),
                             static_cast<uint32_t>(pieces), 0};
    if (used != 0 && runs[used - 1].local_block + runs[used - 1].count == run.local_block &&
        runs[used - 1].remote_block + runs[used - 1].count == run.remote_block)
      runs[used - 1].count += run.count;
    else
      runs[used++] = run;
    local.take(pieces);
    remote.take(pieces);
    left -= pieces;
  }
  trim_runs(used);
}

void PlanCompiler::reserve_runs(uint64_t count) {
  if (count <= 1 || count <= plan_.run_capacity_) return;
  plan_.runs_ = std::make_unique_for_overwrite<towline_run[]>(count);
  plan_.run_capacity_ = count;
}

// Gives back what merging saved, when it is worth a copy.
void PlanCompiler::trim_runs(uint64_t count) {
  plan_.view_.run_count = count;
  if (keeps_) return;
  if (count * 4 > plan_.run_capacity_ * 3) return;
  if (count == 1) {
    plan_.one_run_ = plan_.runs_[0];
    plan_.runs_.reset();
    plan_.run_capacity_ = 0;
    return;
  }
  auto runs = std::make_unique_for_overwrite<towline_run[]>(count);
  std::copy_n(plan_.runs_.get(), count, runs.get());
  plan_.runs_ = std::move(runs);
  plan_.run_capacity_ = count;
}

void PlanCompiler::fail_pair(uint64_t position, Block local, Block remote) const {
  if (op_ == TOWLINE_READ) std::swap(local, remote);
  fail(Status::kMismatch,
       "position {}: 'from' block {} has {} bytes, 'to' block {} has {}: where a list's lengths differ, each "
       "pair must be equal",
       position, local.index, local.bytes, remote.index, remote.bytes);
}

// Lengths of pairs and the bytes in all.
void PlanCompiler::measure() {
  towline_plan& view = plan_.view_;
  Wide bytes = 0;
  if (view.local->block_length != 0 && view.remote->block_length != 0) {
    view.block_length = view.local->block_length;
    bytes = Wide{view.blocks} * view.block_length;
  } else {
    plugin::detail::ListReader local_reader(*view.local);
    plugin::detail::ListReader remote_reader(*view.remote);
    uint64_t position = 0;
    bool all_equal = true;
    for (uint64_t r = 0; r < view.run_count; ++r) {
      const towline_run& run = view.runs[r];
      for (uint64_t i = 0; i < run.count;) {
        const auto local = local_reader.row(run.local_block + i * view.local_step, view.local_step);
        const auto remote = remote_reader.row(run.remote_block + i * view.remote_step, view.remote_step);
        if (local.length != remote.length)
          fail_pair(position, {run.local_block + i * view.local_step, local.length},
                    {run.remote_block + i * view.remote_step, remote.length});
        if (position == 0) view.block_length = local.length;
        all_equal = all_equal && local.length == view.block_length;
        const uint64_t blocks = std::min({local.blocks, remote.blocks, run.count - i});
        bytes += Wide{blocks} * local.length;
        position += blocks;
        i += blocks;
      }
    }
    if (!all_equal) view.block_length = 0;
  }
  if (bytes > kMaxPlanBytes)
    fail(Status::kLimitExceeded, "the {} picked blocks come to more than 2^63 bytes", view.blocks);
  view.bytes = static_cast<uint64_t>(bytes);
}

// No region of a peer is without access: one without is this agent's own, and the agent may do as it likes with it.
void PlanCompiler::check_access(const ResolvedList& remote) {
  const uint32_t needed = op_ == TOWLINE_READ ? TOWLINE_ACCESS_READ : TOWLINE_ACCESS_WRITE;
  if ((remote.common_access() & needed) == needed) return;
  plugin::Cursor cursor(plan_.view_);
  towline_segment window[64];
  for (;;) {
    const uint64_t begin = cursor.position();
    const size_t count = cursor.next(window, std::size(window), UINT64_MAX);
    if (count == 0) return;
    uint64_t before = 0;
    for (size_t i = 0; i < count; before += window[i++].length) {
      const towline_region_ref& region = plan_.view_.remote->regions[window[i].remote_region];
      if (region.access == TOWLINE_ACCESS_NONE || (region.access & needed) == needed) continue;
      fail(Status::kPermissionDenied,
           "position {}: {} address {:#x} lies in region {:#x} at [{:#x}, {:#x}), which its owner registered "
           "without {} access",
           plan_.picked_block_at(begin + before), remote_.name, window[i].remote, region.key, region.address,
           region.address + region.bytes, op_ == TOWLINE_READ ? "read" : "write");
    }
  }
}

namespace {

void check_op(uint32_t op) {
  if (op != TOWLINE_READ && op != TOWLINE_WRITE)
    fail(Status::kInvalidArgument, "operation {}: 0 is read, 1 is write", op);
}

// True if one block is picked that the list has: `block`. An index is read once, as in make_picks.
bool is_one_block(const towline_picks_t* picks, uint64_t blocks, uint64_t& block) noexcept {
  if (picks == nullptr || picks->count != 1) return false;
  const void* const indices = picks->indices;
  if (indices == nullptr) {
    block = picks->start;
  } else if (picks->index_bytes == sizeof(uint32_t)) {
    uint32_t index = 0;
    std::memcpy(&index, indices, sizeof index);
    block = index;
  } else if (picks->index_bytes == sizeof(uint64_t)) {
    std::memcpy(&block, indices, sizeof block);
  } else {
    return false;
  }
  return block < blocks;
}

}  // namespace

// One block against one, as a request for a page is: there is nothing to pair, to cut or to be picked twice. False, with
// nothing changed, if it is not that simple, or is wrong: PlanCompiler does it, or says what is wrong.
bool Plan::take_one(const ResolvedList& local, const towline_picks_t* local_picks, const ResolvedList& remote,
                    const towline_picks_t* remote_picks, uint32_t op) noexcept {
  const towline_list& here = local.view();
  const towline_list& there = remote.view();
  const uint32_t needed = op == TOWLINE_READ ? TOWLINE_ACCESS_READ : TOWLINE_ACCESS_WRITE;
  if (here.block_length == 0 || here.block_length != there.block_length) return false;
  if ((remote.common_access() & needed) != needed) return false;
  uint64_t mine = 0;
  uint64_t theirs = 0;
  if (!is_one_block(local_picks, here.blocks, mine) || !is_one_block(remote_picks, there.blocks, theirs))
    return false;
  local_parts_ = 1;
  *runs() = {static_cast<uint32_t>(mine), static_cast<uint32_t>(theirs), 1, 0};
  view_.local = &here;
  view_.remote = &there;
  view_.runs = runs();
  view_.run_count = 1;
  view_.local_step = 1;
  view_.remote_step = 1;
  view_.blocks = 1;
  view_.bytes = here.block_length;
  view_.block_length = here.block_length;
  return true;
}

Plan Plan::compile(const ResolvedList& local, const towline_picks_t* local_picks, const ResolvedList& remote,
                   const towline_picks_t* remote_picks, uint32_t op) {
  check_op(op);
  Plan plan;
  if (plan.take_one(local, local_picks, remote, remote_picks, op)) return plan;
  Memory memory;
  const Picks from_local = make_picks(local_picks, local.blocks(), local_name(op), memory.local);
  const Picks from_remote = make_picks(remote_picks, remote.blocks(), remote_name(op), memory.remote);
  PlanCompiler(plan, {local_name(op), &local, from_local}, {remote_name(op), &remote, from_remote},
               memory.seen, op, false)
      .compile();
  return plan;
}

void Plan::compile_again(const ResolvedList& local, const towline_picks_t* local_picks,
                         const ResolvedList& remote, const towline_picks_t* remote_picks, uint32_t op) {
  check_op(op);
  if (memory_ == nullptr) memory_ = std::make_unique<Memory>();
  if (take_one(local, local_picks, remote, remote_picks, op)) return;
  const Picks from_local = make_picks(local_picks, local.blocks(), local_name(op), memory_->local);
  const Picks from_remote = make_picks(remote_picks, remote.blocks(), remote_name(op), memory_->remote);
  PlanCompiler(*this, {local_name(op), &local, from_local}, {remote_name(op), &remote, from_remote},
               memory_->seen, op, true)
      .compile();
}

Plan Plan::in_order(const ResolvedList& local, const ResolvedList& remote, uint32_t op) {
  Plan plan;
  Memory memory;
  const Picks all_local = make_picks(nullptr, local.blocks(), local_name(op), memory.local);
  const Picks all_remote = make_picks(nullptr, remote.blocks(), remote_name(op), memory.remote);
  PlanCompiler(plan, {local_name(op), &local, all_local}, {remote_name(op), &remote, all_remote}, memory.seen,
               op, false)
      .in_order();
  return plan;
}

uint64_t Plan::picked_block_at(uint64_t position) const noexcept {
  return plugin::position_to_block(view_, position) / local_parts_;
}

uint64_t Plan::memory_bytes() const noexcept { return sizeof(*this) + run_capacity_ * sizeof(towline_run); }

}  // namespace towline
