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
constexpr uint64_t kMarkedRowsOnOneGpu = 64 << 10;
constexpr uint64_t kMarkedRowsBesideLines = 8 << 10;

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

// Whether every rank normalises all rows (norm_marked.h) rather than some of them for all, or after an all_reduce. Measured on H200 with rows of
// 4096 and 8192 bfloat16.
bool GpuBackend::marks_rows(uint64_t bytes, uint32_t parts) const noexcept {
  uint64_t most = in_slots_.bytes;
  // One GPU, us a row in one block, beside a row for each rank (kDirectNorm): 2 ranks 4.5 and 6.1, 4 ranks 6.5 and 7.2, 8 ranks 10.7 and 9.6;
  // in four blocks 3.6, 4.7 and 7.1.
  if (direct_) {
    if (size_ > 2) most = std::min(most, kMarkedRowsOnOneGpu);
    if (size_ > 4 && parts == 1) return false;
  }
  // Several GPUs, beside an all_reduce in lines and a kernel after it: a row of 8 KiB in one block 4.4 and 5.2, of 16 KiB 6.4 and 6.3. In
  // several blocks not measured.
  if (!direct_ && lines_)
    most = std::min(most, parts == 1 ? kMarkedRowsBesideLines : 2 * kMarkedRowsBesideLines);
  return bytes <= most;
}

// How many blocks a row goes to: a cluster.
uint32_t GpuBackend::parts_of_row(uint64_t rows, uint64_t units) const noexcept {
  for (uint32_t i = kClusters; i-- > 0;) {
    const uint32_t parts = 2u << i;
    if (units >= parts * kLeastUnitsOfPart && rows <= clusters_[i] && rows * parts <= marking_blocks())
      return parts;
  }
  return 1;
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
  if (job.bytes == 0) return true;
  const uint64_t row_bytes = job.bytes / norm.rows;
  const uint64_t units = row_bytes / 8;
  job.parts = parts_of_row(norm.rows, units);
  const uint64_t blocks = norm.rows * job.parts;
  const bool marks = size_ > 1 && size_ <= kMarkedRanks && marks_rows(job.bytes, job.parts) &&
                     row_bytes % 8 == 0 && units <= kMarkedRowUnits &&
                     units_of_part(units, job.parts) <= uint64_t{kUnitsOfThread} * marking_threads_ &&
                     blocks <= marking_blocks() &&
                     blocks * marked_blocks_of(units_of_part(units, job.parts)) <= marked_blocks(size_);
  if (!marks && !direct_) return false;
  const uint32_t type = float_type(norm.datatype);
  job.way = marks ? Way::kMarkedNorm : Way::kDirectNorm;
  launch.kernel = marks ? marked_norm_kernel(size_, type) : kNormKernels + type;
  if (marks) {
    launch.cluster = job.parts;
    launch.threads = marking_threads_;
  }
  launch.blocks = static_cast<uint32_t>(
      marks ? blocks : std::clamp<uint64_t>((norm.rows + size_ - 1) / size_, 1, max_blocks_));
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
