// Payload on a flow of its own: the header of a frame is queued on the lane like any small frame, and its payload goes
// out and comes in beside it.
#include "base/sync/wake_path.h"
#include "framing/connection.h"

namespace towline::framing {

// A checksum would have to see bytes that lie where no processor reads them: such payload goes with its header.
bool Connection::goes_apart(const LaneState& lane, std::size_t bytes) const noexcept {
  const PayloadFlow* const flow = lane.lane->payload_flow();
  return flow != nullptr && flow->open() && bytes >= flow->least_bytes() && !options_.checksum &&
         (options_.features & kFeatureApart) != 0;
}

// Is there room for the header of a WRITE of this part that goes apart?
bool Connection::may_emit_header(LaneState& lane, const Part* part) const noexcept {
  if (lane.lane->payload_flow() == nullptr) return true;
  return may_emit(lane, kHeaderBytes + options_.max_segments * sizeof(WireSegment) + part->message.size());
}

std::span<const uint8_t> Connection::message_of(Part& part) noexcept {
  part.message_sent = true;
  return part.message;
}

// Ends the header of the frame that goes out next; its segments are in the preamble, and its payload in out.frame.
void Connection::end_header(LaneState& lane, FrameHeader& header, bool apart,
                            std::span<const uint8_t> message) noexcept {
  Output& out = lane.out;
  uint8_t* const preamble = out.preamble.get();
  header.message_bytes = static_cast<uint32_t>(message.size());
  out.frame_sequence = header.sequence;
  out.apart = apart;
  out.lent = !apart && may_lend(lane, header.payload_bytes);
  out.head_left = preamble_bytes(header);
  out.payload_left = header.payload_bytes;
  if (!apart) {
    if (!message.empty()) out.frame.append(message.data(), message.size());
    add_checksum(header, out.frame.pieces().subspan(1));
    encode_header(header, preamble);
    out.ahead = out.queue.size();
    return;
  }
  header.flags |= kFlagApart;
  encode_header(header, preamble);
  const iovec pieces[2] = {{preamble, preamble_bytes(header)},
                           {const_cast<uint8_t*>(message.data()), message.size()}};
  emit(lane, {pieces, message.empty() ? 1u : 2u}, pieces[0].iov_len + message.size());
}

// One write. False if there is nothing to write on the flow, it is full, or it broke.
TOWLINE_WAKE_PATH bool Connection::flush_payload(LaneState& lane, std::size_t& budget) noexcept {
  Output& out = lane.out;
  if (!out.apart || out.flow_blocked || lane.broken.status != Status::kOk) return false;
  const std::size_t offered = out.frame.bytes();
  PayloadFlow& flow = *lane.lane->payload_flow();
  const IoResult result = out.lent ? flow.write_from(out.frame.pieces()) : flow.write(out.frame.pieces());
  if (result.status == Status::kAgain) {
    out.flow_blocked = true;
    return false;
  }
  if (result.status != Status::kOk) {
    lane.broken = note_unmapped(out.frame_part, result);
    return false;
  }
  statistics_.bytes_sent += result.bytes;
  budget -= std::min(budget, result.bytes);
  out.frame.advance(result.bytes);
  if (out.frame.empty()) finish_frame_out(lane);
  out.flow_blocked = result.bytes < offered;
  return true;
}

// With output: all of it waits for the peer to read.
bool Connection::waits_for_room(const LaneState& lane) const noexcept {
  const Output& out = lane.out;
  if (!out.apart) return out.blocked;
  const bool stream_has_output = !out.queue.empty() || !out.refusals.empty() || lane.in.ack_due;
  return out.flow_blocked && (out.blocked || !stream_has_output);
}

IoResult Connection::fill_from_flow(LaneState& lane, std::size_t& asked) noexcept {
  Input& in = lane.in;
  PayloadFlow& flow = *lane.lane->payload_flow();
  if (in.state == InputState::kPayload && in.slot == kNoSlot) {
    asked = in.target.bytes();
    const IoResult result = flow.read(in.target.pieces());
    if (result.status == Status::kOk) in.target.advance(result.bytes);
    return result;
  }
  asked = in.payload_left;
  IoResult result;
  if (in.state == InputState::kDrain) {
    result = flow.drop(in.payload_left);
  } else {
    const std::size_t done = in.header.payload_bytes - in.payload_left;
    result = flow.collect(in.slot, landings_->lander->slot(Way::kScatter, in.slot) + done, in.payload_left);
  }
  if (result.status == Status::kOk) in.payload_left -= result.bytes;
  return result;
}

void Connection::receive_into_slot(LaneState& lane, ScatterSlot& slot) noexcept {
  Input& in = lane.in;
  in.payload_left = slot.bytes;
  if (!in.apart) {
    in.target.append(landings_->lander->slot(Way::kScatter, in.slot), slot.bytes);
    return;
  }
  slot.flow = lane.lane->payload_flow();
  slot.flow->offer(*landings_->lander, slot.device);
}

// From the slot, or from the fragments that its payload came as.
Status Connection::begin_scatter(uint32_t index, int32_t& vendor_code) noexcept {
  ScatterSlot& slot = landings_->scatter[index];
  Lander& lander = *landings_->lander;
  if (slot.flow == nullptr) return lander.begin(Way::kScatter, index, slot.device, slot.pieces, vendor_code);
  const std::span<const LandingPiece> fragments = slot.flow->fragments(index);
  const auto* const staging = lander.slot(Way::kScatter, index);
  if (fragments.size() == 1 && fragments[0].address == reinterpret_cast<uint64_t>(staging))
    return lander.begin(Way::kScatter, index, slot.device, slot.pieces, vendor_code);
  return lander.unpack(index, slot.device, fragments, slot.pieces, vendor_code);
}

}  // namespace towline::framing
