// The engine's state of each lane: output, input, and what is expected from the peer.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "framing/byte_queue.h"
#include "framing/iov_list.h"
#include "framing/landing.h"
#include "framing/lane.h"
#include "framing/loans.h"
#include "framing/options.h"
#include "framing/part.h"
#include "framing/pin_set.h"
#include "framing/wire.h"
#include "towline/plugin/backend.hpp"

namespace towline::framing {

// A WRITE frame that the owner has not counted yet. Its part can't end before it.
struct SentFrame {
  uint32_t sequence = 0;
  uint32_t bytes = 0;
  Part* part = nullptr;
};

// A refused WRITE frame whose NACK still has to be queued; the count may not pass `sequence` before.
struct Refusal {
  uint32_t sequence = 0;
  Status status = Status::kOk;
  uint64_t part = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// A read request of this side, answered in order on its lane. Its part does not end before the answer.
struct ReadRequest {
  uint64_t wire_id = 0;
  Part* part = nullptr;
  uint64_t next = 0;  // plan byte that the next DATA begins with
  uint64_t end = 0;
  std::optional<plugin::Cursor> cursor;  // at `next`
};

// A read request of the peer.
struct ReadAnswer {
  enum class Place : uint8_t { kUnknown, kGpu, kHost };  // where what it wants lies; kHost: or nobody knows

  Place place = Place::kUnknown;
  bool apart = false;  // its answers may go on the payload flow
  uint64_t serial = 0;
  uint64_t wire_id = 0;
  uint64_t next = 0;
  uint64_t end = 0;
  uint32_t segment = 0;     // the next bytes lie in this one,
  uint64_t in_segment = 0;  // so far from its beginning
  uint32_t segment_count = 0;
  std::unique_ptr<WireSegment[]> segments;  // kMaxSegments, made when first needed
};

inline constexpr uint64_t kSlowestBytesPerS = 16u << 10;

// Measures, once a pass, how long the current frame takes. A sender that stops in the middle of a frame must
// not hold the owner's memory for longer than the owner allows.
class FrameWatch {
 public:
  // `left`: bytes of the frame that are still to come.
  void look(uint32_t sequence, uint64_t left, uint64_t now_ns) noexcept {
    if (!under_way_ || sequence != sequence_) {
      under_way_ = true;
      sequence_ = sequence;
      began_ns_ = moved_ns_ = now_ns;
      most_left_ = left_ = left;
    } else if (left != left_) {
      most_left_ = std::max(most_left_, left);
      left_ = left;
      moved_ns_ = now_ns;
    }
  }
  void none() noexcept { under_way_ = false; }
  [[nodiscard]] uint64_t deadline_ns(uint64_t timeout_ns) const noexcept {
    if (!under_way_) return kNoDeadline;
    const uint64_t whole_ns = timeout_ns + most_left_ * (kSecondNs / kSlowestBytesPerS);
    return std::min(Deadline::after(moved_ns_, timeout_ns).ns(), Deadline::after(began_ns_, whole_ns).ns());
  }
  [[nodiscard]] uint64_t left() const noexcept { return left_; }

 private:
  bool under_way_ = false;
  uint32_t sequence_ = 0;
  uint64_t began_ns_ = 0;
  uint64_t moved_ns_ = 0;
  uint64_t most_left_ = 0;
  uint64_t left_ = 0;
};

// Measures, once a pass, how long the owner takes to count the oldest frame, or to answer the oldest request. An owner
// that lives and does neither must not hold this side's memory for longer than a frame may take.
class OwedWatch {
 public:
  // `settled`: changes with everything that is counted or answered. `bytes`: of the oldest.
  void look(uint64_t settled, uint64_t bytes, uint64_t now_ns) noexcept {
    if (!under_way_ || settled != settled_) {
      under_way_ = true;
      settled_ = settled;
      since_ns_ = now_ns;
    }
    bytes_ = bytes;
  }
  void none() noexcept { under_way_ = false; }
  [[nodiscard]] uint64_t deadline_ns(uint64_t timeout_ns) const noexcept {
    if (!under_way_) return kNoDeadline;
    return Deadline::after(since_ns_, timeout_ns + bytes_ * (kSecondNs / kSlowestBytesPerS)).ns();
  }

 private:
  bool under_way_ = false;
  uint64_t settled_ = 0;
  uint64_t since_ns_ = 0;
  uint64_t bytes_ = 0;
};

// Bytes of input gathered before they are taken apart: a message, a preamble and some read ahead, in one
// piece.
inline constexpr std::size_t kStagingBytes = 160u << 10;
inline constexpr uint32_t kBulkBytes =
    8u << 10;  // payload size from which on reads stop before the next payload

// A row of WRITE frames whose headers go out before all their payload (kFlagTogether): the frame under way is then all
// of them. count 0: it is one.
struct FramesOut {
  struct Frame {
    Part* part = nullptr;
    std::size_t end = 0;  // of its payload, counted from the beginning of the first one's
  };

  std::array<Frame, kMostTogether> frames;
  uint32_t count = 0;
  uint32_t next = 0;        // the one whose payload is being written
  bool one_by_one = false;  // memory of one of them is missing: no write takes bytes of two

  void clear() noexcept {
    count = next = 0;
    one_by_one = false;
  }
};

// The same, coming in. Their headers have been checked; their regions are pinned until the last one's payload is here,
// and the input's target has all of their memory. count 0: the frame under way is the last, or no such frame.
struct FramesIn {
  struct Frame {
    FrameHeader header;
    Status refused = Status::kOk;  // its memory is not in the target, and its payload is dropped
    std::size_t beyond = 0;        // bytes of the target that belong to frames behind it
  };

  std::array<Frame, kMostTogether> frames;
  uint32_t count = 0;
  uint32_t next = 0;
  std::size_t segments = 0;
  std::size_t bytes = 0;
  std::size_t preambles = 0;  // bytes of them
  bool one_by_one = false;    // one is refused, or its memory is missing: no read places bytes of two

  void clear() noexcept {
    count = next = 0;
    segments = bytes = preambles = 0;
    one_by_one = false;
  }
};

struct Output {
  explicit Output(const ConnectionOptions& options);

  ByteQueue queue;        // whole small frames, and the rest of one partly written
  std::size_t ahead = 0;  // bytes of the queue that precede the current frame
  IovList frame;          // the rest of the current frame
  std::unique_ptr<uint8_t[]> preamble;
  PinSet pins;                   // DATA under way
  Part* frame_part = nullptr;    // whose own memory the payload of the frame under way is, if it is a part's
  bool lent = false;             // the lane may read that payload after it was written
  std::size_t head_left = 0;     // of the frame under way, not written: before its payload,
  std::size_t payload_left = 0;  // and of that
  bool frame_open = false;
  FramesOut together;
  uint32_t frame_sequence = 0;  // of the frame under way
  uint64_t served = 0;          // bytes of it, when it answers a read request
  uint32_t slot = kNoSlot;      // that its payload was gathered into
  bool blocked = false;         // the lane was full; tried again each pass
  bool apart = false;           // the frame under way has its header queued, and its payload goes on the flow
  bool flow_blocked = false;    // which was full
  bool inline_used =
      false;              // this pass has written a small frame at once (lanes with dear calls: one a pass)
  uint32_t sequence = 0;  // of the next frame
  uint32_t acked = 0;     // frames the peer has counted
  uint32_t turn = 0;      // which source comes next
  uint32_t urgent_frames = 0;   // in a row, while others wait
  uint32_t urgent_answers = 0;  // put before others, in a row
  uint64_t unacked_bytes = 0;
  BoundedQueue<SentFrame> sent;
  BoundedQueue<Refusal> refusals;
  BoundedQueue<uint32_t> answers;                 // indices of ReadAnswers
  BoundedQueue<uint32_t> gathers{kLandingSlots};  // slots of the next DATA, in order
  FrameWatch watch;                               // of DATA under way, which pins what it reads
  OwedWatch owed;                                 // counts, while a part of an uncounted frame is cancelled
  PartList short_parts;                           // WRITEs bound to this lane, of one frame (or few)
  PartList long_parts;                            // and of more: only if there is a single lane

  [[nodiscard]] bool nothing_queued() const noexcept { return !frame_open && queue.empty(); }
};

enum class InputState : uint8_t {
  kHeader,   // a frame's header and segments are being gathered in staging
  kPayload,  // its payload goes where `target` says
  kDrain,    // its payload is dropped
  kMessage,  // its message is being gathered in staging
};

struct Input {
  explicit Input(const ConnectionOptions& options);

  std::unique_ptr<uint8_t[]> staging;  // bytes [begin, end) are read and not yet dealt with
  std::size_t begin = 0;
  std::size_t end = 0;
  InputState state = InputState::kHeader;
  FrameHeader header;
  IovList target;
  PinSet pins;
  FramesIn together;
  std::size_t beyond = 0;             // bytes of the target that belong to frames behind this one
  std::size_t payload_left = 0;       // to be drained, or collected from the payload flow
  bool apart = false;                 // the payload under way comes on the payload flow
  std::size_t needed = kHeaderBytes;  // bytes in staging before there is anything to do
  uint32_t checksum = 0;
  Status refused = Status::kOk;                  // why this WRITE frame is being drained
  std::size_t expected_preamble = kHeaderBytes;  // as long as the last frame's
  bool bulk = false;                     // the last frame was large: read no further than the next preamble
  uint32_t begun = 0;                    // sequence of the frame under way, or of the first of its row
  uint32_t received = 0;                 // frames taken off the lane
  uint32_t counted = 0;                  // frames dealt with: the same, but for those still being scattered
  uint32_t slot = kNoSlot;               // that the payload under way is received into
  bool stalled = false;                  // the frame whose preamble is in staging waits for a slot
  std::unique_ptr<LandedFrames> landed;  // null until the first
  bool ack_due = false;
  uint64_t refused_part = 0;     // the chained part of which a frame was refused last
  BoundedQueue<uint32_t> reads;  // indices of ReadRequests, in the order asked on this lane
  uint64_t read_bytes = 0;       // outstanding in them
  uint64_t answered_bytes = 0;   // of all requests so far
  OwedWatch owed;                // answers, while a part of a request is cancelled
  FrameWatch watch;              // of the frame under way

  // True if a frame has begun and is incomplete, and does not wait for a slot; how many bytes of it are missing, as
  // far as known.
  [[nodiscard]] bool in_frame() const noexcept {
    return (state != InputState::kHeader || begin != end || together.count != 0) && !stalled;
  }
  // True if frames wait to be counted until bytes before them are placed.
  [[nodiscard]] bool landing() const noexcept { return landed != nullptr && !landed->empty(); }
  // Payload bytes of the current frame still to come, in kPayload.
  [[nodiscard]] uint64_t payload_to_come() const noexcept {
    return apart && slot != kNoSlot ? payload_left : target.bytes();
  }
  // Of the message that follows the target's last byte.
  [[nodiscard]] uint32_t last_message_bytes() const noexcept {
    return together.count == 0 ? header.message_bytes
                               : together.frames[together.count - 1].header.message_bytes;
  }
  // Bytes of the target that the current frame, alone, still waits for.
  [[nodiscard]] std::size_t target_left() const noexcept {
    return target.bytes() > beyond ? target.bytes() - beyond : 0;
  }
  // A row of frames is watched as one: it holds its memory until its last byte.
  [[nodiscard]] uint32_t watched_frame() const noexcept {
    return state == InputState::kHeader && together.count == 0 ? received : begun;
  }
  [[nodiscard]] uint64_t left_of_frame() const noexcept {
    const uint64_t here = end - begin;
    uint64_t left = 0;
    switch (state) {
      case InputState::kHeader:
        return needed - here;
      case InputState::kPayload:
        left = together.count == 0 ? payload_to_come() : target_left();
        break;
      case InputState::kDrain:
        left = payload_left;
        break;
      case InputState::kMessage:
        return header.message_bytes - here;
    }
    for (uint32_t i = together.next; i < together.count; ++i) left += together.frames[i].header.payload_bytes;
    return left + last_message_bytes();
  }
};

struct LaneState {
  LaneState(std::unique_ptr<Lane> stream, const ConnectionOptions& options);

  std::unique_ptr<Lane> lane;
  Lane::Traits traits;
  uint32_t frame_bytes;  // of this lane, by its hint and the options
  uint32_t index = 0;
  bool express = false;
  Output out;
  Input in;
  std::unique_ptr<Loans> loans;  // null: the lane never reads what was written
  IoResult broken;               // not kOk: a write failed, and the next progress() fails the connection

  // Scratch for one call: as many pieces as it needs of a large frame.
  static constexpr std::size_t kMostPieces = 256;
  [[nodiscard]] std::span<iovec> pieces() noexcept { return scratch; }
  std::array<iovec, kMostPieces> scratch;

  // The count that may be told now: NACKs come first.
  [[nodiscard]] uint32_t count() const noexcept {
    return out.refusals.empty() ? in.counted : out.refusals.front().sequence;
  }
};

}  // namespace towline::framing
