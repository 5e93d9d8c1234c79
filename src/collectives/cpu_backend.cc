#include "collectives/cpu_backend.h"
#include "rendezvous/exchange.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <tuple>

#include "agent/agent.h"
#include "base/config/config.h"
#include "base/error.h"
#include "base/id.h"
#include "base/log.h"
#include "base/per_thread.h"
#include "collectives/agent_window.h"
#include "collectives/calls/types.h"
#include "collectives/reduce.h"

namespace towline::collectives {
namespace {

// How long an operation over TCP polls before it sleeps: about the time of a message between two ranks that
// are both active. It never yields: if other programs want the processor, a yield costs their whole time
// slice (milliseconds), while a sleeper runs before them when the message arrives.
constexpr uint64_t kSpinNs = 30 * kMicrosecondNs;
constexpr uint64_t kCrowdedLooseBytes = 4096;
constexpr uint64_t kMostExchanged = 1u << 20;  // limit for one rank, for control data
constexpr int kWatchMs = 200;   // how late an idle rank may learn that another rank broke the group
constexpr int kHurriedMs = 20;  // the same while ranks find out which one stands still

std::span<const uint8_t> as_bytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

bool wants_any_order(const towline_collective_open_args& args) {
  for (const char* const* hint = args.hints; hint != nullptr && hint[0] != nullptr; hint += 2)
    if (std::strcmp(hint[0], "order") == 0) return std::strcmp(hint[1], "any") == 0;
  return false;
}

}  // namespace

CpuBackend::CpuBackend(const towline_collective_open_args& args)
    : host_(*args.host),
      rank_(args.rank),
      size_(args.size),
      flags_(args.flags),
      timeout_ns_(Deadline::at(args.deadline_ns).remaining_ns(monotonic_now_ns())),
      name_(args.name) {
  const std::string warn = setting("tuning.collectives.warn", "30s");
  const auto warn_ns = parse_duration_ns(warn);
  if (!warn_ns)
    fail(Status::kInvalidArgument, "tuning.collectives.warn = \"{}\" is no time, such as 30s", warn);
  warn_ns_ = *warn_ns;
  settings_.stage_bytes = size_setting("tuning.collectives.stage_bytes", settings_.stage_bytes);
  settings_.flat_bytes =
      std::min(size_setting("tuning.collectives.flat_bytes", settings_.flat_bytes), settings_.stage_bytes);
  settings_.channel_bytes = size_setting("tuning.collectives.channel_bytes", settings_.channel_bytes);
  settings_.streaming_bytes = size_setting("tuning.collectives.streaming_bytes", settings_.streaming_bytes);
  settings_.leader_bytes = size_setting("tuning.collectives.leader_bytes", settings_.leader_bytes);
  settings_.chunk_bytes = std::max<uint64_t>(
      size_setting("tuning.collectives.chunk_bytes", settings_.chunk_bytes) / 4096 * 4096, 4096);
  const std::string single_copy = setting("tuning.collectives.single_copy", "auto");
  if (single_copy != "auto" && single_copy != "never" && single_copy != "always")
    fail(Status::kInvalidArgument, "tuning.collectives.single_copy = \"{}\" is none of auto, never, always",
         single_copy);
  settings_.single_copy = single_copy == "auto"    ? SingleCopy::kAuto
                          : single_copy == "never" ? SingleCopy::kNever
                                                   : SingleCopy::kAlways;
  settings_.stage_bytes = std::max<uint64_t>((settings_.stage_bytes + 4095) / 4096 * 4096,
                                             (static_cast<uint64_t>(size_) * 64 + 4095) / 4096 * 4096);
  settings_.channel_bytes = std::max<uint64_t>(settings_.channel_bytes / 4096 * 4096, 4096);
  arrivals_.any_order = wants_any_order(args);
  breaker_.set_agree([this](Breakage reason) { return agree(std::move(reason)); });
  breaker_.set_listener([this](const Breakage&) { wake_.signal(); });

  const Deadline deadline = Deadline::at(args.deadline_ns);
  mesh_ = std::make_unique<TcpMesh>(
      rank_, size_, setting("collectives.listen", "*:0"), breaker_, TcpMesh::kHelloNs,
      secure::Keys::configured([this](const char* key) { return setting(key, ""); }));
  mesh_->set_congestion(setting("tuning.collectives.congestion", ""));
  exchange_infos(deadline);
  watcher_ = std::thread([this] { watch(); });
  try {
    share_memory(deadline);
  } catch (...) {
    stop_ = true;
    wake_.signal();
    watcher_.join();
    throw;
  }
  messages_ = std::make_unique<MessageEngine>(
      rank_, size_,
      [this](int peer) -> std::unique_ptr<Channel> {
        class ShmChannel final : public Channel {
         public:
          ShmChannel(ShmGroup& group, int peer) : group_(group), peer_(peer) {}
          size_t write(const void* data, size_t bytes) override {
            return group_.channel_write(peer_, data, bytes);
          }
          size_t read(void* data, size_t bytes) override { return group_.channel_read(peer_, data, bytes); }
          bool can_write() override { return group_.channel_can_write(peer_); }
          bool can_read() override { return group_.channel_can_read(peer_); }

         private:
          ShmGroup& group_;
          const int peer_;
        };
        class OwnChannel final : public LocalChannel {
         public:
          explicit OwnChannel(ShmGroup& group) : group_(group) {}
          size_t write(const void* data, size_t bytes) override {
            const size_t written = LocalChannel::write(data, bytes);
            group_.notify();  // another thread may sleep until this comes
            return written;
          }

         private:
          ShmGroup& group_;
        };
        if (peer == rank_) return std::make_unique<OwnChannel>(*group_);
        const std::vector<int>& host = hosts_[my_host_];
        if (const auto found = std::ranges::find(host, peer); found != host.end())
          return std::make_unique<ShmChannel>(*group_, static_cast<int>(found - host.begin()));
        return mesh_->message_channel(peer);
      },
      breaker_);
}

CpuBackend::~CpuBackend() {
  if (window_agent_ != nullptr) window_agent_->close();
  group_->leave();
  if (!one_host()) mesh_->leave();
  stop_ = true;
  wake_.signal();
  watcher_.join();
}

std::string CpuBackend::setting(const char* key, const char* fallback) const {
  return host_.config(host_.context, key, fallback);
}

uint64_t CpuBackend::size_setting(const char* key, uint64_t fallback) const {
  const std::string text = setting(key, "");
  if (text.empty()) return fallback;
  const auto bytes = parse_bytes(text);
  if (!bytes) fail(Status::kInvalidArgument, "{} = \"{}\" is no size, such as 512KiB", key, text);
  return *bytes;
}

// ---- Forming

void CpuBackend::exchange_infos(Deadline deadline) {
  rendezvous::RankInfo mine = rendezvous::this_rank();
  mine.label = setting("collectives.host", "");
  mine.endpoints = mesh_->endpoints(setting("collectives.store_host", ""));
  mine.settings = fmt::format(
      "stage_bytes {}, flat_bytes {}, channel_bytes {}, leader_bytes {}, chunk_bytes {}, {}shared memory, "
      "direct copies, order {}",
      settings_.stage_bytes, settings_.flat_bytes, settings_.channel_bytes, settings_.leader_bytes,
      settings_.chunk_bytes, (flags_ & TOWLINE_COMMUNICATOR_NO_SHARED_MEMORY) != 0 ? "no " : "",
      arrivals_.any_order ? "any" : "rank");
  const auto all = rendezvous::exchange(store_, "info", rank_, size_, rendezvous::encode(mine), deadline);
  for (int rank = 0; rank < size_; ++rank)
    infos_.push_back(rendezvous::decode(all[static_cast<size_t>(rank)], rank));
  // Settings decide how data is cut, so ranks with different settings could not communicate.
  for (int rank = 0; rank < size_; ++rank) {
    const std::string& theirs = infos_[static_cast<size_t>(rank)].settings;
    if (theirs != infos_[0].settings)
      fail(Status::kMismatch, "ranks have different settings (collectives.*): rank 0 has {}; rank {} has {}",
           infos_[0].settings, rank, theirs);
  }
  hosts_ = rendezvous::hosts_of(infos_, (flags_ & TOWLINE_COMMUNICATOR_NO_SHARED_MEMORY) == 0);
}

// The first rank of a host makes the memory; the others open it by its descriptor in that process. If one of
// them can't, all ranks of that host use TCP. Every rank learns this, so all ranks have the same view of
// hosts.
void CpuBackend::share_memory(Deadline deadline) {
  const auto host_of = [&](int rank) {
    return static_cast<size_t>(
        std::ranges::find_if(hosts_,
                             [&](const auto& host) { return std::ranges::find(host, rank) != host.end(); }) -
        hosts_.begin());
  };
  const std::vector<int> host = hosts_[host_of(rank_)];
  const auto most = static_cast<uint64_t>(std::max<size_t>(host.size(), 1));
  settings_.channel_bytes = std::max<uint64_t>(
      4096, std::min(settings_.channel_bytes, (uint64_t{64} << 20) / (most * most) / 4096 * 4096));
  // Ranks of one machine share its processors, even if they share no memory.
  settings_.crowded = crowded(infos_, rank_);
  mesh_->set_spin(settings_.crowded ? 0 : kSpinNs);

  UniqueFd created;
  Mapping mapping;
  std::string problem;
  try {
    mapping = open_arena(host, created, deadline);
  } catch (const Error& error) {
    if (error.code() == Status::kTimedOut) throw;
    problem = error.message();
  }
  const auto problems = rendezvous::exchange(store_, "mapped", rank_, size_, as_bytes(problem), deadline);
  std::vector<bool> failed(hosts_.size());
  for (int rank = 0; rank < size_; ++rank) {
    if (!problems[static_cast<size_t>(rank)].empty()) failed[host_of(rank)] = true;
  }
  if (std::ranges::find(failed, true) != failed.end()) {
    std::vector<std::vector<int>> split;
    for (size_t i = 0; i < hosts_.size(); ++i) {
      if (!failed[i]) split.push_back(hosts_[i]);
      for (size_t k = 0; failed[i] && k < hosts_[i].size(); ++k) split.push_back({hosts_[i][k]});
    }
    hosts_ = std::move(split);
  }
  my_host_ = host_of(rank_);
  if (hosts_[my_host_].size() != host.size() || !mapping.valid()) {
    created = create_memfd("towline-collectives", ShmGroup::bytes(1, settings_));
    mapping = Mapping::map_shared(created.get(), ShmGroup::bytes(1, settings_), MapAccess::kReadWrite);
  }
  const std::vector<int>& members = hosts_[my_host_];
  // If ranks share processors, running ahead saves context switches, which cost more than the larger data in
  // the caches. The first rank of the host decides, since all must do the same.
  if (crowded(infos_, members.front())) settings_.loose_bytes = kCrowdedLooseBytes;
  const auto index = static_cast<int>(std::ranges::find(members, rank_) - members.begin());
  index_here_.assign(static_cast<size_t>(size_), -1);
  for (size_t i = 0; i < members.size(); ++i)
    index_here_[static_cast<size_t>(members[i])] = static_cast<int>(i);
  group_ = std::make_unique<ShmGroup>(std::move(mapping), index, members, settings_, breaker_);
  watch_processes();
  if (!one_host()) {
    if (rank_ == 0) {
      // It knows the secret first, so who connects before it is in the store is a stranger.
      const Id secret = Id::random();
      mesh_->join(infos_, secret, deadline);
      store_.set("mesh", as_bytes(secret.to_hex()));
    } else {
      const std::vector<uint8_t> text = store_.get("mesh", deadline);
      const auto secret = Id::from_hex(std::string(text.begin(), text.end()));
      if (!secret) fail(Status::kProtocol, "the store's \"mesh\" is no identity");
      mesh_->join(infos_, *secret, deadline);
    }
    // No rank continues before rank 0 can announce a break to all ranks.
    if (rank_ == 0) {
      while (!mesh_->complete()) {
        if (deadline.passed(monotonic_now_ns()))
          fail(Status::kTimedOut, "not every rank connected to rank 0");
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      store_.set("joined", as_bytes("all"));
    }
    store_.get("joined", deadline);
  }
  formed_ = true;
  wake_.signal();
  // No rank continues before all have finished with the store: a rank that serves it may close at once.
  Call call;
  call.op = TOWLINE_COLLECTIVE_BARRIER;
  call.header.op = TOWLINE_COLLECTIVE_BARRIER;
  call.header.number = kFormingNumber;
  call.deadline = deadline;
  const Status status = run(call);
  if (is_error(status)) fail(status, "{}", breaker_.breakage().text);
}

Mapping CpuBackend::open_arena(const std::vector<int>& host, UniqueFd& created, Deadline deadline) {
  const uint64_t bytes = ShmGroup::bytes(static_cast<uint32_t>(host.size()), settings_);
  const std::string key = fmt::format("arena/{}", host.front());
  if (rank_ == host.front()) {
    try {
      created = create_memfd("towline-collectives", bytes);
      Mapping mapping = Mapping::map_shared(created.get(), bytes, MapAccess::kReadWrite);
      store_.set(key, as_bytes(fmt::format("/proc/{}/fd/{}", ::getpid(), created.get())));
      return mapping;
    } catch (const Error&) {
      store_.set(key, as_bytes("none"));
      throw;
    }
  }
  const std::vector<uint8_t> value = store_.get(key, deadline);
  const std::string path(value.begin(), value.end());
  if (!path.starts_with("/proc/"))
    fail(Status::kOutOfMemory, "the first rank of the host has no shared memory");
  const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd) fail_errno(errno, "cannot open {}", path);
  require_sealed(fd.get(), bytes);
  return Mapping::map_shared(fd.get(), bytes, MapAccess::kReadWrite);
}

void CpuBackend::watch_processes() {
  const std::vector<int>& members = hosts_[my_host_];
  for (size_t i = 0; i < members.size(); ++i) {
    const HostIdentity& other = infos_[static_cast<size_t>(members[i])].host;
    if (other.pid == infos_[static_cast<size_t>(rank_)].host.pid) continue;
    UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, other.pid, 0)));
    const bool gone = !process && errno == ESRCH;
    if (gone || process_start_time(other.pid) != other.process_start_time)
      fail(Status::kPeerLost, "{} ended while the communicator formed",
           name_of(members[i], infos_[static_cast<size_t>(members[i])]));
    if (process) watched_.push_back({std::move(process), static_cast<int>(i), false});
  }
}

// ---- Watching

// Ranks and strangers start what it does. A failure ends the communicator, never the process.
void CpuBackend::watch() noexcept {
  std::vector<pollfd> polled;
  bool told = false;
  while (!stop_) {
    try {
      watch_once(polled, told);
    } catch (const std::exception& error) {
      breaker_.raise_or_break(Status::kOutOfMemory, [&] {
        return fmt::format("rank {} could not watch the other ranks: {}", rank_, error.what());
      });
      pollfd stopped = {wake_.fd(), POLLIN, 0};
      ::poll(&stopped, 1, kWatchMs);
    }
  }
}

void CpuBackend::watch_once(std::vector<pollfd>& polled, bool& told) {
  const bool ready = formed_;
  polled.assign(1, {wake_.fd(), POLLIN, 0});
  if (ready) {
    for (const Watched& watched : watched_)
      polled.push_back({watched.ended ? -1 : watched.process.get(), POLLIN, 0});
  }
  if (ready && one_host()) mesh_.reset();  // no rank will connect
  if (mesh_ != nullptr) mesh_->poll_fds(polled);
  ::poll(polled.data(), polled.size(), ready ? (breaker_.hurried() ? kHurriedMs : kWatchMs) : 20);
  if (polled[0].revents != 0) wake_.drain();
  if (mesh_ != nullptr) mesh_->serve();
  if (ready) {
    if (breaker_.hurried()) group_->notify();  // an operation of this rank may sleep there
    for (size_t i = 0; i < watched_.size() && i + 1 < polled.size(); ++i) {
      if (polled[i + 1].revents == 0) continue;
      watched_[i].ended = true;
      if (group_->has_left(watched_[i].index)) continue;
      const int rank = hosts_[my_host_][static_cast<size_t>(watched_[i].index)];
      breaker_.raise(Status::kPeerLost, fmt::format("{} ended without closing the communicator",
                                                    name_of(rank, infos_[static_cast<size_t>(rank)])));
    }
    if (!group_->broken()) group_->watch_behind();
    if (group_->broken() && !breaker_.broken()) {
      const Breakage found = group_->breakage();
      if (one_host())
        breaker_.record(found);
      else
        breaker_.raise(found.status, found.text);
    }
  }
  if (ready && warn_ns_ != 0 && !breaker_.broken()) warn_of_delays(monotonic_now_ns());
  if (breaker_.broken() && !told) {
    const Breakage why = breaker_.breakage();
    told = true;
    if (group_ != nullptr && ready) group_->break_group(why);
    host_.broken(host_.context, static_cast<int32_t>(why.status), why.text.c_str());
  }
}

// Once for each operation, judged by the operation in progress when the watcher wakes: operations read no
// clock for this.
void CpuBackend::warn_of_delays(uint64_t now_ns) {
  const uint64_t number = performing_.load(std::memory_order_relaxed);
  if (number != watched_number_) {
    watched_number_ = number;
    watched_since_ns_ = now_ns;
  }
  if (number == 0 || watched_since_ns_ == kNoDeadline || now_ns - watched_since_ns_ < warn_ns_) return;
  watched_since_ns_ = kNoDeadline;
  const std::vector<int> absent = group_->absent();
  TOWLINE_LOG(kWarning, "communicator {}: rank {} has been in operation #{} for {} s{}", name_, rank_,
              number - 1, warn_ns_ / kSecondNs,
              absent.empty() ? std::string(one_host() ? "" : ": ranks of other hosts have not come")
                             : fmt::format(": not there yet: rank {}", fmt::join(absent, ", ")));
}

Breakage CpuBackend::agree(Breakage reason) {
  if (group_ == nullptr) return settled(std::move(reason));
  if (one_host()) return group_->break_group(settled(std::move(reason)));
  const Breakage agreed = mesh_->agree(std::move(reason));
  group_->break_group(agreed);
  return agreed;
}

// ---- Messages

namespace {

// What a thread waits for.
struct WatchedMessages {
  std::vector<int> readable;  // sockets
  std::vector<int> writable;
  uint64_t ended = 0;  // messages, when it waited last
};

}  // namespace

void CpuBackend::message_wait(uint64_t until_ns) {
  auto& [readable, writable, ended] = PerThread<WatchedMessages>::get();
  readable.clear();
  writable.clear();
  if (one_host()) {
    const uint32_t seen = group_->announce();
    if (!breaker_.broken() && !group_->broken() && !messages_->ready(readable, writable, ended))
      group_->sleep(seen, until_ns);
    group_->retire();
    return;
  }
  if (breaker_.broken() || messages_->ready(readable, writable, ended)) {
    sched_yield();
    return;
  }
  std::vector<pollfd> polled;
  for (const int fd : readable) polled.push_back({fd, POLLIN, 0});
  for (const int fd : writable) polled.push_back({fd, POLLOUT, 0});
  const uint64_t now = monotonic_now_ns();
  const uint64_t left = until_ns > now ? until_ns - now : 0;
  // Channels of both kinds may wait: poll those in memory every millisecond.
  const timespec most = {0, static_cast<long>(std::min<uint64_t>(left, kMillisecondNs))};
  ::ppoll(polled.data(), polled.size(), &most, nullptr);
}

// ---- Performing

// A loop makes one call again and again. Calls with lists are taken apart each time, since their lists may have changed.
void CpuBackend::take(const towline_collective_t& call, bool again, uint64_t number) {
  if (again) {
    call_.header.number = number;
    return;
  }
  taken_.struct_size = 0;
  take_apart(call, rank_, size_, number, Deadline::never(), call_);
  // Operations between hosts change the call.
  if (one_host() && !has_lists(call)) taken_ = call;
}

Status CpuBackend::perform(const towline_collective_t& call, uint64_t number, Deadline deadline) {
  if (breaker_.broken()) return breaker_.status();
  if (group_->broken()) [[unlikely]] {  // another rank broke it just now
    const Breakage found = group_->breakage();
    return one_host() ? breaker_.record(found) : breaker_.raise(found.status, found.text);
  }
  // A rank that was stopped for long may have all its data and also the verdict of the others.
  if (!one_host() && mesh_->verdict_waits()) return breaker_.status();
  try {
    take(call, is_last(call), number);
    call_.deadline = deadline;
    call_.late = nullptr;
    group_->begin(false);
    return perform_taken(number);
  } catch (const std::bad_alloc&) {
    return out_of_memory();
  }
}

Status CpuBackend::perform_small(const towline_collective_t& call, bool again, uint64_t number,
                                 LateDeadline& late) {
  if (breaker_.broken() || group_->broken()) [[unlikely]]
    return perform(call, number, late.get());
  try {
    take(call, again, number);
    call_.late = &late;
    group_->begin(true);
    return perform_taken(number);
  } catch (const std::bad_alloc&) {
    return out_of_memory();
  }
}

// The operation is partly done: the other ranks must not wait for it.
Status CpuBackend::out_of_memory() {
  return breaker_.raise(Status::kOutOfMemory, "out of memory in an operation");
}

Status CpuBackend::perform_taken(uint64_t number) {
  performing_.store(number + 1, std::memory_order_relaxed);
  const Status status = one_host() ? run_on_host(call_, *group_) : run_between_hosts(call_);
  performing_.store(0, std::memory_order_relaxed);
  return status;
}

Status CpuBackend::run(Call& call) {
  return one_host() ? run_on_host(call, *group_) : run_between_hosts(call);
}

Status CpuBackend::run_on_host(const Call& call, ShmGroup& group) {
  switch (call.op) {
    case TOWLINE_COLLECTIVE_BARRIER:
      return group.barrier(call);
    case TOWLINE_COLLECTIVE_ALL_REDUCE:
      return group.all_reduce(call);
    case TOWLINE_COLLECTIVE_REDUCE:
      return group.reduce(call);
    case TOWLINE_COLLECTIVE_BROADCAST:
      return group.broadcast(call);
    case TOWLINE_COLLECTIVE_ALL_GATHER:
    case TOWLINE_COLLECTIVE_ALL_GATHER_V:
      return group.all_gather(call);
    case TOWLINE_COLLECTIVE_REDUCE_SCATTER:
    case TOWLINE_COLLECTIVE_REDUCE_SCATTER_V:
      return group.reduce_scatter(call);
    case TOWLINE_COLLECTIVE_GATHER:
      return group.gather(call);
    case TOWLINE_COLLECTIVE_SCATTER:
      return group.scatter(call);
    case TOWLINE_COLLECTIVE_ALL_TO_ALL:
      return group.all_to_all(call);
    case TOWLINE_COLLECTIVE_ALL_TO_ALL_V:
      return group.all_to_all_v(call);
    default:
      return breaker_.raise(Status::kInternal, "the operation is unknown");
  }
}

// ---- For windows

Status CpuBackend::exchange(const Header& header, const void* mine, uint64_t bytes,
                            std::vector<std::vector<uint8_t>>& all, Deadline deadline) {
  const auto size = static_cast<size_t>(size_);
  std::vector<uint64_t> sizes(size);
  Call call;
  call.op = TOWLINE_COLLECTIVE_ALL_GATHER;
  call.header = header;
  call.deadline = deadline;
  call.out.resize(size);
  const auto gather = [&](const void* input, const auto& place) {
    call.input = static_cast<const uint8_t*>(input);
    for (size_t rank = 0; rank < size; ++rank)
      std::tie(call.out.at[rank], call.out.bytes[rank]) = place(rank);
    call.bytes = call.out.bytes[static_cast<size_t>(rank_)];
    return run(call);
  };
  using Place = std::pair<uint8_t*, uint64_t>;
  const Status status = gather(
      &bytes, [&](size_t rank) { return Place(reinterpret_cast<uint8_t*>(&sizes[rank]), sizeof bytes); });
  if (is_error(status)) return status;
  all.resize(size);
  for (size_t rank = 0; rank < size; ++rank) {
    if (sizes[rank] > kMostExchanged)
      return breaker_.raise(Status::kProtocol, fmt::format("rank {} gives {} bytes in {}", rank, sizes[rank],
                                                           collectives::describe(header)));
    all[rank].resize(sizes[rank]);
  }
  call.header = header;
  call.header.step += 8;
  return gather(mine, [&](size_t rank) { return Place(all[rank].data(), sizes[rank]); });
}

const std::shared_ptr<Agent>& CpuBackend::window_agent(bool gpus) {
  if (window_agent_ == nullptr) {
    // Ranks that count as on different hosts are reached as if they were on different hosts. Ranks with GPUs use no shared
    // memory among processors, wherever they are.
    const bool labelled = !infos_[static_cast<size_t>(rank_)].label.empty();
    const bool apart = labelled || (!gpus && (flags_ & TOWLINE_COMMUNICATOR_NO_SHARED_MEMORY) != 0);
    window_agent_ = make_window_agent(fmt::format("window-rank-{}", rank_),
                                      !apart ? ""
                                      : gpus ? "cuda,tcp"
                                             : "tcp",
                                      setting("collectives.listen", ""), timeout_ns_, gpus,
                                      [this](const char* key) { return setting(key, ""); });
  }
  return window_agent_;
}

std::string CpuBackend::describe() const {
  nlohmann::json info;
  info["kernels"] = reduce_kernels();
  info["stage_bytes"] = settings_.stage_bytes;
  info["flat_bytes"] = settings_.flat_bytes;
  info["channel_bytes"] = settings_.channel_bytes;
  info["streaming_bytes"] = settings_.streaming_bytes;
  info["single_copy"] = group_->describe_choice();
  info["crowded"] = settings_.crowded;
  info["between_hosts"] = one_host() ? "none" : "tcp";
  info["order"] = arrivals_.any_order ? "any" : "rank";
  info["added_early"] = arrivals_.added_early.load(std::memory_order_relaxed);
  info["hosts"] = hosts_;
  for (size_t rank = 0; rank < infos_.size(); ++rank) {
    info["ranks"].push_back({{"rank", rank},
                             {"host", infos_[rank].host_name},
                             {"process", infos_[rank].host.pid},
                             {"processors", infos_[rank].processors.size()},
                             {"numa_node", infos_[rank].numa_node},
                             {"endpoints", infos_[rank].endpoints}});
  }
  return info.dump();
}

}  // namespace towline::collectives
