#include "transports/shm/direct_path.h"

#include <poll.h>

#include <cerrno>

#include "base/clock.h"
#include "base/copy/copy.h"
#include "base/ticks.h"

namespace towline::shm {

namespace {

constexpr uint64_t kMappedSliceBytes = 1u << 20;
constexpr uint64_t kProcessVmSliceBytes = 4u << 20;
// A pid can't come to name another process, nor a new image run, sooner after the last look than this: see
// README.md.
constexpr uint64_t kAliveForNs = 14 * kMicrosecondNs;
constexpr uint64_t kAliveForTicks = 6000;  // 6 us at most: not even the clock is looked at
// A copy of so few bytes is over before that time has passed: looking before it is enough.
constexpr uint64_t kBriefBytes = 64u << 10;

direct::Moved moved_by(const CopyResult& result) noexcept {
  const Status status = result.error == 0 ? Status::kOk : status_from_process_vm(result.error);
  return {result.position, status, result.error};
}

}  // namespace

void DirectPath::open(pid_t pid, int socket, int pidfd) noexcept {
  pid_ = pid;
  socket_ = socket;
  pidfd_ = pidfd;
}

bool DirectPath::peer_alive() noexcept {
  const uint64_t now_ticks = ticks();
  if (kHasTicks && now_ticks - seen_alive_ticks_.load(std::memory_order_relaxed) < kAliveForTicks)
    return true;
  const uint64_t now_ns = monotonic_now_ns();
  if (now_ns - seen_alive_ns_.load(std::memory_order_relaxed) < kAliveForNs) {
    seen_alive_ticks_.store(now_ticks, std::memory_order_relaxed);
    return true;
  }
  // A closed socket: the process ended, or runs another image (the socket is close-on-exec). A readable
  // pidfd: it ended while a child of it still holds the socket.
  pollfd entries[2] = {{socket_, POLLRDHUP, 0}, {pidfd_, POLLIN, 0}};
  if (poll(entries, pidfd_ >= 0 ? 2 : 1, 0) != 0) return false;
  seen_alive_ns_.store(now_ns, std::memory_order_relaxed);
  seen_alive_ticks_.store(now_ticks, std::memory_order_relaxed);
  return true;
}

int32_t DirectPath::submit(Prepared& prepared, const towline_submit_args& args) noexcept {
  if (jobs_.down()) return static_cast<int32_t>(Status::kPeerLost);
  const uint64_t bytes = args.end - args.begin;
  if (bytes > prepared.inline_bytes) return jobs_.submit(prepared, args);
  if (prepared.to == nullptr) return copy_inline(prepared, args);
  copy_bytes(prepared.to + args.begin, prepared.from + args.begin, bytes);
  return jobs_.finish(prepared, args, {args.end});
}

void DirectPath::aim(Prepared& prepared) noexcept {
  const towline_plan& plan = *prepared.plan;
  const bool all_mapped = !prepared.process_vm;
  const bool at_once = plan.bytes <= prepared.inline_bytes;
  prepared.flags = at_once ? TOWLINE_PREPARED_CONCURRENT | TOWLINE_PREPARED_IMMEDIATE : 0u;
  prepared.to = nullptr;
  prepared.from = nullptr;
  prepared.quick_bytes = UINT64_MAX;
  towline_segment segment;
  prepared.one_piece = plugin::one_segment(plan, segment);
  const uint64_t piece_bytes = prepared.one_piece ? plan.bytes : plan.block_length;
  prepared.large_pieces = all_mapped && LargeCopy::is_large(plan.bytes, piece_bytes) ? piece_bytes : 0;
  if (!prepared.one_piece) return;
  prepared.local = segment.local;
  prepared.remote = segment.remote;
  if (!all_mapped) return;
  prepared.set_piece(segment.local, segment.remote + prepared.deltas[segment.remote_region]);
  if (!at_once) return;
  prepared.quick_bytes = plan.bytes;
  prepared.quick_copy = choose_block_copy(prepared.to, prepared.from, plan.bytes);
}

int32_t DirectPath::copy_inline(Prepared& prepared, const towline_submit_args& args) noexcept {
  if (!prepared.process_vm) {
    copy_plan(*prepared.plan, prepared.deltas.data(), args.begin, args.end, prepared.op);
    return jobs_.finish(prepared, args, {args.end});
  }
  const direct::Moved moved = moved_by(copy_with_process_vm(prepared, args));
  // Without the lock this can only return a status; with it the part fails with the exact range.
  const bool any_thread = (prepared.flags & TOWLINE_PREPARED_CONCURRENT) != 0 && args.message_bytes == 0;
  if (moved.error != 0 && any_thread) return static_cast<int32_t>(moved.status);
  return jobs_.finish(prepared, args, moved);
}

CopyResult DirectPath::copy_with_process_vm(const Prepared& prepared,
                                            const towline_submit_args& args) noexcept {
  if (!prepared.one_piece || args.end - args.begin > kBriefBytes) {
    plugin::Cursor cursor{*prepared.plan, args.begin, args.end};
    return copy_with_process_vm(cursor, prepared, args.end - args.begin);
  }
  if (!peer_alive()) return {args.begin, ESRCH};
  return copy_piece(prepared.op, pid_, prepared.local, prepared.remote, args.begin, args.end);
}

CopyResult DirectPath::copy_with_process_vm(plugin::Cursor& cursor, const Prepared& prepared,
                                            uint64_t max_bytes) noexcept {
  const uint64_t begin = cursor.position();
  if (!peer_alive()) return {begin, ESRCH};
  CopyResult result = copy_slice(cursor, prepared.ways.data(), prepared.op, pid_, max_bytes);
  const bool took_long = result.position - begin > kBriefBytes;
  if (result.error == 0 && took_long && !peer_alive()) result = {begin, ESRCH};
  return result;
}

void DirectPath::begin(direct::Job& job) noexcept {
  const auto& prepared = static_cast<const Prepared&>(*job.prepared);
  if (prepared.process_vm || prepared.large_pieces != 0)
    job.cursor.emplace(*prepared.plan, job.begin, job.end);
  else
    job.copy.emplace(*prepared.plan, prepared.deltas.data(), job.begin, job.end, prepared.op);
}

void DirectPath::step(direct::Job& job) noexcept {
  const auto& prepared = static_cast<const Prepared&>(*job.prepared);
  if (job.copy) {
    job.copy->step(kMappedSliceBytes);
    job.moved.position = job.copy->position();
  } else if (prepared.large_pieces != 0) {
    large_copy_.step(*job.cursor, prepared.large_pieces, prepared.deltas.data(), prepared.op,
                     kMappedSliceBytes);
    job.moved.position = job.cursor->position();
  } else {
    job.moved = moved_by(copy_with_process_vm(*job.cursor, prepared, kProcessVmSliceBytes));
  }
}

}  // namespace towline::shm
