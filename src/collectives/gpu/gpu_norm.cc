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

// The blocks of a row, of which each shall have `least` of its units: as many as there is room for.
uint64_t GpuBackend::most_parts(uint64_t rows, uint64_t units, uint64_t least) const noexcept {
  return std::clamp<uint64_t>(marking_blocks() / rows, 1, std::clamp<uint64_t>(units / least, 1, kMostParts));
}

// How rows are divided among blocks: as many as pay and as there is room for. A cluster's take 0.25 us less than those that tell one another
// through memory, but there can be room for fewer. Those of 8 are no quicker for more than four rows. (H200.)
GpuBackend::RowParts GpuBackend::parts_in_slots(uint64_t rows, uint64_t units) const noexcept {
  const uint64_t most = most_parts(rows, units, kLeastUnitsOfPart);
  const auto threads_of = [&](uint64_t parts) { return threads_for(units_of_part(units, parts)); };
  const auto turns = [&](uint64_t parts) {
    return (units_of_part(units, parts) + threads_of(parts) - 1) / threads_of(parts);
  };
  for (const uint32_t parts : {8u, 4u, 2u}) {
    const uint32_t threads = threads_of(parts);
    const uint32_t size = threads == kThreads ? 0 : threads == kThreads / 2 ? 1 : 2;
    if (parts <= most && (parts < 8 || rows <= 4) && rows <= clusters_[size][parts - 2] &&
        turns(parts) <= turns(most))
      return {parts, threads, true};
  }
  return {static_cast<uint32_t>(most), threads_of(most), false};
}

// Clusters of 5 to 7 blocks take 0.3 us longer than those of 4, and so do those of 8 for more than two rows (H200).
GpuBackend::RowParts GpuBackend::parts_in_lines(uint64_t rows, uint64_t lines) const noexcept {
  const uint64_t most = most_parts(rows, lines, kLeastLinesOfPart);
  const uint64_t of_block = marking_threads_ / kGpuLineThreads;
  const auto turns = [&](uint64_t parts) { return (units_of_part(lines, parts) + of_block - 1) / of_block; };
  for (const uint32_t parts : {8u, 4u, 3u, 2u})
    if (parts <= most && rows <= clusters_[0][parts - 2] && (parts < 8 || rows <= 2) &&
        turns(parts) <= turns(most))
      return {parts, marking_threads_, true};
  return {static_cast<uint32_t>(most), marking_threads_, false};
}

// Every rank normalises all rows, which go to others with marks, rather than some of them for all, or after an all_reduce. False: it doesn't.
bool GpuBackend::mark_rows(const towline_collective_norm_t& norm, Launch& launch) const {
  const uint64_t row_bytes = launch.job.bytes / norm.rows;
  if (size_ == 1 || size_ > kMarkedRanks || row_bytes % 8 != 0) return false;
  if (lines_ && pay_in_lines(launch.job.bytes, size_))
    return mark_in_lines(norm, (row_bytes + kLineBytes - 1) / kLineBytes, launch);
  return mark_in_slots(norm, row_bytes / 8, launch);
}

bool GpuBackend::mark_in_slots(const towline_collective_norm_t& norm, uint64_t units, Launch& launch) const {
  Job& job = launch.job;
  const RowParts parts = parts_in_slots(norm.rows, units);
  const bool owned = size_ > 2 && job.bytes > in_slots_.sums;
  const uint64_t of_part = units_of_part(units, parts.count);
  const uint64_t of_thread = (of_part + parts.threads - 1) / parts.threads;
  if (norm.rows * parts.count > marking_blocks() ||
      job.bytes > (owned ? in_slots_.sums_two : in_slots_.sums) ||
      of_thread > (owned ? kOwnedUnitsOfThread : kUnitsOfThread) ||
      (!owned && norm.rows * parts.count * marked_blocks_of(of_part, size_) > marked_blocks(size_)))
    return false;
  const uint32_t type = float_type(job.mark.datatype);
  job.way = Way::kMarkedNorm;
  job.parts = parts.count;
  job.clustered = parts.clustered ? 1 : 0;
  job.slot = of_part;
  launch.blocks = static_cast<uint32_t>(norm.rows * parts.count);
  launch.threads = parts.threads;  // of every rank: they say in which order a row's squares are added
  // What ranks give one another is the same for both kernels, so each looks at its own memory only.
  const uint64_t odd = (job.in[0] | job.out[0] | reinterpret_cast<uint64_t>(norm.residual) |
                        reinterpret_cast<uint64_t>(norm.weight)) &
                       7;
  const bool held = odd == 0 && of_thread <= most_row_units(size_);
  launch.kernel = owned  ? owned_kernel(size_, type)
                  : held ? marked_row_kernel(size_, type)
                         : marked_norm_kernel(size_, type);
  return true;
}

bool GpuBackend::mark_in_lines(const towline_collective_norm_t& norm, uint64_t lines, Launch& launch) const {
  Job& job = launch.job;
  const RowParts parts = parts_in_lines(norm.rows, lines);
  const uint64_t of_part = units_of_part(lines, parts.count);
  if (norm.rows * parts.count > marking_blocks() || job.bytes > most_in_lines(in_lines_, size_) ||
      of_part > most_lines_of_part(size_, marking_threads_))
    return false;
  job.way = Way::kMarkedNorm;
  job.parts = parts.count;
  job.clustered = parts.clustered ? 1 : 0;
  job.slot = of_part;
  launch.kernel = line_norm_kernel(size_, float_type(job.mark.datatype));
  launch.blocks = static_cast<uint32_t>(norm.rows * parts.count);
  launch.threads = parts.threads;
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
  if (!mark_rows(norm, launch)) {
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
