// One worker's connection to one peer over one backend, with the core's state of it: imports, the plans
// prepared on it, heartbeats, notice credit.
//
//   down --connect()--> connecting --UP, free--> up --DOWN, silence, close()--> broken
//                           \--DOWN, deadline--> broken
//   down --accepted--> connecting
//   broken --teardown in the next pass--> down
//
// Free: the connection before it left no bytes in flight, or the peer has ended its side of it
// (link_endings.cc).
//
// If a handler or the upkeep throws, as it does without memory, this link is closed. The worker and its other
// links are not affected.
//
// Everything is under the worker's lock unless stated otherwise. Its generation grows by one each time it
// comes up: plans of an earlier generation are prepared again.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "agent/backend_host.h"
#include "agent/control_message.h"
#include "agent/peer.h"
#include "telemetry/metrics.h"

namespace towline {

class Worker;
struct Part;

class Link {
 public:
  enum class State : uint32_t { kDown, kConnecting, kUp, kBroken };

  Link(Peer& peer, Backend& backend, Worker& worker);
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;
  ~Link();

  // Starts connecting unless connecting or up. A failure shows as state() kDown with last_error().
  void connect(uint64_t deadline_ns);
  // A connection that the backend accepted.
  void adopt(towline_connection* connection);
  // Ends it; everything in flight gets `why`. Takes effect in the worker's next pass.
  void close(Status why, std::string_view text) noexcept;

  void on_event(uint32_t event, Status status, const char* text) noexcept;
  void on_message(const uint8_t* data, size_t bytes) noexcept;
  // The peer moved bytes of this agent's regions by its own transfer.
  void on_served(Direction direction, uint64_t bytes) noexcept;
  // Bytes of any kind arrived from the peer.
  void on_heard() noexcept;
  // From now on the peer can reach this region without this agent.
  void on_granted(uint64_t key) noexcept;
  // An access of the peer was refused.
  void on_refused(Status why) noexcept;
  // Heartbeats, teardown, waiting credits and revocations. Called once a pass while it has something to do,
  // else every few milliseconds. Returns the number of things done.
  uint32_t maintain(uint64_t now_ns) noexcept;

  // True if maintain() could not finish: call it again soon.
  [[nodiscard]] bool has_chores() const noexcept;

  // kOk with *import set; kAgain: the peer was asked, call again; else the error, with the backend's text in
  // take_failure_text().
  Status import(const std::shared_ptr<RemoteRegion>& region, towline_import** import);
  // The address of an imported region in this process, valid as long as a plan prepared from it; false: it is
  // not mapped.
  [[nodiscard]] bool reach(const RemoteRegion& region, uint64_t& address) const noexcept;
  // For people: how each region is reached ("mapped memfd").
  [[nodiscard]] std::string how(const RemoteRegion& region) const;

  // Sends a message; kAgain when the backend has no room now.
  [[nodiscard]] Status send(const void* message, size_t bytes) noexcept;
  // The number by which both ends identify the connection; 0 if not connected, or if the backend has no numbers.
  // Any thread.
  [[nodiscard]] uint64_t connection_id() const noexcept {
    return connection_id_.load(std::memory_order_seq_cst);
  }
  // A part of the current generation has ended, but its bytes may still move at the peer.
  void note_unfenced() noexcept;
  // kOk if no bytes of parts of that generation move at the peer any more; kNotYet if they may; kUnsupported if they may,
  // and nothing will tell when they have stopped. Any thread.
  [[nodiscard]] Status remote_fence(uint32_t generation) const noexcept;
  // Somebody waits for the peer's word on parts of that generation: connects to ask it, at most once a heartbeat, unless
  // another link of the peer asks. Any thread that holds no worker's lock.
  void seek_confirmation(uint32_t generation) noexcept;
  // The peer has ended its side of a connection, of this link or of another. Any thread.
  void ended_at_peer(uint64_t id) noexcept;
  // Closes the connection soon if it is that one. Any thread.
  void end_soon(uint64_t id) noexcept;

  // Takes credit for a notice of `notice_bytes`; kAgain if the peer has not consumed enough yet.
  [[nodiscard]] Status take_notice_credit(uint64_t notice_bytes) noexcept;
  // The backend refused for lack of room. It does not tell when it has some again, so whoever waits for credit is told a
  // little later rather than at once.
  void note_no_room() noexcept;
  void return_notice_credit(uint64_t notice_bytes) noexcept {
    notice_bytes_sent_ -= notice_credit(notice_bytes);
  }
  // kOk; kAgain: not yet known, since nothing has come from the peer; kUnsupported. Any thread.
  [[nodiscard]] Status takes_tags() const noexcept { return takes_tags_.load(std::memory_order_acquire); }
  // For a message of a post or group.
  [[nodiscard]] Status may_send(const std::vector<uint8_t>& message) const noexcept {
    return message.front() == static_cast<uint8_t>(ControlType::kTagged) ? takes_tags() : Status::kOk;
  }
  // The application consumed a notice that came over `generation` of this link. Any thread.
  void consumed(uint32_t generation, uint64_t notice_bytes) noexcept;
  // Tells the peer to detach from a region of this agent. If the peer may reach the region without this
  // agent, revocation_pending() is true until it answers.
  void ask_revoke(uint64_t key);
  // A part is, or is no longer, prepared here.
  void add_prepared(Part& part);
  void remove_prepared(Part& part) noexcept;
  [[nodiscard]] bool idle() const noexcept { return parts_in_flight_ == 0; }
  [[nodiscard]] uint32_t parts_in_flight() const noexcept { return parts_in_flight_; }
  void part_started() noexcept;
  void part_ended() noexcept;

  [[nodiscard]] State state() const noexcept { return state_.load(std::memory_order_acquire); }
  [[nodiscard]] bool up() const noexcept { return state() == State::kUp; }
  // True if it carries messages: the peer may already use it, even if it is not up here. Any thread.
  [[nodiscard]] bool talks() const noexcept { return up() || talks_.load(std::memory_order_acquire); }
  [[nodiscard]] uint32_t generation() const noexcept { return generation_.load(std::memory_order_acquire); }
  [[nodiscard]] uint64_t attempts() const noexcept { return attempts_; }
  // Since when; only while connecting.
  [[nodiscard]] uint64_t connecting_since_ns() const noexcept { return connecting_since_ns_; }
  [[nodiscard]] Status last_error() const noexcept { return last_error_; }
  [[nodiscard]] const std::string& last_error_text() const noexcept { return last_error_text_; }
  [[nodiscard]] towline_connection* connection() const noexcept { return connection_; }
  [[nodiscard]] Peer& peer() const noexcept { return peer_; }
  [[nodiscard]] Backend& backend() const noexcept { return backend_; }
  [[nodiscard]] Worker& worker() const noexcept { return worker_; }
  [[nodiscard]] Series& sent() const noexcept { return *sent_; }
  [[nodiscard]] Series& received() const noexcept { return *received_; }
  [[nodiscard]] std::string describe() const;
  // True until the peer has confirmed that it detached from this region. Any thread.
  [[nodiscard]] bool revocation_pending(uint64_t key) const noexcept;
  // The agent is closing: disconnects. False: a thread is posting through it, call again.
  [[nodiscard]] bool shut() noexcept;

  // The next in the peer's list of links. Set once.
  [[nodiscard]] Link* next() const noexcept { return next_.load(std::memory_order_acquire); }
  void set_next(Link* next) noexcept { next_.store(next, std::memory_order_release); }

 private:
  struct Import {
    towline_import* handle = nullptr;
    std::shared_ptr<RemoteRegion> region;
    bool ready = false;
    char how[64] = {};
  };

  // Closes this link if `work` throws.
  template <class Work>
  void contain(Work&& work) noexcept {
    try {
      work();
    } catch (const std::bad_alloc&) {
      close(Status::kOutOfMemory, "out of memory");
    } catch (const std::exception& error) {
      close_over(error);
    }
  }
  void close_over(const std::exception& error) noexcept;
  void handle_event(uint32_t event, Status status, const char* text);
  void handle_message(const uint8_t* data, size_t bytes);
  uint32_t do_upkeep(uint64_t now_ns);
  [[nodiscard]] bool was_silent(Status why) const noexcept;
  [[nodiscard]] Status of_lost_peer(Status why) const noexcept;
  void begin_generation();
  void dialled();
  bool come_up() noexcept;  // false: not yet
  void end_if_asked();
  uint32_t ask_to_end() noexcept;
  void on_end_connection(uint64_t id);
  uint32_t answer_endings();
  [[nodiscard]] Status transmit(const void* message, size_t bytes) noexcept;
  enum class Patience : uint8_t { kYes, kNone };
  // False: a thread is posting through it, or (with patience) copies still run; try again in the next pass.
  bool teardown(Patience patience = Patience::kYes) noexcept;
  bool release_revoked() noexcept;
  void drop_imports(bool all) noexcept;
  void on_data(const DataMessage& message, uint64_t tag, const uint8_t* notice, uint32_t bytes);
  [[nodiscard]] bool has_room() const noexcept;
  void on_revoke(uint64_t key);
  uint32_t answer_revocations();
  uint32_t send_waiting() noexcept;
  void heartbeat(uint64_t now_ns);

  Peer& peer_;
  Backend& backend_;
  Worker& worker_;
  std::atomic<Link*> next_{nullptr};
  Series* sent_;
  Series* received_;

  std::atomic<State> state_{State::kDown};
  std::atomic<uint32_t> generation_{0};
  towline_connection* connection_ = nullptr;
  uint64_t attempts_ = 0;
  uint64_t connecting_since_ns_ = 0;
  uint64_t connect_deadline_ns_ = UINT64_MAX;
  bool told_up_ = false;            // by the backend
  std::atomic<bool> talks_{false};  // while it is not up
  Status last_error_ = Status::kOk;
  std::string last_error_text_;

  std::atomic<uint64_t> connection_id_{0};
  std::atomic<uint64_t> end_asked_{0};  // the connection that the peer wants to be ended
  // The last generation that ended with bytes in flight, and its connection; 0: the peer has ended that.
  std::atomic<uint32_t> unfenced_generation_{0};
  std::atomic<uint64_t> unfenced_id_{0};
  std::atomic<uint32_t> never_fenced_{0};  // the same for a connection without a number
  std::atomic<uint64_t> seek_again_ns_{0};
  uint64_t asked_changes_ = 0;    // of peer_.given_up_changes(), on this connection
  std::vector<uint64_t> ending_;  // connections that the peer asked to end, not answered yet

  std::unordered_map<uint64_t, Import> imports_;
  std::vector<Part*> prepared_;
  uint32_t parts_in_flight_ = 0;

  bool accepted_ = false;  // the peer connected
  bool heard_ = false;     // since it came up
  uint64_t last_heard_ns_ = 0;
  uint64_t last_said_ns_ = 0;
  uint64_t last_ping_ns_ = 0;
  uint64_t asked_ns_ = 0;  // the first ping since it was last heard; 0: none
  uint64_t last_used_ns_ = 0;

  uint64_t notice_bytes_sent_ = 0;      // by notice_credit, since it came up
  uint64_t notice_bytes_credited_ = 0;  // reported by the peer
  std::atomic<uint64_t> notice_bytes_consumed_{0};
  uint64_t notice_bytes_reported_ = 0;
  uint64_t notice_bytes_received_ = 0;
  uint64_t room_at_ns_ = 0;  // before that the backend is full, as far as is known
  std::atomic<Status> takes_tags_{Status::kAgain};
  bool pong_due_ = false;
  bool sending_waiting_ = false;
  uint64_t pong_value_ = 0;
  std::deque<ValueMessage> waiting_;     // control messages that wait for room
  std::vector<uint64_t> revoking_here_;  // the peer's regions from which to detach

  mutable std::mutex revocations_mutex_;
  std::vector<uint64_t> revocations_asked_;  // revoked regions that the peer has not confirmed
  std::unordered_set<uint64_t> granted_;     // regions that the peer reaches without this agent
};

}  // namespace towline
