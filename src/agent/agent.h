// An agent: a name, an incarnation, registered memory, backends, peers and the workers that make progress.
//
// This class connects the parts, each with its own file: worker (progress), peer and link (other agents and
// connections to them), route (which way), post (one run), transfer and post_plan (what applications have of both),
// group (posts that end as one), staging (memory between legs), own_regions (registered memory), inbox (notices),
// event_queue (what applications wait for), errands (calls that report there), backend_host (plugins), blocking_work (what
// of them may block).
//
// Locks, in the order they may nest: registration (own_regions), a worker's lock, then control_mutex_, then leaves (peer,
// region table, inbox, group, routes' details). No callback of the application runs under any.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "agent/backend_host.h"
#include "agent/blocking_work.h"
#include "agent/counter.h"
#include "agent/errands.h"
#include "agent/event_queue.h"
#include "agent/fork_generation.h"
#include "agent/inbox.h"
#include "agent/intrusive_list.h"
#include "agent/own_regions.h"
#include "agent/pace.h"
#include "agent/peer.h"
#include "agent/peer_table.h"
#include "agent/queues.h"
#include "agent/region_reaper.h"
#include "agent/split_choice.h"
#include "agent/staging.h"
#include "agent/worker.h"
#include "base/clock.h"
#include "base/config/config.h"
#include "base/containers/slab.h"
#include "base/id.h"
#include "secure/keys.h"
#include "telemetry/metrics.h"
#include "towline/observe.h"
#include "towline/storage.h"
#include "towline/towline.h"

namespace towline {

class BlockList;
class Link;
class MetadataService;
class Post;

inline constexpr const char* kDefaultListen = "127.0.0.1:0";

struct AgentOptions {
  std::string name;
  bool hosted = true;
  uint32_t workers = 1;
  // The addresses of every port of the agent: of the metadata listener, and by default of backends. "none":
  // no port.
  std::string listen = kDefaultListen;
  std::string advertise;
  std::vector<std::string> backends;  // empty: all
  Config config;
  uint64_t default_timeout_ns = 30 * kSecondNs;
  const Clock* clock = nullptr;  // null: the system's; must outlive the agent
};

// Settings the data path needs, read once.
struct AgentTuning {
  uint64_t spin_ns;             // progress.spin: how long a worker polls after the last thing done
  uint64_t heartbeat_ns;        // peer.heartbeat
  uint64_t suspect_ns;          // peer.suspect
  uint64_t lost_ns;             // peer.lost
  uint64_t idle_ns;             // tuning.connection.idle: close after this time; backends to other hosts
  uint64_t connect_timeout_ns;  // connection.timeout
  uint64_t connect_wait_ns;     // tuning.connection.wait: how long creating a transfer waits for a connection
  SplitMode split;              // tuning.split
  bool gpu_unordered;           // gpu.unordered
};

// Whether an agent still exists.
enum class Standing : uint8_t { kThere, kUnknown, kGone };

class Agent : public std::enable_shared_from_this<Agent> {
 public:
  // Throws Error.
  static std::shared_ptr<Agent> create(AgentOptions options);
  ~Agent();
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  // Ends everything; later calls through handles answer kClosed. Idempotent.
  void close() noexcept;
  [[nodiscard]] bool closed() const noexcept { return closed_.load(std::memory_order_acquire); }
  // kForked in a child of fork, kClosed after close(), else kOk.
  [[nodiscard]] Status usable() const noexcept;
  // As above, but for events: kClosed when none will come any more.
  [[nodiscard]] Status events_usable() const noexcept;
  void check_usable() const;  // throws Error

  // ---- identity
  [[nodiscard]] const std::string& name() const noexcept { return options_.name; }
  [[nodiscard]] const std::string& incarnation_text() const noexcept { return incarnation_text_; }
  [[nodiscard]] const towline_identity& identity() const noexcept { return identity_; }
  [[nodiscard]] bool hosted() const noexcept { return options_.hosted; }
  // Whether a post's or group's poll() makes progress. Where hosted workers sleep at once it only looks: an application that polls now and
  // then would wake the worker each time, to take over from it.
  [[nodiscard]] bool polls_drive() const noexcept { return !hosted() || tuning_.spin_ns != 0; }
  [[nodiscard]] const Config& config() const noexcept { return options_.config; }
  [[nodiscard]] const secure::MaybeKeys& keys() const noexcept { return keys_; }  // of its connections
  [[nodiscard]] const AgentTuning& tuning() const noexcept { return tuning_; }
  [[nodiscard]] const Clock& clock() const noexcept { return *clock_; }
  [[nodiscard]] uint64_t now_ns() const noexcept { return clock_->now_ns(); }
  [[nodiscard]] bool in_real_time() const noexcept { return in_real_time_; }
  [[nodiscard]] uint64_t default_timeout_ns() const noexcept { return options_.default_timeout_ns; }
  [[nodiscard]] std::string address() const;
  [[nodiscard]] std::string info();
  [[nodiscard]] std::string metrics_json();

  // ---- progress
  uint32_t progress() noexcept;   // one pass of every worker; application threads
  void maintain_soon() noexcept;  // links need maintenance before the next round, on every worker; any thread
  [[nodiscard]] std::vector<std::unique_ptr<Worker>>& workers() noexcept { return workers_; }
  // The worker this thread posts to.
  [[nodiscard]] Worker& my_worker() noexcept;
  // Drives, then waits a little, until `ready` or the deadline; false: the deadline. Control path.
  template <class Ready>
  bool drive_until(Ready&& ready, uint64_t deadline_ns);
  // kOk, kNotYet, kClosed or kForked.
  Status wait_event(EventQueue& queue, uint64_t timeout_ns) noexcept;

  // ---- memory
  [[nodiscard]] Staging& staging() noexcept { return *staging_; }
  [[nodiscard]] Id incarnation() const noexcept { return incarnation_; }
  [[nodiscard]] OwnRegions& own_regions() noexcept { return *regions_; }
  [[nodiscard]] RegionTable& regions() noexcept { return regions_->table(); }

  // Loads a plugin's file, or the plugin of that name, and takes its backends on: the regions there are are
  // registered with them, and peers whose metadata names them are reached by them. Throws Error.
  void add_backend(const std::string& plugin);

  // ---- peers
  // The blob of these regions, or of all if null. The second one: called under worker 0's lock.
  [[nodiscard]] std::vector<uint8_t> metadata(const std::vector<uint64_t>* keys);
  [[nodiscard]] std::vector<uint8_t> metadata_locked(const std::vector<uint64_t>* keys);
  // Adds a peer whose metadata the application brought. This ends a peer of the same name that no longer
  // exists. To find out, it may ask at that peer's address, unless may_ask is false.
  Peer& add_peer(std::span<const uint8_t> blob, bool may_ask = true);
  // `stop`: the call ends soon with kClosed once it is set; null: never.
  Peer& connect_peer(const std::string& address, Deadline deadline, const std::atomic<bool>* stop = nullptr);
  void refresh_peer(Peer& peer, Deadline deadline, const std::atomic<bool>* stop = nullptr);
  // Adds an unsolicited peer from metadata that a stranger brought.
  void offer_peer(std::span<const uint8_t> blob);
  // By name, or by incarnation as text. Empty if unknown; throws Error(kAlreadyExists) if several live
  // peers have the name.
  [[nodiscard]] PeerHold find_peer(const std::string& name);
  [[nodiscard]] PeerHold find_peer(const Id& incarnation);
  void remove_peer(Peer& peer);
  // True if it was connected and is not any more, or its process is known to be gone. Any thread.
  [[nodiscard]] static bool has_lost(const Peer& peer) noexcept;
  // The limit for the metadata of all unsolicited peers together.
  [[nodiscard]] uint64_t most_unsolicited_bytes() const noexcept { return peers_.limits().bytes; }
  // kAgain without credit or room. The first message to a peer connects; throws Error when that fails.
  // `tag`: 0: none.
  [[nodiscard]] Status send_notice(Peer& peer, const void* data, size_t bytes, uint64_t tag = 0);
  [[nodiscard]] Status add_to_counter(Peer& peer, uint64_t key, uint64_t amount);
  // An established connection for messages; connects first if necessary, which blocks. Throws Error.
  Link* message_link(Peer& peer, uint64_t deadline_ns);

  // The status that callers see. The peer of a closed agent hangs up, and that is no loss of the peer.
  [[nodiscard]] Status told(Status end) const noexcept {
    return end == Status::kPeerLost && closed() ? Status::kClosed : end;
  }

  // ---- posts
  // A list of this agent's regions as the far side of a transfer: this agent as its own peer.
  std::shared_ptr<BlockList> as_remote(const std::shared_ptr<BlockList>& list);
  void forget_own_region(uint64_t key) noexcept;
  void add_post(Post& post);
  void remove_post(Post& post) noexcept;
  // Calls use(posts) while none is added or removed.
  template <class Use>
  auto with_posts(Use&& use) {
    std::lock_guard lock(control_mutex_);
    return use(posts_);
  }
  template <class Visit>
  void for_each_post(Visit&& visit) {
    with_posts([&](IntrusiveList<Post>& posts) { posts.for_each(visit); });
  }
  // Guards the route and captures of every post, which are seldom used: one leaf lock for all.
  [[nodiscard]] std::mutex& transfer_details_mutex() noexcept { return transfer_details_mutex_; }
  [[nodiscard]] Limits& limits() noexcept { return limits_; }
  // Called around each run; null: none. Throws Error when they were changed too often.
  void set_hooks(const towline_hooks_t* hooks);
  [[nodiscard]] const towline_hooks_t* hooks() const noexcept {
    return hooks_.load(std::memory_order_acquire);
  }
  // Limits what this agent's posts move. `pace`: the agent's, or of one of its peers or groups; 0: no limit.
  void set_limit(Pace& pace, uint64_t bytes_per_s);
  // For a post that takes several submits.
  [[nodiscard]] uint64_t next_post_number() noexcept {
    return last_post_.fetch_add(1, std::memory_order_relaxed) + 1;
  }
  // Makes progress once if none has come.
  size_t pull_completions(towline_completion_t* completions, size_t capacity) noexcept;

  // ---- notices and counters
  [[nodiscard]] Inbox& inbox() noexcept { return own_queue_.inbox(); }
  [[nodiscard]] EventQueue& own_queue() noexcept { return own_queue_; }
  [[nodiscard]] Queues& queues() noexcept { return queues_; }
  [[nodiscard]] Errands& errands() noexcept { return *errands_; }
  // Null if none has come; then it makes progress once.
  [[nodiscard]] NoticeNode* receive_notice() noexcept;
  void give_back_notice(NoticeNode* node) noexcept;
  [[nodiscard]] CounterTable& remote_counters() noexcept { return counters_; }
  Status wait_counter(uint64_t key, uint64_t threshold, uint64_t timeout_ns) noexcept;
  [[nodiscard]] Metrics& metrics() noexcept { return *metrics_; }
  [[nodiscard]] const Metrics& metrics() const noexcept { return *metrics_; }
  [[nodiscard]] BackendHost& backends() noexcept { return *backends_; }
  [[nodiscard]] BlockingWork& blocking_work() noexcept { return *blocking_work_; }
  [[nodiscard]] RegionReaper& region_reaper() noexcept { return *reaper_; }

  // ---- called by host services, under the worker's lock
  Status accepted(Backend& backend, uint32_t worker, towline_connection* connection,
                  const towline_identity& identity, void** link) noexcept;
  void expire_listener(uint64_t now_ns) noexcept;
  // A backend or the metadata listener refused a stranger's connection; counted under the peer "strangers".
  void refused_stranger(const std::string& at, uint32_t worker, Status why) noexcept;
  void warn_of_unknown_settings();
  // A peer asked this agent to detach from one of its regions.
  void revoke_remote(Peer& peer, uint64_t key);
  [[nodiscard]] bool has_revoked_regions() const noexcept {
    return revoked_count_.load(std::memory_order_acquire) != 0;
  }
  // A peer of that incarnation gave up the connection with that number: its link closes soon, and the
  // connection must not come up any more. False: no link has it any more.
  [[nodiscard]] bool end_connection(Id incarnation, uint64_t id) noexcept;
  // True if any link still imports a region that its peer revoked; forgets the region otherwise.
  [[nodiscard]] bool revoked_region_in_use(const Peer& peer, uint64_t key) noexcept;

 private:
  explicit Agent(AgentOptions options);
  void open();
  [[nodiscard]] bool all_transfers_ready();
  [[nodiscard]] bool is_reached();
  void release_transfers() noexcept;
  [[nodiscard]] static bool retire(Worker& worker) noexcept;
  [[nodiscard]] uint64_t deadline_after(uint64_t timeout_ns) const noexcept;
  template <class Done>
  [[nodiscard]] bool wait_until(Done&& done, std::atomic<uint32_t>& word, std::atomic<uint32_t>& sleepers,
                                uint64_t timeout_ns) noexcept;
  Peer& learn(const metadata::PeerMetadata& metadata, bool may_ask);
  // What is told of a peer; but of this agent itself, as whom another may pose, it is what it says itself.
  [[nodiscard]] metadata::PeerMetadata with_own_word(metadata::PeerMetadata told);
  // Finds or makes the unsolicited peer of a hello or a blob. Throws Error(kLimitExceeded).
  PeerHold meet(const metadata::PeerSummary& told, std::span<const uint8_t> blob);
  [[nodiscard]] PeerHold meet_by_hello(const Backend& backend, const metadata::PeerSummary& told);
  // The application brought a new agent: ends peers of the same name that no longer exist.
  void end_replaced(const metadata::PeerIdentity& by, bool may_ask);
  void end_dead_namesakes_locked(const std::string& name);
  void end_peer_locked(Peer& peer, Status why);
  [[nodiscard]] Standing standing_locked(const Peer& peer, const HostIdentity* successor) const;
  [[nodiscard]] Peer* find_locked(const Id& incarnation) const noexcept;
  void gate_transfers_locked(const Peer& peer, Status why) noexcept;
  [[nodiscard]] Status send_message(Peer& peer, const void* message, size_t bytes, uint64_t notice_bytes,
                                    bool tagged = false);
  // Everything that a peer may know; for_self: what this agent needs of these regions, as its own peer.
  [[nodiscard]] metadata::PeerMetadata describe_self(const std::vector<uint64_t>* keys, bool for_self);
  [[nodiscard]] std::vector<std::shared_ptr<Region>> described(const std::vector<uint64_t>* keys,
                                                               bool for_self);

  AgentOptions options_;
  const secure::MaybeKeys keys_;
  const Clock* clock_;
  const bool in_real_time_;
  AgentTuning tuning_{};
  Id incarnation_;
  std::string incarnation_text_;
  towline_identity identity_{};
  const uint64_t fork_generation_;
  std::atomic<bool> closed_{false};
  std::atomic<bool> told_all_{false};  // closed, and no event will come any more

  Limits limits_;
  std::atomic<const towline_hooks_t*> hooks_{nullptr};
  std::vector<std::unique_ptr<const towline_hooks_t>>
      all_hooks_;  // that ever were; a run may be calling them
  EventQueue own_queue_{*this};
  Queues queues_{own_queue_};
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<OwnRegions> regions_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::unique_ptr<BackendHost> backends_;
  std::unique_ptr<BlockingWork> blocking_work_;
  std::unique_ptr<RegionReaper> reaper_;  // ends before the regions
  std::unique_ptr<Errands> errands_;
  std::unique_ptr<MetadataService> metadata_service_;
  std::unique_ptr<Staging> staging_;

  std::mutex control_mutex_;
  PeerTable peers_;
  IntrusiveList<Post> posts_;
  std::mutex transfer_details_mutex_;
  std::vector<std::pair<const Peer*, std::shared_ptr<RemoteRegion>>> revoked_;
  std::atomic<uint32_t> revoked_count_{0};
  std::atomic<Peer*> own_peer_{nullptr};  // this agent as its own peer
  std::atomic<uint64_t> last_post_{0};

  CounterTable counters_;
};

// Sleeps briefly if nothing was done; for control-path waits that poll.
void control_pause(Agent& agent, uint32_t done) noexcept;

template <class Ready>
bool Agent::drive_until(Ready&& ready, uint64_t deadline_ns) {
  while (!ready()) {
    if (now_ns() >= deadline_ns) return false;
    control_pause(*this, progress());
  }
  return true;
}

}  // namespace towline
