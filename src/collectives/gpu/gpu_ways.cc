// Which way an operation goes, and with how many blocks: the same on every rank, from settings and from what all ranks know.
#include <algorithm>

#include "base/error.h"
#include "collectives/gpu/gpu_backend.h"
#include "collectives/gpu/operations.h"

namespace towline::collectives::gpu {
namespace {

// Staged kernels move so much with a block before another one pays.
constexpr uint64_t kBytesPerBlock = 8 << 10;

}  // namespace

// Ranks must settle alike: from settings, and from what all know.
void GpuBackend::settle_ways(const towline_collective_open_args& args) {
  // A multiprocessor runs two blocks of 512 threads; half of the GPU is left to another communicator.
  const uint32_t share = share_ = least_share(Deadline::at(args.deadline_ns));
  max_blocks_ = static_cast<uint32_t>(
      number_setting("tuning.collectives.gpu_blocks", std::min(share, kMaxBlocks), kMaxBlocks));
  if (max_blocks_ == 0)
    fail(Status::kInvalidArgument, "tuning.collectives.gpu_blocks is 0: expected 1 to {}", kMaxBlocks);
  direct_ = memory_->together() && number_setting("tuning.collectives.gpu_direct", 1, 1) != 0;
  const bool spread = memory_->ranks_on_gpu() != size_;
  push_ = number_setting("tuning.collectives.gpu_push", spread ? 1 : 0, 1) != 0;
  // Blocks of small kernels fill a multiprocessor.
  const uint64_t most =
      marked_capacity(std::clamp(std::min(share / 2, max_blocks_), 1u, marked_blocks(size_)), size_);
  const uint64_t marked = !spread ? 64 << 10 : size_ <= 2 ? 512 << 10 : size_ <= 4 ? 256 << 10 : 32 << 10;
  marked_bytes_ =
      std::min(number_setting("tuning.collectives.gpu_marked_bytes", marked, marked_capacity(64, 2)), most);
  // About the same bytes out of a GPU, whatever the number of ranks.
  const uint64_t parts = !spread ? 64 << 10 : size_ <= 2 ? 512 << 10 : size_ <= 4 ? 128 << 10 : 64 << 10;
  marked_parts_bytes_ = std::min(
      number_setting("tuning.collectives.gpu_marked_parts_bytes", parts, marked_capacity(64, 2)), most);
  const uint64_t two = !spread || size_ <= 2 ? 0 : size_ <= 4 ? 1 << 20 : 512 << 10;
  marked_two_bytes_ =
      std::min(number_setting("tuning.collectives.gpu_marked_two_bytes", two, 16 << 20), most * size_);
  // Two ranks send the same bytes either way: one wait less, or less work on what came.
  two_shot_bytes_ =
      number_setting("tuning.collectives.gpu_two_shot_bytes", size_ <= 2 ? 4 << 20 : 0, UINT64_MAX);
}

uint32_t GpuBackend::blocks_for(uint64_t bytes) const noexcept {
  return static_cast<uint32_t>(
      std::clamp<uint64_t>((bytes + kBytesPerBlock - 1) / kBytesPerBlock, 1, max_blocks_));
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
  if (job.mark.op == TOWLINE_COLLECTIVE_BARRIER ||
      (job.compare == 0 && largest_part(job) == 0 && job.bytes == 0)) {
    job.way = Way::kBarrier;
    launch.kernel = kMovingKernel;
    launch.blocks = 1;
  } else if (marks && job.bytes <= (all_reduce ? marked_bytes_ : marked_parts_bytes_)) {
    job.way = gives_parts ? Way::kMarkedParts : Way::kMarked;
    mark(launch, job.bytes);
  } else if (marks && all_reduce && job.bytes <= marked_two_bytes_) {
    job.way = Way::kMarkedTwo;
    mark(launch, ((job.bytes + 7) / 8 + size_ - 1) / size_ * 8);
  } else if (direct) {
    job.way = all_reduce ? Way::kTwoShot : Way::kDirect;
    launch.blocks = blocks_for(all_reduce ? job.bytes / size_ : largest_part(job));
  } else if (push_) {
    push(launch);
  } else {
    job.way = all_reduce ? Way::kStagedTwo : Way::kStaged;
    launch.blocks = blocks_for(all_reduce ? job.bytes / size_ : largest_part(job));
  }
  if (job.compare != 0) launch.blocks = std::min(16u, max_blocks_);
}

// With marked stores; `bytes` go from one rank to another. A block of such a kernel fills a multiprocessor.
void GpuBackend::mark(Launch& launch, uint64_t bytes) const {
  const uint64_t units = (bytes + 7) / 8;
  const uint32_t most = std::clamp(std::min(share_ / 2, max_blocks_), 1u, marked_blocks(size_));
  launch.kernel += kSmallKernels;
  launch.blocks =
      static_cast<uint32_t>(std::clamp<uint64_t>((units + kMarkedSlots - 1) / kMarkedSlots, 1, most));
  launch.job.slot = (units + launch.blocks - 1) / launch.blocks;
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
