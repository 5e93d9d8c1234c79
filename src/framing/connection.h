// The framed engine: one worker's connection to one peer, carrying plans and messages over one or more lanes.
// The owner of memory checks every access (host.pin); the initiator names regions by key only.
//
// Called by the worker that owns the connection, one thread at a time, under its lock. Nothing blocks. The
// host is called back (complete, message, connection_event) only from progress(), fail() and close();
// callbacks may call submit, send and cancel, and must not destroy the connection.
//
// Use by a transport:
//   Connection framed(host, peer, options);
//   framed.add_lane(std::make_unique<SocketLane>(...));     // after the transport's own handshake
//   // static submit and unprepare forward directly from the backend's tables; so do prepare, send, cancel
//   framed.progress(now);                                   // in each pass of the worker
//   framed.arm(); framed.disarm();                          // before the worker sleeps, and after
//   framed.close();                                         // in disconnect(), then destroy it
//
// The protocol (wire.h has the frames):
//  - WRITE: the part is cut into frames of at most one lane's frame_bytes and max_segments segments. Payload
//    goes from local memory into the lane; the owner pins each frame's regions, places the payload directly
//    into them and counts the frame. Counts come back cumulatively; a NACK names a refused frame before the
//    count passes it. The part is complete when every frame is counted: its bytes are then visible at the
//    owner.
//  - READ: requests (segments) are sent as far as credits allow. The owner answers each from pinned memory,
//    in order on the request's lane; the part's own cursor scatters the bytes here. The part is complete when
//    all bytes are placed.
//  - Striping: a part of one frame uses the least loaded lane; frames of a larger one use any lane that has
//    room. Reads are requested over the lane with the fewest bytes outstanding.
//  - Urgent parts: on the express lane if there is one, else before others on every lane. While urgent parts are
//    about, bulk is moved in pieces of at most kPieceBytes, and the express lane is read and written between two
//    of them; a ring stops after 16 KiB when something urgent waits. Each pass still moves a piece of bulk per
//    lane and direction, so bulk never starves.
//  - A message attached to a WRITE is sent inside its last frame if all its frames use one lane (always so for
//    a small part, and on a connection with one lane): no extra round trip. The owner drops it if any frame
//    of the part was refused. For a striped part, and for READ, it is held here until the data is known to be
//    placed, and then sent. (A join at the receiver would save half a round trip on transfers that take many,
//    but the receiver would need state for each transfer in flight.)
//  - Everything is bounded: parts, frames awaiting their count (kMostUncountedFrames per lane), read requests
//    (kReadCredits), the bytes queued for a lane. Readers never wait for space to write, so two engines can't
//    block each other.
//
// Member functions live by theme:
//   connection.cc    lanes, fail and close, arming, v1.h's slots
//   core_parts.cc    submit, cancel, states of parts, results
//   core_send.cc     making frames
//   core_flush.cc    writing them
//   core_receive.cc  reading lanes and taking frames apart
//   core_owner.cc    what the owner of memory does: place WRITEs, answer READs
//   core_express.cc  the lane of urgent parts
//   core_payload.cc  payload that goes on a flow of its own (payload_flow.h)
//   core_loans.cc    payload that a lane reads after it was written (loans.h)
//   core_unmapped.cc registered memory whose pages are gone
//   core_landing.cc  the same of payload in GPU memory, and sending it (landing.h)
//   core_in_place.cc payload in GPU memory that is sent as it lies
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "framing/lane.h"
#include "framing/lane_state.h"
#include "framing/options.h"
#include "framing/part.h"
#include "framing/wire.h"
#include "towline/plugin/backend.hpp"
#include "towline/plugin/v1.h"

namespace towline::framing {

// Writes the segment table of a frame behind its header's place.
void describe_segments(std::span<const towline_segment> segments, const towline_region_ref* regions,
                       uint8_t* preamble) noexcept;

class Connection {
 public:
  // `peer` is the core's cookie for messages and events.
  Connection(const plugin::Host& host, void* peer, const ConnectionOptions& options);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection();  // close() has been called, or no part is in flight

  // Adds a lane at any time while up; the first one carries plain messages. Control path: allocates.
  void add_lane(std::unique_ptr<Lane> lane) { (void)append_lane(std::move(lane)); }
  // The express lane: urgent parts of up to a frame go there and nothing else does, so that they never lie behind bulk
  // in a stream. At most one, after the first lane, where the peer has kFeatureExpress and adds its end too.
  void add_express_lane(std::unique_ptr<Lane> lane);
  [[nodiscard]] std::size_t lane_count() const noexcept { return lanes_.size(); }
  // This side or the peer has sent an urgent part: an express lane would be used.
  [[nodiscard]] bool has_seen_urgent() const noexcept { return urgent_seen_; }

  // v1.h's data table. Imports are not used: the plan's remote regions contain the keys. `most_frame_bytes`: how much
  // the owner of GPU memory can land at a time; the default is for other memory. Fails, with the reason passed to the
  // host, if this side has no room for staging memory.
  int32_t prepare(const towline_prepare_args& args, towline_prepared** prepared,
                  uint64_t most_frame_bytes = UINT64_MAX);
  static void unprepare(towline_prepared* prepared) noexcept;
  static int32_t repick(towline_prepared* prepared, const towline_plan* plan) noexcept {
    prepared->plan = plan;  // where payload lands depends on the lists alone
    return TOWLINE_OK;
  }
  [[nodiscard]] static int32_t submit(towline_prepared* prepared, const towline_submit_args& args) noexcept;
  [[nodiscard]] int32_t send(const void* message, std::size_t bytes) noexcept;
  void cancel(uint64_t cookie) noexcept;

  // Reads, places, answers and writes as much as possible now, and delivers completions. Returns the number
  // of things done. A lane that ends or breaks makes the connection fail() in here.
  uint32_t progress(uint64_t now_ns) noexcept;
  // Call before sleeping. True: there is work after all, and nothing stays armed.
  [[nodiscard]] bool arm() noexcept;
  void disarm() noexcept;

  // Breaks the connection: closes lanes, completes every part in flight with kPeerLost, gives pins back,
  // reports TOWLINE_CONNECTION_DOWN once with this status and text. No byte lands afterwards. Later calls do
  // nothing. Copies of a GPU that were begun run on, and a lane may still read what it was lent: until settled(),
  // their parts are not completed and their pins not given back, progress() has to be called, and this is not to be
  // destroyed.
  void fail(Status status, const char* text) noexcept;
  // Ends the connection on this side: says goodbye to the peer as far as lanes have room, then acts like
  // fail(), but parts end with kClosed and no event is reported. Written messages still arrive if no part was
  // in flight.
  void close() noexcept;

  // No copy of a GPU is under way, and no lane reads what it was lent.
  [[nodiscard]] bool settled() const noexcept { return !copying() && !lending(); }
  [[nodiscard]] bool copying() const noexcept { return landings_ != nullptr && landings_->under_way != 0; }
  [[nodiscard]] bool lending() const noexcept;
  // Resets lanes that still read what they were lent, and drops it: the peer may not get it. After close().
  void call_loans_in() noexcept;
  // After close(), where copies run on for too long: completes their parts without a fence. This is never to be
  // destroyed, since a GPU may still reach what it holds.
  void give_up() noexcept;

  [[nodiscard]] bool down() const noexcept {
    return down_;
  }  // failed or closed: submit and send answer kPeerLost
  // Nothing in flight or queued, in either direction: may be closed for idleness.
  [[nodiscard]] bool idle() const noexcept;
  // When progress() last did something.
  [[nodiscard]] uint64_t last_activity_ns() const noexcept { return last_activity_ns_; }
  // When incomplete frames that hold resources, or the peer's answers to what was cancelled, will have taken too
  // long: progress() must be called by then. UINT64_MAX: there are none.
  [[nodiscard]] uint64_t frame_deadline_ns() const noexcept;
  [[nodiscard]] const ConnectionStatistics& statistics() const noexcept { return statistics_; }
  [[nodiscard]] std::string describe() const;  // JSON object

 private:
  // core_parts.cc
  int32_t submit_part(const Prepared& prepared, const towline_submit_args& args) noexcept;
  int32_t submit_nothing(const towline_submit_args& args) noexcept;
  int32_t start_write(Part& part, const towline_submit_args& args) noexcept;
  int32_t start_read(Part& part, const towline_submit_args& args) noexcept;
  bool write_small(Part& part, LaneState& lane, const towline_submit_args& args) noexcept;
  bool hold_message(Part& part, const towline_submit_args& args) noexcept;
  void stop_producing(Part& part) noexcept;
  void note_answered(LaneState& lane, uint64_t bytes) noexcept;
  void note_failure(Part& part, Status status, uint64_t begin, uint64_t end,
                    int32_t vendor_code = 0) noexcept;
  void settle(Part& part) noexcept;
  bool send_held_message(Part& part) noexcept;
  void end_part(Part& part) noexcept;
  uint32_t deliver_ended() noexcept;
  uint32_t retry_messages() noexcept;
  void end_all(Status status) noexcept;
  [[nodiscard]] towline_part_result result_of(const Part& part) const noexcept;

  // core_send.cc
  [[nodiscard]] std::size_t bulk_lanes() const noexcept {
    return lanes_.size() - (express_ != nullptr ? 1 : 0);
  }
  [[nodiscard]] bool fits_express(const Part& part) const noexcept;
  LaneState& least_loaded() noexcept;
  LaneState& least_read_from() noexcept;
  [[nodiscard]] static uint32_t padding(const LaneState& lane, std::size_t preamble,
                                        std::size_t payload) noexcept;
  FrameHeader new_header(LaneState& lane, FrameType type) noexcept;
  void add_checksum(FrameHeader& header, std::span<const iovec> payload) const noexcept;
  bool may_emit(const LaneState& lane, std::size_t bytes) const noexcept;
  void emit(LaneState& lane, std::span<const iovec> pieces, std::size_t bytes) noexcept;
  bool emit_plain(LaneState& lane, FrameHeader header) noexcept;
  bool emit_nack(LaneState& lane, uint64_t part, uint64_t offset, uint64_t bytes, Status status) noexcept;
  bool emit_message(LaneState& lane, const void* message, std::size_t bytes) noexcept;
  void emit_counts(LaneState& lane) noexcept;
  uint32_t pump_reads() noexcept;
  bool request_read(Part& part, LaneState& lane) noexcept;
  [[nodiscard]] bool reads_possible() const noexcept;
  [[nodiscard]] PartList* next_reading() noexcept;
  [[nodiscard]] bool may_read(const PartList& reading, std::size_t kept_requests) const noexcept;
  [[nodiscard]] bool can_open(const LaneState& lane) const noexcept;
  void open_frame(LaneState& lane) noexcept;
  void open_express_frame(LaneState& lane) noexcept;
  bool open_write(LaneState& lane, PartList& from) noexcept;
  void track(LaneState& lane, Part& part, uint32_t sequence, std::size_t bytes) noexcept;

  // core_flush.cc
  void finish_frame_out(LaneState& lane) noexcept;
  [[nodiscard]] static bool goes_in_two(const LaneState& lane) noexcept;
  bool flush_step(LaneState& lane, std::size_t& budget) noexcept;
  bool flush_stream(LaneState& lane, std::size_t& budget) noexcept;
  void flush_inline(LaneState& lane) noexcept;
  [[nodiscard]] std::size_t pass_bytes(const LaneState& lane) const noexcept;
  [[nodiscard]] std::size_t piece_bytes(const LaneState& lane) const noexcept;
  uint32_t flush_lanes() noexcept;
  [[nodiscard]] bool has_output(const LaneState& lane) const noexcept;
  [[nodiscard]] bool has_work() const noexcept;
  void wake_if_needed() noexcept;

  // core_payload.cc
  [[nodiscard]] bool goes_apart(const LaneState& lane, std::size_t bytes) const noexcept;
  [[nodiscard]] bool may_emit_header(LaneState& lane, const Part* part) const noexcept;
  void end_header(LaneState& lane, FrameHeader& header, bool apart,
                  std::span<const uint8_t> message) noexcept;
  static std::span<const uint8_t> message_of(Part& part) noexcept;
  bool flush_payload(LaneState& lane, std::size_t& budget) noexcept;
  [[nodiscard]] bool waits_for_room(const LaneState& lane) const noexcept;
  IoResult fill_from_flow(LaneState& lane, std::size_t& asked) noexcept;
  void receive_into_slot(LaneState& lane, ScatterSlot& slot) noexcept;
  [[nodiscard]] Status begin_scatter(uint32_t index, int32_t& vendor_code) noexcept;

  // core_in_place.cc
  [[nodiscard]] bool goes_in_place(const LaneState& lane, uint64_t device,
                                   std::span<const LandingPiece> pieces, std::size_t bytes) const noexcept;
  void leave_in_place(GatherSlot& slot, uint64_t device) noexcept;
  [[nodiscard]] bool slot_opens(const LaneState& lane, const GatherSlot& slot) const noexcept;
  void append_slot(LaneState& lane, uint32_t index) noexcept;
  void take_slot(LaneState& lane, uint32_t index, Part* part) noexcept;

  // core_loans.cc
  [[nodiscard]] static bool would_lend(const LaneState& lane, std::size_t payload,
                                       std::size_t pieces) noexcept;
  [[nodiscard]] bool may_lend(const LaneState& lane, std::size_t payload) const noexcept;
  static void lend(LaneState& lane, Part& part) noexcept;
  IoResult write_lent_frame(LaneState& lane, std::span<const iovec> queued, std::size_t& offered) noexcept;
  static void keep_loan(LaneState& lane) noexcept;
  uint32_t take_back(LaneState& lane) noexcept;
  uint32_t take_all_back() noexcept;

  // core_together.cc
  [[nodiscard]] static bool may_join(const Part& part) noexcept;
  [[nodiscard]] bool opens_together(const LaneState& lane, const PartList& from) const noexcept;
  bool open_together(LaneState& lane, PartList& from) noexcept;
  static void pass_frames(Output& out) noexcept;
  [[nodiscard]] std::size_t most_written(const LaneState& lane) const noexcept;
  bool begin_together(LaneState& lane, const uint8_t* preamble) noexcept;
  static void next_together(LaneState& lane) noexcept;

  // core_unmapped.cc
  IoResult note_unmapped(Part* part, const IoResult& result) noexcept;
  [[nodiscard]] bool drop_unmapped(LaneState& lane) noexcept;

  // core_receive.cc
  uint32_t read_lane(LaneState& lane) noexcept;
  IoResult fill(LaneState& lane, std::size_t& asked) noexcept;
  IoResult fill_piece(LaneState& lane, std::size_t& asked) noexcept;
  void account(Input& in, std::size_t bytes) noexcept;
  void take_apart(LaneState& lane) noexcept;
  bool begin_frame(LaneState& lane) noexcept;
  static bool stall(Input& in, std::size_t preamble) noexcept;
  bool end_payload(LaneState& lane) noexcept;
  bool end_message(LaneState& lane) noexcept;
  bool count_frame(LaneState& lane) noexcept;
  bool take_ack(LaneState& lane, uint32_t ack) noexcept;
  bool take_told(LaneState& lane) noexcept;
  bool take_nack(LaneState& lane) noexcept;
  [[nodiscard]] bool find_request(LaneState& lane) noexcept;
  bool begin_data(LaneState& lane) noexcept;
  void end_data(LaneState& lane, bool good) noexcept;
  void settle_request(LaneState& lane, Status status) noexcept;
  bool protocol_error(LaneState& lane, const char* what) noexcept;

  // core_owner.cc
  [[nodiscard]] bool begin_write(LaneState& lane, const uint8_t* preamble) noexcept;
  void end_write(LaneState& lane, bool good, std::span<const uint8_t> message) noexcept;
  void refuse_write(LaneState& lane, const Refusal& refusal) noexcept;
  void note_refusal(LaneState& lane, Status status) noexcept;
  bool begin_read(LaneState& lane, const uint8_t* preamble) noexcept;
  std::size_t cut_answer(ReadAnswer& answer, uint64_t frame_bytes) noexcept;
  bool open_answer(LaneState& lane) noexcept;
  Status pin_segments(std::span<const WireSegment> segments, uint32_t access, IovList& target,
                      PinSet& pins) noexcept;

  // core_landing.cc
  [[nodiscard]] Status make_landings(uint64_t device) noexcept;
  [[nodiscard]] Status find_landings(const WireSegment& segment, uint32_t access) noexcept;
  [[nodiscard]] Status prepare_landing(Prepared& prepared, uint64_t most_frame_bytes) noexcept;
  [[nodiscard]] std::size_t next_segments(Part& part, plugin::Cursor& cursor, uint64_t most_bytes) noexcept;
  uint32_t pump_gathers() noexcept;
  void begin_gather(Part& part) noexcept;
  void gather_ended(uint32_t index, Status status, int32_t vendor_code) noexcept;
  void free_gather(uint32_t index) noexcept;
  void free_scatter(uint32_t index) noexcept;
  [[nodiscard]] bool opens_gathered(const LaneState& lane) const noexcept;
  bool open_gathered(LaneState& lane) noexcept;
  Status pin_landing(std::span<const WireSegment> segments, uint32_t access, PinSet& pins,
                     std::vector<LandingPiece>& pieces, uint64_t& device) noexcept;
  [[nodiscard]] bool answer_opens(const LaneState& lane) const noexcept;
  void gather_answers(LaneState& lane) noexcept;
  bool open_gathered_answer(LaneState& lane) noexcept;
  bool turns_to_gpu(LaneState& lane, ReadAnswer& answer, Status& status) noexcept;
  void refuse_gathered_answer(LaneState& lane, const GatherSlot& slot) noexcept;
  [[nodiscard]] bool retry_stalled(LaneState& lane) noexcept;
  [[nodiscard]] bool land_write(LaneState& lane, std::size_t count) noexcept;
  void land_written(LaneState& lane, bool good, std::span<const uint8_t> message) noexcept;
  void end_landed(LaneState& lane) noexcept;
  [[nodiscard]] bool land_data(LaneState& lane, ReadRequest& request) noexcept;
  void land_received_data(LaneState& lane, ReadRequest& request, bool good) noexcept;
  void scatter_ended(uint32_t index, Status status, int32_t vendor_code) noexcept;
  uint32_t poll_landings(uint64_t now_ns) noexcept;
  void copy_ended(Part& part) noexcept;
  void drop_landings() noexcept;

  // connection.cc
  LaneState& append_lane(std::unique_ptr<Lane> lane);
  void watch_frames(LaneState& lane, uint64_t now_ns) noexcept;
  void look_at_owed(uint64_t now_ns) noexcept;
  void watch_owed(uint64_t now_ns) noexcept;
  uint32_t attend(LaneState& lane, uint64_t now_ns) noexcept;
  uint32_t attend_express(uint64_t now_ns) noexcept;
  void express_ended() noexcept;
  void note_urgent() noexcept { urgent_seen_ = urgent_noted_ = true; }
  [[nodiscard]] bool urgent_waits() const noexcept;
  void break_lane(LaneState& lane, const IoResult& result, const char* doing) noexcept;
  void release_everything() noexcept;

  plugin::Host host_;
  void* peer_;
  const ConnectionOptions options_;
  ConnectionStatistics statistics_;
  std::vector<std::unique_ptr<LaneState>> lanes_;
  LaneState* express_ = nullptr;  // one of them, never the first
  std::size_t first_turn_ = 0;    // index of the lane that is served first in this pass
  bool urgent_seen_ = false;      // since the connection came up,
  bool urgent_noted_ = false;     // and since the last pass
  bool attentive_ = false;        // urgent parts came lately
  uint64_t attentive_until_ns_ = 0;
  uint32_t quiet_passes_ = 0;
  uint64_t express_end_ns_ = kNoDeadline;  // until when the other lanes may go on after the peer closed it
  PartTable parts_;
  PartList urgent_;  // WRITEs that any lane takes frames of, before others
  PartList urgent_reading_;
  uint32_t urgent_reads_ = 0;  // in a row, while others wait
  PartList striped_;           // WRITEs that any lane takes frames of
  PartList reading_;           // READs with requests to make
  PartList messages_;          // parts in kMessage
  PartList ended_;
  std::vector<ReadRequest> requests_;
  std::vector<uint32_t> free_requests_;
  std::vector<ReadAnswer> answers_;
  std::vector<uint32_t> free_answers_;
  std::vector<towline_segment> segments_;        // scratch: segments of the frame being made or placed
  std::vector<WireSegment> wire_segments_;       // scratch: the same as on the wire
  std::unique_ptr<uint8_t[]> scratch_preamble_;  // of a frame that is emitted at once
  std::unique_ptr<Landings> landings_;           // null until GPU memory is part of this connection
  PartList gathered_;                            // WRITEs from GPU memory with payload to be gathered
  uint64_t last_answer_serial_ = 0;
  uint64_t landings_tried_ns_ = 0;  // when there was no room for them last
  Status landings_refused_ = Status::kOk;
  uint64_t read_bytes_ = 0;  // outstanding in requests
  uint64_t held_message_bytes_ = 0;
  uint32_t cancelled_ = 0;     // parts, until they have ended
  bool owed_watched_ = false;  // a watch over what the peer owes may be under way
  uint64_t last_activity_ns_ = 0;
  bool down_ = false;
  bool armed_ = false;
  bool delivering_ = false;
};

}  // namespace towline::framing
