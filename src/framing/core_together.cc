// WRITE frames whose headers go before the payload of all of them (kFlagTogether): many small parts then cost one
// system call on each side. Each is a frame of its own, with its sequence number, refusal and count, so that parts end
// one by one.
#include <algorithm>

#include "framing/connection.h"

namespace towline::framing {

// ---- going out

// Could a frame that is the whole part lie in a row of frames?
bool Connection::may_join(const Part& part) noexcept {
  const Prepared& prepared = *part.prepared;
  return !part.chained && part.produced == 0 && prepared.most_bytes == UINT64_MAX && !prepared.lands &&
         !prepared.mixed;
}

// Are there two parts or more that can begin a row? Where calls are cheap each frame goes out by itself.
bool Connection::opens_together(const LaneState& lane, const PartList& from) const noexcept {
  const Part* const first = from.front();
  if (first == nullptr || first->next == nullptr || lane.traits.calls_are_cheap) return false;
  if ((options_.features & kFeatureTogether) == 0 || options_.checksum) return false;
  if (lane.lane->payload_flow() != nullptr) return false;
  return first->message.empty() && may_join(*first) && may_join(*first->next) &&
         first->bytes() + first->next->bytes() <= lane.frame_bytes;
}

// The parts at the front of the list, as far as they fit into what one frame may have. False: fewer than two do.
bool Connection::open_together(LaneState& lane, PartList& from) noexcept {
  Output& out = lane.out;
  FramesOut& together = out.together;
  const std::size_t most_frames =
      std::min<std::size_t>(kMostTogether, options_.most_uncounted_frames - out.sent.size());
  std::array<uint16_t, kMostTogether> segment_counts;
  std::size_t segments = 0;
  std::size_t bytes = 0;
  together.clear();
  for (Part* part = from.front(); part != nullptr && together.count < most_frames; part = part->next) {
    if (!may_join(*part) || part->bytes() > lane.frame_bytes - bytes) break;
    const std::size_t room = options_.max_segments - segments;
    const std::size_t count =
        room == 0 ? 0 : part->cursor->next(segments_.data() + segments, room, part->bytes());
    if (!part->cursor->done() || would_lend(lane, part->bytes(), count)) {
      part->cursor->seek(part->begin, part->end);
      break;
    }
    bytes += part->bytes();
    segments += count;
    segment_counts[together.count] = static_cast<uint16_t>(count);
    together.frames[together.count++] = {part, bytes};
    if (!part->message.empty()) break;
  }
  if (together.count < 2) {
    if (together.count != 0) from.front()->cursor->seek(from.front()->begin, from.front()->end);
    together.clear();
    return false;
  }
  uint8_t* preamble = out.preamble.get();
  const towline_segment* of_frame = segments_.data();
  out.frame_sequence = out.sequence;
  for (uint32_t i = 0; i < together.count; ++i) {
    Part& part = *together.frames[i].part;
    FrameHeader header = new_header(lane, FrameType::kWrite);
    if (i + 1 != together.count) header.flags |= kFlagTogether;
    if (part.urgent && (options_.features & kFeatureUrgent) != 0) header.flags |= kFlagUrgent;
    header.segment_count = segment_counts[i];
    header.payload_bytes = static_cast<uint32_t>(part.bytes());
    header.message_bytes = static_cast<uint32_t>(part.message.size());
    header.part = part.wire_id();
    header.offset = part.begin;
    if (i + 1 == together.count)
      header.padding_bytes = padding(
          lane, static_cast<std::size_t>(preamble - out.preamble.get()) + preamble_bytes(header), bytes);
    describe_segments({of_frame, segment_counts[i]}, part.regions, preamble);
    encode_header(header, preamble);
    preamble += preamble_bytes(header);
    of_frame += segment_counts[i];
    track(lane, part, header.sequence, part.bytes());
    from.remove(part);
    part.state = PartState::kWaiting;
  }
  out.frame.clear();
  out.head_left = static_cast<std::size_t>(preamble - out.preamble.get());
  out.payload_left = bytes;
  out.frame.append(out.preamble.get(), out.head_left);
  for (const towline_segment& segment : std::span(segments_.data(), segments))
    out.frame.append(reinterpret_cast<const void*>(segment.local), static_cast<std::size_t>(segment.length));
  Part& last = *together.frames[together.count - 1].part;
  if (!last.message.empty()) {
    const std::span<const uint8_t> message = message_of(last);
    out.frame.append(message.data(), message.size());
  }
  out.apart = out.lent = false;
  out.ahead = out.queue.size();
  out.frame_part = together.frames[0].part;
  return true;
}

// So much payload of the row has been written: the peer may count the frames that are complete.
void Connection::pass_frames(Output& out) noexcept {
  FramesOut& together = out.together;
  if (together.count == 0) return;
  const std::size_t written = together.frames[together.count - 1].end - out.payload_left;
  while (together.next + 1 < together.count && written >= together.frames[together.next].end) {
    ++out.frame_sequence;
    out.frame_part = together.frames[++together.next].part;
  }
}

// Bytes of the frame under way that one write may take: all, or, once memory of one of a row turned out to be missing,
// those of one frame, so that the right part is blamed.
std::size_t Connection::most_written(const LaneState& lane) const noexcept {
  const Output& out = lane.out;
  const FramesOut& together = out.together;
  if (!together.one_by_one) return piece_bytes(lane);
  const std::size_t written = together.frames[together.count - 1].end - out.payload_left;
  const std::size_t rest = out.head_left + (together.frames[together.next].end - written);
  return std::min(piece_bytes(lane), rest == 0 ? out.frame.bytes() : rest);
}

// ---- coming in

// A header of a row, the last one too. False: bytes are missing, it has to wait, or the connection is down.
bool Connection::begin_together(LaneState& lane, const uint8_t* preamble) noexcept {
  Input& in = lane.in;
  FramesIn& together = in.together;
  const FrameHeader& header = in.header;
  if (header.type != FrameType::kWrite || (header.flags & (kFlagApart | kFlagChecksum | kFlagChained)) != 0)
    return protocol_error(lane, "a frame that can't share its payload's place with others");
  if (together.count == kMostTogether || header.segment_count > kMaxSegments - together.segments ||
      header.payload_bytes > kMaxPayloadBytes - together.bytes)
    return protocol_error(lane, "too many frames together");
  if (together.count == 0) {
    if (in.landing()) {  // these are counted in order: wait until the frames before are
      in.stalled = true;
      return false;
    }
    in.target.clear();
  }
  std::memcpy(wire_segments_.data(), preamble + kHeaderBytes, header.segment_count * sizeof(WireSegment));
  const IovList::Mark before = in.target.mark();
  const Status refused =
      pin_segments({wire_segments_.data(), header.segment_count}, TOWLINE_ACCESS_WRITE, in.target, in.pins);
  if (refused != Status::kOk) {
    in.target.rewind(before);
    together.one_by_one = true;
  }
  together.frames[together.count++] = {header, refused, 0};
  together.segments += header.segment_count;
  together.bytes += header.payload_bytes;
  together.preambles += preamble_bytes(header);
  if ((header.flags & kFlagTogether) != 0) return true;
  std::size_t beyond = 0;
  for (uint32_t i = together.count; i-- > 0;) {
    FramesIn::Frame& frame = together.frames[i];
    frame.beyond = beyond;
    if (frame.refused == Status::kOk) beyond += frame.header.payload_bytes;
  }
  in.expected_preamble = together.preambles;
  in.bulk = together.bytes >= kBulkBytes;
  next_together(lane);
  return true;
}

// The payload of the row's next frame is expected. The last one is then a frame like any other.
void Connection::next_together(LaneState& lane) noexcept {
  Input& in = lane.in;
  FramesIn& together = in.together;
  const FramesIn::Frame& frame = together.frames[together.next++];
  in.header = frame.header;
  in.refused = frame.refused;
  in.beyond = frame.beyond;
  in.payload_left = frame.header.payload_bytes;
  in.state = frame.refused == Status::kOk ? InputState::kPayload : InputState::kDrain;
  if (together.next == together.count) together.clear();
}

}  // namespace towline::framing
