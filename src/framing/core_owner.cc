// The owner's side: places WRITEs, answers READs, passes on the host's refusals.
#include <algorithm>
#include <new>

#include "framing/connection.h"

namespace towline::framing {
namespace {

constexpr uint32_t kMostUrgentAnswers = 7;  // put before others, in a row

}  // namespace

// Pins the regions and appends the addresses of the segments. Neighbours in one region are pinned by one call
// over their whole span: a region is one range, so the span lies inside it exactly if every segment does.
Status Connection::pin_segments(std::span<const WireSegment> segments, uint32_t access, IovList& target,
                                PinSet& pins) noexcept {
  for (std::size_t i = 0; i < segments.size();) {
    uint64_t low = segments[i].address;
    uint64_t high = low + segments[i].length;
    std::size_t end = i + 1;
    for (; end < segments.size() && segments[end].key == segments[i].key; ++end) {
      low = std::min(low, segments[end].address);
      high = std::max(high, segments[end].address + segments[end].length);
    }
    void* pointer = nullptr;
    void* pin = nullptr;
    const int32_t result = host_.pin(segments[i].key, low, high - low, access, &pointer, &pin);
    if (result != 0) return result < 0 ? static_cast<Status>(result) : Status::kInternal;
    pins.add(pin);
    for (; i < end; ++i)
      target.append(static_cast<uint8_t*>(pointer) + (segments[i].address - low),
                    static_cast<std::size_t>(segments[i].length));
  }
  return Status::kOk;
}

// A frame is placed whole or not at all.
// False: not yet.
bool Connection::begin_write(LaneState& lane, const uint8_t* preamble) noexcept {
  Input& in = lane.in;
  if (in.landing() && in.landed->full()) {
    in.stalled = true;
    return false;
  }
  const std::size_t count = in.header.segment_count;
  std::memcpy(wire_segments_.data(), preamble + kHeaderBytes, count * sizeof(WireSegment));
  in.target.clear();
  in.beyond = 0;
  in.refused = pin_segments({wire_segments_.data(), count}, TOWLINE_ACCESS_WRITE, in.target, in.pins);
  in.state = InputState::kPayload;
  if (in.refused == Status::kOk) return true;
  in.pins.release(host_);
  in.target.clear();
  if (in.refused == Status::kPermissionDenied && options_.make_lander) {
    if (!land_write(lane, count)) {
      in.state = InputState::kHeader;
      return false;
    }
    if (in.refused == Status::kOk) return true;
  }
  in.payload_left = in.header.payload_bytes;
  in.state = InputState::kDrain;
  return true;
}

void Connection::end_write(LaneState& lane, bool good, std::span<const uint8_t> message) noexcept {
  Input& in = lane.in;
  if (in.slot != kNoSlot || in.landing()) return land_written(lane, good, message);
  if (in.together.count == 0) in.pins.release(host_);
  if (in.refused == Status::kOk && !good) in.refused = Status::kCorrupt;
  const bool chained = (in.header.flags & kFlagChained) != 0;
  if (in.refused != Status::kOk) {
    refuse_write(lane,
                 {in.header.sequence, in.refused, in.header.part, in.header.offset, in.header.payload_bytes});
    if (chained) in.refused_part = in.header.part;
  } else {
    host_.served(peer_, TOWLINE_SERVED_WRITE, in.header.payload_bytes);
  }
  if (message.empty()) return;
  if (in.refused != Status::kOk || (chained && in.refused_part == in.header.part))
    ++statistics_.messages_dropped;
  else
    host_.message(peer_, message.data(), message.size());
}

void Connection::refuse_write(LaneState& lane, const Refusal& refusal) noexcept {
  if (lane.out.refusals.full()) {
    protocol_error(lane, "more uncounted frames than allowed");
    return;
  }
  note_refusal(lane, refusal.status);
  lane.out.refusals.push(refusal);
}

// Also called while frames are written: the next progress() ends the connection.
void Connection::note_refusal(LaneState& lane, Status status) noexcept {
  ++statistics_.refused;
  host_.refused(options_.worker, peer_, status);
  if (options_.refusals == nullptr || options_.refusals->take(host_.now_ns())) return;
  lane.broken = IoResult::error(Status::kProtocol, 0, "too many of the peer's accesses were refused");
}

bool Connection::begin_read(LaneState& lane, const uint8_t* preamble) noexcept {
  if (free_answers_.empty()) return protocol_error(lane, "more read requests than credits");
  const uint32_t index = free_answers_.back();
  ReadAnswer& answer = answers_[index];
  const FrameHeader& header = lane.in.header;
  if (answer.segments == nullptr) answer.segments.reset(new (std::nothrow) WireSegment[kMaxSegments]);
  if (answer.segments == nullptr) {
    fail(Status::kOutOfMemory, "no memory to answer a read request");
    return false;
  }
  free_answers_.pop_back();
  std::memcpy(answer.segments.get(), preamble + kHeaderBytes, header.segment_count * sizeof(WireSegment));
  answer.segment_count = header.segment_count;
  answer.segment = 0;
  answer.in_segment = 0;
  answer.place = ReadAnswer::Place::kUnknown;
  answer.apart = (header.flags & kFlagApart) != 0;
  answer.serial = ++last_answer_serial_;
  answer.wire_id = header.part;
  answer.next = header.offset;
  answer.end = header.offset + header.extent;
  // Answers from GPU memory are gathered in order.
  Output& out = lane.out;
  const bool first = (header.flags & kFlagUrgent) != 0 && landings_ == nullptr &&
                     (out.answers.empty() || out.urgent_answers < kMostUrgentAnswers);
  out.urgent_answers = first && !out.answers.empty() ? out.urgent_answers + 1 : 0;
  if (first)
    out.answers.push_front(index);
  else
    out.answers.push(index);
  return true;
}

// Cuts the next frame's worth off a read request's segments; returns how many pieces it has.
std::size_t Connection::cut_answer(ReadAnswer& answer, uint64_t frame_bytes) noexcept {
  std::size_t count = 0;
  while (frame_bytes != 0 && answer.segment < answer.segment_count) {
    const WireSegment& segment = answer.segments[answer.segment];
    const uint64_t here = std::min(frame_bytes, segment.length - answer.in_segment);
    wire_segments_[count++] = {segment.key, segment.address + answer.in_segment, here};
    frame_bytes -= here;
    answer.in_segment += here;
    if (answer.in_segment == segment.length) {
      ++answer.segment;
      answer.in_segment = 0;
    }
  }
  return count;
}

// The next DATA frame of the lane's oldest read request. Requests that the host refuses are answered by a
// NACK.
bool Connection::open_answer(LaneState& lane) noexcept {
  Output& out = lane.out;
  if (landings_ != nullptr) {
    gather_answers(lane);
    if (open_gathered_answer(lane)) return true;
    if (!out.gathers.empty()) return false;  // in order
  }
  while (!out.answers.empty() && may_emit(lane, kHeaderBytes)) {
    const uint32_t index = out.answers.front();
    ReadAnswer& answer = answers_[index];
    if (answer.place == ReadAnswer::Place::kGpu) return false;  // until a slot is free
    const uint32_t segment = answer.segment;
    const uint64_t in_segment = answer.in_segment;
    const std::size_t bytes = std::min<uint64_t>(lane.frame_bytes, answer.end - answer.next);
    const bool apart = answer.apart && goes_apart(lane, bytes);
    const uint32_t padded = apart ? 0 : padding(lane, kHeaderBytes, bytes);
    out.frame.clear();
    if (!apart) out.frame.append(out.preamble.get(), kHeaderBytes + padded);
    const std::size_t count = cut_answer(answer, bytes);
    Status status = pin_segments({wire_segments_.data(), count}, TOWLINE_ACCESS_READ, out.frame, out.pins);
    if (status != Status::kOk && turns_to_gpu(lane, answer, status)) {
      answer.segment = segment;
      answer.in_segment = in_segment;
      return open_answer(lane);
    }
    if (status != Status::kOk) {
      out.pins.release(host_);
      note_refusal(lane, status);
      emit_nack(lane, answer.wire_id, answer.next, answer.end - answer.next, status);
      out.answers.pop();
      free_answers_.push_back(index);  // within its capacity
      continue;
    }
    FrameHeader header = new_header(lane, FrameType::kData);
    header.padding_bytes = padded;
    header.payload_bytes = static_cast<uint32_t>(bytes);
    header.part = answer.wire_id;
    header.offset = answer.next;
    end_header(lane, header, apart, {});
    out.served = bytes;
    answer.next += bytes;
    if (answer.next == answer.end) {
      out.answers.pop();
      free_answers_.push_back(index);
    }
    return true;
  }
  return false;
}

}  // namespace towline::framing
