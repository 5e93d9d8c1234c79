// The engine's insides, shared by its sources: engine.cc has its making and its turns, the others are named below.
#pragma once

#include <array>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "base/sync/urgent_first.h"
#include "fabric/engine.h"

namespace towline::fabric {

inline constexpr uint32_t kNoIndex = UINT32_MAX;
inline constexpr std::size_t kMaxChain = 64;
inline constexpr std::size_t kPollBatch = 64;
inline constexpr uint64_t kPollForNs = 8 * kMillisecondNs;  // when a peer asks for it
inline constexpr uint32_t kSpareReceives = 4;               // for credit records, and for what arrives twice
inline constexpr uint32_t kCreditSends = 2;                 // under way per connection
inline constexpr uint32_t kCreditRing = 16;  // entries of a responder: they go in order, and complete in any

struct Slice {
  uint64_t local = 0;
  uint64_t remote = 0;
  uint64_t offset = 0;  // in the transfer's list
  uint32_t length = 0;
  uint32_t local_region = 0;
  uint32_t remote_region = 0;
  uint32_t transfer = kNoIndex;
};

enum class EntryKind : uint8_t { kData, kRecord, kDataAndRecord, kCredit };

// A request under way.
struct Entry {
  Slice slice;
  EntryKind kind = EntryKind::kData;
  bool done = false;
};

// A connection's requests, at most a power of two of them. An entry is written before it is read, and its memory is not
// touched earlier: of many connections most have few requests under way.
class EntryRing {
 public:
  EntryRing() = default;
  EntryRing(const EntryRing&) = delete;
  EntryRing& operator=(const EntryRing&) = delete;
  EntryRing(EntryRing&& other) noexcept
      : entries_(std::exchange(other.entries_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  EntryRing& operator=(EntryRing&&) = delete;
  ~EntryRing() { free(); }

  void resize(std::size_t size) {
    Entry* const entries = std::allocator<Entry>{}.allocate(size);
    free();
    entries_ = entries;
    size_ = size;
  }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  Entry& operator[](std::size_t index) noexcept { return entries_[index]; }

 private:
  static_assert(std::is_trivially_destructible_v<Entry>);
  void free() noexcept {
    if (entries_ != nullptr) std::allocator<Entry>{}.deallocate(entries_, size_);
  }

  Entry* entries_ = nullptr;
  std::size_t size_ = 0;
};

struct Transfer {
  uint64_t cookie = 0;
  uint32_t generation = 0;
  uint32_t peer = kNoIndex;  // kNoIndex: free
  TransferOp op = TransferOp::kNone;
  bool exhausted = false;  // the source has no more
  bool wants_record = false;
  bool record_posted = false;
  bool record_done = false;
  bool queued = false;
  uint32_t stalls = 0;  // connections that were given up in a row, while the peer answered
  uint32_t breaks = 0;  // connections that broke in a row under its slices, of which none was done meanwhile,
  uint64_t broken_by = 0;        // the last of them,
  uint64_t broken_since_ns = 0;  // and when the first one broke
  bool retried = false;
  bool mixed = false;   // its slices took more than one connection
  bool ending = false;  // its outcome is told, its fence is not
  bool cancel = false;
  bool no_memory = false;  // a slice to post again was forgotten: progress() ends it
  uint64_t sole = 0;       // the connection that all its slices took so far
  uint32_t outstanding = 0;
  uint32_t next = kNoIndex;  // in the peer's queue, or in the free list
  uint32_t previous = kNoIndex;
  uint32_t retry_head = kNoIndex;  // slices to post again
  uint32_t segment = 0;            // of segments[], the one being cut
  uint32_t segments_held = 0;
  uint64_t issued = 0;  // bytes, in the order of the list
  uint64_t done = 0;
  uint64_t sequence = 0;  // of its record, 0: none yet
  uint64_t fence_deadline_ns = kNoDeadline;
  TransferRequest request;
  towline_segment segments[16];

  bool data_to_issue() const noexcept { return retry_head != kNoIndex || !exhausted; }
};

enum class ConnectionState : uint8_t { kFree, kConnecting, kReady, kDraining, kClosing };

struct Connection {
  ConnectionState state = ConnectionState::kFree;
  bool initiator = false;
  bool announce_end = true;  // tell the peer when it has been drained
  bool failed_path = false;  // it ended by a failure: the path backs off
  uint32_t rail = 0;
  uint32_t number = 0;
  uint32_t peer = kNoIndex;
  uint32_t path = 0;
  uint32_t remote_rail = 0;
  uint64_t id = 0;
  // Requests under way.
  EntryRing ring;
  uint64_t head = 0;
  uint64_t tail = 0;
  uint64_t bytes = 0;  // under way
  // Records: what this side may send, and what it has taken.
  uint64_t granted = 0;
  uint64_t sent = 0;
  uint64_t consumed = 0;
  uint64_t told = 0;
  bool owes_credit = false;          // the domain did not take one
  uint64_t free_buffers = 0;         // of sends, a bit each
  uint32_t receives = 0;             // posted at its start
  std::unique_ptr<uint8_t[]> block;  // buffers of receives, then of sends
  Registration block_key;
  // Control.
  uint64_t since_ns = 0;
  uint64_t control_at_ns = 0;
  uint64_t control_wait_ns = 0;
  uint64_t last_progress_ns = 0;
  uint64_t full_at = 0;           // the turn in which the domain took no more
  uint64_t refused_since_ns = 0;  // with nothing under way it has taken nothing since then; 0: it has
  uint64_t refused_at_ns = 0;     // last
  uint32_t chain = UINT32_MAX;    // requests that it is expected to take at once
  std::vector<uint8_t> endpoint;  // kConnect's, or kAccept's
  Status why = Status::kOk;

  uint64_t under_way() const noexcept { return tail - head; }
  Entry& at(uint64_t position) noexcept { return ring[position & (ring.size() - 1)]; }
};

struct Path {
  Connection* connection = nullptr;
  uint32_t shift = 0;  // which of the peer's rails is tried
  uint64_t retry_at_ns = 0;
  uint64_t backoff_ns = 0;
  uint32_t timeouts = 0;  // of connecting, in a row
  bool refused = false;   // the last connection took nothing
};

// Transfers that have something to post, in the order of their turns.
struct TransferQueue {
  uint32_t head = kNoIndex;
  uint32_t tail = kNoIndex;
  uint32_t length = 0;
};

struct Peer {
  uint32_t index = 0;
  uint32_t generation = 0;  // 0: free
  uint32_t generation_before = 0;
  EngineAddress address;
  bool lost = false;
  bool abandoned = false;
  bool active = false;  // in the list of peers with queued transfers
  std::vector<Path> paths;
  uint32_t turn = 0;
  TransferQueue bulk;
  TransferQueue urgent;
  UrgentFirst urgent_first;
  uint64_t narrow_until_ns =
      0;  // until then little is under way at a time, for urgent transfers wait behind it
  uint64_t last_sequence = 0;
  uint64_t confirmed = 1;  // the peer has taken all records before this
  std::vector<uint64_t>
      unused;              // sequences that a transfer was given and never needed; with its first connection
                           // it gets room for all
  SequenceWindow seen;     // of the records taken
  uint64_t told_base = 1;  // what the peer knows of seen.base()
  uint64_t unanswered_since_ns = 0;
  uint64_t pinged_at_ns = 0;
  uint64_t no_path_since_ns = 0;
  Status last_refusal = Status::kUnreachable;

  Handle handle() const noexcept { return {index, generation}; }
  TransferQueue& queue_of(const Transfer& transfer) noexcept {
    return transfer.request.urgent ? urgent : bulk;
  }
  bool has_queued() const noexcept { return bulk.length + urgent.length != 0; }
};

struct Rail {
  std::unique_ptr<Domain> domain;
  uint32_t chain = 1;
  uint64_t slice_bytes = 0;
  uint64_t window_bytes = 0;
  uint32_t send_depth = 0;
  bool in_order = true;
  bool down = false;
  uint64_t recover_at_ns = 0;
  uint64_t reserved = 0;   // completions that receives and credits may need
  uint64_t under_way = 0;  // requests
  uint64_t completion_depth = 0;
  // Two halves: [0, max) are initiated here, [max, 2 * max) by peers.
  std::vector<Connection> connections;
  RailCounters counters;

  uint64_t room() const noexcept {
    const uint64_t used = reserved + under_way;
    return used < completion_depth ? completion_depth - used : 0;
  }
};

struct Engine::State {
  State(EngineOptions given, std::vector<std::unique_ptr<Domain>> domains, EngineHost& to);
  ~State();
  void close() noexcept;

  bool busy() const noexcept;

  // engine_transfers.cc
  void enqueue(Peer& peer, Transfer& transfer) noexcept;
  void dequeue(Peer& peer, Transfer& transfer) noexcept;
  Transfer* find_transfer(Handle transfer) noexcept;
  void push_retry(Transfer& transfer, const Slice& slice) noexcept;
  void drop_retries(Transfer& transfer) noexcept;
  void settle(Transfer& transfer) noexcept;
  void end(Transfer& transfer, Status status) noexcept;
  void failed_range(const Transfer& transfer, TransferResult& result) noexcept;
  void release(Transfer& transfer) noexcept;

  // engine_issue.cc: the data path out.
  void pump(Peer& peer) noexcept;
  bool take_turn(Peer& peer, TransferQueue& queue, bool first) noexcept;
  // `windows`: how many may be under way on a connection.
  Connection* choose(Peer& peer, uint32_t mask, bool record, uint64_t windows) noexcept;
  bool issue(Peer& peer, Transfer& transfer, uint64_t windows) noexcept;
  std::size_t fill(Transfer& transfer, Connection& connection, std::size_t limit, uint64_t windows) noexcept;
  bool next_slice(Transfer& transfer, uint64_t most, Slice& slice) noexcept;
  bool refill(Transfer& transfer) noexcept;
  static uint64_t slice_bytes(const Rail& rail, const Transfer& transfer) noexcept;
  uint64_t window_bytes(const Peer& peer, const Rail& rail) const noexcept;
  void post(Connection& connection, std::size_t count) noexcept;
  void take_back(Connection& connection, std::size_t count) noexcept;
  void note_refusal(Connection& connection) noexcept;
  // For so long that it is given up.
  bool takes_nothing(const Connection& connection) const noexcept {
    return connection.refused_since_ns != 0 &&
           connection.refused_at_ns - connection.refused_since_ns >= 2 * options.stall_ns;
  }
  void takes_again(Connection& connection) noexcept;

  // engine_completions.cc: the data path in.
  std::size_t poll(Rail& rail) noexcept;
  void handle(Rail& rail, const Completion& completion) noexcept;
  void request_done(Rail& rail, Connection& connection, const Completion& completion) noexcept;
  void finish(Rail& rail, Connection& connection, Entry& entry) noexcept;

  // engine_records.cc
  bool issue_record(Peer& peer, Transfer& transfer) noexcept;
  bool may_record(const Peer& peer, const Transfer& transfer, const Connection& connection) const noexcept;
  static uint64_t next_sequence(Peer& peer) noexcept;
  void add_record(Peer& peer, Transfer& transfer, Connection& connection, WorkRequest& request) noexcept;
  bool add_immediate(Peer& peer, Transfer& transfer, Connection& connection, WorkRequest& request) noexcept;
  uint32_t take_buffer(Connection& connection, uint8_t*& at) noexcept;
  void post_receive(Connection& connection, uint64_t buffer) noexcept;
  void receive(Connection& connection, const Completion& completion) noexcept;
  void take_record(Connection& connection, const RecordHeader& header, const uint8_t* message) noexcept;
  void send_credit(Connection& connection) noexcept;
  void owe_credit(Connection& connection) noexcept;
  void pay_credit(Connection& connection) noexcept;
  void send_owed_credits() noexcept;

  // engine_paths.cc: connections.
  void open_paths(Peer& peer) noexcept;
  bool open_path(Peer& peer, uint32_t number) noexcept;
  Connection* free_connection(Rail& rail, bool initiator) noexcept;
  Connection* evict(Rail& rail, bool initiator) noexcept;
  void prepare(Connection& connection);
  void send_control(Peer& peer, Connection& connection, ControlType type) noexcept;
  uint64_t first_control_wait_ns() const noexcept {
    return options.control_kept ? options.max_backoff_ns : options.control_retry_ns;
  }
  void on_connect(Peer& peer, const ControlMessage& message) noexcept;
  void accept(Peer& peer, Connection& connection, const ControlMessage& message);
  void on_accept(Connection& connection, const ControlMessage& message) noexcept;
  void close_unknown(Peer& peer, uint64_t connection) noexcept;
  void tell_accepted(Peer& peer, uint32_t rail, uint32_t remote_rail) noexcept;
  void on_close(Peer& peer, const ControlMessage& message) noexcept;
  void send_closed(Peer& peer, uint64_t id) noexcept;
  Connection* find_initiated(Peer& peer, uint64_t id) noexcept;
  Connection* find_accepted(const Peer& peer, uint64_t id) noexcept;

  // engine_ends.cc: their ends.
  void break_connection(Connection& connection, Status status) noexcept;
  void drain_broken() noexcept;
  void drained(Connection& connection) noexcept;
  void resolve(Connection& connection, const SequenceWindow& seen) noexcept;
  void free(Connection& connection) noexcept;
  void fail_path(Peer& peer, Connection& connection) noexcept;
  void rail_down(Rail& rail) noexcept;

  // engine_peers.cc
  Peer* find(Handle peer) noexcept;
  void end_abandoned() noexcept;
  void fail_peer(Peer& peer, Status status, std::string_view why) noexcept;

  // engine_timers.cc
  void tick() noexcept;
  void forgive(uint64_t gap_ns) noexcept;
  void check_deadlines() noexcept;
  void check_connections() noexcept;
  void break_stalled(Connection& connection) noexcept;
  void end_fruitless(Transfer& transfer, uint64_t connection) noexcept;
  void check_peers() noexcept;
  void recover_rails() noexcept;

  EngineOptions options;
  EngineHost& host;
  Id id;
  std::vector<Rail> rails;
  std::vector<std::unique_ptr<Peer>> peers;
  std::vector<uint32_t> free_peers;
  std::vector<uint32_t> active;  // peers with queued transfers
  std::vector<Transfer> transfers;
  uint32_t free_transfer = kNoIndex;
  uint32_t transfers_in_use = 0;
  struct RetrySlice {
    Slice slice;
    uint32_t next = kNoIndex;
  };
  std::vector<RetrySlice> retry_pool;  // grows when connections break, and never else
  uint32_t free_retry = kNoIndex;
  std::vector<Connection*> draining;
  std::array<WorkRequest, kMaxChain> requests;
  std::array<Completion, kPollBatch> completions;
  uint64_t last_connection = 0;
  uint32_t busy_connections = 0;  // connecting or closing
  uint32_t owed_credits = 0;      // connections that owe one
  uint64_t now_ns = 0;
  bool asked = false;  // by a peer to poll, since the last turn
  uint64_t poll_until_ns = 0;
  uint64_t next_tick_ns = 0;
  uint64_t next_peer_check_ns = 0;
  uint64_t next_deadline_ns = kNoDeadline;
  uint64_t turn_events = 0;
  uint64_t turns = 1;
  bool in_progress = false;
  bool cancels = false;
  bool abandons = false;
};

}  // namespace towline::fabric
