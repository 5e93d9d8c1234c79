#include "transports/memory/copy_queue.h"

#include "base/copy/copy.h"
#include "towline/plugin/cursor.hpp"

namespace towline::memory {

namespace {

constexpr uint64_t kSliceBytes = 1u << 20;

}  // namespace

void CopyQueue::aim(Prepared& prepared) const noexcept {
  const towline_plan& plan = *prepared.plan;
  prepared.flags =
      plan.bytes <= inline_bytes_ ? TOWLINE_PREPARED_CONCURRENT | TOWLINE_PREPARED_IMMEDIATE : 0u;
  prepared.to = nullptr;
  if (towline_segment segment; plugin::one_segment(plan, segment))
    prepared.set_piece(segment.local, segment.remote + prepared.deltas[segment.remote_region]);
}

int32_t CopyQueue::submit(Prepared& prepared, const towline_submit_args& args) noexcept {
  if (jobs_.down()) return static_cast<int32_t>(Status::kPeerLost);
  const uint64_t bytes = args.end - args.begin;
  if (bytes > inline_bytes_) return jobs_.submit(prepared, args);
  if (!ends_.enter(side_)) return static_cast<int32_t>(Status::kPeerLost);
  if (prepared.to != nullptr)
    copy_bytes(prepared.to + args.begin, prepared.from + args.begin, bytes);
  else
    copy_plan(*prepared.plan, prepared.deltas.data(), args.begin, args.end, prepared.op);
  ends_.leave(side_);
  return jobs_.finish(prepared, args, {args.end});
}

void CopyQueue::begin(direct::Job& job) noexcept {
  const auto& prepared = static_cast<const Prepared&>(*job.prepared);
  job.copy.emplace(*prepared.plan, prepared.deltas.data(), job.begin, job.end, prepared.op);
}

void CopyQueue::step(direct::Job& job) noexcept {
  if (!ends_.enter(side_)) {
    job.moved.status = Status::kPeerLost;
    return;
  }
  job.copy->step(kSliceBytes);
  ends_.leave(side_);
  job.moved.position = job.copy->position();
}

}  // namespace towline::memory
