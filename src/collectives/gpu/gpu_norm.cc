// all_reduce, addition and RMSNorm as one operation of a stream.
#include <algorithm>

#include "base/error.h"
#include "collectives/calls/norm.h"
#include "collectives/gpu/gpu_backend.h"
#include "collectives/gpu/marks.h"
#include "collectives/gpu/operations.h"

namespace towline::collectives::gpu {
namespace {

// Blocks of a kernel that waits for no other rank.
constexpr uint64_t kNormBlocks = 1024;

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
  // Ranks of one GPU do a row each in less time than all of them all rows. Where data goes in lines, an all_reduce and a kernel
  // after it take 7 us for a row of 16 KiB, and one kernel with slots 14.
  const bool marks = !direct_ && !lines_ && size_ > 1 && size_ <= kMarkedRanks &&
                     job.bytes <= in_slots_.bytes && row_bytes % 8 == 0 &&
                     norm.rows * marked_blocks_of_row(row_bytes) <= marked_blocks(size_);
  if (!marks && !direct_) return false;
  job.way = marks ? Way::kMarkedNorm : Way::kDirectNorm;
  launch.kernel = kNormKernels + float_type(norm.datatype) + (marks ? kFloatTypes : 0);
  // Blocks of small kernels fill a multiprocessor.
  launch.blocks = static_cast<uint32_t>(
      marks ? std::clamp<uint64_t>(norm.rows, 1, std::max(1u, std::min(share_ / 2, max_blocks_)))
            : std::clamp<uint64_t>((norm.rows + size_ - 1) / size_, 1, max_blocks_));
  return true;
}

void GpuBackend::issue_norm(const towline_collective_norm_t& norm, uint64_t number, uint64_t timeout_ns,
                            void* stream) {
  const uint64_t graph = graph_of(stream);
  Launch made;
  if (build_norm(norm, number, timeout_ns, made))
    return put_in(collectives_, stream, graph,
                  [&](void* in, cuda::Moment* ended) { launch(collectives_, made, in, graph, ended); });
  Launch then = made;
  build_rows(norm, then);
  put_in(collectives_, stream, graph,
         [&](void* in, cuda::Moment* ended) { launch(collectives_, made, in, graph, ended, &then); });
}

}  // namespace towline::collectives::gpu
