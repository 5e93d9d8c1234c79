// Payload in GPU memory that the lane's payload flow sends as it lies (PayloadFlow::sends_from): no GPU gathers it, and no
// processor touches it. Its memory is lent to the lane as soon as its frame is made (loans.h).
#include "framing/connection.h"

namespace towline::framing {

// Can a frame of these pieces, on that GPU, go out on this lane without being gathered?
bool Connection::goes_in_place(const LaneState& lane, uint64_t device, std::span<const LandingPiece> pieces,
                               std::size_t bytes) const noexcept {
  return lane.loans != nullptr && !lane.express && goes_apart(lane, bytes) &&
         lane.lane->payload_flow()->sends_from(device, pieces);
}

// The slot's payload is sent as it lies: it is ready at once.
void Connection::leave_in_place(GatherSlot& slot, uint64_t device) noexcept {
  slot.in_place.assign(landings_->pieces.begin(), landings_->pieces.end());  // within its capacity
  slot.device = device;
  slot.state = GatherSlot::State::kReady;
  landings_->in_place_bytes += slot.bytes;
}

// May this slot be sent on this lane now? One of memory that is sent as it lies needs a loan.
bool Connection::slot_opens(const LaneState& lane, const GatherSlot& slot) const noexcept {
  if (slot.in_place.empty()) return true;
  return lane.loans != nullptr && !lane.loans->full() &&
         goes_in_place(lane, slot.device, slot.in_place, slot.bytes);
}

// Appends the slot's payload to the frame that goes out next.
void Connection::append_slot(LaneState& lane, uint32_t index) noexcept {
  GatherSlot& slot = landings_->gather[index];
  IovList& frame = lane.out.frame;
  if (slot.in_place.empty()) return frame.append(landings_->lander->slot(Way::kGather, index), slot.bytes);
  for (const LandingPiece& piece : slot.in_place)
    frame.append(reinterpret_cast<const void*>(piece.address), static_cast<std::size_t>(piece.bytes));
}

// The frame has been made. One that lies in the slot keeps it until it is sent; one that is sent as it lies becomes a loan.
void Connection::take_slot(LaneState& lane, uint32_t index, Part* part) noexcept {
  GatherSlot& slot = landings_->gather[index];
  Output& out = lane.out;
  if (slot.in_place.empty()) {
    out.slot = index;
    slot.state = GatherSlot::State::kSending;
    return;
  }
  out.lent = true;
  out.pins.swap(slot.pins);
  if (part != nullptr) lend(lane, *part);
  free_gather(index);
}

}  // namespace towline::framing
