// The inside of Connection. Member functions live by theme:
//   connection.cc    the public face, lanes, fail and close, arming
//   core_parts.cc    submit, cancel, states of parts, results
//   core_send.cc     making frames and writing them
//   core_receive.cc  reading lanes and taking frames apart
//   core_owner.cc    what the owner of memory does: place WRITEs, answer READs
//   core_express.cc  the lane of urgent parts
//   core_payload.cc  payload that goes on a flow of its own (payload_flow.h)
//   core_landing.cc  the same of payload in GPU memory, and sending it (landing.h)
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "framing/connection.h"
#include "framing/lane_state.h"
#include "framing/part.h"
#include "framing/wire.h"

namespace towline::framing {

// Writes the segment table of a frame behind its header's place.
void describe_segments(std::span<const towline_segment> segments, const towline_region_ref* regions,
                       uint8_t* preamble) noexcept;

class ConnectionCore {
 public:
  ConnectionCore(const plugin::Host& host, void* peer, const ConnectionOptions& options);
  ConnectionCore(const ConnectionCore&) = delete;
  ConnectionCore& operator=(const ConnectionCore&) = delete;
  ~ConnectionCore();

  // As in Connection.
  LaneState& add_lane(std::unique_ptr<Lane> lane);
  void add_express_lane(std::unique_ptr<Lane> lane);
  int32_t submit(const Prepared& prepared, const towline_submit_args& args) noexcept;
  int32_t send(const void* message, std::size_t bytes) noexcept;
  void cancel(uint64_t cookie) noexcept;
  uint32_t progress(uint64_t now_ns) noexcept;
  bool arm() noexcept;
  void disarm() noexcept;
  [[nodiscard]] uint64_t frame_deadline_ns() const noexcept;
  void fail(Status status, const char* text) noexcept;
  void close() noexcept;
  [[nodiscard]] bool idle() const noexcept;
  [[nodiscard]] bool settled() const noexcept;
  void give_up() noexcept;
  [[nodiscard]] std::string describe() const;

 private:
  friend class Connection;

  // core_parts.cc
  int32_t submit_nothing(const towline_submit_args& args) noexcept;
  int32_t start_write(Part& part, const towline_submit_args& args) noexcept;
  int32_t start_read(Part& part, const towline_submit_args& args) noexcept;
  bool write_small(Part& part, LaneState& lane, const towline_submit_args& args) noexcept;
  bool hold_message(Part& part, const towline_submit_args& args) noexcept;
  void stop_producing(Part& part) noexcept;
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
  [[nodiscard]] bool goes_apart(LaneState& lane, std::size_t bytes) const noexcept;
  [[nodiscard]] bool may_emit_header(LaneState& lane, const Part* part) const noexcept;
  void end_header(LaneState& lane, FrameHeader& header, bool apart,
                  std::span<const uint8_t> message) noexcept;
  static std::span<const uint8_t> message_of(Part& part) noexcept;
  bool flush_payload(LaneState& lane, std::size_t& budget) noexcept;
  [[nodiscard]] bool waits_for_room(const LaneState& lane) const noexcept;
  IoResult fill_from_flow(LaneState& lane, std::size_t& asked) noexcept;
  void receive_into_slot(LaneState& lane, ScatterSlot& slot) noexcept;
  [[nodiscard]] Status begin_scatter(uint32_t index, int32_t& vendor_code) noexcept;

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
  void watch_frames(LaneState& lane, uint64_t now_ns) noexcept;
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
  uint64_t last_activity_ns_ = 0;
  bool down_ = false;
  bool armed_ = false;
  bool delivering_ = false;
};

}  // namespace towline::framing
