// Reading lanes and taking frames apart. Everything is read into private memory first: headers, segments and
// messages into a lane's staging, payload directly to its destination (and the next frame's beginning into
// staging, in the same call). A frame is begun when its preamble has arrived and is checked, and counted when
// it has been handled.
#include <algorithm>
#include <cerrno>
#include <utility>

#include <fmt/format.h>

#include "base/sync/wake_path.h"
#include "base/wire_status.h"
#include "framing/connection.h"

namespace towline::framing {

namespace {

constexpr uint32_t kLooks = 100;  // polls of an empty lane for the rest of a frame, about a microsecond

}  // namespace

TOWLINE_WAKE_PATH uint32_t Connection::read_lane(LaneState& lane) noexcept {
  uint32_t work = 0;
  uint32_t looks = kLooks;
  if (lane.in.stalled && !retry_stalled(lane)) return 0;
  std::size_t budget = pass_bytes(lane);
  while (!down_ && budget != 0 && !(lane.express && express_end_ns_ != kNoDeadline)) {
    if (lane.in.state == InputState::kHeader && lane.lane->looks_empty()) break;
    std::size_t asked = 0;
    const IoResult result = fill(lane, asked);
    if (result.status == Status::kClosed && take_told(lane)) ++work;
    if (result.status == Status::kAgain) {
      // In the middle of a frame the rest is on its way.
      if (work == 0 || lane.in.state != InputState::kPayload || !lane.traits.calls_are_cheap || looks-- == 0)
        break;
      continue;
    }
    if (result.status == Status::kClosed && lane.express) {
      express_ended();
      break;
    }
    if (result.vendor_code == EFAULT && drop_unmapped(lane)) {
      ++work;
      continue;
    }
    if (result.status != Status::kOk) {
      break_lane(lane, result, "reading");
      break;
    }
    ++work;
    statistics_.bytes_received += result.bytes;
    budget -= std::min(budget, result.bytes);
    take_apart(lane);
    if (lane.in.stalled || (!lane.express && urgent_waits())) break;
    // The lane is empty. If polling is cheap, or more must follow, some bytes may have arrived meanwhile.
    const bool more_follows =
        lane.in.state == InputState::kPayload || !lane.in.reads.empty() || lane.in.together.count != 0;
    if (result.bytes < asked && !lane.traits.calls_are_cheap && !more_follows) break;
  }
  if (!down_ && take_told(lane)) ++work;
  return work;
}

// Takes the peer's count that was sent beside the stream.
TOWLINE_WAKE_PATH bool Connection::take_told(LaneState& lane) noexcept {
  const std::optional<uint32_t> told = lane.lane->told_count();
  if (!told) return false;
  if (!take_ack(lane, *told)) protocol_error(lane, "more frames counted than were sent");
  return true;
}

// One read: the bytes for the current state, and some that follow them.
TOWLINE_WAKE_PATH IoResult Connection::fill(LaneState& lane, std::size_t& asked) noexcept {
  Input& in = lane.in;
  if (in.apart && (in.state == InputState::kPayload || in.state == InputState::kDrain))
    return fill_from_flow(lane, asked);
  const std::size_t have = in.end - in.begin;
  const std::size_t ahead = in.bulk ? in.expected_preamble : lane.traits.read_ahead_bytes;
  std::size_t wanted = 0;
  switch (in.state) {
    case InputState::kHeader:
      wanted = std::max(in.needed, ahead) - have;
      break;
    case InputState::kMessage:
      wanted = in.header.message_bytes - have + ahead;
      break;
    case InputState::kPayload:
      wanted = in.last_message_bytes() + ahead;
      break;
    case InputState::kDrain:
      wanted = in.payload_left + in.header.message_bytes + ahead;
      break;
  }
  if (have == 0) in.begin = in.end = 0;
  if (wanted > kStagingBytes - in.end && in.begin != 0) {
    std::memmove(in.staging.get(), in.staging.get() + in.begin, have);
    in.begin = 0;
    in.end = have;
  }
  if (in.state == InputState::kPayload && (in.target.bytes() > piece_bytes(lane) || in.together.one_by_one))
    return fill_piece(lane, asked);
  const iovec space = {in.staging.get() + in.end, std::min(wanted, kStagingBytes - in.end)};
  const std::size_t target_bytes = in.state == InputState::kPayload ? in.target.bytes() : 0;
  asked = target_bytes + space.iov_len;
  const IoResult result =
      lane.lane->read(target_bytes != 0 ? in.target.with_back(space) : std::span(&space, 1));
  if (result.status != Status::kOk) return result;
  const std::size_t placed = std::min(result.bytes, target_bytes);
  if (placed != 0) account(in, placed);
  in.end += result.bytes - placed;
  return result;
}

// The first `bytes` of the target hold their payload now.
void Connection::account(Input& in, std::size_t bytes) noexcept {
  if ((in.header.flags & kFlagChecksum) == 0) {
    in.target.advance(bytes);
    return;
  }
  in.target.advance(bytes, [&](const uint8_t* data, std::size_t here) {
    in.checksum = crc32c({data, here}, in.checksum);
  });
}

TOWLINE_WAKE_PATH void Connection::take_apart(LaneState& lane) noexcept {
  Input& in = lane.in;
  for (bool more = true; more && !down_;) {
    const std::size_t have = in.end - in.begin;
    switch (in.state) {
      case InputState::kHeader:
        more = have >= in.needed && begin_frame(lane);
        break;
      case InputState::kPayload: {
        if (in.apart) {
          more = in.payload_to_come() == 0 && end_payload(lane);
          break;
        }
        const std::size_t here = std::min(have, in.target_left());
        in.target.copy_in({in.staging.get() + in.begin, here});
        account(in, here);
        in.begin += here;
        more = in.target_left() == 0 && end_payload(lane);
        break;
      }
      case InputState::kDrain: {
        if (in.apart) {
          more = in.payload_left == 0 && end_payload(lane);
          break;
        }
        const std::size_t here = std::min(have, in.payload_left);
        in.begin += here;
        in.payload_left -= here;
        more = in.payload_left == 0 && end_payload(lane);
        break;
      }
      case InputState::kMessage:
        more = have >= in.header.message_bytes && end_message(lane);
        break;
    }
  }
}

// False when bytes are missing, or the connection is down.
TOWLINE_WAKE_PATH bool Connection::begin_frame(LaneState& lane) noexcept {
  Input& in = lane.in;
  const uint8_t* const data = in.staging.get() + in.begin;
  if (const char* wrong = decode_header(data, in.header)) return protocol_error(lane, wrong);
  const std::size_t preamble = preamble_bytes(in.header);
  if (in.end - in.begin < preamble) {
    in.needed = preamble;
    return in.needed <= in.end - in.begin;
  }
  if (const char* wrong = check_preamble(data, in.header)) return protocol_error(lane, wrong);
  if (in.header.sequence != in.received + in.together.count)
    return protocol_error(lane, "frame out of sequence");
  if (!take_ack(lane, in.header.ack)) return protocol_error(lane, "more frames counted than were sent");
  if ((in.header.flags & kFlagUrgent) != 0) note_urgent();
  in.begin += preamble;
  if (in.together.count == 0) in.begun = in.header.sequence;
  const bool together = (in.header.flags & kFlagTogether) != 0 || in.together.count != 0;
  if (!together) in.expected_preamble = preamble;
  in.needed = kHeaderBytes;
  in.checksum = 0;
  in.refused = Status::kOk;
  in.apart = in.header.payload_bytes != 0 && (in.header.flags & kFlagApart) != 0;
  in.bulk = in.header.payload_bytes >= kBulkBytes && !in.apart;
  if (in.apart && lane.lane->payload_flow() == nullptr)
    return protocol_error(lane, "payload on a flow that this lane does not have");
  if (together) return begin_together(lane, data) || stall(in, preamble);
  switch (in.header.type) {
    case FrameType::kWrite:
      return begin_write(lane, data) || stall(in, preamble);
    case FrameType::kData:
      return begin_data(lane) || stall(in, preamble);
    case FrameType::kMessage:
      in.state = InputState::kMessage;
      return true;
    case FrameType::kRead:
      return begin_read(lane, data) && count_frame(lane);
    case FrameType::kNack:
      return take_nack(lane) && count_frame(lane);
    case FrameType::kAck:
      return count_frame(lane);
    case FrameType::kBye:
      if (lane.express) {
        express_ended();
        return false;
      }
      break;
  }
  fail(Status::kPeerLost, "the peer said goodbye");
  return false;
}

// The frame that has begun waits for a slot, with its preamble where it was; or the connection is down.
bool Connection::stall(Input& in, std::size_t preamble) noexcept {
  if (!in.stalled) return false;
  in.begin -= preamble;
  in.needed = preamble;
  return false;
}

bool Connection::end_payload(LaneState& lane) noexcept {
  Input& in = lane.in;
  if (in.header.message_bytes != 0) {
    in.state = InputState::kMessage;
    return true;
  }
  const bool good = (in.header.flags & kFlagChecksum) == 0 || in.checksum == in.header.payload_crc;
  if (in.header.type == FrameType::kData)
    end_data(lane, good);
  else
    end_write(lane, good, {});
  return count_frame(lane);
}

// Ends a message, of a WRITE or standalone.
TOWLINE_WAKE_PATH bool Connection::end_message(LaneState& lane) noexcept {
  Input& in = lane.in;
  const std::span<const uint8_t> message{in.staging.get() + in.begin, in.header.message_bytes};
  const bool good =
      (in.header.flags & kFlagChecksum) == 0 || crc32c(message, in.checksum) == in.header.payload_crc;
  in.begin += message.size();
  if (in.header.type == FrameType::kWrite) {
    end_write(lane, good, message);
  } else if (!good) {
    return protocol_error(lane, "checksum of a message does not match");
  } else {
    host_.message(peer_, message.data(), message.size());
  }
  return !down_ && count_frame(lane);
}

TOWLINE_WAKE_PATH bool Connection::count_frame(LaneState& lane) noexcept {
  Input& in = lane.in;
  in.state = InputState::kHeader;
  in.received = in.header.sequence + 1;
  ++statistics_.frames_received;
  if (in.landing()) {
    end_landed(lane);
    return !down_;
  }
  in.counted = in.received;
  if (in.header.type == FrameType::kWrite) in.ack_due = true;
  if (in.together.count != 0 && !down_) next_together(lane);
  return true;
}

// The peer can't have counted frames whose bytes are still being sent from local memory. An older count is
// not an error: a count beside the stream can overtake one in a frame whose header waits for room, and the
// other way round.
TOWLINE_WAKE_PATH bool Connection::take_ack(LaneState& lane, uint32_t ack) noexcept {
  Output& out = lane.out;
  const uint32_t limit = out.frame_open ? out.frame_sequence : out.sequence;
  if (static_cast<int32_t>(ack - out.acked) <= 0) return true;
  if (ack - out.acked > limit - out.acked) return false;
  out.acked = ack;
  while (!out.sent.empty() && static_cast<int32_t>(ack - out.sent.front().sequence) > 0) {
    const SentFrame frame = out.sent.front();
    out.sent.pop();
    out.unacked_bytes -= frame.bytes;
    --frame.part->outstanding;
    frame.part->confirmed += frame.bytes;
    settle(*frame.part);
  }
  return true;
}

// Refuses our oldest read request on this lane, or a WRITE frame that is not counted yet.
bool Connection::take_nack(LaneState& lane) noexcept {
  const FrameHeader& header = lane.in.header;
  const uint64_t end = header.offset + header.extent;
  const Status status = error_from_wire(header.status);
  if (!lane.in.reads.empty()) {
    (void)find_request(lane);
    const ReadRequest& request = requests_[lane.in.reads.front()];
    if (request.wire_id == header.part) {
      if (header.offset != request.next || end != request.end)
        return protocol_error(lane, "a read request refused in part");
      settle_request(lane, status);
      return true;
    }
  }
  Part* part = parts_.find(header.part);
  if (part == nullptr || part->is_read || part->outstanding == 0 || header.offset < part->begin ||
      end > part->begin + part->produced)
    return protocol_error(lane, "refused what was not asked");
  note_failure(*part, status, header.offset, end);
  stop_producing(*part);
  return true;
}

// Owners answer in order, except urgent requests: the request that the frame belongs to becomes the first. False: no
// such request.
bool Connection::find_request(LaneState& lane) noexcept {
  Input& in = lane.in;
  for (std::size_t i = 0; i < in.reads.size(); ++i) {
    const ReadRequest& request = requests_[in.reads[i]];
    if (request.wire_id != in.header.part || request.next != in.header.offset) continue;
    if (i != 0) in.reads.bring_forward(i);
    return true;
  }
  return false;
}

bool Connection::begin_data(LaneState& lane) noexcept {
  Input& in = lane.in;
  if (in.reads.empty()) return protocol_error(lane, "data that was not asked for");
  const bool found = find_request(lane);
  ReadRequest& request = requests_[in.reads.front()];
  if (!found || in.header.payload_bytes > request.end - request.next)
    return protocol_error(lane, "data out of order");
  if (request.part->prepared->lands) return land_data(lane, request);
  const std::size_t count = request.cursor->next(segments_.data(), segments_.size(), in.header.payload_bytes);
  in.target.clear();
  in.beyond = 0;
  for (std::size_t i = 0; i < count; ++i)
    in.target.append(reinterpret_cast<const void*>(segments_[i].local),
                     static_cast<std::size_t>(segments_[i].length));
  if (in.target.bytes() != in.header.payload_bytes)
    return protocol_error(lane, "data in more segments than asked for");
  in.state = InputState::kPayload;
  return true;
}

void Connection::end_data(LaneState& lane, bool good) noexcept {
  ReadRequest& request = requests_[lane.in.reads.front()];
  if (lane.in.slot != kNoSlot) return land_received_data(lane, request, good);
  const uint64_t bytes = lane.in.header.payload_bytes;
  request.part->confirmed += bytes;
  if (lane.in.refused != Status::kOk)
    note_failure(*request.part, lane.in.refused, request.next, request.next + bytes, EFAULT);
  else if (!good)
    note_failure(*request.part, Status::kCorrupt, request.next, request.next + bytes);
  request.next += bytes;
  note_answered(lane, bytes);
  if (request.next == request.end) settle_request(lane, Status::kOk);
}

void Connection::note_answered(LaneState& lane, uint64_t bytes) noexcept {
  lane.in.read_bytes -= bytes;
  lane.in.answered_bytes += bytes;
  read_bytes_ -= bytes;
}

// The oldest read request of the lane has been answered, or the rest of it refused.
void Connection::settle_request(LaneState& lane, Status status) noexcept {
  const uint32_t index = lane.in.reads.front();
  ReadRequest& request = requests_[index];
  const uint64_t left = request.end - request.next;
  lane.in.reads.pop();
  note_answered(lane, left);
  free_requests_.push_back(index);  // within its capacity
  Part* const part = std::exchange(request.part, nullptr);
  --part->outstanding;
  if (left != 0) {
    part->confirmed += left;
    note_failure(*part, status, request.next, request.end);
  }
  if (part->status != Status::kOk) stop_producing(*part);
  settle(*part);
}

bool Connection::protocol_error(LaneState& lane, const char* what) noexcept {
  const FrameHeader& header = lane.in.header;
  try {
    fail(Status::kProtocol,
         fmt::format("the peer broke the protocol on lane {} ({}): {} (frame {} of type {})", lane.index,
                     lane.lane->describe(), what, lane.in.received, static_cast<unsigned>(header.type))
             .c_str());
  } catch (...) {
    fail(Status::kProtocol, what);
  }
  return false;
}

}  // namespace towline::framing
