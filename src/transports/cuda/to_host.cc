#include "transports/cuda/to_host.h"

#include <algorithm>
#include <array>
#include <towline/plugin/cursor.hpp>

namespace towline::cuda {

namespace {

constexpr size_t kWindow = 256;
constexpr size_t kMostRanges = 64;  // of a chunk

Ways gathered(Ways ways) noexcept {
  ways.gathered = true;
  return ways;
}

}  // namespace

ToHost::ToHost(const towline_plan& plan, const Ways& ways, std::shared_ptr<CopyQueue> queue,
               std::vector<Run> runs, bool scattered)
    : chunk_(std::clamp(plan.bytes / 4 / kLeastChunk * kLeastChunk, kLeastChunk, CopyQueue::kStagingBytes)),
      gather_(plan, gathered(ways), std::move(queue)),
      runs_(std::move(runs)),
      scattered_(scattered) {}

std::unique_ptr<ToHost> ToHost::make(const towline_plan& plan, const Ways& ways,
                                     std::shared_ptr<CopyQueue> queue,
                                     std::span<const std::shared_ptr<const Pinned>> pinned,
                                     bool may_be_scattered) {
  if (plan.bytes < kLeastBytes) return nullptr;
  std::vector<Run> runs = runs_of(plan, ways, plan.bytes / kLeastMeanRun);
  const bool scattered = runs.empty();
  if (scattered && !may_be_scattered) return nullptr;
  if (scattered)
    runs = runs_of(plan, ways, SIZE_MAX);
  else
    for (const auto& host : pinned) cut(runs, *host);
  queue->make_staging();
  return std::unique_ptr<ToHost>(new ToHost(plan, ways, std::move(queue), std::move(runs), scattered));
}

// Empty: there are more.
std::vector<ToHost::Run> ToHost::runs_of(const towline_plan& plan, const Ways& ways, size_t most) {
  std::vector<Run> runs;
  uint64_t position = 0;
  towline_segment segments[kWindow];
  plugin::Cursor cursor{plan};
  while (const size_t count = cursor.next(segments, kWindow, plan.bytes)) {
    for (size_t i = 0; i < count; ++i) {
      const towline_segment& segment = segments[i];
      const uint64_t to = ways.read ? segment.local + ways.local[segment.local_region]
                                    : segment.remote + ways.remote[segment.remote_region];
      if (!runs.empty() && runs.back().to + runs.back().bytes == to)
        runs.back().bytes += segment.length;
      else
        runs.push_back({position, to, segment.length});
      position += segment.length;
    }
    if (runs.size() > most) return {};
  }
  return runs;
}

// Cuts ranges where two pieces of pinned memory meet: no range may cross that.
void ToHost::cut(std::vector<Run>& runs, const Pinned& pinned) {
  std::vector<Run> parts;
  for (Run run : runs) {
    for (;;) {
      const uint64_t end = pinned.end_of(run.to - pinned.delta());
      const uint64_t left = end == UINT64_MAX ? run.bytes : end + pinned.delta() - run.to;
      if (left >= run.bytes) break;
      parts.push_back({run.position, run.to, left});
      run = {run.position + left, run.to + left, run.bytes - left};
    }
    parts.push_back(run);
  }
  runs.swap(parts);
}

std::vector<ToHost::Run>::const_iterator ToHost::run_at(uint64_t position) const noexcept {
  return std::upper_bound(runs_.begin(), runs_.end(), position,
                          [](uint64_t at, const Run& one) { return at < one.position; }) -
         1;
}

uint64_t ToHost::end_of_chunk(uint64_t begin, uint64_t limit, uint32_t pieces) const noexcept {
  const auto first = run_at(begin);
  const auto last = static_cast<size_t>(runs_.end() - first) > pieces ? first + pieces : runs_.end();
  return last == runs_.end() ? limit : std::min(limit, last->position);
}

Code ToHost::relay_to(CopyQueue& queue, uint32_t blocks, uint64_t to, uint64_t begin,
                      uint64_t end) const noexcept {
  const CopyJob job = gather_.job(begin, end);
  const CopyQueue::Range range{to, 0, end - begin};
  return queue.relay(job, useful_blocks(job, blocks), {&range, 1});
}

void ToHost::scatter(uint64_t begin, uint64_t end, uint64_t from, PieceCopier& copier,
                     uint32_t slot) const noexcept {
  uint64_t at = begin;
  for (auto run = run_at(begin); at < end; ++run) {
    const uint64_t skip = at - run->position;
    const uint64_t bytes = std::min(run->bytes - skip, end - at);
    copier.add(slot, run->to + skip, from + (at - begin), bytes);
    at += bytes;
  }
}

Code ToHost::relay(CopyQueue& queue, uint32_t blocks, uint64_t& next, uint64_t end) const noexcept {
  const uint64_t limit = std::min(end, next + chunk_);
  auto run = run_at(next);
  std::array<CopyQueue::Range, kMostRanges> ranges;
  size_t count = 0;
  uint64_t at = next;
  for (; at < limit && count < kMostRanges; ++run) {
    const uint64_t skip = at - run->position;
    const uint64_t bytes = std::min(run->bytes - skip, limit - at);
    ranges[count++] = {run->to + skip, at - next, bytes};
    at += bytes;
  }
  const CopyJob job = gather_.job(next, at);
  const Code code = queue.relay(job, useful_blocks(job, blocks), {ranges.data(), count});
  next = at;
  return code;
}

}  // namespace towline::cuda
