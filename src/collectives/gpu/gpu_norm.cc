// all_reduce, addition and RMSNorm as one operation of a stream.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "collectives/calls/norm.h"
#include "collectives/gpu/gpu_backend.h"
#include "collectives/gpu/marks.h"
#include "collectives/gpu/operations.h"

namespace towline::collectives::gpu {
namespace {

// Blocks of a kernel that waits for no other rank.
constexpr uint64_t kNormBlocks = 1024;
constexpr uint64_t kLeastUnitsOfPart = 128;
constexpr uint64_t kLeastLinesOfPart = 16;

// In slots, the bytes of all rows. On one GPU (`together`: how many ranks) what counts is how much each thread waits for: beside a row for each
// rank (kDirectNorm) 16 rows of 4 ranks, two units a thread, take 7.1 and 7.6 us, 32 rows 10.0 and 7.7; 4 rows of 8 ranks, one unit, 6.9 and
// 9.8, 8 rows 12.1 and 9.8 (H200, rows of 4096 bfloat16).
uint64_t most_in_slots(const MarkedLimits& slots, uint32_t together, uint64_t units_of_thread) {
  constexpr uint64_t kMostAwaited = 7;
  if (together == 0 || slots.bytes == 0) return slots.bytes;
  return units_of_thread * (together - 1) <= kMostAwaited ? 256 << 10 : 0;
}
// In lines, beside an all_reduce and a kernel after it (H200, rows of 8192 bfloat16): 16 rows of two GPUs 5.6 and 7.5 us, of four 7.6 and 10.1.
uint64_t most_in_lines(const MarkedLimits& lines, uint32_t size) {
  constexpr uint64_t kOutOfGpu = 3 << 20;
  return std::min(std::max(lines.bytes, lines.two), kOutOfGpu / (size - 1));
}
// Between two GPUs slots take 3.8 and 4.1 us for a row of 8 and 16 KiB, lines 4.2 and 4.5; as long as each other for 128 KiB. Between four
// lines are ahead from 8 KiB on.
bool pay_in_lines(uint64_t bytes, uint32_t size) { return size > 2 || bytes > 64 << 10; }

void take_rows(const towline_collective_norm_t& norm, Job& job) noexcept {
  job.residual = reinterpret_cast<uint64_t>(norm.residual);
  job.weight = reinterpret_cast<uint64_t>(norm.weight);
  job.rows = norm.rows;
  job.width = norm.width;
  job.epsilon = norm.epsilon;
  job.inverse_width = 1.0f / static_cast<float>(norm.width);
}

}  // namespace

// The part that waits for no other rank: the reduced rows lie in the output.
void GpuBackend::build_rows(const towline_collective_norm_t& norm, Launch& launch) const {
  Job& job = launch.job;
  job.way = Way::kNorm;
  job.in[0] = job.out[0] = reinterpret_cast<uint64_t>(norm.output);
  take_rows(norm, job);
  launch.kernel = kNormKernels + float_type(norm.datatype);
  launch.blocks = static_cast<uint32_t>(std::clamp<uint64_t>(norm.rows, 1, kNormBlocks));
}

// How rows are divided among blocks, whose threads can have `of_block` units or lines at once: as many blocks as pay and as there is room for.
// A cluster's take 0.25 us less than those that tell one another through memory, but there can be room for fewer. Clusters of 5 to 7 blocks take
// 0.3 us longer than those of 4, and so do those of 8 for more than two rows (H200).
GpuBackend::RowParts GpuBackend::parts_of_rows(uint64_t rows, uint64_t units, uint64_t least,
                                               uint64_t of_block) const noexcept {
  const uint64_t most =
      std::clamp<uint64_t>(marking_blocks() / rows, 1, std::clamp<uint64_t>(units / least, 1, kMostParts));
  const auto turns = [&](uint64_t parts) { return (units_of_part(units, parts) + of_block - 1) / of_block; };
  for (const uint32_t parts : {8u, 4u, 3u, 2u})
    if (parts <= most && rows <= clusters_[parts - 2] && (parts < 8 || rows <= 2) &&
        turns(parts) <= turns(most))
      return {parts, true};
  return {static_cast<uint32_t>(most), false};
}

// Every rank normalises all rows, which go to others with marks, rather than some of them for all, or after an all_reduce. False: it doesn't.
bool GpuBackend::mark_rows(Launch& launch, uint64_t rows) const {
  Job& job = launch.job;
  const uint64_t row_bytes = job.bytes / rows;
  if (size_ == 1 || size_ > kMarkedRanks || row_bytes % 8 != 0) return false;
  const uint64_t units = row_bytes / 8;
  const uint64_t lines = (row_bytes + kLineBytes - 1) / kLineBytes;
  const bool in_lines = lines_ && pay_in_lines(job.bytes, size_);
  const RowParts parts =
      in_lines ? parts_of_rows(rows, lines, kLeastLinesOfPart, marking_threads_ / kGpuLineThreads)
               : parts_of_rows(rows, units, kLeastUnitsOfPart, marking_threads_);
  const uint64_t of_part = units_of_part(in_lines ? lines : units, parts.count);
  if (rows * parts.count > marking_blocks()) return false;
  if (in_lines) {
    if (job.bytes > most_in_lines(in_lines_, size_)) return false;
    if (of_part > most_lines_of_part(size_, marking_threads_)) return false;
  } else if (job.bytes > most_in_slots(in_slots_, direct_ ? size_ : 0,
                                       (of_part + marking_threads_ - 1) / marking_threads_) ||
             units > kMarkedRowUnits || of_part > uint64_t{kUnitsOfThread} * marking_threads_ ||
             rows * parts.count * marked_blocks_of(of_part) > marked_blocks(size_)) {
    return false;
  }
  const uint32_t type = float_type(job.mark.datatype);
  job.way = Way::kMarkedNorm;
  job.parts = parts.count;
  job.clustered = parts.clustered ? 1 : 0;
  job.slot = of_part;
  launch.kernel = in_lines ? line_norm_kernel(size_, type) : marked_norm_kernel(size_, type);
  launch.blocks = static_cast<uint32_t>(rows * job.parts);
  launch.threads = marking_threads_;
  return true;
}

bool GpuBackend::build_norm(const towline_collective_norm_t& norm, uint64_t number, uint64_t timeout_ns,
                            Launch& launch) {
  check_address(norm.residual, "residual");
  check_address(norm.weight, "weight");
  build(all_reduce_of(norm), number, timeout_ns, launch);
  Job& job = launch.job;
  // Ranks must agree on these, beyond what an all_reduce compares.
  job.mark.tag = norm_tag(norm.width, norm.epsilon);
  job.mark.root = (norm.residual != nullptr ? 1 : 0) | (norm.weight != nullptr ? 2 : 0);
  job.digest = digest_of(job.mark);
  if (job.bytes == 0) return true;
  if (!mark_rows(launch, norm.rows)) {
    if (!direct_) return false;
    job.way = Way::kDirectNorm;
  }
  take_rows(norm, job);
  if (job.way == Way::kMarkedNorm) return true;
  launch.kernel = kNormKernels + float_type(norm.datatype);
  launch.threads = 0;
  launch.blocks =
      static_cast<uint32_t>(std::clamp<uint64_t>((norm.rows + size_ - 1) / size_, 1, max_blocks_));
  return true;
}

void GpuBackend::issue_norm(const towline_collective_norm_t& norm, uint64_t number, uint64_t timeout_ns,
                            void* stream) {
  const uint64_t op_id = std::exchange(watched_, 0);
  const uint64_t graph = graph_of(stream);
  Launch made;
  const bool whole = build_norm(norm, number, timeout_ns, made);
  Launch then;
  if (!whole) {
    then = made;
    build_rows(norm, then);
  }
  const auto seen = seen_in(graph, op_id, TOWLINE_COLLECTIVE_ALL_REDUCE);
  put_in(collectives_, stream, graph, [&](void* in, cuda::Moment* ended) {
    launch(collectives_, made, in, graph, ended, whole ? nullptr : &then, seen);
  });
}

}  // namespace towline::collectives::gpu
