// Which way an operation goes, and with how many blocks: the same on every rank, from settings and from what all ranks know.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "collectives/gpu/gpu_backend.h"
#include "collectives/gpu/lines.h"
#include "collectives/gpu/operations.h"

namespace towline::collectives::gpu {
namespace {

// Two-shot kernels that read one another's inputs move so much with a block before another one pays (H200, 8 ranks, 256 KiB: 10.3 us with
// 8 KiB a block, 9.3 with 2 and 9.4 with 4), as long as they take no more than half of the GPU.
constexpr uint64_t kBytesPerDirectBlock = 2 << 10;
// Slots of a block before another one pays. Between GPUs a slot for each thread; on one GPU what goes through a multiprocessor
// counts (H200, 8 ranks, 4 KiB: 5.9 us with 512 slots, 4.8 with 128).
constexpr uint64_t kSlotsPerBlock = kMarkedSlots;
constexpr uint64_t kSlotsPerBlockOnOneGpu = 128;
// A block's threads store so many lines with one instruction each.
constexpr uint64_t kLinesPerBlock = kThreads / kGpuLineThreads;

// About the same bytes out of a GPU, whatever the number of ranks. Sums of floats go this way for longer, since their kernels are quicker (one H200,
// against a two-shot: 2 ranks and 512 KiB 4.7 and 7.0 us, 4 and 128 KiB 5.5 and 7.6, 8 and 64 KiB 7.9 and 10.5).
MarkedLimits slot_limits(bool spread, uint32_t size) {
  if (!spread) {
    if (size <= 2) return {256 << 10, 512 << 10, 64 << 10, 0, 0};
    if (size <= 4) return {64 << 10, 128 << 10, 64 << 10, 0, 256 << 10};
    return {32 << 10, 16 << 10, 32 << 10, 0, 128 << 10};
  }
  if (size <= 2) return {512 << 10, 512 << 10, 512 << 10, 0, 0};
  if (size <= 4) return {256 << 10, 256 << 10, 128 << 10, 1 << 20, 1 << 20};
  return {32 << 10, 32 << 10, 64 << 10, 512 << 10, 512 << 10};
}
MarkedLimits line_limits(uint32_t size) {
  if (size <= 2) return {2 << 20, 2 << 20, 2 << 20, 0, 0};
  if (size <= 4) return {256 << 10, 256 << 10, 512 << 10, 2 << 20, 2 << 20};
  return {64 << 10, 64 << 10, 128 << 10, 1 << 20, 1 << 20};
}

}  // namespace

// Ranks must settle alike: from settings, and from what all know.
void GpuBackend::settle_ways(const towline_collective_open_args& args) {
  // A multiprocessor runs two blocks of 512 threads, or of 256 with marks, which have twice the registers; half of the GPU is left to another
  // communicator.
  const GpuShare share = least_share(Deadline::at(args.deadline_ns));
  share_ = share.multiprocessors;
  clusters_ = share.clusters;
  // So no block of any kernel needs more than half a multiprocessor, and whatever begins first, the last finds room. A kernel without room keeps
  // those behind it waiting, which one that runs may wait for. A rank that is alone on its GPU never has the others of its communicator there.
  marking_threads_ = share.alone != 0 ? kThreads : kThreads / 2;
  max_blocks_ = static_cast<uint32_t>(
      number_setting("tuning.collectives.gpu_blocks", std::min(share_, kMaxBlocks), kMaxBlocks));
  if (max_blocks_ == 0)
    fail(Status::kInvalidArgument, "tuning.collectives.gpu_blocks is 0: expected 1 to {}", kMaxBlocks);
  direct_ = memory_->together() && number_setting("tuning.collectives.gpu_direct", 1, 1) != 0;
  const bool spread = memory_->ranks_on_gpu() != size_;
  slots_per_block_ = spread ? kSlotsPerBlock : kSlotsPerBlockOnOneGpu;
  push_ = number_setting("tuning.collectives.gpu_push", spread ? 1 : 0, 1) != 0;
  in_slots_ = limited(slot_limits(spread, size_), marked_capacity(marking_blocks(), size_));
  in_slots_.sums_two = std::min(in_slots_.sums_two, marking_blocks() * kOwnedUnitsOfBlock * 8);
  in_lines_ = limited(line_limits(size_), lines_capacity(marking_blocks(), size_));
  const bool whole = spread && share.whole_lines != 0;
  lines_ = number_setting("tuning.collectives.gpu_lines", whole ? 1 : 0, 1) != 0;
  // Two ranks send the same bytes either way: one wait less, or less work on what came.
  two_shot_bytes_ =
      number_setting("tuning.collectives.gpu_two_shot_bytes", size_ <= 2 ? 4 << 20 : 0, UINT64_MAX);
  check_ways(Deadline::at(args.deadline_ns));
}

// Ranks that go different ways wait for one another, or take one another's data for something else: their signals are the same.
void GpuBackend::check_ways(Deadline deadline) const {
  const auto marked = [](const MarkedLimits& limits) {
    return fmt::format("{} ({}), {} and {} ({})", limits.bytes, limits.sums, limits.parts, limits.two,
                       limits.sums_two);
  };
  const std::string mine = fmt::format(
      "gpu_blocks {}, gpu_direct {}, gpu_push {}, gpu_lines {}, gpu_two_shot_bytes {}, gpu_marked_bytes "
      "(of float sums), .._parts_bytes and .._two_bytes {} in slots, {} in lines",
      max_blocks_, direct_ ? 1 : 0, push_ ? 1 : 0, lines_ ? 1 : 0, two_shot_bytes_, marked(in_slots_),
      marked(in_lines_));
  const std::span said(reinterpret_cast<const uint8_t*>(mine.data()), mine.size());
  compare("ways", said, deadline, [&](uint32_t rank, std::span<const uint8_t> heard) {
    const std::string theirs(heard.begin(), heard.end());
    if (theirs != mine)
      fail(Status::kMismatch,
           "ranks have different settings (tuning.collectives.gpu_*): rank {} has {}; rank {} has {}",
           called_[rank_], mine, called_[rank], theirs);
  });
}

// `most` go from one rank to another.
MarkedLimits GpuBackend::limited(const MarkedLimits& usual, uint64_t most) const {
  const auto limit = [&](const char* key, uint64_t value, uint64_t room) {
    return std::min(number_setting(key, value, 16 << 20), room);
  };
  return {limit("tuning.collectives.gpu_marked_bytes", usual.bytes, most),
          limit("tuning.collectives.gpu_marked_bytes", usual.sums, most),
          limit("tuning.collectives.gpu_marked_parts_bytes", usual.parts, most),
          limit("tuning.collectives.gpu_marked_two_bytes", usual.two, most * size_),
          limit("tuning.collectives.gpu_marked_two_bytes", usual.sums_two, most * size_)};
}

uint32_t GpuBackend::blocks_for(uint64_t bytes, uint64_t of_block) const noexcept {
  return static_cast<uint32_t>(std::clamp<uint64_t>((bytes + of_block - 1) / of_block, 1, max_blocks_));
}

// The same on every rank: from what all know of the operation.
void GpuBackend::choose(Launch& launch) const {
  Job& job = launch.job;
  const bool all_reduce = job.mark.op == TOWLINE_COLLECTIVE_ALL_REDUCE;
  const bool scaled = job.reduces != 0 && job.mark.reduction == TOWLINE_REDUCE_PREMUL_SUM;
  const bool gives_parts =
      job.mark.op == TOWLINE_COLLECTIVE_REDUCE_SCATTER || job.mark.op == TOWLINE_COLLECTIVE_ALL_TO_ALL;
  const bool marks = (all_reduce || gives_parts || job.mark.op == TOWLINE_COLLECTIVE_ALL_GATHER) &&
                     size_ > 1 && size_ <= kMarkedRanks;
  const bool direct = direct_ && !scaled;
  const bool adds = job.mark.reduction == TOWLINE_REDUCE_SUM && float_type(job.mark.datatype) != kFloatTypes;
  // The last 8 bytes of a line are loaded whole: pieces of them take longer than slots do.
  const bool lines = lines_ && job.bytes % 8 == 0 && (job.reduces == 0 || adds);
  const MarkedLimits& marked = lines ? in_lines_ : in_slots_;
  const bool whole_sums = adds && job.bytes % 8 == 0;
  const uint64_t most_marked = !all_reduce ? marked.parts : whole_sums ? marked.sums : marked.bytes;
  const bool owned = !lines && whole_sums && size_ > 2;
  if (job.mark.op == TOWLINE_COLLECTIVE_BARRIER ||
      (job.compare == 0 && largest_part(job) == 0 && job.bytes == 0)) {
    job.way = Way::kBarrier;
    launch.kernel = kMovingKernel;
    launch.blocks = 1;
  } else if (marks && job.bytes <= most_marked) {
    job.way = gives_parts ? Way::kMarkedParts : Way::kMarked;
    mark(launch, job.bytes, lines);
  } else if (marks && all_reduce && owned && job.bytes <= marked.sums_two) {
    job.way = Way::kMarkedTwo;
    mark_owned(launch);
  } else if (marks && all_reduce && job.bytes <= marked.two) {
    job.way = Way::kMarkedTwo;
    mark(launch, (job.bytes + size_ - 1) / size_, lines);
  } else if (direct) {
    job.way = all_reduce ? Way::kTwoShot : Way::kDirect;
    launch.blocks = blocks_for(all_reduce ? job.bytes / size_ : largest_part(job));
    if (all_reduce)
      launch.blocks = std::max(launch.blocks, std::min(blocks_for(job.bytes / size_, kBytesPerDirectBlock),
                                                       std::max(share_ / 2, 1u)));
  } else if (push_) {
    push(launch);
  } else {
    job.way = all_reduce ? Way::kStagedTwo : Way::kStaged;
    launch.blocks = blocks_for(all_reduce ? job.bytes / size_ : largest_part(job));
  }
  if (job.compare != 0) launch.blocks = std::min(16u, max_blocks_);
}

// 256 threads of a kernel with marks take half a multiprocessor.
uint32_t GpuBackend::marking_blocks() const noexcept {
  const uint32_t share = share_ * (kThreads / 2) / marking_threads_;
  return std::clamp(std::min(share, max_blocks_), 1u, marked_blocks(size_));
}

// Floats that are added up have a kernel for as many ranks, which takes two thirds of the others' time. What ranks give one another is the same
// for both, so each looks at its own memory only.
uint32_t GpuBackend::marking_kernel(const Launch& launch, bool lines) const {
  const Job& job = launch.job;
  const uint32_t type = launch.kernel == kMovingKernel ? kFloatTypes : float_type(job.mark.datatype);
  if (lines) return line_kernel(size_, type);
  const bool sums =
      job.way == Way::kMarked && type != kFloatTypes && job.mark.reduction == TOWLINE_REDUCE_SUM;
  if (sums && ((job.bytes | job.in[0] | job.out[0]) & 7) == 0) return marked_sum_kernel(size_, type);
  return launch.kernel + kSmallKernels;
}

// With marks; `bytes` go from one rank to another.
void GpuBackend::mark(Launch& launch, uint64_t bytes, bool lines) const {
  const uint64_t unit = lines ? kLineBytes : 8;
  const uint64_t units = (bytes + unit - 1) / unit;
  const uint64_t of_block = lines ? kLinesPerBlock : slots_per_block_;
  launch.kernel = marking_kernel(launch, lines);
  launch.threads = marking_threads_;
  divide(launch, units, of_block);
}

// A float sum in two shots.
void GpuBackend::mark_owned(Launch& launch) const {
  const uint64_t units = launch.job.bytes / 8;
  launch.kernel = owned_kernel(size_, float_type(launch.job.mark.datatype));
  divide(launch, units, slots_per_block_);
  launch.threads = threads_for(launch.job.slot);
}

// Among blocks, of which another one pays for `of_block` units.
void GpuBackend::divide(Launch& launch, uint64_t units, uint64_t of_block) const {
  launch.blocks =
      static_cast<uint32_t>(std::clamp<uint64_t>((units + of_block - 1) / of_block, 1, marking_blocks()));
  launch.job.slot = (units + launch.blocks - 1) / launch.blocks;
}

// As many as a block has units, and a quarter of kThreads at least: its warps are one in each quarter of a multiprocessor.
uint32_t GpuBackend::threads_for(uint64_t units) noexcept {
  uint32_t threads = kThreads;
  while (threads > kThreads / 4 && units <= threads / 2) threads /= 2;
  return threads;
}

void GpuBackend::push(Launch& launch) const {
  Job& job = launch.job;
  const uint64_t most = pushed_slot_bytes(size_);
  uint64_t bytes = largest_part(job);
  uint64_t capacity = most;
  job.way = Way::kPushed;
  if (job.mark.op == TOWLINE_COLLECTIVE_ALL_REDUCE && job.bytes >= two_shot_bytes_) {
    job.way = Way::kPushedTwo;
    bytes = job.bytes;
    capacity = most * size_;
  } else if (job.mark.op == TOWLINE_COLLECTIVE_ALL_REDUCE) {
    bytes = job.bytes;
    for (uint32_t peer = 0; peer < size_; ++peer) {
      job.in[peer] = job.in[0];
      job.in_bytes[peer] = bytes;
    }
    job.out[rank_] = job.out[0];
    job.out_bytes[rank_] = bytes;
    job.receives = 1;
  }
  launch.blocks = job.compare != 0 ? std::min(16u, max_blocks_) : blocks_for(bytes);
  // All blocks get the same, in one round if it fits.
  const uint64_t each = (bytes + launch.blocks - 1) / launch.blocks;
  job.slot = job.compare != 0 ? capacity : std::clamp<uint64_t>((each + 255) / 256 * 256, 256, capacity);
}

}  // namespace towline::collectives::gpu
