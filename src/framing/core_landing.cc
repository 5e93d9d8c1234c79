// Payload in GPU memory: gathered into slots of staging memory before it is sent, received into slots and scattered
// before its frame is counted. landing.h has the states of a slot.
#include <algorithm>
#include <new>
#include <utility>

#include "base/copy/copy.h"
#include "base/sync/wake_path.h"
#include "framing/connection.h"

namespace towline::framing {
namespace {

// A part is gathered in a few chunks, so that its first is on its way while the next is gathered; more would cost a
// launch and a frame each. 4 MiB in 16 chunks went at 0.67 of the speed of host memory, in 4 at 0.80.
constexpr uint64_t kChunksOfAPart = 4;
constexpr uint64_t kLeastChunkBytes = 256u << 10;
// After staging memory was refused, this side does not ask again for so long, however many frames arrive.
constexpr uint64_t kTryAgainNs = kSecondNs;

uint64_t chunk_bytes(uint64_t bytes) noexcept {
  return std::clamp<uint64_t>(bytes / kChunksOfAPart, kLeastChunkBytes, kLandingSlotBytes);
}

bool on_gpu(const towline_region_ref& region) noexcept { return region.kind == TOWLINE_MEMORY_VRAM; }

bool one_place(const towline_region_ref& a, const towline_region_ref& b) noexcept {
  return a.kind == b.kind && (!on_gpu(a) || a.device == b.device);
}

// Neighbours become one.
void add_piece(std::vector<LandingPiece>& pieces, uint64_t address, uint64_t bytes) noexcept {
  if (!pieces.empty() && pieces.back().address + pieces.back().bytes == address)
    pieces.back().bytes += bytes;
  else
    pieces.push_back({address, bytes});  // within its capacity
}

}  // namespace

Landings::Landings(std::unique_ptr<Lander> made) : lander(std::move(made)) {
  free_gather.reserve(kLandingSlots);
  free_scatter.reserve(kLandingSlots);
  pieces.reserve(kMaxSegments + 1);
  for (uint32_t i = kLandingSlots; i-- > 0;) {
    gather[i].segments = std::make_unique<WireSegment[]>(kMaxSegments);
    gather[i].in_place.reserve(kMaxSegments + 1);
    scatter[i].pieces.reserve(kMaxSegments + 1);
    free_gather.push_back(i);
    free_scatter.push_back(i);
  }
}

Status Connection::make_landings(uint64_t device) noexcept {
  if (landings_ != nullptr) return Status::kOk;
  if (!options_.make_lander) return Status::kUnsupported;
  const uint64_t now_ns = host_.now_ns();
  if (is_error(landings_refused_) && now_ns - landings_tried_ns_ < kTryAgainNs) return landings_refused_;
  landings_tried_ns_ = now_ns;
  landings_refused_ = Status::kOutOfMemory;
  try {
    Status status = Status::kOutOfMemory;
    std::unique_ptr<Lander> lander = options_.make_lander(device, status);
    if (lander == nullptr) return landings_refused_ = status;
    landings_ = std::make_unique<Landings>(std::move(lander));
    landings_refused_ = Status::kOk;
    return Status::kOk;
  } catch (const std::exception&) {
    return landings_refused_;
  }
}

// The same, for the GPU that a peer's segment lies on.
Status Connection::find_landings(const WireSegment& segment, uint32_t access) noexcept {
  uint64_t device = 0;
  void* pin = nullptr;
  const int32_t result =
      host_.pin_landing(segment.key, segment.address, segment.length, access, &device, &pin);
  if (result != 0) return result < 0 ? static_cast<Status>(result) : Status::kInternal;
  host_.unpin(pin);
  return make_landings(device);
}

// The GPUs that a plan needs on this side, and the cut of its frames.
Status Connection::prepare_landing(Prepared& prepared, uint64_t most_frame_bytes) noexcept {
  const towline_plan& plan = *prepared.base.plan;
  const auto regions = [](const towline_list& list) {
    return std::span(list.regions, static_cast<std::size_t>(list.region_count));
  };
  bool gpu = false;
  for (const towline_list* list : {plan.local, plan.remote}) {
    for (const towline_region_ref& region : regions(*list)) {
      gpu = gpu || on_gpu(region);
      prepared.mixed = prepared.mixed || !one_place(regions(*list).front(), region);
    }
  }
  prepared.mixed = prepared.mixed && gpu;
  if (!gpu) return Status::kOk;
  prepared.most_bytes = std::min<uint64_t>(most_frame_bytes, kLandingSlotBytes);
  for (const towline_region_ref& region : regions(*plan.local)) {
    if (!on_gpu(region)) continue;
    prepared.lands = true;
    landings_refused_ = Status::kOk;  // for our own application it is worth a look
    Status status = make_landings(region.device);
    if (status == Status::kOk) status = landings_->lander->ready(region.device);
    if (status != Status::kOk) return status;
  }
  return Status::kOk;
}

// The next segments of a part, in segments_: no further than its local, and its remote memory, is of one place.
std::size_t Connection::next_segments(Part& part, plugin::Cursor& cursor, uint64_t most_bytes) noexcept {
  const Prepared& prepared = *part.prepared;
  most_bytes = std::min(most_bytes, prepared.most_bytes);
  if (!prepared.mixed) return cursor.next(segments_.data(), options_.max_segments, most_bytes);
  const plugin::Cursor before = cursor;
  const towline_plan& plan = *prepared.base.plan;
  const std::size_t count = cursor.next(segments_.data(), options_.max_segments, most_bytes);
  uint64_t bytes = 0;
  std::size_t alike = 0;
  for (; alike < count; ++alike) {
    const towline_segment& first = segments_[0];
    const towline_segment& segment = segments_[alike];
    if (!one_place(plan.local->regions[first.local_region], plan.local->regions[segment.local_region]) ||
        !one_place(plan.remote->regions[first.remote_region], plan.remote->regions[segment.remote_region]))
      break;
    bytes += segment.length;
  }
  if (alike == count) return count;
  cursor = before;
  return cursor.next(segments_.data(), options_.max_segments, bytes);
}

// ---- sending

TOWLINE_WAKE_PATH uint32_t Connection::pump_gathers() noexcept {
  if (landings_ == nullptr) return 0;
  uint32_t begun = 0;
  for (; !gathered_.empty() && !landings_->free_gather.empty(); ++begun) begin_gather(*gathered_.front());
  return begun;
}

void Connection::begin_gather(Part& part) noexcept {
  Landings& landings = *landings_;
  const uint32_t index = landings.free_gather.back();
  landings.free_gather.pop_back();
  GatherSlot& slot = landings.gather[index];
  slot.offset = part.cursor->position();
  const uint64_t most = std::min<uint64_t>(chunk_bytes(part.bytes()), options_.max_frame_bytes);
  const std::size_t count = next_segments(part, *part.cursor, most);
  slot.part = &part;
  slot.wire_id = part.wire_id();
  slot.bytes = static_cast<uint32_t>(part.cursor->position() - slot.offset);
  slot.segment_count = static_cast<uint32_t>(count);
  slot.discarded = false;
  slot.status = Status::kOk;
  const bool last = part.cursor->done();
  slot.with_message = last && slot.offset == part.begin && !part.message.empty();
  for (std::size_t i = 0; i < count; ++i)
    slot.segments[i] = {part.regions[segments_[i].remote_region].key, segments_[i].remote,
                        segments_[i].length};
  ++part.outstanding;
  part.produced += slot.bytes;
  if (last) {
    gathered_.remove(part);
    part.state = PartState::kWaiting;
  }
  const towline_region_ref& region = part.prepared->base.plan->local->regions[segments_[0].local_region];
  if (!on_gpu(region)) {  // host memory between pieces of GPU memory
    uint8_t* out = landings.lander->slot(Way::kGather, index);
    for (std::size_t i = 0; i < count; ++i) {
      copy_bytes(out, reinterpret_cast<const void*>(segments_[i].local), segments_[i].length);
      out += segments_[i].length;
    }
    slot.state = GatherSlot::State::kReady;
    landings.ready.push(index);
    return;
  }
  landings.pieces.clear();
  for (std::size_t i = 0; i < count; ++i) add_piece(landings.pieces, segments_[i].local, segments_[i].length);
  const auto in_place = [&](const auto& lane) {
    return goes_in_place(*lane, region.device, landings.pieces, slot.bytes);
  };
  if (std::any_of(lanes_.begin(), lanes_.end(), in_place)) {
    leave_in_place(slot, region.device);
    landings.ready.push(index);
    return;
  }
  slot.state = GatherSlot::State::kGathering;
  ++part.copies;
  ++landings.under_way;
  int32_t vendor_code = 0;
  const Status status =
      landings.lander->begin(Way::kGather, index, region.device, landings.pieces, vendor_code);
  if (status != Status::kOk) gather_ended(index, status, vendor_code);
}

void Connection::gather_ended(uint32_t index, Status status, int32_t vendor_code) noexcept {
  Landings& landings = *landings_;
  GatherSlot& slot = landings.gather[index];
  --landings.under_way;
  slot.status = status;
  slot.state = GatherSlot::State::kReady;
  slot.pins.release(host_);
  if (status == Status::kOk) landings.gathered_bytes += slot.bytes;
  Part* const part = slot.part;
  if (part != nullptr) --part->copies;
  if (down_) {
    free_gather(index);
    if (part != nullptr) copy_ended(*part);
    return;
  }
  if (part == nullptr) return;  // its lane finds it, in order
  if (status == Status::kOk) {
    landings.ready.push(index);
    return;
  }
  const uint64_t begin = slot.offset;
  const uint64_t end = begin + slot.bytes;
  free_gather(index);
  --part->outstanding;
  part->confirmed += end - begin;
  note_failure(*part, status, begin, end, vendor_code);
  stop_producing(*part);
  settle(*part);
}

void Connection::free_gather(uint32_t index) noexcept {
  GatherSlot& slot = landings_->gather[index];
  slot.state = GatherSlot::State::kFree;
  slot.part = nullptr;
  slot.in_place.clear();
  slot.pins.release(host_);
  landings_->free_gather.push_back(index);
}

void Connection::free_scatter(uint32_t index) noexcept {
  ScatterSlot& slot = landings_->scatter[index];
  slot.state = ScatterSlot::State::kFree;
  slot.part = nullptr;
  slot.frame = nullptr;
  if (slot.flow != nullptr) std::exchange(slot.flow, nullptr)->release(index);
  slot.pins.release(host_);
  landings_->free_scatter.push_back(index);
}

TOWLINE_WAKE_PATH bool Connection::opens_gathered(const LaneState& lane) const noexcept {
  return landings_ != nullptr && !landings_->ready.empty() &&
         lane.out.sent.size() < options_.most_uncounted_frames &&
         slot_opens(lane, landings_->gather[landings_->ready.front()]);
}

bool Connection::open_gathered(LaneState& lane) noexcept {
  if (!opens_gathered(lane) || !may_emit_header(lane, landings_->gather[landings_->ready.front()].part))
    return false;
  Output& out = lane.out;
  const uint32_t index = landings_->ready.front();
  landings_->ready.pop();
  GatherSlot& slot = landings_->gather[index];
  Part& part = *slot.part;
  FrameHeader header = new_header(lane, FrameType::kWrite);
  header.segment_count = static_cast<uint16_t>(slot.segment_count);
  header.payload_bytes = slot.bytes;
  const bool apart = goes_apart(lane, slot.bytes);
  if (!apart) header.padding_bytes = padding(lane, preamble_bytes(header), slot.bytes);
  header.part = slot.wire_id;
  header.offset = slot.offset;
  out.frame.clear();
  if (!apart) out.frame.append(out.preamble.get(), preamble_bytes(header));
  append_slot(lane, index);
  std::memcpy(out.preamble.get() + kHeaderBytes, slot.segments.get(),
              slot.segment_count * sizeof(WireSegment));
  end_header(lane, header, apart, slot.with_message ? message_of(part) : std::span<const uint8_t>{});
  out.sent.push({header.sequence, slot.bytes, &part});
  out.unacked_bytes += slot.bytes;
  take_slot(lane, index, &part);
  return true;
}

// ---- answering READs

// As pin_segments, of GPU memory. All of it must be on one GPU: peers cut what they ask for accordingly.
Status Connection::pin_landing(std::span<const WireSegment> segments, uint32_t access, PinSet& pins,
                               std::vector<LandingPiece>& pieces, uint64_t& device) noexcept {
  pieces.clear();
  Status status = Status::kOk;
  for (std::size_t i = 0; i < segments.size() && status == Status::kOk;) {
    uint64_t low = segments[i].address;
    uint64_t high = low + segments[i].length;
    std::size_t end = i + 1;
    for (; end < segments.size() && segments[end].key == segments[i].key; ++end) {
      low = std::min(low, segments[end].address);
      high = std::max(high, segments[end].address + segments[end].length);
    }
    void* pin = nullptr;
    uint64_t here = 0;
    const int32_t result = host_.pin_landing(segments[i].key, low, high - low, access, &here, &pin);
    if (result != 0) {
      status = result < 0 ? static_cast<Status>(result) : Status::kInternal;
      break;
    }
    pins.add(pin);
    if (i == 0) device = here;
    if (device != here) status = Status::kUnsupported;
    for (; i < end; ++i) add_piece(pieces, segments[i].address, segments[i].length);
  }
  if (status != Status::kOk) pins.release(host_);
  return status;
}

// Is there an answer that open_answer() could make a frame of now?
bool Connection::answer_opens(const LaneState& lane) const noexcept {
  const Output& out = lane.out;
  if (!out.gathers.empty()) {
    const GatherSlot& slot = landings_->gather[out.gathers.front()];
    return slot.state == GatherSlot::State::kReady && slot_opens(lane, slot);
  }
  if (out.answers.empty()) return false;
  const bool waits = answers_[out.answers.front()].place == ReadAnswer::Place::kGpu;
  return !waits || !landings_->free_gather.empty();
}

// Gathers for the lane's oldest requests, as far as there are slots.
void Connection::gather_answers(LaneState& lane) noexcept {
  Output& out = lane.out;
  Landings& landings = *landings_;
  while (!out.answers.empty() && !landings.free_gather.empty() && !out.gathers.full()) {
    const uint32_t which = out.answers.front();
    ReadAnswer& answer = answers_[which];
    if (answer.place == ReadAnswer::Place::kHost) return;
    // An answer from host memory needs no slot; open_answer() finds out which kind this one is when it is in turn.
    if (answer.place == ReadAnswer::Place::kUnknown && out.gathers.empty()) return;
    const std::size_t bytes =
        std::min<uint64_t>({lane.frame_bytes, kLandingSlotBytes, answer.end - answer.next});
    const uint32_t segment = answer.segment;
    const uint64_t in_segment = answer.in_segment;
    const std::size_t count = cut_answer(answer, bytes);
    const uint32_t index = landings.free_gather.back();
    GatherSlot& slot = landings.gather[index];
    uint64_t device = 0;
    const Status pinned =
        pin_landing({wire_segments_.data(), count}, TOWLINE_ACCESS_READ, slot.pins, landings.pieces, device);
    if (pinned != Status::kOk) {  // in the ordinary way it is refused, in turn
      answer.segment = segment;
      answer.in_segment = in_segment;
      answer.place = ReadAnswer::Place::kHost;
      return;
    }
    answer.place = ReadAnswer::Place::kGpu;
    landings.free_gather.pop_back();
    slot.part = nullptr;
    slot.discarded = false;
    slot.apart = answer.apart;
    slot.wire_id = answer.wire_id;
    slot.offset = answer.next;
    slot.bytes = static_cast<uint32_t>(bytes);
    slot.answer_end = answer.end;
    slot.answer_serial = answer.serial;
    slot.state = GatherSlot::State::kGathering;
    out.gathers.push(index);
    answer.next += bytes;
    if (answer.next == answer.end) {
      out.answers.pop();
      free_answers_.push_back(which);
    }
    if (slot.apart && goes_in_place(lane, device, landings.pieces, bytes)) {
      leave_in_place(slot, device);
      continue;
    }
    ++landings.under_way;
    int32_t vendor_code = 0;
    const Status begun = landings.lander->begin(Way::kGather, index, device, landings.pieces, vendor_code);
    if (begun != Status::kOk) gather_ended(index, begun, vendor_code);
  }
}

// The next DATA frame from a slot. False: no frame is there, or it is still being gathered.
bool Connection::open_gathered_answer(LaneState& lane) noexcept {
  Output& out = lane.out;
  while (!out.gathers.empty() && may_emit(lane, kHeaderBytes)) {
    const uint32_t index = out.gathers.front();
    GatherSlot& slot = landings_->gather[index];
    if (slot.state != GatherSlot::State::kReady || !slot_opens(lane, slot)) return false;
    out.gathers.pop();
    if (slot.discarded || slot.status != Status::kOk) {
      if (!slot.discarded) refuse_gathered_answer(lane, slot);
      free_gather(index);
      continue;
    }
    FrameHeader header = new_header(lane, FrameType::kData);
    const bool apart = slot.apart && goes_apart(lane, slot.bytes);
    if (!apart) header.padding_bytes = padding(lane, kHeaderBytes, slot.bytes);
    header.payload_bytes = slot.bytes;
    header.part = slot.wire_id;
    header.offset = slot.offset;
    out.frame.clear();
    if (!apart) out.frame.append(out.preamble.get(), preamble_bytes(header));
    append_slot(lane, index);
    end_header(lane, header, apart, {});
    out.served = slot.bytes;
    take_slot(lane, index, nullptr);
    return true;
  }
  return false;
}

// The ordinary pin of an answer failed: does it want GPU memory?
bool Connection::turns_to_gpu(LaneState& lane, ReadAnswer& answer, Status& status) noexcept {
  if (status != Status::kPermissionDenied || !options_.make_lander ||
      answer.place != ReadAnswer::Place::kUnknown)
    return false;
  const Status found =
      landings_ == nullptr ? find_landings(wire_segments_[0], TOWLINE_ACCESS_READ) : Status::kOk;
  if (found != Status::kOk) {
    status = found;
    return false;
  }
  lane.out.pins.release(host_);
  lane.out.frame.clear();
  answer.place = ReadAnswer::Place::kGpu;
  return true;
}

// All that is left of its request.
void Connection::refuse_gathered_answer(LaneState& lane, const GatherSlot& slot) noexcept {
  note_refusal(lane, slot.status);
  emit_nack(lane, slot.wire_id, slot.offset, slot.answer_end - slot.offset, slot.status);
  for (GatherSlot& other : landings_->gather)
    if (other.part == nullptr && other.answer_serial == slot.answer_serial) other.discarded = true;
  BoundedQueue<uint32_t>& answers = lane.out.answers;
  if (answers.empty() || answers_[answers.front()].serial != slot.answer_serial) return;
  free_answers_.push_back(answers.front());
  answers.pop();
}

// ---- receiving

// False: it still waits.
bool Connection::retry_stalled(LaneState& lane) noexcept {
  Input& in = lane.in;
  if (landings_->free_scatter.empty() || (in.landing() && in.landed->full())) return false;
  in.stalled = false;
  take_apart(lane);
  return !in.stalled && !down_;
}

// A WRITE frame whose regions are on a GPU: its segments are in wire_segments_. False: it has to wait for a slot.
bool Connection::land_write(LaneState& lane, std::size_t count) noexcept {
  Input& in = lane.in;
  in.refused = landings_ == nullptr ? find_landings(wire_segments_[0], TOWLINE_ACCESS_WRITE) : Status::kOk;
  if (in.refused == Status::kOk && in.header.payload_bytes > kLandingSlotBytes)
    in.refused = Status::kLimitExceeded;
  if (in.landed == nullptr) in.landed.reset(new (std::nothrow) LandedFrames);
  if (in.refused == Status::kOk && in.landed == nullptr) in.refused = Status::kOutOfMemory;
  if (in.refused != Status::kOk) return true;
  if (landings_->free_scatter.empty()) {
    in.stalled = true;
    return false;
  }
  const uint32_t index = landings_->free_scatter.back();
  ScatterSlot& slot = landings_->scatter[index];
  uint64_t device = 0;
  in.refused =
      pin_landing({wire_segments_.data(), count}, TOWLINE_ACCESS_WRITE, in.pins, slot.pieces, device);
  if (in.refused != Status::kOk) return true;
  in.slot = index;
  landings_->free_scatter.pop_back();
  slot.state = ScatterSlot::State::kReceiving;
  slot.device = device;
  slot.offset = in.header.offset;
  slot.bytes = in.header.payload_bytes;
  slot.part = nullptr;
  slot.lane = &lane;
  receive_into_slot(lane, slot);
  in.state = InputState::kPayload;
  return true;
}

// A WRITE frame was received into a slot, or behind one that is still being scattered.
void Connection::land_written(LaneState& lane, bool good, std::span<const uint8_t> message) noexcept {
  Input& in = lane.in;
  LandedFrame& frame = in.landed->push();
  frame.sequence = in.header.sequence;
  frame.chained = (in.header.flags & kFlagChained) != 0;
  frame.status = in.refused == Status::kOk && !good ? Status::kCorrupt : in.refused;
  frame.part = in.header.part;
  frame.offset = in.header.offset;
  frame.bytes = in.header.payload_bytes;
  frame.slot = std::exchange(in.slot, kNoSlot);
  try {
    frame.message.assign(message.begin(), message.end());
  } catch (const std::bad_alloc&) {
    frame.message.clear();
    if (frame.status == Status::kOk) frame.status = Status::kOutOfMemory;
  }
  if (frame.slot == kNoSlot) {
    in.pins.release(host_);
    return;
  }
  const uint32_t index = frame.slot;
  ScatterSlot& slot = landings_->scatter[index];
  slot.pins.swap(in.pins);
  slot.frame = &frame;
  slot.state = ScatterSlot::State::kScattering;
  ++landings_->under_way;
  if (frame.status != Status::kOk) return scatter_ended(index, frame.status, 0);
  int32_t vendor_code = 0;
  const Status begun = begin_scatter(index, vendor_code);
  if (begun != Status::kOk) scatter_ended(index, begun, vendor_code);
}

// Counts the frames whose bytes are where they belong, in order.
void Connection::end_landed(LaneState& lane) noexcept {
  Input& in = lane.in;
  while (in.landing() && in.landed->front().slot == kNoSlot && !down_) {
    LandedFrame& frame = in.landed->front();
    if (frame.status != Status::kOk) {
      refuse_write(lane, {frame.sequence, frame.status, frame.part, frame.offset, frame.bytes});
      if (frame.chained) in.refused_part = frame.part;
    } else {
      host_.served(peer_, TOWLINE_SERVED_WRITE, frame.bytes);
    }
    if (!frame.message.empty()) {
      if (frame.status != Status::kOk || (frame.chained && in.refused_part == frame.part))
        ++statistics_.messages_dropped;
      else
        host_.message(peer_, frame.message.data(), frame.message.size());
    }
    if (down_) return;
    in.landed->pop();
    in.counted = in.landing() ? in.landed->front().sequence : in.received;
    in.ack_due = true;
  }
}

// DATA of a plan with GPU memory here. False: it waits for a slot, or broke the protocol.
bool Connection::land_data(LaneState& lane, ReadRequest& request) noexcept {
  Input& in = lane.in;
  const plugin::Cursor before = *request.cursor;
  const std::size_t count = request.cursor->next(segments_.data(), segments_.size(), in.header.payload_bytes);
  const towline_plan& plan = *request.part->prepared->base.plan;
  const towline_region_ref& region = plan.local->regions[segments_[0].local_region];
  const bool gpu = on_gpu(region);
  if (gpu && landings_->free_scatter.empty()) {
    *request.cursor = before;
    in.stalled = true;
    return false;
  }
  in.target.clear();
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < count; ++i) bytes += segments_[i].length;
  if (bytes != in.header.payload_bytes || bytes > kLandingSlotBytes)
    return protocol_error(lane, "data in more segments than asked for");
  in.state = InputState::kPayload;
  if (!gpu) {
    for (std::size_t i = 0; i < count; ++i)
      in.target.append(reinterpret_cast<const void*>(segments_[i].local), segments_[i].length);
    return true;
  }
  in.slot = landings_->free_scatter.back();
  landings_->free_scatter.pop_back();
  ScatterSlot& slot = landings_->scatter[in.slot];
  slot.state = ScatterSlot::State::kReceiving;
  slot.device = region.device;
  slot.offset = in.header.offset;
  slot.bytes = in.header.payload_bytes;
  slot.part = nullptr;
  slot.lane = nullptr;
  slot.pieces.clear();
  for (std::size_t i = 0; i < count; ++i) add_piece(slot.pieces, segments_[i].local, segments_[i].length);
  receive_into_slot(lane, slot);
  return true;
}

// Its part goes on waiting for the copy when the request has been settled.
void Connection::land_received_data(LaneState& lane, ReadRequest& request, bool good) noexcept {
  Part& part = *request.part;
  const uint32_t index = std::exchange(lane.in.slot, kNoSlot);
  ScatterSlot& slot = landings_->scatter[index];
  slot.part = &part;
  slot.state = ScatterSlot::State::kScattering;
  ++part.outstanding;
  ++part.copies;
  ++landings_->under_way;
  int32_t vendor_code = 0;
  Status status = Status::kCorrupt;
  if (good) status = begin_scatter(index, vendor_code);
  request.next += slot.bytes;
  note_answered(lane, slot.bytes);
  const bool last = request.next == request.end;
  if (last) settle_request(lane, Status::kOk);  // not the part, which still waits for this copy
  if (status != Status::kOk) scatter_ended(index, status, vendor_code);
}

void Connection::scatter_ended(uint32_t index, Status status, int32_t vendor_code) noexcept {
  ScatterSlot& slot = landings_->scatter[index];
  --landings_->under_way;
  if (status == Status::kOk) landings_->scattered_bytes += slot.bytes;
  if (status == Status::kOk && slot.flow != nullptr) landings_->unpacked_bytes += slot.bytes;
  Part* const part = slot.part;
  LandedFrame* const frame = slot.frame;
  const uint64_t begin = slot.offset;
  const uint64_t end = begin + slot.bytes;
  free_scatter(index);
  if (frame != nullptr) {
    frame->slot = kNoSlot;
    if (frame->status == Status::kOk) frame->status = status;
  }
  if (part == nullptr) return;
  --part->copies;
  if (down_) return copy_ended(*part);
  --part->outstanding;
  part->confirmed += end - begin;
  if (status != Status::kOk) {
    note_failure(*part, status, begin, end, vendor_code);
    stop_producing(*part);
  }
  settle(*part);
}

// ---- both

uint32_t Connection::poll_landings(uint64_t now_ns) noexcept {
  Landings& landings = *landings_;
  uint32_t ended = 0;
  for (uint32_t i = 0; i < kLandingSlots && landings.under_way != 0; ++i) {
    int32_t vendor_code = 0;
    if (landings.gather[i].state == GatherSlot::State::kGathering) {
      const Status status = landings.lander->poll(Way::kGather, i, now_ns, vendor_code);
      if (status != Status::kInProgress) {
        gather_ended(i, status, vendor_code);
        ++ended;
      }
    }
    if (landings.scatter[i].state == ScatterSlot::State::kScattering) {
      const Status status = landings.lander->poll(Way::kScatter, i, now_ns, vendor_code);
      if (status != Status::kInProgress) {
        scatter_ended(i, status, vendor_code);
        ++ended;
      }
    }
  }
  if (ended != 0 && !down_)
    for (const auto& lane : lanes_) end_landed(*lane);
  return ended;
}

// The connection is down, and a copy of the part has ended.
void Connection::copy_ended(Part& part) noexcept {
  if (part.copies == 0) end_part(part);
}

// The connection goes down: slots that no GPU uses are free again, the others once it has done with them.
void Connection::drop_landings() noexcept {
  for (const auto& lane : lanes_) {
    lane->in.slot = lane->out.slot = kNoSlot;
    lane->in.stalled = false;
    lane->out.gathers.clear();
    if (lane->loans != nullptr) lane->loans->forget_slots();
    if (lane->in.landed != nullptr) lane->in.landed->clear();
  }
  if (landings_ == nullptr) return;
  landings_->ready.clear();
  for (uint32_t i = 0; i < kLandingSlots; ++i) {
    const GatherSlot& out = landings_->gather[i];
    if (out.state == GatherSlot::State::kReady || out.state == GatherSlot::State::kSending) free_gather(i);
    ScatterSlot& in = landings_->scatter[i];
    in.frame = nullptr;
    if (in.state == ScatterSlot::State::kReceiving) free_scatter(i);
  }
}

void Connection::give_up() noexcept {
  parts_.for_each_live([&](Part& part) {
    if (part.state != PartState::kEnded) end_part(part);
  });
  deliver_ended();
}

}  // namespace towline::framing
