// Registered memory whose pages were unmapped. The system says EFAULT where it copies for a lane of sockets; a lane that
// copies in this process, and bytes that were read ahead, end the process, as any access to such memory does.
#include <cerrno>

#include "framing/connection.h"

namespace towline::framing {

// While a frame of this part was written (null: an answer, or memory of our own). The stream can't go on: the peer waits
// for the rest of the payload. The part ends with this reason, the others as with any connection that breaks.
IoResult Connection::note_unmapped(Part* part, const IoResult& result) noexcept {
  if (result.vendor_code != EFAULT) return result;
  if (part != nullptr) {
    part->unmapped = true;
    part->status = Status::kStale;
    part->vendor_code = EFAULT;
  }
  return IoResult::error(
      Status::kStale, EFAULT,
      "registered memory of this side is not mapped any more (deregister it before it is unmapped)");
}

// While payload was read: the rest of it is dropped, and the frame refused; of frames that came together, the one whose
// memory it is. False: that was not the reason.
bool Connection::drop_unmapped(LaneState& lane) noexcept {
  Input& in = lane.in;
  if (in.state != InputState::kPayload || in.apart || in.slot != kNoSlot) return false;
  if (in.together.count != 0 && !in.together.one_by_one) {
    in.together.one_by_one = true;
    return true;
  }
  in.payload_left = in.target_left();
  in.target.advance(in.payload_left);
  if (in.together.count == 0) in.pins.release(host_);
  in.refused = Status::kStale;
  in.state = InputState::kDrain;
  return true;
}

}  // namespace towline::framing
