// Parts: submit, cancel, results, and completions to the host. part.h lists the states.
#include <algorithm>

#include "base/sync/wake_path.h"
#include "framing/connection.h"

namespace towline::framing {
namespace {

// A WRITE up to this size is sent at once if its lane is idle, not after the next read of the lane.
constexpr uint64_t kInlineFrameBytes = 128u << 10;
constexpr std::size_t kInlineSegments = 64;  // of a small WRITE; one with more is treated as large

constexpr int32_t code(Status status) noexcept { return static_cast<int32_t>(status); }

}  // namespace

int32_t Connection::submit_part(const Prepared& prepared, const towline_submit_args& args) noexcept {
  if (down_) return code(Status::kPeerLost);
  const towline_plan& plan = *prepared.base.plan;
  if (args.begin > args.end || args.end > plan.bytes) return code(Status::kInvalidArgument);
  if (args.message_bytes > kMaxMessageBytes) return code(Status::kLimitExceeded);
  if (lanes_.empty()) return code(Status::kAgain);
  if (args.begin == args.end) return submit_nothing(args);
  Part* part = parts_.allocate();
  if (part == nullptr) return code(Status::kAgain);
  part->state = PartState::kProducing;
  part->is_read = prepared.op == TOWLINE_READ;
  part->urgent = (args.flags & TOWLINE_SUBMIT_URGENT) != 0;
  if (part->urgent) note_urgent();
  part->cookie = args.cookie;
  part->begin = args.begin;
  part->end = args.end;
  part->regions = plan.remote->regions;
  part->prepared = &prepared;
  part->lands = prepared.lands;
  part->produced = 0;
  part->cursor.emplace(plan, args.begin, args.end);
  const int32_t result = part->is_read ? start_read(*part, args) : start_write(*part, args);
  wake_if_needed();
  return result;
}

int32_t Connection::submit_nothing(const towline_submit_args& args) noexcept {
  return args.message_bytes == 0 ? code(Status::kOk) : send(args.message, args.message_bytes);
}

int32_t Connection::start_write(Part& part, const towline_submit_args& args) noexcept {
  const bool direct = !part.prepared->lands;
  LaneState& lane = fits_express(part) ? *express_ : least_loaded();
  if (part.bytes() <= options_.small_bytes && direct && !part.prepared->mixed &&
      write_small(part, lane, args))
    return code(Status::kInProgress);
  if (!hold_message(part, args)) {
    parts_.release(part);
    return code(Status::kAgain);
  }
  if (!direct) {
    gathered_.push(part);
    pump_gathers();
    return code(Status::kInProgress);
  }
  if (part.urgent && !lane.express) {
    urgent_.push(part);
    if (part.bytes() <= kInlineFrameBytes) flush_inline(lane);
  } else if (part.bytes() <= lane.frame_bytes) {
    lane.out.short_parts.push(part);
    if (part.bytes() <= kInlineFrameBytes) flush_inline(lane);
  } else if (bulk_lanes() == 1) {
    part.chained = true;
    lane.out.long_parts.push(part);
  } else {
    striped_.push(part);
  }
  return code(Status::kInProgress);
}

int32_t Connection::start_read(Part& part, const towline_submit_args& args) noexcept {
  if (!hold_message(part, args)) {
    parts_.release(part);
    return code(Status::kAgain);
  }
  (part.urgent ? urgent_reading_ : reading_).push(part);
  pump_reads();
  return code(Status::kInProgress);
}

// Sends the whole part as one frame with its message: into the lane, and the rest into its queue.
bool Connection::write_small(Part& part, LaneState& lane, const towline_submit_args& args) noexcept {
  if (lane.out.sent.size() >= options_.most_uncounted_frames || lane.broken.status != Status::kOk)
    return false;
  const std::size_t most = std::min<std::size_t>(kInlineSegments, options_.max_segments);
  const std::size_t count = part.cursor->next(segments_.data(), most, part.bytes());
  const std::size_t bytes = part.bytes();
  const std::size_t total = kHeaderBytes + count * sizeof(WireSegment) + bytes + args.message_bytes;
  if (!part.cursor->done() || !may_emit(lane, total)) {
    part.cursor->seek(part.begin, part.end);
    return false;
  }
  std::array<iovec, kInlineSegments + 2> pieces;
  uint8_t* const preamble = scratch_preamble_.get();
  describe_segments({segments_.data(), count}, part.regions, preamble);
  for (std::size_t i = 0; i < count; ++i)
    pieces[1 + i] = {reinterpret_cast<void*>(segments_[i].local),
                     static_cast<std::size_t>(segments_[i].length)};
  std::size_t used = 1 + count;
  if (args.message_bytes != 0) pieces[used++] = {const_cast<void*>(args.message), args.message_bytes};
  FrameHeader header = new_header(lane, FrameType::kWrite);
  header.segment_count = static_cast<uint16_t>(count);
  header.payload_bytes = static_cast<uint32_t>(bytes);
  header.message_bytes = static_cast<uint32_t>(args.message_bytes);
  header.part = part.wire_id();
  header.offset = part.begin;
  if (part.urgent && (options_.features & kFeatureUrgent) != 0) header.flags |= kFlagUrgent;
  add_checksum(header, {pieces.data() + 1, used - 1});
  encode_header(header, preamble);
  pieces[0] = {preamble, preamble_bytes(header)};
  track(lane, part, header.sequence, bytes);
  part.state = PartState::kWaiting;
  emit(lane, {pieces.data(), used}, total);
  if (lane.broken.status != Status::kOk) lane.broken = note_unmapped(&part, lane.broken);
  return true;
}

bool Connection::hold_message(Part& part, const towline_submit_args& args) noexcept {
  if (args.message_bytes == 0) return true;
  if (held_message_bytes_ + args.message_bytes > options_.max_held_message_bytes) return false;
  try {
    const auto* data = static_cast<const uint8_t*>(args.message);
    part.message.assign(data, data + args.message_bytes);
  } catch (...) {
    return false;
  }
  held_message_bytes_ += args.message_bytes;
  return true;
}

// No more frames or requests are made. The part ends when the owner has counted or answered the existing
// ones. Until then a WRITE's bytes may land there and a READ's here, and the owner may be reading: only its
// last answer fences both sides. A READ could end here at once and drop late data, but then this side would
// not know when the owner stops using the memory. An owner that does neither in time loses the connection: see
// watch_owed().
void Connection::cancel(uint64_t cookie) noexcept {
  if (down_) return;
  Part* found = nullptr;
  parts_.for_each_live([&](Part& part) {
    if (part.cookie == cookie && part.state != PartState::kEnded) found = &part;
  });
  if (found == nullptr || found->cancelled) return;
  found->cancelled = true;
  ++cancelled_;
  if (found->state == PartState::kMessage) {  // everything is placed, and its message won't be sent
    found->status = Status::kCancelled;
    end_part(*found);
  } else {
    stop_producing(*found);
    look_at_owed(host_.now_ns());
  }
  wake_if_needed();
}

void Connection::stop_producing(Part& part) noexcept {
  if (part.state != PartState::kProducing) return;
  part.list->remove(part);
  part.state = PartState::kWaiting;
  settle(part);
}

void Connection::note_failure(Part& part, Status status, uint64_t begin, uint64_t end,
                              int32_t vendor_code) noexcept {
  if (part.failed_bytes == 0) {
    part.failed_begin = begin;
    part.failed_end = end;
  }
  part.failed_begin = std::min(part.failed_begin, begin);
  part.failed_end = std::max(part.failed_end, end);
  part.failed_bytes += end - begin;
  if (part.status != Status::kOk) return;
  part.status = status;
  part.vendor_code = vendor_code;
}

// Call when a frame or request of the part was settled, or no more will be made.
void Connection::settle(Part& part) noexcept {
  if (part.state != PartState::kWaiting || part.outstanding != 0 || part.copies != 0) return;
  const bool complete = part.status == Status::kOk && part.produced == part.bytes();
  if (!complete || part.message.empty() || part.message_sent) {
    end_part(part);
    return;
  }
  part.state = PartState::kMessage;
  messages_.push(part);
  send_held_message(part);
}

bool Connection::send_held_message(Part& part) noexcept {
  LaneState& lane = part.urgent && express_ != nullptr ? *express_ : *lanes_.front();
  if (!emit_message(lane, part.message.data(), part.message.size())) return false;
  part.message_sent = true;
  end_part(part);
  return true;
}

TOWLINE_WAKE_PATH uint32_t Connection::retry_messages() noexcept {
  uint32_t sent = 0;
  while (!messages_.empty() && send_held_message(*messages_.front())) ++sent;
  return sent;
}

void Connection::end_part(Part& part) noexcept {
  if (part.list != nullptr) part.list->remove(part);
  part.state = PartState::kEnded;
  if (part.cancelled) --cancelled_;
  held_message_bytes_ -= part.message.size();
  part.message.clear();
  ended_.push(part);
}

void Connection::end_all(Status status) noexcept {
  parts_.for_each_live([&](Part& part) {
    if (part.state == PartState::kEnded) return;
    // Everything may have arrived. If a message was not sent, that is still a failure; if only the lane has not given
    // the memory back, the part has succeeded.
    const bool arrived = part.state == PartState::kWaiting && part.outstanding == 0 && part.copies != 0 &&
                         part.produced == part.bytes() && (part.message.empty() || part.message_sent);
    if (!arrived && !part.unmapped) part.status = status;
    if (part.copies == 0) return end_part(part);
    // A GPU still copies, or the lane still reads: the part ends after that.
    if (part.list != nullptr) part.list->remove(part);
    part.state = PartState::kWaiting;
  });
}

TOWLINE_WAKE_PATH uint32_t Connection::deliver_ended() noexcept {
  if (delivering_) return 0;
  delivering_ = true;
  uint32_t count = 0;
  while (Part* part = ended_.pop()) {
    const towline_part_result result = result_of(*part);
    const uint64_t cookie = part->cookie;
    parts_.release(*part);
    host_.complete(cookie, result);
    ++count;
  }
  delivering_ = false;
  return count;
}

// Local memory is fenced once a part has ended: its frames and requests are settled, or their lanes are
// closed. The peer's memory is fenced if nothing of the part is outstanding; only a broken connection leaves
// something outstanding.
towline_part_result Connection::result_of(const Part& part) const noexcept {
  auto result = plugin::sized<towline_part_result>();
  Status status = part.status;
  const bool complete = part.produced == part.bytes() && part.outstanding == 0;
  if (status == Status::kOk && part.cancelled && !complete) status = Status::kCancelled;
  result.status = code(status);
  result.vendor_code = part.vendor_code;
  if (part.copies == 0) result.fences |= TOWLINE_PART_FENCED_LOCAL;
  if (part.outstanding == 0) result.fences |= TOWLINE_PART_FENCED_REMOTE;
  result.bytes = part.confirmed > part.failed_bytes ? part.confirmed - part.failed_bytes : 0;
  if (status == Status::kOk) return result;
  // Frames of one lane are settled in order, so the confirmed bytes are a prefix. With several lanes, and where this
  // side's GPU copies chunks, which end in any order, they may be anywhere.
  const bool in_order = part.chained || (lanes_.size() == 1 && !part.lands);
  uint64_t settled = part.begin;
  if (part.outstanding == 0) settled += part.produced;
  if (part.outstanding != 0 && in_order) settled += part.confirmed;
  result.failed_begin = settled;
  result.failed_end = part.end;
  if (part.failed_bytes != 0) {
    result.failed_begin = std::min(part.failed_begin, settled);
    if (settled == part.end) result.failed_end = part.failed_end;
  }
  return result;
}

}  // namespace towline::framing
