#include "agent/agent.h"

#include <pthread.h>

#include <algorithm>

#include "agent/block_list.h"
#include "agent/builtin_backends.h"
#include "agent/host_services.h"
#include "agent/link.h"
#include "agent/metadata_service.h"
#include "agent/plugin_finder.h"
#include "agent/post.h"
#include "agent/waiter.h"
#include "base/config/config_file.h"
#include "base/config/settings_table.h"
#include "base/copy/copy.h"
#include "base/error.h"
#include "base/log.h"
#include "base/os/host_identity.h"
#include "base/os/prefer_node.h"
#include "base/sync/in_use.h"
#include "base/sync/wake_path.h"

namespace towline {

std::atomic<uint64_t> process_fork_generation{0};
void count_forks() noexcept {
  [[maybe_unused]] static const int registered =
      pthread_atfork(nullptr, nullptr, [] { ++process_fork_generation; });
}

namespace {

constexpr uint32_t kMostWorkers = 8;
constexpr uint64_t kUnsolicitedPeers = 1024;
constexpr uint64_t kUnsolicitedBytes = 8 << 20;
constexpr uint64_t kAgentCloseNs = 5 * kSecondNs;
constexpr uint64_t kGoodbyeNs = 500 * kMillisecondNs;
constexpr uint64_t kLongestSleepNs = 100 * kMillisecondNs;  // of a wait for activity
constexpr uint32_t kLooksPerFullPass = 4;  // for notices: of the workers that the last one did not come from

const Clock& system_clock() noexcept {
  // Never destroyed: agents that the application did not close go on while the process exits.
  static const auto& clock = *new SystemClock;
  return clock;
}

SplitMode read_split_mode(const Config& config) {
  const std::string mode = config.get_choice("tuning.split", {"auto", "on", "off"}, "auto");
  return mode == "auto" ? SplitMode::kAuto : mode == "on" ? SplitMode::kOn : SplitMode::kOff;
}

}  // namespace

void control_pause(Agent& agent, uint32_t done) noexcept {
  // In simulated time there is no other thread to wait for, and a yield on a busy machine costs milliseconds.
  if (done != 0 || !agent.in_real_time()) return;
  if (!agent.hosted()) {
    sched_yield();
    return;
  }
  const timespec pause{0, 20'000};
  nanosleep(&pause, nullptr);
}

std::shared_ptr<Agent> Agent::create(AgentOptions options) {
  if (options.name.empty() || options.name.size() > metadata::kMaxNameBytes ||
      options.name.find('\0') != std::string::npos) {
    fail(Status::kInvalidArgument, "an agent's name has 1 to {} bytes and no NUL; '{}' has {}",
         metadata::kMaxNameBytes, options.name, options.name.size());
  }
  if (options.workers < 1 || options.workers > kMostWorkers) {
    fail(Status::kInvalidArgument, "an agent has 1 to {} workers, not {}", kMostWorkers, options.workers);
  }
  std::shared_ptr<Agent> agent(new Agent(std::move(options)));
  agent->open();
  return agent;
}

Agent::Agent(AgentOptions options)
    : options_(std::move(options)),
      keys_(secure::Keys::configured(options_.config)),
      clock_(options_.clock != nullptr ? options_.clock : &system_clock()),
      in_real_time_(options_.clock == nullptr),
      incarnation_(Id::random()),
      incarnation_text_(incarnation_.to_hex()),
      fork_generation_(fork_generation()),
      peers_({options_.config.get_u64("tuning.peer.unsolicited", kUnsolicitedPeers, 1, UINT32_MAX),
              options_.config.get_bytes("tuning.peer.unsolicited_bytes", kUnsolicitedBytes)}) {
  count_forks();
  choose_copies();
  options_.config.set("listen", options_.listen);  // backends read it there
  const Config& config = options_.config;
  tuning_ = {config.get_duration_ns("progress.spin", 50 * kMicrosecondNs),
             config.get_duration_ns("peer.heartbeat", kSecondNs),
             config.get_duration_ns("peer.suspect", 3 * kSecondNs),
             config.get_duration_ns("peer.lost", 10 * kSecondNs),
             config.get_duration_ns("tuning.connection.idle", 300 * kSecondNs),
             config.get_duration_ns("connection.timeout", 10 * kSecondNs),
             config.get_duration_ns("tuning.connection.wait", UINT64_MAX),
             read_split_mode(config),
             config.get_bool("gpu.unordered", false)};
  const HostIdentity host = read_host_identity();
  identity_ = {sizeof identity_,
               {incarnation_.hi, incarnation_.lo},
               {host.boot_id.hi, host.boot_id.lo},
               host.pid,
               host.pid_namespace,
               host.process_start_time,
               host.network_namespace,
               options_.hosted ? 0u : 1u,
               options_.workers,
               options_.name.c_str()};
}

void Agent::open() {
  const std::string level = options_.config.get_choice(
      "log.level", {"off", "error", "warning", "info", "debug", "trace"}, "warning");
  set_log_level(log_level_from_name(level).value_or(LogLevel::kWarning));
  metrics_ = std::make_unique<Metrics>(options_.name, incarnation_);
  regions_ = std::make_unique<OwnRegions>(*this);
  staging_ = std::make_unique<Staging>(*this, read_staging_settings(options_.config));
  for (WorkerPlace& place :
       place_workers(options_.config.get_string("tuning.workers.place", "any"), options_.workers)) {
    const PreferNode prefer(place.node);
    workers_.push_back(
        std::make_unique<Worker>(*this, static_cast<uint32_t>(workers_.size()), std::move(place)));
  }
  blocking_work_ = std::make_unique<BlockingWork>(in_real_time_, this);
  reaper_ = std::make_unique<RegionReaper>(*regions_, in_real_time_, this);
  errands_ = std::make_unique<Errands>(in_real_time_, this);
  std::vector<std::string> plugins = options_.config.get_list("plugins");
  for (const BundledBackend& bundled : bundled_backends()) {
    const auto& wanted = options_.backends;
    if (!bundled.automatic) continue;
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), bundled.name) == wanted.end()) continue;
    if (std::string file = bundled_plugin(options_.config, bundled.name); !file.empty())
      plugins.push_back(file);
  }
  backends_ = std::make_unique<BackendHost>(*this, options_.backends, plugins,
                                            options_.config.get_string("faults"), host_services());
  for (auto& worker : workers_) worker->know_backends(kMaxBackends);
  if (options_.listen != "none") {
    Worker::Guard guard(*workers_[0]);
    metadata_service_ = std::make_unique<MetadataService>(*this, options_.listen, options_.advertise);
  }
  warn_of_unknown_settings();
  if (options_.hosted) {
    for (auto& worker : workers_) worker->start_thread();
  }
}

// By now all readers of settings have read them, except for parts that this agent does not use, or that its
// options set.
void Agent::warn_of_unknown_settings() {
  options_.config.declare_all_settings();
  // Those of other people's plugins are known when the plugin reads them.
  for (const std::string& name : backends_->names_not_open())
    if (!has_settings(name)) options_.config.declare({name + ".*"});
  options_.config.refuse_unknown_keys();
  options_.config.warn_unknown_keys();
}

Agent::~Agent() { close(); }

TOWLINE_WAKE_PATH Status Agent::usable() const noexcept {
  if (fork_generation_ != fork_generation()) return Status::kForked;
  return closed() ? Status::kClosed : Status::kOk;
}

// Nobody drives a caller-driven agent while it closes, so a wait for that would never end.
TOWLINE_WAKE_PATH Status Agent::events_usable() const noexcept {
  const Status status = usable();
  if (status != Status::kClosed || !hosted() || told_all_.load(std::memory_order_acquire)) return status;
  return Status::kOk;
}

void Agent::check_usable() const {
  const Status status = usable();
  if (status == Status::kForked)
    fail(status, "agent '{}' belongs to the parent of this forked process", name());
  if (status != Status::kOk) fail(status, "agent '{}' has been closed", name());
}

void Agent::close() noexcept {
  if (fork_generation_ != fork_generation()) {
    // The threads, sockets and memory belong to the parent process: do not end them.
    for (auto& worker : workers_) worker->forget_thread();
    (void)metadata_service_.release();
    (void)backends_.release();
    (void)blocking_work_.release();
    (void)reaper_.release();
    (void)errands_.release();
    for (auto& worker : workers_) (void)worker.release();
    peers_.abandon();
    (void)staging_.release();
    (void)regions_.release();
    (void)metrics_.release();
    return;
  }
  if (closed_.exchange(true, std::memory_order_acq_rel)) return;
  if (reaper_ != nullptr) reaper_->stop();
  told_all_.store(backends_ == nullptr, std::memory_order_release);
  if (backends_ == nullptr) return;  // open() did not get far enough for anything to end
  for_each_post([](Post& post) { post.close_gate(static_cast<int32_t>(Status::kClosed)); });
  for (auto& worker : workers_) {
    Worker::Guard guard(*worker);
    worker->fail_everything(TOWLINE_CLOSED);
    const ValueMessage bye = make_value_message(ControlType::kBye, 0);
    const std::vector<Link*>& links = worker->links();
    for (std::size_t i = 0; i < links.size(); ++i) (void)links[i]->send(&bye, sizeof bye);
  }
  drive_until([this] { return all_transfers_ready(); }, deadline_after(kAgentCloseNs));
  drive_until([this] { return !is_reached(); }, deadline_after(kGoodbyeNs));
  {
    Worker::Guard guard(*workers_[0]);
    metadata_service_.reset();
  }
  for (auto& worker : workers_) worker->stop_thread();
  for (auto& worker : workers_) {
    while (!retire(*worker)) cpu_pause();
  }
  release_transfers();
  errands_->finish();
  counters_.end(Status::kClosed);
  {
    // Before the blocking work: registrations that have not begun there are left out.
    const auto registering = regions_->hold();
    regions_->end();
  }
  blocking_work_->finish();
  {
    const auto registering = regions_->hold();
    regions_->end();  // those of calls that began before
    // Calls that began before may still run; they use backends only under one of these locks, or while they
    // register.
    for (auto& worker : workers_) worker->lock();
    backends_->close();
    for (auto& worker : workers_) worker->unlock();
  }
  reaper_->finish();
  told_all_.store(true, std::memory_order_release);
  queues_.notify_all();
}

// Under one lock, since otherwise another thread could connect again, or accept a connection. False: a thread
// is still posting through one of its links.
bool Agent::retire(Worker& worker) noexcept {
  const Worker::Guard guard(worker);
  bool shut = true;
  // From the end, since one that is shut leaves the list.
  for (std::size_t i = worker.links().size(); i > 0; --i) shut = worker.links()[i - 1]->shut() && shut;
  if (shut) worker.retire();
  return shut;
}

// True while one-sided peers, which access this agent's memory themselves, have not detached. A peer that
// drives its own progress detaches when its application calls in; closing does not wait for that.
bool Agent::is_reached() {
  for (const auto& worker : workers_) {
    const Worker::Guard guard(*worker);
    for (const Link* link : worker->links()) {
      const Backend& backend = link->backend();
      const bool checked = backend.checks_every_access();
      const bool own = link->peer().incarnation() == incarnation_;
      if (link->talks() && !checked && !own && link->peer().identity().caller_driven == 0) return true;
    }
  }
  return false;
}

bool Agent::all_transfers_ready() {
  bool ready = true;
  for_each_post([&](Post& post) { ready = ready && post.ready(); });
  return ready;
}

void Agent::release_transfers() noexcept {
  InUse::publish();
  for_each_post([](Post& post) {
    for (uint32_t i = 0; i < post.part_room(); ++i) {
      Worker::Guard guard(*post.parts()[i].worker);
      post.release_at_last(post.parts()[i]);
    }
  });
}

uint64_t Agent::deadline_after(uint64_t timeout_ns) const noexcept {
  return Deadline::after(now_ns(), timeout_ns).ns();
}

void Agent::expire_listener(uint64_t now_ns) noexcept {
  if (metadata_service_ != nullptr && now_ns >= metadata_service_->next_deadline_ns())
    metadata_service_->expire(now_ns);
}

void Agent::refused_stranger(const std::string& at, uint32_t worker, Status why) noexcept {
  try {
    metrics_->series(kStrangersName, at, Direction::kRx)->add_error(worker, why);
  } catch (const std::bad_alloc&) {  // then it goes uncounted
  }
}

// ---- progress

Worker& Agent::my_worker() noexcept {
  static std::atomic<uint32_t> next_thread{0};
  thread_local constinit uint32_t number = UINT32_MAX;
  if (number == UINT32_MAX) number = next_thread.fetch_add(1, std::memory_order_relaxed);
  return *workers_[number % workers_.size()];
}

void Agent::maintain_soon() noexcept {
  for (const auto& worker : workers_) {
    worker->maintain_soon();
    worker->wake();
  }
}

uint32_t Agent::progress() noexcept {
  uint32_t done = 0;
  for (auto& worker : workers_) done += worker->drive();
  return done;
}

template <class Done>
bool Agent::wait_until(Done&& done, std::atomic<uint32_t>& word, std::atomic<uint32_t>& sleepers,
                       uint64_t timeout_ns) noexcept {
  Waiter waiter{word, sleepers, hosted(), tuning_.spin_ns, kLongestSleepNs};
  return waiter.wait(
      timeout_ns,
      [this](auto&& call) {
        for (auto& worker : workers_) call(*worker);
      },
      done);
}

TOWLINE_WAKE_PATH Status Agent::wait_event(EventQueue& queue, uint64_t timeout_ns) noexcept {
  Status status = Status::kOk;
  const auto done = [&] {
    if (queue.there()) return true;
    status = events_usable();
    return status != Status::kOk;
  };
  if (!wait_until(done, queue.word(), queue.waiters(), timeout_ns)) return Status::kNotYet;
  return queue.there() ? Status::kOk : status;
}

size_t Agent::pull_completions(towline_completion_t* completions, size_t capacity) noexcept {
  if (own_queue_.no_completions()) progress();
  return own_queue_.pull_completions(completions, capacity);
}

// ---- counters

Status Agent::wait_counter(uint64_t key, uint64_t threshold, uint64_t timeout_ns) noexcept {
  CounterCell* const cell = counters_.find(key);  // its memory stays, if it is destroyed meanwhile
  if (cell == nullptr) return Status::kStale;
  Status status = Status::kOk;
  const auto done = [&] {
    status = counters_.find(key) != cell ? Status::kStale : Status::kOk;
    if (status != Status::kOk || cell->value.load(std::memory_order_acquire) >= threshold) return true;
    status = usable();
    return status != Status::kOk;
  };
  return wait_until(done, cell->changes, cell->waiters, timeout_ns) ? status : Status::kNotYet;
}

// ---- transfers

void Agent::add_post(Post& post) {
  std::lock_guard lock(control_mutex_);
  posts_.push(post);
  // close() may have gone through the list before.
  if (closed_.load(std::memory_order_acquire)) post.close_gate(static_cast<int32_t>(Status::kClosed));
}

// Transfers that were made before do not take the short way any more. Posts of plans look at each post.
void Agent::set_limit(Pace& pace, uint64_t bytes_per_s) {
  if (!limits_.set(pace, bytes_per_s)) return;
  for_each_post([](Post& post) { post.limits_begin(); });
}

// Hooks count as a limit: no post takes the short way.
void Agent::set_hooks(const towline_hooks_t* hooks) {
  constexpr std::size_t kMost = 64;
  const towline_hooks_t* added = nullptr;
  bool first = false;
  {
    const std::lock_guard lock(control_mutex_);
    if (hooks != nullptr) {
      if (all_hooks_.size() >= kMost)
        fail(Status::kLimitExceeded, "the hooks of an agent are set {} times at most", kMost);
      added = all_hooks_.emplace_back(std::make_unique<towline_hooks_t>(*hooks)).get();
    }
    const bool had = hooks_.exchange(added, std::memory_order_acq_rel) != nullptr;
    if (added != nullptr && !had) first = limits_.count.fetch_add(1, std::memory_order_relaxed) == 0;
    if (added == nullptr && had) limits_.count.fetch_sub(1, std::memory_order_relaxed);
  }
  if (first) for_each_post([](Post& post) { post.limits_begin(); });
}

void Agent::remove_post(Post& post) noexcept {
  std::lock_guard lock(control_mutex_);
  posts_.remove(post);
}

// ---- notices

// A worker's pass over all its backends takes longer than everything else here. So a caller that receives
// until nothing is left gets its progress before the first notice. The worker that brought the last notice is
// checked first, the others only if it has none, or every few calls.
TOWLINE_WAKE_PATH NoticeNode* Agent::receive_notice() noexcept {
  static thread_local const Agent* just_given = nullptr;
  static thread_local uint32_t first = 0;  // a worker index, from any agent: only a hint
  static thread_local uint32_t looks = 0;
  NoticeNode* node = inbox().pull();
  if (node == nullptr && just_given != this) {
    const bool all = !hosted() || ++looks % kLooksPerFullPass == 0;
    for (size_t i = 0; i < (all ? workers_.size() : 1); ++i) workers_[(first + i) % workers_.size()]->drive();
    node = inbox().pull();
  }
  if (node != nullptr) first = node->worker;
  just_given = node == nullptr ? nullptr : this;
  own_queue_.settle();
  return node;
}

void Agent::give_back_notice(NoticeNode* node) noexcept {
  node->link->consumed(node->link_generation, node->bytes);
  node->peer->let_go();
  workers_[node->worker]->notices().give(node);
}

}  // namespace towline
