// The inside of Connection. Member functions live by theme:
//   connection.cc    the public face, lanes, fail and close, arming
//   core_parts.cc    submit, cancel, states of parts, results
//   core_send.cc     making frames and writing them
//   core_receive.cc  reading lanes and taking frames apart
//   core_owner.cc    what the owner of memory does: place WRITEs, answer READs
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
  void add_lane(std::unique_ptr<Lane> lane);
  int32_t submit(const Prepared& prepared, const towline_submit_args& args) noexcept;
  int32_t send(const void* message, std::size_t bytes) noexcept;
  void cancel(uint64_t cookie) noexcept;
  uint32_t progress(uint64_t now_ns) noexcept;
  bool arm() noexcept;
  void disarm() noexcept;
  [[nodiscard]] uint64_t frame_deadline_ns() const noexcept;
  void fail(Status status, const std::string& text) noexcept;
  void close() noexcept;
  [[nodiscard]] bool idle() const noexcept;
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
  void note_failure(Part& part, Status status, uint64_t begin, uint64_t end) noexcept;
  void settle(Part& part) noexcept;
  bool send_held_message(Part& part) noexcept;
  void end_part(Part& part) noexcept;
  uint32_t deliver_ended() noexcept;
  uint32_t retry_messages() noexcept;
  void end_all(Status status) noexcept;
  [[nodiscard]] towline_part_result result_of(const Part& part) const noexcept;

  // core_send.cc
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
  [[nodiscard]] bool can_open(const LaneState& lane) const noexcept;
  void open_frame(LaneState& lane) noexcept;
  bool open_write(LaneState& lane, PartList& from) noexcept;
  void track(LaneState& lane, Part& part, uint32_t sequence, std::size_t bytes) noexcept;
  void finish_frame_out(LaneState& lane) noexcept;
  [[nodiscard]] static bool goes_in_two(const LaneState& lane) noexcept;
  bool flush_step(LaneState& lane, std::size_t& budget) noexcept;
  void flush_inline(LaneState& lane) noexcept;
  uint32_t flush_lanes() noexcept;
  [[nodiscard]] bool has_output(const LaneState& lane) const noexcept;
  [[nodiscard]] bool has_work() const noexcept;
  void wake_if_needed() noexcept;

  // core_receive.cc
  uint32_t read_lane(LaneState& lane) noexcept;
  IoResult fill(LaneState& lane, std::size_t& asked) noexcept;
  void account(Input& in, std::size_t bytes) noexcept;
  void take_apart(LaneState& lane) noexcept;
  bool begin_frame(LaneState& lane) noexcept;
  bool end_payload(LaneState& lane) noexcept;
  bool end_message(LaneState& lane) noexcept;
  bool count_frame(LaneState& lane) noexcept;
  bool take_ack(LaneState& lane, uint32_t ack) noexcept;
  bool take_told(LaneState& lane) noexcept;
  bool take_nack(LaneState& lane) noexcept;
  bool begin_data(LaneState& lane) noexcept;
  void end_data(LaneState& lane, bool good) noexcept;
  void settle_request(LaneState& lane, Status status) noexcept;
  bool protocol_error(LaneState& lane, const char* what) noexcept;

  // core_owner.cc
  void begin_write(LaneState& lane, const uint8_t* preamble) noexcept;
  void end_write(LaneState& lane, bool good, std::span<const uint8_t> message) noexcept;
  void refuse_write(LaneState& lane) noexcept;
  void note_refusal(LaneState& lane, Status status) noexcept;
  bool begin_read(LaneState& lane, const uint8_t* preamble) noexcept;
  std::size_t cut_answer(ReadAnswer& answer, uint64_t frame_bytes) noexcept;
  bool open_answer(LaneState& lane) noexcept;
  Status pin_segments(std::span<const WireSegment> segments, uint32_t access, IovList& target,
                      PinSet& pins) noexcept;

  // connection.cc
  void watch_frames(LaneState& lane, uint64_t now_ns) noexcept;
  void break_lane(LaneState& lane, const IoResult& result, const char* doing) noexcept;
  void release_everything() noexcept;

  plugin::Host host_;
  void* peer_;
  const ConnectionOptions options_;
  ConnectionStatistics statistics_;
  std::vector<std::unique_ptr<LaneState>> lanes_;
  PartTable parts_;
  PartList striped_;   // WRITEs that any lane takes frames of
  PartList reading_;   // READs with requests to make
  PartList messages_;  // parts in kMessage
  PartList ended_;
  std::vector<ReadRequest> requests_;
  std::vector<uint32_t> free_requests_;
  std::vector<ReadAnswer> answers_;
  std::vector<uint32_t> free_answers_;
  std::vector<towline_segment> window_;          // scratch: segments of the frame being made or placed
  std::vector<WireSegment> wire_window_;         // scratch: the same as on the wire
  std::unique_ptr<uint8_t[]> scratch_preamble_;  // of a frame that is emitted at once
  uint64_t read_bytes_ = 0;                      // outstanding in requests
  uint64_t held_message_bytes_ = 0;
  uint64_t last_activity_ns_ = 0;
  bool down_ = false;
  bool armed_ = false;
  bool delivering_ = false;
};

}  // namespace towline::framing
