// Payload in memory that no processor can touch (a GPU's). Outgoing payload is gathered into a slot of staging memory
// and sent from there; incoming payload is received into a slot and scattered, and only then is its frame counted.
// core_landing.cc is the engine's half.
//
//   out   free -> gathering (the GPU) -> ready -> sending (the lane) -> free
//         free -> ready -> free, for memory that the lane's payload flow sends as it lies: the lane keeps its part, or its
//         pins, as a loan (loans.h)
//   in    free -> receiving (the lane) -> scattering (the GPU) -> free
//
// The slots of a connection are few. A part, an answer or a frame that finds none waits for one: that is the
// back-pressure. Slots of one way are never waited for by the other, so two engines can't block each other.
//
// A region's pin is held until the GPU has done with it, also where the connection broke meanwhile: a copy that was
// begun runs to its end, and a part ends, with its fences, when its copies have.
#pragma once

#include <towline/plugin/landing.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "framing/byte_queue.h"
#include "framing/part.h"
#include "framing/payload_flow.h"
#include "framing/pin_set.h"
#include "framing/wire.h"
#include "towline/plugin/backend.hpp"
#include "towline/status.h"

namespace towline::framing {

inline constexpr uint32_t kLandingSlots = TOWLINE_LANDING_MOST_SLOTS;  // of each way
inline constexpr uint32_t kLandingSlotBytes = TOWLINE_LANDING_MOST_SLOT_BYTES;
inline constexpr uint32_t kNoSlot = UINT32_MAX;

using LandingPiece = towline_landing_piece;

enum class Way : uint32_t { kGather = TOWLINE_LANDING_GATHER, kScatter = TOWLINE_LANDING_SCATTER };

// Copies between GPU memory of this process and the slots of one connection: towline/plugin/landing.h in C++.
class Lander {
 public:
  Lander() = default;
  Lander(const Lander&) = delete;
  Lander& operator=(const Lander&) = delete;
  virtual ~Lander() = default;  // no copy is under way

  [[nodiscard]] virtual uint8_t* slot(Way way, uint32_t index) const noexcept = 0;
  // Control path: so that the first copy for that GPU need not make ready. The reason goes to the host.
  [[nodiscard]] virtual Status ready(uint64_t device) noexcept = 0;
  [[nodiscard]] virtual Status begin(Way way, uint32_t index, uint64_t device,
                                     std::span<const LandingPiece> pieces, int32_t& vendor_code) noexcept = 0;
  // Makes memory of the host, in which payload arrives, reachable for the GPUs until this goes. Control path.
  [[nodiscard]] virtual Status reach(void* /*address*/, uint64_t /*bytes*/) noexcept {
    return Status::kUnsupported;
  }
  // The same for memory on a GPU, for copies of that GPU. The pool lives as long as this.
  [[nodiscard]] virtual Status reach_pool(towline_landing_pool* /*pool*/) noexcept {
    return Status::kUnsupported;
  }
  // As begin() of a scatter, from fragments that lie in the slot or in memory that reach() was told of.
  [[nodiscard]] virtual Status unpack(uint32_t /*index*/, uint64_t /*device*/,
                                      std::span<const LandingPiece> /*fragments*/,
                                      std::span<const LandingPiece> /*pieces*/,
                                      int32_t& /*vendor_code*/) noexcept {
    return Status::kUnsupported;
  }
  // kOk: ended; kInProgress; or why it failed.
  [[nodiscard]] virtual Status poll(Way way, uint32_t index, uint64_t now_ns,
                                    int32_t& vendor_code) noexcept = 0;
};

// Makes a connection's lander when it first needs one, for that GPU. Null: `status` says why, and the host was told.
using MakeLander = std::function<std::unique_ptr<Lander>(uint64_t device, Status& status)>;

// Over the host's landing service.
[[nodiscard]] std::unique_ptr<Lander> make_hosted_lander(const plugin::Host& host, uint64_t device,
                                                         Status& status);

// A slot of payload that goes out.
struct GatherSlot {
  enum class State : uint8_t { kFree, kGathering, kReady, kSending };

  State state = State::kFree;
  bool apart = false;      // DATA whose request wants its payload apart
  bool discarded = false;  // DATA of an answer that ended with a NACK
  Status status = Status::kOk;
  Part* part = nullptr;  // of a WRITE; null: DATA
  uint64_t wire_id = 0;
  uint64_t offset = 0;
  uint64_t answer_end = 0;     // DATA: the request's last byte,
  uint64_t answer_serial = 0;  // and which request
  uint32_t bytes = 0;
  uint32_t segment_count = 0;
  bool with_message = false;
  std::unique_ptr<WireSegment[]> segments;  // kMaxSegments; of a WRITE
  PinSet pins{kMaxSegments};                // of DATA
  uint64_t device = 0;                      // of in_place
  std::vector<LandingPiece> in_place;  // the payload, where it is sent as it lies; nothing is in the slot
};

struct LaneState;
struct LandedFrame;

// A slot of payload that comes in.
struct ScatterSlot {
  enum class State : uint8_t { kFree, kReceiving, kScattering };

  State state = State::kFree;
  uint64_t device = 0;
  uint64_t offset = 0;
  uint32_t bytes = 0;
  Part* part = nullptr;          // of DATA; null: of a WRITE of the peer's
  LaneState* lane = nullptr;     // of a WRITE
  PayloadFlow* flow = nullptr;   // that it comes on as fragments; null: it lies in the slot
  LandedFrame* frame = nullptr;  // the same; null once its connection is down
  std::vector<LandingPiece> pieces;
  PinSet pins{kMaxSegments};  // of a WRITE
};

// A WRITE frame that was received behind, or as, one whose bytes are still being scattered. Frames are counted in
// order.
struct LandedFrame {
  uint32_t sequence = 0;
  uint32_t slot = kNoSlot;  // that is being scattered
  bool chained = false;
  Status status = Status::kOk;
  uint64_t part = 0;
  uint64_t offset = 0;
  uint32_t bytes = 0;
  std::vector<uint8_t> message;  // keeps its capacity
};

// Those of one lane, in order. A frame that finds no room waits on its lane.
class LandedFrames {
 public:
  static constexpr uint32_t kMost = 32;

  [[nodiscard]] bool empty() const noexcept { return begin_ == end_; }
  [[nodiscard]] bool full() const noexcept { return end_ - begin_ == kMost; }
  [[nodiscard]] LandedFrame& front() noexcept { return frames_[begin_ % kMost]; }
  [[nodiscard]] LandedFrame& push() noexcept { return frames_[end_++ % kMost]; }
  void pop() noexcept { ++begin_; }
  void clear() noexcept { begin_ = end_; }

 private:
  std::array<LandedFrame, kMost> frames_;
  uint32_t begin_ = 0;
  uint32_t end_ = 0;
};

// A connection's state once GPU memory takes part.
struct Landings {
  explicit Landings(std::unique_ptr<Lander> made);

  std::unique_ptr<Lander> lander;
  std::array<GatherSlot, kLandingSlots> gather;
  std::array<ScatterSlot, kLandingSlots> scatter;
  std::vector<uint32_t> free_gather;   // within its capacity,
  std::vector<uint32_t> free_scatter;  // and this
  BoundedQueue<uint32_t> ready{
      kLandingSlots};                // WRITEs whose payload is gathered, for whichever lane has room
  std::vector<LandingPiece> pieces;  // scratch, of the copy that is being begun
  uint32_t under_way = 0;            // copies
  uint64_t gathered_bytes = 0;
  uint64_t in_place_bytes = 0;  // sent without being gathered
  uint64_t scattered_bytes = 0;
  uint64_t unpacked_bytes = 0;  // of those, from fragments
};

}  // namespace towline::framing
