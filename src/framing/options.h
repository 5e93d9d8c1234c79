// The options and counters of a framed connection, given by its transport.
#pragma once

#include <cstdint>
#include <memory>

#include "framing/landing.h"
#include "framing/refusal_budget.h"
#include "framing/wire.h"
#include "towline/plugin/v1.h"

namespace towline::framing {

struct ConnectionOptions {
  uint32_t worker = 0;                       // woken through the host if a call from outside leaves work
  towline_connection* connection = nullptr;  // put into each Prepared: the transport's own connection object
  uint32_t max_frame_bytes = 1u << 20;       // payload of a frame; a lane's hint may lower it
  uint32_t max_segments = 512;               // of a frame, up to wire.h's kMaxSegments
  uint32_t max_parts = 1024;                 // in flight; then submit answers kAgain
  uint32_t max_reads = 64;                   // read requests outstanding, up to wire.h's kReadCredits
  uint32_t read_request_bytes = 1u << 20;    // of one read request
  uint64_t most_read_bytes = 16u << 20;      // of all requests outstanding; small READs pass beyond it
  uint32_t small_bytes = 16u << 10;  // a part up to this size is copied once, into the lane or its queue
  uint32_t most_uncounted_frames =
      1024;                           // uncounted WRITE frames a lane, up to wire.h's kMostUncountedFrames
  uint32_t queue_bytes = 256u << 10;  // small frames waiting for a lane; at least the largest message
  uint32_t max_held_message_bytes = 1u << 20;  // attached messages kept until their data is placed
  uint32_t pass_bytes = 4u << 20;              // moved per lane and direction in one progress()
  bool checksum = false;                       // CRC-32C over every payload we send
  uint32_t features = kFeatures;  // that the peer named in the handshake; it is sent nothing else
  // An incomplete frame breaks the connection if no byte of it arrives for this long, or if it arrives at
  // less than 16 KiB/s on average. While a part is cancelled, so does a frame of it that the peer does not count, and
  // a request that it does not answer, within this time and that of their bytes at 16 KiB/s.
  uint64_t frame_timeout_ns = 20'000'000'000;
  std::shared_ptr<RefusalBudget> refusals;  // of the peer's accesses; null: no limit
  MakeLander make_lander;                   // for GPU memory of this side; null: it has none
};

// Totals of the engine since it was made.
struct ConnectionStatistics {
  uint64_t frames_sent = 0;
  uint64_t frames_received = 0;
  uint64_t bytes_sent = 0;  // on the lanes
  uint64_t bytes_received = 0;
  uint64_t acks_sent = 0;         // frames that carry nothing but the count
  uint64_t refused = 0;           // frames of the peer that the host refused
  uint64_t messages_dropped = 0;  // attached to parts whose data was refused here
};

}  // namespace towline::framing
