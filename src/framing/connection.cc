#include "framing/connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/sync/wake_path.h"

namespace towline::framing {
namespace {

// After recent activity an answer may be coming. The rest of a pass takes a tenth of a microsecond or more,
// in which the lane is not read; polling the lane as long halves the wait for an answer: a page read through
// the ring took 1.41 us before, and takes 1.33 us now.
constexpr uint64_t kLivelyNs = 5 * kMicrosecondNs;

constexpr uint64_t kAttentiveNs = kSecondNs;  // after the last urgent part

constexpr uint32_t kSmallestQueueBytes = 2 * (kMaxMessageBytes + kHeaderBytes);

ConnectionOptions within_limits(ConnectionOptions options) noexcept {
  options.max_frame_bytes = std::clamp(options.max_frame_bytes, 1u, kMaxPayloadBytes);
  options.max_segments = std::clamp(options.max_segments, 1u, kMaxSegments);
  options.max_parts = std::max(options.max_parts, 1u);
  options.max_reads = std::clamp(options.max_reads, 1u, kReadCredits);
  options.read_request_bytes =
      std::clamp(options.read_request_bytes, 1u, static_cast<uint32_t>(kMaxReadBytes));
  options.most_uncounted_frames = std::clamp(options.most_uncounted_frames, 1u, kMostUncountedFrames);
  options.queue_bytes = std::max(options.queue_bytes, kSmallestQueueBytes);
  options.small_bytes = std::min({options.small_bytes, options.max_frame_bytes, options.queue_bytes / 4});
  options.pass_bytes = std::max(options.pass_bytes, 1u);
  return options;
}

std::string in_json(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
  }
  return out + '"';
}

}  // namespace

Output::Output(const ConnectionOptions& options)
    : queue(options.queue_bytes),
      frame(kMaxSegments + 2),
      preamble(std::make_unique<uint8_t[]>(kMaxPreambleBytes +
                                           kMostTogether * kHeaderBytes)),  // padding goes out as it lies
      pins(kMaxSegments),
      sent(options.most_uncounted_frames),
      refusals(kMostUncountedFrames),
      answers(kReadCredits) {}

Input::Input(const ConnectionOptions& options)
    : staging(std::make_unique_for_overwrite<uint8_t[]>(kStagingBytes)),
      target(kMaxSegments + 1),
      pins(kMaxSegments),
      reads(options.max_reads) {}

LaneState::LaneState(std::unique_ptr<Lane> stream, const ConnectionOptions& options)
    : lane(std::move(stream)),
      traits(lane->traits()),
      frame_bytes(std::clamp(traits.frame_bytes, 1u, options.max_frame_bytes)),
      out(options),
      in(options) {
  const PayloadFlow* const flow = lane->payload_flow();
  if (lane->lends() || (flow != nullptr && flow->lends())) loans = std::make_unique<Loans>();
  traits.read_ahead_bytes = std::clamp<uint32_t>(traits.read_ahead_bytes, kHeaderBytes, 64u << 10);
  traits.payload_alignment = std::bit_floor(std::clamp(traits.payload_alignment, 1u, kMaxPaddingBytes));
}

Connection::Connection(const plugin::Host& host, void* peer, const ConnectionOptions& options)
    : host_(host),
      peer_(peer),
      options_(within_limits(options)),
      parts_(options_.max_parts),
      requests_(options_.max_reads),
      answers_(kReadCredits),
      segments_(kMaxSegments + 1),
      wire_segments_(kMaxSegments),
      scratch_preamble_(std::make_unique_for_overwrite<uint8_t[]>(kMaxPreambleBytes)) {
  for (uint32_t i = options_.max_reads; i-- > 0;) free_requests_.push_back(i);
  for (uint32_t i = kReadCredits; i-- > 0;) free_answers_.push_back(i);
}

Connection::~Connection() {
  release_everything();
  call_loans_in();
}

LaneState& Connection::append_lane(std::unique_ptr<Lane> lane) {
  auto state = std::make_unique<LaneState>(std::move(lane), options_);
  state->index = static_cast<uint32_t>(lanes_.size());
  state->lane->look_for_counts();
  if (down_) state->lane->close();
  state->lane->stop_when(
      {[](const void* self) noexcept { return static_cast<const Connection*>(self)->urgent_waits(); }, this});
  lanes_.push_back(std::move(state));
  return *lanes_.back();
}

// Reads the lane and looks after what it read. The connection may be down afterwards.
TOWLINE_WAKE_PATH uint32_t Connection::attend(LaneState& lane, uint64_t now_ns) noexcept {
  lane.out.blocked = lane.out.inline_used = lane.out.flow_blocked = false;
  const uint32_t taken = take_back(lane);
  const uint32_t read = read_lane(lane);
  // A lane that waits for this side's GPU is not read, but it shows that the peer is alive.
  if ((read != 0 || lane.in.stalled) && !down_) host_.heard(peer_);
  if (!down_) watch_frames(lane, now_ns);
  if (!down_ && lane.broken.status != Status::kOk) break_lane(lane, lane.broken, "writing");
  return read + taken;
}

TOWLINE_WAKE_PATH uint32_t Connection::progress(uint64_t now_ns) noexcept {
  uint32_t work = ended_.empty() ? 0 : deliver_ended();
  if (copying()) work += poll_landings(now_ns);
  if (down_) work += take_all_back();
  const bool lively = now_ns - last_activity_ns_ < kLivelyNs;
  if (std::exchange(urgent_noted_, false)) attentive_until_ns_ = now_ns + kAttentiveNs;
  attentive_ = now_ns < attentive_until_ns_;
  ++quiet_passes_;
  if (express_ != nullptr && !down_) work += attend_express(now_ns);
  for (std::size_t i = 0; i < lanes_.size() && !down_; ++i) {
    LaneState& lane = *lanes_[i];
    if (lane.express) continue;
    if (lively && lane.in.state == InputState::kHeader) lane.lane->look_longer();
    const uint32_t read = attend(lane, now_ns);
    work += read;
    if (read != 0 && attentive_ && express_ != nullptr && !down_) work += attend_express(now_ns);
  }
  if (!down_ && (cancelled_ != 0 || owed_watched_)) watch_owed(now_ns);
  // Most passes find nothing: a spinning receiver must poll its lanes again soon.
  if (work == 0 && !down_ && !has_work()) return 0;
  quiet_passes_ = 0;
  first_turn_ = attentive_ && !lanes_.empty() ? (first_turn_ + 1) % lanes_.size() : 0;
  if (!down_) {
    work += deliver_ended();
    do {
      work += flush_lanes();
      work += retry_messages();
    } while (pump_reads() + pump_gathers() != 0);
  }
  work += deliver_ended();
  if (work != 0) last_activity_ns_ = now_ns;
  return work;
}

// Breaks the connection over frames that begin and do not end: incoming ones, and answers that the peer does
// not read.
TOWLINE_WAKE_PATH void Connection::watch_frames(LaneState& lane, uint64_t now_ns) noexcept {
  const auto look = [&](FrameWatch& watch, bool under_way, uint32_t sequence, uint64_t left,
                        const char* doing) {
    if (!under_way) return watch.none();
    watch.look(sequence, left, now_ns);
    if (now_ns < watch.deadline_ns(options_.frame_timeout_ns)) return;
    static constexpr const char* kText = "the peer stopped in the middle of a frame";
    break_lane(lane, IoResult::error(Status::kPeerLost, 0, kText), doing);
  };
  const Input& in = lane.in;
  look(lane.in.watch, in.in_frame(), in.watched_frame(), in.left_of_frame(), "reading");
  if (down_) return;
  const Output& out = lane.out;
  look(lane.out.watch, out.frame_open && out.served != 0, out.frame_sequence, out.frame.bytes(), "writing");
}

// Measures how long the peer does not count frames, or answer requests, of which a part is cancelled: its memory is
// wanted back. A lane that waits for this side's GPU is not read, and its peer has time.
void Connection::look_at_owed(uint64_t now_ns) noexcept {
  owed_watched_ = cancelled_ != 0;
  const auto look = [now_ns](OwedWatch& watch, bool owed, uint64_t settled, uint64_t bytes) {
    if (!owed) return watch.none();
    watch.look(settled, bytes, now_ns);
  };
  for (const auto& lane : lanes_) {
    Output& out = lane->out;
    Input& in = lane->in;
    bool uncounted = false;
    bool unanswered = false;
    if (owed_watched_ && !in.stalled) {
      for (std::size_t i = 0; i < out.sent.size() && !uncounted; ++i) uncounted = out.sent[i].part->cancelled;
      for (std::size_t i = 0; i < in.reads.size() && !unanswered; ++i)
        unanswered = requests_[in.reads[i]].part->cancelled;
    }
    look(out.owed, uncounted, out.acked, uncounted ? out.sent.front().bytes : 0);
    const ReadRequest* const oldest = unanswered ? &requests_[in.reads.front()] : nullptr;
    look(in.owed, unanswered, in.answered_bytes, unanswered ? oldest->end - oldest->next : 0);
  }
}

void Connection::watch_owed(uint64_t now_ns) noexcept {
  look_at_owed(now_ns);
  for (const auto& lane : lanes_) {
    const char* text = nullptr;
    if (now_ns >= lane->in.owed.deadline_ns(options_.frame_timeout_ns))
      text = "the peer lives and does not answer what a cancelled transfer asked";
    if (now_ns >= lane->out.owed.deadline_ns(options_.frame_timeout_ns))
      text = "the peer lives and does not count what a cancelled transfer sent";
    if (text != nullptr) return break_lane(*lane, IoResult::error(Status::kPeerLost, 0, text), "waiting for");
  }
}

uint64_t Connection::frame_deadline_ns() const noexcept {
  uint64_t next_ns = down_ ? kNoDeadline : express_end_ns_;
  for (const auto& lane : lanes_) {
    if (down_) break;
    next_ns = std::min(next_ns, lane->in.watch.deadline_ns(options_.frame_timeout_ns));
    next_ns = std::min(next_ns, lane->out.watch.deadline_ns(options_.frame_timeout_ns));
    next_ns = std::min(next_ns, lane->out.owed.deadline_ns(options_.frame_timeout_ns));
    next_ns = std::min(next_ns, lane->in.owed.deadline_ns(options_.frame_timeout_ns));
  }
  return next_ns;
}

// Reads and messages that found no room wait for a lane that has output.
bool Connection::arm() noexcept {
  if (!ended_.empty() || copying()) return true;  // a GPU's copy ends without waking anybody
  if (down_) return !settled();
  WakePages& pages = wake_pages();
  pages.add_object(*this);
  bool work = false;
  std::size_t asked = 0;
  for (; asked < lanes_.size() && !work; ++asked) {
    LaneState& lane = *lanes_[asked];
    pages.add_object(lane);
    pages.add(lane.in.staging.get(), 1);
    const bool output = has_output(lane);
    if (lane.express && express_end_ns_ != kNoDeadline) continue;
    work = lane.broken.status != Status::kOk || (output && !waits_for_room(lane)) || lane.lane->arm(output);
  }
  armed_ = !work;
  if (work)
    for (std::size_t i = 0; i < asked; ++i) lanes_[i]->lane->disarm();
  return work;
}

void Connection::disarm() noexcept {
  armed_ = false;
  if (down_) return;
  for (const auto& lane : lanes_) lane->lane->disarm();
}

// After a call from outside the worker: a sleeping worker does not know of the work that the call left.
TOWLINE_WAKE_PATH void Connection::wake_if_needed() noexcept {
  if (!armed_) return;
  bool work = !ended_.empty() || copying();
  for (const auto& lane : lanes_) work = work || lane->broken.status != Status::kOk || has_output(*lane);
  if (!work) return;
  armed_ = false;
  host_.wake(options_.worker);
}

void Connection::break_lane(LaneState& lane, const IoResult& result, const char* doing) noexcept {
  const bool closed = result.status == Status::kClosed;
  const Status status = closed ? Status::kPeerLost : result.status;
  try {
    std::string why = closed ? "closed by the peer" : status_text(result.status);
    if (result.detail != nullptr) why = result.detail;
    if (result.vendor_code != 0) why += ": " + errno_text(result.vendor_code);
    fail(status, fmt::format("{} lane {} ({}): {}", doing, lane.index, lane.lane->describe(), why).c_str());
  } catch (...) {
    fail(status, doing);
  }
}

// Nothing is read into, or written from, registered memory after this, but for what lanes were lent.
void Connection::release_everything() noexcept {
  drop_landings();
  for (const auto& lane : lanes_) {
    lane->lane->close();  // unless it was abandoned
    lane->in.pins.release(host_);
    lane->in.target.clear();
    if (lane->out.lent) keep_loan(*lane);
    lane->out.pins.release(host_);
    lane->out.frame.clear();
    lane->out.frame_open = lane->out.apart = false;
    lane->out.together.clear();
    lane->out.served = 0;
    lane->out.queue.clear();
  }
}

void Connection::fail(Status status, const char* text) noexcept {
  if (down_) return;
  down_ = true;
  for (const auto& lane : lanes_) lane->lane->abandon();
  release_everything();
  end_all(Status::kPeerLost);
  take_all_back();
  deliver_ended();
  host_.connection_event(peer_, TOWLINE_CONNECTION_DOWN, status, text);
}

void Connection::close() noexcept {
  if (!down_) {
    FrameHeader header;
    header.type = FrameType::kBye;
    for (const auto& lane : lanes_)
      if (lane->broken.status == Status::kOk && lane->out.nothing_queued()) emit_plain(*lane, header);
    down_ = true;
    // Bytes of a part that ends here must not be sent later.
    if (parts_.live() != 0)
      for (const auto& lane : lanes_) lane->lane->abandon();
    release_everything();
    end_all(Status::kClosed);
    take_all_back();
  }
  deliver_ended();
}

bool Connection::idle() const noexcept {
  if (parts_.live() != 0 || !settled()) return false;
  return std::all_of(lanes_.begin(), lanes_.end(), [this](const auto& lane) {
    return !has_output(*lane) && lane->in.state == InputState::kHeader && lane->in.begin == lane->in.end &&
           lane->in.together.count == 0 && lane->in.reads.empty() && lane->out.gathers.empty() &&
           !lane->in.landing();
  });
}

std::string Connection::describe() const {
  std::string lanes;
  for (const auto& lane : lanes_) {
    if (!lanes.empty()) lanes += ", ";
    lanes += in_json(lane->lane->describe());
  }
  std::string gpu = "null";
  if (landings_ != nullptr)
    gpu = fmt::format(R"({{"by": "host memory", "chunks": {}, "chunk_bytes": {}, "gathered_bytes": {}, )"
                      R"("in_place_bytes": {}, "scattered_bytes": {}, "unpacked_bytes": {}}})",
                      kLandingSlots, kLandingSlotBytes, landings_->gathered_bytes, landings_->in_place_bytes,
                      landings_->scattered_bytes, landings_->unpacked_bytes);
  return fmt::format(
      R"({{"lanes": {}, "lane": [{}], "state": "{}", "parts": {}, "frames_sent": {}, "frames_received": {}, )"
      R"("bytes_sent": {}, "bytes_received": {}, "acks_sent": {}, "refused": {}, "checksum": {}, "gpu_memory": {}}})",
      lanes_.size(), lanes, down_ ? "down" : "up", parts_.live(), statistics_.frames_sent,
      statistics_.frames_received, statistics_.bytes_sent, statistics_.bytes_received, statistics_.acks_sent,
      statistics_.refused, options_.checksum, gpu);
}

// ---- v1.h's data table

int32_t Connection::prepare(const towline_prepare_args& args, towline_prepared** prepared,
                            uint64_t most_frame_bytes) {
  if (args.op != TOWLINE_READ && args.op != TOWLINE_WRITE) return static_cast<int32_t>(Status::kUnsupported);
  auto made = std::make_unique<Prepared>();
  made->base = {sizeof made->base, 0, 0, options_.connection, args.plan};
  made->connection = this;
  made->op = args.op;
  if (const Status status = prepare_landing(*made, most_frame_bytes); status != Status::kOk)
    return static_cast<int32_t>(status);
  *prepared = &made.release()->base;
  return 0;
}

void Connection::unprepare(towline_prepared* prepared) noexcept {
  delete reinterpret_cast<Prepared*>(prepared);
}

int32_t Connection::submit(towline_prepared* prepared, const towline_submit_args& args) noexcept {
  const Prepared& own = *reinterpret_cast<Prepared*>(prepared);
  return own.connection->submit_part(own, args);
}

}  // namespace towline::framing
