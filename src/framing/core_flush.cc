// Writing what core_send.cc has made: lanes take turns.
#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/sync/wake_path.h"
#include "framing/connection.h"

namespace towline::framing {
namespace {

// A system passes a stream on in pieces of about 64 KiB. A frame of a few times that size is written in two
// calls: the other end copies its head out while the rest is copied in here. This costs one more system call
// on each side and hides up to a quarter of the time; a frame of 64 KiB would lose a tenth.
constexpr std::size_t kInTwoFrom = 128u << 10;
constexpr std::size_t kInTwoUpTo = 256u << 10;
constexpr std::size_t kHeadBytes = 32u << 10;
constexpr std::size_t kHeadPieces = 64;

}  // namespace

bool Connection::goes_in_two(const LaneState& lane) noexcept {
  const std::size_t bytes = lane.out.frame.bytes();
  return !lane.traits.calls_are_cheap && bytes >= kInTwoFrom && bytes <= kInTwoUpTo;
}

// One write. False if the lane has nothing to write, is full, or broke.
TOWLINE_WAKE_PATH bool Connection::flush_step(LaneState& lane, std::size_t& budget) noexcept {
  const bool moved = flush_stream(lane, budget);
  return flush_payload(lane, budget) || moved;
}

TOWLINE_WAKE_PATH bool Connection::flush_stream(LaneState& lane, std::size_t& budget) noexcept {
  Output& out = lane.out;
  if (out.blocked || lane.broken.status != Status::kOk) return false;
  const bool had_frame = out.frame_open;
  if (!had_frame && can_open(lane)) open_frame(lane);
  const uint64_t sent_before = statistics_.bytes_sent;
  emit_counts(lane);
  iovec front[2];
  const bool with_frame = out.frame_open && !out.apart;
  const std::size_t ahead = with_frame ? out.ahead : out.queue.size();
  const std::span<const iovec> queued{front, out.queue.front(ahead, front)};
  std::size_t offered = ahead + (with_frame ? out.frame.bytes() : 0);
  if (offered == 0 || out.blocked) return statistics_.bytes_sent != sent_before;
  IoResult result;
  if (with_frame && out.lent) {
    result = write_lent_frame(lane, queued, offered);
  } else if (!had_frame && with_frame && ahead == 0 && goes_in_two(lane)) {
    std::array<iovec, kHeadPieces> head;
    const std::size_t count = out.frame.head(kHeadBytes, head);
    offered = 0;
    for (std::size_t i = 0; i < count; ++i) offered += head[i].iov_len;
    result = lane.lane->write({head.data(), count});
  } else if (with_frame && ahead == 0 && out.frame.bytes() > most_written(lane)) {
    const std::size_t count = out.frame.head(most_written(lane), lane.pieces());
    offered = 0;
    for (std::size_t i = 0; i < count; ++i) offered += lane.pieces()[i].iov_len;
    result = lane.lane->write(lane.pieces().first(count));
  } else if (with_frame && !(out.together.one_by_one && ahead != 0)) {
    result = lane.lane->write(out.frame.with_front(queued));
  } else {
    offered = ahead;
    result = lane.lane->write(queued);
  }
  if (result.status == Status::kAgain) {
    out.blocked = true;
    return false;
  }
  if (result.vendor_code == EFAULT && with_frame && out.together.count != 0 && !out.together.one_by_one) {
    out.together.one_by_one = true;
    return true;
  }
  if (result.status != Status::kOk) {
    lane.broken = note_unmapped(out.frame_part, result);
    return false;
  }
  statistics_.bytes_sent += result.bytes;
  budget -= std::min(budget, result.bytes);
  const std::size_t from_queue = std::min(result.bytes, ahead);
  out.queue.pop(from_queue);
  if (with_frame) {
    out.ahead -= from_queue;
    const std::size_t from_frame = result.bytes - from_queue;
    const std::size_t from_head = std::min(from_frame, out.head_left);
    out.head_left -= from_head;
    out.payload_left -= std::min(from_frame - from_head, out.payload_left);
    pass_frames(out);
    out.frame.advance(from_frame);
    if (out.frame.empty()) finish_frame_out(lane);
  }
  out.blocked = result.bytes < offered;
  return true;
}

// From submit: writes one frame if nothing is queued before it. The next pass writes the rest.
void Connection::flush_inline(LaneState& lane) noexcept {
  Output& out = lane.out;
  if (out.blocked || out.inline_used || !out.nothing_queued()) return;
  out.inline_used = true;
  std::size_t budget = options_.pass_bytes;
  (void)flush_step(lane, budget);
}

void Connection::finish_frame_out(LaneState& lane) noexcept {
  Output& out = lane.out;
  if (out.lent) {
    keep_loan(lane);
    take_back(lane);
  }
  out.frame_part = nullptr;
  out.pins.release(host_);
  if (out.slot != kNoSlot) free_gather(std::exchange(out.slot, kNoSlot));
  out.frame_open = out.apart = false;
  out.together.clear();
  if (out.served != 0) host_.served(peer_, TOWLINE_SERVED_READ, std::exchange(out.served, 0));
}

// Lanes take turns, a frame each, so that striped parts spread.
TOWLINE_WAKE_PATH uint32_t Connection::flush_lanes() noexcept {
  uint32_t work = 0;
  std::size_t budget = pass_bytes(*lanes_.front());
  for (bool moved = true; moved && budget != 0;) {
    moved = false;
    for (std::size_t i = 0; i < lanes_.size() && budget != 0; ++i) {
      if (!flush_step(*lanes_[(first_turn_ + i) % lanes_.size()], budget)) continue;
      moved = true;
      ++work;
    }
    if (urgent_waits()) break;  // each lane has had a turn
  }
  return work;
}

TOWLINE_WAKE_PATH bool Connection::has_output(const LaneState& lane) const noexcept {
  return !lane.out.nothing_queued() || !lane.out.refusals.empty() || lane.in.ack_due || can_open(lane);
}

// True if there is work that does not depend on reading.
TOWLINE_WAKE_PATH bool Connection::has_work() const noexcept {
  if (!ended_.empty() || !messages_.empty() || reads_possible()) return true;
  return std::any_of(lanes_.begin(), lanes_.end(), [this](const auto& lane) {
    return lane->broken.status != Status::kOk || has_output(*lane);
  });
}

}  // namespace towline::framing
