// The express lane, and what bulk does while urgent parts are about. Three things make an urgent part wait behind bulk:
// bytes that already lie in a stream, system calls and passes that copy much, and a worker that has to come back to its
// queue of posts. A stream of its own, smaller pieces, and a question between two of them answer these.
#include <algorithm>

#include "base/check.h"
#include "base/sync/wake_path.h"
#include "framing/connection.h"

namespace towline::framing {
namespace {

// While urgent parts are about, of bulk in one system call, and in one pass. The copy takes some tens of microseconds.
constexpr std::size_t kPieceBytes = 128u << 10;
constexpr uint64_t kAfterExpressNs = kSecondNs;
constexpr std::size_t kMostExpressBytes = 1u << 20;  // of a part, and of what is answered at once

}  // namespace

void Connection::add_express_lane(std::unique_ptr<Lane> lane) {
  TOWLINE_CHECK(express_ == nullptr && !lanes_.empty(), "an express lane is one, after the first lane");
  LaneState& added = append_lane(std::move(lane));
  added.lane->stop_when({});
  added.express = true;
  express_ = &added;
}

// Bulk stops at the next step for it.
bool Connection::urgent_waits() const noexcept {
  return (express_ != nullptr && express_->lane->has_news()) || host_.urgent_waits(options_.worker);
}

// The express lane takes parts of one frame. Larger ones use all lanes: they need throughput.
bool Connection::fits_express(const Part& part) const noexcept {
  return express_ != nullptr && part.urgent && !part.prepared->lands &&
         part.bytes() <= std::min<uint64_t>(express_->frame_bytes, kMostExpressBytes);
}

// Moved on a lane in one direction in a pass. Calls of the system can't be interrupted.
TOWLINE_WAKE_PATH std::size_t Connection::pass_bytes(const LaneState& lane) const noexcept {
  return attentive_ && express_ != nullptr && !lane.traits.calls_are_cheap
             ? std::min<std::size_t>(kPieceBytes, options_.pass_bytes)
             : options_.pass_bytes;
}

std::size_t Connection::piece_bytes(const LaneState& lane) const noexcept {
  return attentive_ && express_ != nullptr && !lane.traits.calls_are_cheap ? kPieceBytes : SIZE_MAX;
}

// Parts that were made for the express lane, and answers to requests on it, in turn; then frames of larger urgent
// parts.
void Connection::open_express_frame(LaneState& lane) noexcept {
  Output& out = lane.out;
  const bool answer_first = out.turn++ % 2 == 0;
  out.frame_open = (answer_first && open_answer(lane)) || open_write(lane, out.short_parts) ||
                   open_answer(lane) || open_write(lane, urgent_);
}

// The peer ends all lanes together, and what it said before on the first one may still be on its way: the connection
// ends with that lane, or soon if only this one was lost.
void Connection::express_ended() noexcept { express_end_ns_ = host_.now_ns() + kAfterExpressNs; }

// Reads the express lane, and answers at once: the rest of the pass may take long. While nothing urgent comes and the
// connection is idle, it is looked at seldom, since a look may be a system call.
uint32_t Connection::attend_express(uint64_t now_ns) noexcept {
  constexpr uint32_t kPatience = 64;
  constexpr uint32_t kSeldom = 16;
  if (!attentive_ && quiet_passes_ > kPatience && quiet_passes_ % kSeldom != 0) return 0;
  if (express_end_ns_ != kNoDeadline) {
    if (now_ns >= express_end_ns_) break_lane(*express_, IoResult::closed(), "reading");
    return 0;
  }
  const uint32_t read = attend(*express_, now_ns);
  if (read == 0 || down_) return read;
  std::size_t budget = kMostExpressBytes;
  while (budget != 0 && flush_step(*express_, budget)) continue;
  return read;
}

// A piece of the payload alone, of one frame if frames that came together have to be taken one by one.
IoResult Connection::fill_piece(LaneState& lane, std::size_t& asked) noexcept {
  const std::size_t most = lane.in.together.one_by_one ? lane.in.target_left() : SIZE_MAX;
  const std::size_t count = lane.in.target.head(std::min(most, piece_bytes(lane)), lane.pieces());
  asked = 0;
  for (std::size_t i = 0; i < count; ++i) asked += lane.pieces()[i].iov_len;
  const IoResult result = lane.lane->read(lane.pieces().first(count));
  if (result.status == Status::kOk) account(lane.in, result.bytes);
  return result;
}

}  // namespace towline::framing
