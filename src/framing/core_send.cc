// Making frames; core_flush.cc writes them. A lane's bytes are, in order: the queue's first `ahead` bytes, the current
// frame (gathered directly from its payload's memory), the rest of the queue. Sequence numbers follow the
// same order.
#include <algorithm>
#include <utility>

#include "base/sync/wake_path.h"
#include "framing/connection.h"

namespace towline::framing {
namespace {

// From this size on padding is less than a hundredth of a frame, and pays.
constexpr std::size_t kAlignedFrom = 512u << 10;
constexpr uint32_t kMostUrgent = 7;       // frames or requests in a row while others wait
constexpr std::size_t kRequestsKept = 4;  // for urgent READs

}  // namespace

LaneState& Connection::least_loaded() noexcept {
  const auto load = [](const LaneState& lane) {
    return lane.out.unacked_bytes + lane.out.queue.size() + lane.out.short_parts.bytes();
  };
  LaneState* best = lanes_.front().get();
  for (const auto& lane : lanes_)
    if (!lane->express && load(*lane) < load(*best)) best = lane.get();
  return *best;
}

LaneState& Connection::least_read_from() noexcept {
  LaneState* best = lanes_.front().get();
  for (const auto& lane : lanes_)
    if (!lane->express && lane->in.read_bytes < best->in.read_bytes) best = lane.get();
  return *best;
}

void describe_segments(std::span<const towline_segment> segments, const towline_region_ref* regions,
                       uint8_t* preamble) noexcept {
  uint8_t* out = preamble + kHeaderBytes;
  for (const towline_segment& segment : segments) {
    const WireSegment wire = {regions[segment.remote_region].key, segment.remote, segment.length};
    std::memcpy(out, &wire, sizeof wire);
    out += sizeof wire;
  }
}

void Connection::add_checksum(FrameHeader& header, std::span<const iovec> payload) const noexcept {
  if (!options_.checksum) return;
  header.flags |= kFlagChecksum;
  header.payload_crc = checksum_of(payload);
}

// The padding between a preamble of `preamble` bytes and its payload.
uint32_t Connection::padding(const LaneState& lane, std::size_t preamble, std::size_t payload) noexcept {
  if (payload < kAlignedFrom) return 0;
  return static_cast<uint32_t>(-preamble & (lane.traits.payload_alignment - 1));
}

// Takes the next sequence number: the frame must follow.
TOWLINE_WAKE_PATH FrameHeader Connection::new_header(LaneState& lane, FrameType type) noexcept {
  FrameHeader header;
  header.type = type;
  header.sequence = lane.out.sequence++;
  header.ack = lane.count();
  if (header.ack == lane.in.counted) lane.in.ack_due = false;
  ++statistics_.frames_sent;
  return header;
}

bool Connection::may_emit(const LaneState& lane, std::size_t bytes) const noexcept {
  return lane.out.queue.room() >= bytes;
}

// Queues or writes a whole frame, copying it. may_emit() has confirmed the room.
TOWLINE_WAKE_PATH void Connection::emit(LaneState& lane, std::span<const iovec> pieces,
                                        std::size_t bytes) noexcept {
  Output& out = lane.out;
  std::size_t written = 0;
  if (out.nothing_queued() && !out.blocked && (lane.traits.calls_are_cheap || !out.inline_used)) {
    out.inline_used = true;
    const IoResult result = lane.lane->write(pieces);
    if (result.status == Status::kOk) {
      written = result.bytes;
      statistics_.bytes_sent += written;
      if (written == bytes) return;
    } else if (result.status != Status::kAgain) {
      lane.broken = result;
      return;
    }
    out.blocked = true;
  }
  for (const iovec& piece : pieces) {
    const std::size_t skipped = std::min(written, piece.iov_len);
    written -= skipped;
    out.queue.push(static_cast<const uint8_t*>(piece.iov_base) + skipped, piece.iov_len - skipped);
  }
}

TOWLINE_WAKE_PATH bool Connection::emit_plain(LaneState& lane, FrameHeader header) noexcept {
  if (!may_emit(lane, kHeaderBytes)) return false;
  const FrameHeader fresh = new_header(lane, header.type);
  header.sequence = fresh.sequence;
  header.ack = fresh.ack;
  uint8_t bytes[kHeaderBytes];
  encode_header(header, bytes);
  const iovec piece = {bytes, sizeof bytes};
  emit(lane, {&piece, 1}, sizeof bytes);
  return true;
}

bool Connection::emit_nack(LaneState& lane, uint64_t part, uint64_t offset, uint64_t bytes,
                           Status status) noexcept {
  FrameHeader header;
  header.type = FrameType::kNack;
  header.part = part;
  header.offset = offset;
  header.extent = bytes;
  header.status = static_cast<int32_t>(status);
  return emit_plain(lane, header);
}

TOWLINE_WAKE_PATH bool Connection::emit_message(LaneState& lane, const void* message,
                                                std::size_t bytes) noexcept {
  if (lane.broken.status != Status::kOk || !may_emit(lane, kHeaderBytes + bytes)) return false;
  FrameHeader header = new_header(lane, FrameType::kMessage);
  header.message_bytes = static_cast<uint32_t>(bytes);
  uint8_t encoded[kHeaderBytes];
  const iovec pieces[2] = {{encoded, sizeof encoded}, {const_cast<void*>(message), bytes}};
  add_checksum(header, {pieces + 1, 1});
  encode_header(header, encoded);
  emit(lane, pieces, kHeaderBytes + bytes);
  return true;
}

TOWLINE_WAKE_PATH int32_t Connection::send(const void* message, std::size_t bytes) noexcept {
  if (down_) return static_cast<int32_t>(Status::kPeerLost);
  if (bytes > kMaxMessageBytes) return static_cast<int32_t>(Status::kLimitExceeded);
  if (bytes == 0) return static_cast<int32_t>(Status::kInvalidArgument);
  if (lanes_.empty() || !emit_message(*lanes_.front(), message, bytes))
    return static_cast<int32_t>(Status::kAgain);
  wake_if_needed();
  return static_cast<int32_t>(Status::kOk);
}

// NACKs first, each before the count passes it, then the count if no frame has carried it.
TOWLINE_WAKE_PATH void Connection::emit_counts(LaneState& lane) noexcept {
  BoundedQueue<Refusal>& refusals = lane.out.refusals;
  while (!refusals.empty()) {
    const Refusal& refusal = refusals.front();
    if (!emit_nack(lane, refusal.part, refusal.offset, refusal.bytes, refusal.status)) return;
    refusals.pop();
    lane.in.ack_due = true;
  }
  if (!lane.in.ack_due) return;
  // Beside the stream, where that can't overtake a NACK.
  if (lane.out.queue.empty() && refusals.empty() && lane.lane->tell_count(lane.in.counted)) {
    lane.in.ack_due = false;
    ++statistics_.acks_sent;
    return;
  }
  FrameHeader header;
  header.type = FrameType::kAck;
  if (emit_plain(lane, header)) ++statistics_.acks_sent;
}

TOWLINE_WAKE_PATH bool Connection::may_read(const PartList& reading,
                                            std::size_t kept_requests) const noexcept {
  if (reading.empty() || free_requests_.size() <= kept_requests) return false;
  const Part& part = *reading.front();
  return read_bytes_ < options_.most_read_bytes || part.bytes() <= options_.small_bytes || fits_express(part);
}

TOWLINE_WAKE_PATH bool Connection::reads_possible() const noexcept {
  return may_read(urgent_reading_, 0) || may_read(reading_, kRequestsKept);
}

// Null: nothing can be asked for now.
TOWLINE_WAKE_PATH PartList* Connection::next_reading() noexcept {
  const bool others = may_read(reading_, kRequestsKept);
  if (may_read(urgent_reading_, 0) && (!others || urgent_reads_ < kMostUrgent)) {
    urgent_reads_ = others ? urgent_reads_ + 1 : 0;
    return &urgent_reading_;
  }
  urgent_reads_ = 0;
  return others ? &reading_ : nullptr;
}

// Parts take turns, so that a small READ does not wait for a large one.
TOWLINE_WAKE_PATH uint32_t Connection::pump_reads() noexcept {
  uint32_t made = 0;
  while (PartList* const reading = next_reading()) {
    Part& part = *reading->front();
    if (!request_read(part, fits_express(part) ? *express_ : least_read_from())) break;
    ++made;
  }
  return made;
}

bool Connection::request_read(Part& part, LaneState& lane) noexcept {
  const uint32_t index = free_requests_.back();
  ReadRequest& request = requests_[index];
  request.cursor = part.cursor;  // it will scatter the answer
  const uint64_t offset = part.cursor->position();
  const std::size_t count =
      part.prepared->most_bytes == UINT64_MAX
          ? part.cursor->next(segments_.data(), options_.max_segments, options_.read_request_bytes)
          : next_segments(part, *part.cursor, options_.read_request_bytes);
  const std::size_t bytes = kHeaderBytes + count * sizeof(WireSegment);
  if (!may_emit(lane, bytes) || lane.broken.status != Status::kOk) {
    part.cursor = request.cursor;
    return false;
  }
  free_requests_.pop_back();
  const uint64_t length = part.cursor->position() - offset;
  request.wire_id = part.wire_id();
  request.part = &part;
  request.next = offset;
  request.end = offset + length;
  lane.in.reads.push(index);
  lane.in.read_bytes += length;
  read_bytes_ += length;
  ++part.outstanding;
  part.produced += length;
  PartList& reading = *part.list;
  reading.remove(part);
  if (part.cursor->done())
    part.state = PartState::kWaiting;
  else
    reading.push(part);
  FrameHeader header = new_header(lane, FrameType::kRead);
  header.segment_count = static_cast<uint16_t>(count);
  header.part = part.wire_id();
  header.offset = offset;
  header.extent = length;
  if (part.urgent && (options_.features & kFeatureUrgent) != 0) header.flags |= kFlagUrgent;
  if (const PayloadFlow* flow = lane.lane->payload_flow(); flow != nullptr && flow->open())
    if ((options_.features & kFeatureApart) != 0) header.flags |= kFlagApart;
  describe_segments({segments_.data(), count}, part.regions, scratch_preamble_.get());
  encode_header(header, scratch_preamble_.get());
  const iovec piece = {scratch_preamble_.get(), bytes};
  emit(lane, {&piece, 1}, bytes);
  return true;
}

TOWLINE_WAKE_PATH bool Connection::can_open(const LaneState& lane) const noexcept {
  const Output& out = lane.out;
  if ((!out.answers.empty() || !out.gathers.empty()) && answer_opens(lane)) return true;
  if (out.sent.size() >= options_.most_uncounted_frames) return false;
  if (lane.express) return !out.short_parts.empty() || !urgent_.empty();
  return !urgent_.empty() || !out.short_parts.empty() || !out.long_parts.empty() || !striped_.empty() ||
         opens_gathered(lane);
}

// The next large frame, from the sources in turn.
void Connection::open_frame(LaneState& lane) noexcept {
  Output& out = lane.out;
  if (lane.express) return open_express_frame(lane);
  if (out.urgent_frames < kMostUrgent && open_write(lane, urgent_)) {
    out.frame_open = true;
    ++out.urgent_frames;
    return;
  }
  out.urgent_frames = 0;
  for (uint32_t tried = 0; tried < 5 && !out.frame_open; ++tried) {
    switch (out.turn++ % 5) {
      case 0:
        out.frame_open = open_answer(lane);
        break;
      case 1:
        out.frame_open = open_write(lane, out.short_parts);
        break;
      case 2:
        out.frame_open = open_write(lane, out.long_parts);
        break;
      case 3:
        out.frame_open = open_gathered(lane);
        break;
      default:
        out.frame_open = open_write(lane, striped_);
        break;
    }
  }
  if (!out.frame_open) out.frame_open = open_write(lane, urgent_);
}

bool Connection::open_write(LaneState& lane, PartList& from) noexcept {
  Output& out = lane.out;
  if (from.empty() || out.sent.size() >= options_.most_uncounted_frames) return false;
  if (opens_together(lane, from) && open_together(lane, from)) return true;
  Part& part = *from.front();
  if (!may_emit_header(lane, &part)) return false;
  const uint64_t offset = part.cursor->position();
  const std::size_t count = part.prepared->most_bytes == UINT64_MAX
                                ? part.cursor->next(segments_.data(), options_.max_segments, lane.frame_bytes)
                                : next_segments(part, *part.cursor, lane.frame_bytes);
  const uint64_t bytes = part.cursor->position() - offset;
  const bool last = part.cursor->done();
  const bool only = last && offset == part.begin;

  FrameHeader header = new_header(lane, FrameType::kWrite);
  if (part.chained && !only) header.flags |= kFlagChained;
  if (part.urgent && (options_.features & kFeatureUrgent) != 0) header.flags |= kFlagUrgent;
  header.segment_count = static_cast<uint16_t>(count);
  header.payload_bytes = static_cast<uint32_t>(bytes);
  const bool apart = goes_apart(lane, bytes);
  if (!apart) header.padding_bytes = padding(lane, preamble_bytes(header), bytes);
  header.part = part.wire_id();
  header.offset = offset;
  out.frame.clear();
  if (!apart) out.frame.append(out.preamble.get(), preamble_bytes(header));
  for (std::size_t i = 0; i < count; ++i)
    out.frame.append(reinterpret_cast<const void*>(segments_[i].local),
                     static_cast<std::size_t>(segments_[i].length));
  describe_segments({segments_.data(), count}, part.regions, out.preamble.get());
  const bool with_message = last && !part.message.empty() && (only || part.chained);
  end_header(lane, header, apart, with_message ? message_of(part) : std::span<const uint8_t>{});
  track(lane, part, header.sequence, bytes);
  lend(lane, part);
  if (last) {
    from.remove(part);
    part.state = PartState::kWaiting;
  }
  return true;
}

void Connection::track(LaneState& lane, Part& part, uint32_t sequence, std::size_t bytes) noexcept {
  lane.out.sent.push({sequence, static_cast<uint32_t>(bytes), &part});
  lane.out.unacked_bytes += bytes;
  ++part.outstanding;
  part.produced += bytes;
}

}  // namespace towline::framing
