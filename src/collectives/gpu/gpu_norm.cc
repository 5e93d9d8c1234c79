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
constexpr uint64_t kLeastUnitsOfPart = 256;
constexpr uint64_t kLeastLinesOfPart = 16;

// In slots, the bytes of all rows. One GPU (`together`: how many ranks), us a row in one block, beside a row for each rank (kDirectNorm):
// 2 ranks 4.5 and 6.1, 4 ranks 6.5 and 7.2, 8 ranks 10.7 and 9.6; in four blocks 3.2, 4.5 and 6.6.
uint64_t most_in_slots(const MarkedLimits& slots, uint32_t together, uint32_t parts) {
  constexpr uint64_t kMost = 64 << 10;
  if (together > 4 && parts == 1) return 0;
  return together > 2 ? std::min(slots.bytes, kMost) : slots.bytes;
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

// The blocks of a row, which are a cluster: as many as pay and as there is room for.
uint32_t GpuBackend::parts_of_row(uint64_t rows, uint64_t most) const noexcept {
  for (uint32_t parts = kMostParts; parts > 1; --parts)
    if (parts <= most && rows <= clusters_[parts - 2] && rows * parts <= marking_blocks()) return parts;
  return 1;
}

// Every rank normalises all rows, which go to others with marks, rather than some of them for all, or after an all_reduce. False: it doesn't.
bool GpuBackend::mark_rows(Launch& launch, uint64_t row_bytes) const {
  Job& job = launch.job;
  if (size_ == 1 || size_ > kMarkedRanks || row_bytes % 8 != 0) return false;
  const uint64_t units = row_bytes / 8;
  const bool in_lines = lines_ && pay_in_lines(job.bytes, size_);
  if (in_lines) {
    if (job.bytes > most_in_lines(in_lines_, size_)) return false;
    job.parts = parts_of_row(job.rows, lines_of_part(row_bytes, 1) / kLeastLinesOfPart);
    if (lines_of_part(row_bytes, job.parts) > most_lines_of_part(size_, marking_threads_)) return false;
  } else {
    job.parts = parts_of_row(job.rows, units / kLeastUnitsOfPart);
    const uint64_t of_part = units_of_part(units, job.parts);
    if (job.bytes > most_in_slots(in_slots_, direct_ ? size_ : 0, job.parts) || units > kMarkedRowUnits ||
        of_part > uint64_t{kUnitsOfThread} * marking_threads_ ||
        job.rows * job.parts * marked_blocks_of(of_part) > marked_blocks(size_))
      return false;
  }
  if (job.rows * job.parts > marking_blocks()) return false;
  const uint32_t type = float_type(job.mark.datatype);
  job.way = Way::kMarkedNorm;
  launch.kernel = in_lines ? line_norm_kernel(size_, type) : marked_norm_kernel(size_, type);
  launch.blocks = static_cast<uint32_t>(job.rows * job.parts);
  launch.cluster = job.parts;
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
  take_rows(norm, job);
  if (job.bytes == 0 || mark_rows(launch, job.bytes / norm.rows)) return true;
  if (!direct_) return false;
  job.way = Way::kDirectNorm;
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
