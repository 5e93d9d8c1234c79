// The framed engine: one worker's connection to one peer, carrying plans and messages over one or more lanes.
// The owner of memory checks every access (host.pin); the initiator names regions by key only.
//
// Called by the worker that owns the connection, one thread at a time, under its lock. Nothing blocks. The
// host is called back (complete, message, connection_event) only from progress(), fail() and close();
// callbacks may call submit, send and cancel, and must not destroy the connection.
//
// How a transport uses it:
//   Connection framed(host, peer, options);
//   framed.add_lane(std::make_unique<SocketLane>(...));     // after the transport's own handshake
//   // static submit and unprepare forward directly from the backend's tables; so do prepare, send, cancel
//   framed.progress(now);                                   // in each pass of the worker
//   framed.arm(); framed.disarm();                          // before the worker sleeps, and after
//   framed.close();                                         // in disconnect(), then destroy it
//
// How it works (wire.h has the frames):
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
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "framing/landing.h"
#include "framing/lane.h"
#include "framing/refusal_budget.h"
#include "framing/wire.h"
#include "towline/plugin/backend.hpp"
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
  // less than 16 KiB/s on average.
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

class ConnectionCore;

class Connection {
 public:
  // `peer` is the core's cookie for messages and events.
  Connection(const plugin::Host& host, void* peer, const ConnectionOptions& options);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection();  // close() has been called, or no part is in flight

  // Adds a lane at any time while up; the first one carries plain messages. Control path: allocates.
  void add_lane(std::unique_ptr<Lane> lane);
  // The express lane: urgent parts of up to a frame go there and nothing else does, so that they never lie behind bulk
  // in a stream. At most one, after the first lane, where the peer has kFeatureExpress and adds its end too.
  void add_express_lane(std::unique_ptr<Lane> lane);
  [[nodiscard]] std::size_t lane_count() const noexcept;
  // This side or the peer has sent an urgent part: an express lane would be used.
  [[nodiscard]] bool has_seen_urgent() const noexcept;

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
  // nothing. Copies of a GPU that were begun run on: until settled(), their parts are not completed and their pins
  // not given back, progress() has to be called, and this is not to be destroyed.
  void fail(Status status, const char* text) noexcept;
  // Ends the connection on this side: says goodbye to the peer as far as lanes have room, then acts like
  // fail(), but parts end with kClosed and no event is reported. Written messages still arrive if no part was
  // in flight.
  void close() noexcept;

  [[nodiscard]] bool settled() const noexcept;  // no copy of a GPU is under way
  // After close(), where copies run on for too long: completes their parts without a fence. This is never to be
  // destroyed, since a GPU may still reach what it holds.
  void give_up() noexcept;

  [[nodiscard]] bool down() const noexcept;  // failed or closed: submit and send answer kPeerLost
  // Nothing in flight or queued, in either direction: may be closed for idleness.
  [[nodiscard]] bool idle() const noexcept;
  [[nodiscard]] uint64_t last_activity_ns() const noexcept;  // of the last progress() that did something
  // When incomplete frames that hold resources will have taken too long: progress() must be called by then.
  // UINT64_MAX: there are none.
  [[nodiscard]] uint64_t frame_deadline_ns() const noexcept;
  [[nodiscard]] const ConnectionStatistics& statistics() const noexcept;
  [[nodiscard]] std::string describe() const;  // JSON object

 private:
  std::unique_ptr<ConnectionCore> core_;
};

}  // namespace towline::framing
