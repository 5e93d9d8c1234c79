#include "collectives/agent_window.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "agent/block_list.h"
#include "agent/transfer.h"
#include "base/copy/copy.h"
#include "base/error.h"
#include "base/wire.h"
#include "plan/resolved_list.h"

namespace towline::collectives {
namespace {

constexpr uint64_t kPieceBytes = 1 << 20;
constexpr size_t kSlots = 2;
constexpr uint64_t kLookNs = 50 * kMillisecondNs;  // how late a wait learns that the communicator broke

// A rank that can't be reached any more is lost: all ranks were there when the window was opened.
Status as_loss(Status status) noexcept {
  return status == Status::kUnreachable || status == Status::kPeerRestarted ? Status::kPeerLost : status;
}

const char* what_of(uint32_t op) noexcept { return op == TOWLINE_WRITE ? "putting into" : "getting from"; }

}  // namespace

std::shared_ptr<Agent> make_window_agent(const std::string& name, const std::string& backends,
                                         const std::string& listen, uint64_t timeout_ns, bool gpus,
                                         const std::function<std::string(const char* key)>& setting) {
  AgentOptions options;
  options.name = name;
  options.listen = "none";  // ranks exchange their addresses themselves
  options.config = Config::from_process();
  for (const char* key : secure::Keys::kSettings) options.config.set(key, setting(key));
  if (!backends.empty()) options.config.set("backends", backends);
  if (gpus) options.config.set("gpu.unordered", "true");
  options.config.set("tcp.listen", listen.empty() ? "*:0" : listen);  // ranks may be on other hosts
  options.backends = options.config.get_list("backends");
  options.default_timeout_ns = timeout_ns;
  return Agent::create(std::move(options));
}

// One transfer between a slot of the staging memory and a rank's.
class AgentWindow::Move {
 public:
  Move(std::shared_ptr<Agent> agent, uint32_t op, std::shared_ptr<BlockList> local,
       std::shared_ptr<BlockList> remote)
      : agent_(std::move(agent)) {
    Plan plan = Plan::compile(local->resolved(), nullptr, remote->resolved(), nullptr, op);
    transfer_ = std::make_unique<Transfer>(agent_, op, std::move(local), std::move(remote), std::move(plan),
                                           PostOptions{}, 1);
    agent_->add_post(*transfer_);
    try {
      transfer_->establish("", LateDeadline::in(*agent_, agent_->default_timeout_ns()));
    } catch (...) {
      agent_->remove_post(*transfer_);
      throw;
    }
  }
  // After retire() succeeded, or the agent was closed.
  ~Move() {
    (void)transfer_->retire(0);
    agent_->remove_post(*transfer_);
  }
  Move(const Move&) = delete;
  Move& operator=(const Move&) = delete;

  Transfer& transfer() noexcept { return *transfer_; }
  bool retire() noexcept { return transfer_->retire(0) == Status::kOk; }

 private:
  const std::shared_ptr<Agent> agent_;
  std::unique_ptr<Transfer> transfer_;
};

AgentWindow::AgentWindow(std::shared_ptr<Agent> agent, Breaker& breaker, size_t me, size_t ranks,
                         const Memory& memory, size_t channels)
    : agent_(std::move(agent)), breaker_(breaker), me_(me), channels_(channels), ranks_(ranks) {
  try {
    make_counters();
    if (memory.address == nullptr || memory.bytes == 0) return;
    towline_region_options_t options = {};
    options.struct_size = sizeof options;
    options.access = TOWLINE_ACCESS_ALL;
    options.kind = memory.kind;
    options.device = memory.device;
    region_ = agent_->own_regions().add(memory.address, memory.bytes, options);
  } catch (...) {
    drop_counters();
    throw;
  }
}

void AgentWindow::make_counters() {
  for (Rank& rank : ranks_) {
    rank.signals = std::make_unique<Signals[]>(channels_);
    for (size_t channel = 0; channel < channels_; ++channel) {
      rank.signals[channel].counter_here = agent_->remote_counters().create(0);
      if (rank.signals[channel].counter_here == 0)
        fail(Status::kLimitExceeded, "no room for another window's counters");
    }
  }
}

void AgentWindow::drop_counters() noexcept {
  for (const Rank& rank : ranks_)
    for (size_t channel = 0; rank.signals != nullptr && channel < channels_; ++channel)
      if (const uint64_t counter = rank.signals[channel].counter_here; counter != 0)
        agent_->remote_counters().destroy(counter);
}

AgentWindow::~AgentWindow() {
  drop_counters();
  std::string why;
  // Moves that could not be ended in time end with the agent and its connections.
  if (close(Deadline::at(0), why) != Status::kOk || !left_over_.empty()) agent_->close();
  left_over_.clear();
  if (staging_region_ != nullptr && !agent_->closed())
    (void)agent_->own_regions().remove(staging_region_, kSecondNs, why);
}

// ---- Opening

std::vector<uint8_t> AgentWindow::offer() {
  std::vector<uint64_t> keys;
  if (region_ != nullptr) keys.push_back(region_->ref.key);
  const std::vector<uint8_t> blob = agent_->metadata(&keys);
  std::vector<uint8_t> encoded;
  WireWriter out(encoded);
  out.u64(region_ != nullptr ? region_->ref.key : 0);
  out.u64(region_ != nullptr ? region_->ref.bytes : 0);
  for (const Rank& rank : ranks_)
    for (size_t channel = 0; channel < channels_; ++channel) out.u64(rank.signals[channel].counter_here);
  encoded.insert(encoded.end(), blob.begin(), blob.end());
  return encoded;
}

void AgentWindow::open(size_t rank, std::span<const uint8_t> offer) {
  Rank& other = ranks_[rank];
  WireReader in(offer);
  const uint64_t key = in.u64();
  other.bytes = in.u64();
  for (size_t i = 0; i < ranks_.size() * channels_; ++i) {
    const uint64_t counter = in.u64();
    if (i / channels_ == me_) other.signals[i % channels_].counter_there = counter;
  }
  if (!in.ok()) fail(Status::kProtocol, "its offer is not understood");
  other.peer = &agent_->add_peer(offer.subspan(in.position()));
  if (key == 0) return;
  other.region = other.peer->region(key);
  if (other.region == nullptr || other.region->ref.bytes != other.bytes)
    fail(Status::kProtocol, "its offer names a region that it does not describe");
}

std::unique_ptr<AgentWindow> AgentWindow::open_all(std::string problem, const Make& make,
                                                   const std::function<bool(size_t rank)>& elsewhere,
                                                   const Exchange& exchange) {
  constexpr const char* kNoMemory = "out of memory";
  std::unique_ptr<AgentWindow> made;
  std::vector<uint8_t> mine;
  try {
    if (problem.empty()) {
      made = make();
      mine = made->offer();
    }
  } catch (const Error& error) {
    problem = error.message();
  } catch (const std::bad_alloc&) {
    problem = kNoMemory;
  }
  if (!problem.empty()) mine.clear();
  const auto offers = exchange(0, mine);
  for (size_t rank = 0; rank < offers.size() && problem.empty(); ++rank) {
    try {
      if (elsewhere(rank) && !offers[rank].empty()) made->open(rank, offers[rank]);
    } catch (const Error& error) {
      problem = fmt::format("it cannot reach rank {}'s: {}", rank, error.message());
    } catch (const std::bad_alloc&) {
      problem = kNoMemory;
    }
  }
  if (problem.size() > 1000) problem.resize(1000);
  const auto problems = exchange(1, {reinterpret_cast<const uint8_t*>(problem.data()), problem.size()});
  for (size_t rank = 0; rank < problems.size(); ++rank) {
    if (!problems[rank].empty())
      fail(Status::kUnsupported, "no window: rank {}: {}", rank,
           std::string(problems[rank].begin(), problems[rank].end()));
  }
  return made;
}

Status AgentWindow::close(Deadline deadline, std::string& why) {
  if (region_ == nullptr || agent_->closed()) return Status::kOk;
  const uint64_t left = deadline.remaining_ns(monotonic_now_ns());
  const Status status = agent_->own_regions().remove(region_, left, why);
  if (status == Status::kOk) region_.reset();
  return status;
}

// ---- Moving

uint8_t* AgentWindow::staged(size_t slot) const noexcept {
  return static_cast<uint8_t*>(staging_->address()) + slot * kPieceBytes;
}

// Throws Error.
std::unique_ptr<AgentWindow::Move> AgentWindow::begin(uint32_t op, Rank& rank, uint64_t offset, Here mine,
                                                      uint64_t bytes) {
  const towline_region_ref& staged = mine.region.ref;
  const towline_flat_block here = {staged.address + mine.offset, static_cast<uint32_t>(bytes), 0};
  const towline_flat_block there = {rank.region->ref.address + offset, static_cast<uint32_t>(bytes), 0};
  auto local = std::make_shared<BlockList>(ResolvedList::from_pieces({&here, 1}, {&staged, 1}), nullptr,
                                           RemoteRegions{});
  auto remote = std::make_shared<BlockList>(ResolvedList::from_pieces({&there, 1}, {&rank.region->ref, 1}),
                                            rank.peer, RemoteRegions(&rank.region, &rank.region + 1));
  auto move = std::make_unique<Move>(agent_, op, std::move(local), std::move(remote));
  Status status = Status::kAgain;
  const uint64_t deadline_ns = Deadline::after(monotonic_now_ns(), agent_->default_timeout_ns()).ns();
  agent_->drive_until(
      [&] { return (status = move->transfer().post()) != Status::kAgain || breaker_.broken(); }, deadline_ns);
  if (status == Status::kAgain) status = breaker_.broken() ? breaker_.status() : Status::kTimedOut;
  if (is_error(status)) fail(status, "{}", status_text(status));
  return move;
}

// Waits for it; breaks the communicator if it fails.
Status AgentWindow::finish(Move& move, const char* what, size_t rank) {
  Status status = Status::kNotYet;
  while (status == Status::kNotYet && !breaker_.broken()) status = move.transfer().wait(kLookNs);
  if (status == Status::kOk) return status;
  if (status == Status::kNotYet) return breaker_.status();
  return breaker_.raise(as_loss(status),
                        fmt::format("{} rank {}'s window: {}", what, rank, status_text(status)));
}

Status AgentWindow::put(size_t rank, uint64_t offset, const void* from, uint64_t bytes) {
  return move(TOWLINE_WRITE, rank, offset, const_cast<uint8_t*>(static_cast<const uint8_t*>(from)), bytes);
}

Status AgentWindow::get(size_t rank, uint64_t offset, void* to, uint64_t bytes) {
  return move(TOWLINE_READ, rank, offset, static_cast<uint8_t*>(to), bytes);
}

Status AgentWindow::put(size_t rank, uint64_t offset, Here from, uint64_t bytes) {
  return move_directly(TOWLINE_WRITE, rank, offset, from, bytes);
}

Status AgentWindow::get(size_t rank, uint64_t offset, Here to, uint64_t bytes) {
  return move_directly(TOWLINE_READ, rank, offset, to, bytes);
}

Status AgentWindow::move_directly(uint32_t op, size_t rank, uint64_t offset, Here mine, uint64_t bytes) {
  const char* const what = what_of(op);
  try {
    std::unique_ptr<Move> move = begin(op, ranks_[rank], offset, mine, bytes);
    const Status status = finish(*move, what, rank);
    if (move->retire()) return status;
    const std::lock_guard lock(staging_mutex_);
    left_over_.push_back(std::move(move));
    return status;
  } catch (const Error& error) {
    return breaker_.raise(as_loss(error.code()),
                          fmt::format("{} rank {}'s window: {}", what, rank, error.message()));
  }
}

// Piece by piece: one is in flight while the piece before it is copied out or the next one copied in.
Status AgentWindow::move(uint32_t op, size_t rank, uint64_t offset, uint8_t* mine, uint64_t bytes) {
  if (bytes == 0) return Status::kOk;
  struct Piece {
    std::unique_ptr<Move> move;
    uint64_t begin = 0;
    uint64_t bytes = 0;
  };
  Piece pieces[kSlots];
  const char* const what = what_of(op);
  const std::lock_guard lock(staging_mutex_);
  if (breaker_.broken()) return breaker_.status();
  const auto settle = [&](size_t slot) {
    Piece& piece = pieces[slot];
    if (piece.move == nullptr) return Status::kOk;
    const Status status = finish(*piece.move, what, rank);
    if (status == Status::kOk && op == TOWLINE_READ)
      copy_bytes(mine + piece.begin, staged(slot), piece.bytes);
    if (!piece.move->retire()) left_over_.push_back(std::move(piece.move));
    piece.move.reset();
    return status;
  };
  Status status = Status::kOk;
  try {
    if (staging_region_ == nullptr) {
      staging_ = SharedMemory::allocate(kSlots * kPieceBytes, 0);
      staging_region_ = agent_->own_regions().add_private(staging_->address(), kSlots * kPieceBytes);
    }
    size_t slot = 0;
    for (uint64_t begin = 0; begin < bytes; begin += kPieceBytes, slot = (slot + 1) % kSlots) {
      if (status = settle(slot); is_error(status)) break;
      Piece& piece = pieces[slot];
      piece.begin = begin;
      piece.bytes = std::min(kPieceBytes, bytes - begin);
      if (op == TOWLINE_WRITE) copy_bytes(staged(slot), mine + begin, piece.bytes);
      piece.move =
          this->begin(op, ranks_[rank], offset + begin, {*staging_region_, slot * kPieceBytes}, piece.bytes);
    }
  } catch (const Error& error) {
    status = breaker_.raise(as_loss(error.code()),
                            fmt::format("{} rank {}'s window: {}", what, rank, error.message()));
  }
  for (size_t slot = 0; slot < kSlots; ++slot) {
    const Status settled = settle(slot);
    if (!is_error(status)) status = settled;
  }
  return status;
}

// ---- Signals

Status AgentWindow::signal(size_t rank, size_t channel) {
  const Rank& other = ranks_[rank];
  try {
    Status status = Status::kAgain;
    const uint64_t deadline_ns = Deadline::after(monotonic_now_ns(), agent_->default_timeout_ns()).ns();
    agent_->drive_until(
        [&] {
          status = agent_->add_to_counter(*other.peer, other.signals[channel].counter_there, 1);
          return status != Status::kAgain || breaker_.broken();
        },
        deadline_ns);
    if (status == Status::kOk) return status;
    if (breaker_.broken()) return breaker_.status();
    if (status == Status::kAgain) status = Status::kTimedOut;
    return breaker_.raise(as_loss(status), fmt::format("signalling rank {}: {}", rank, status_text(status)));
  } catch (const Error& error) {
    return breaker_.raise(as_loss(error.code()),
                          fmt::format("signalling rank {}: {}", rank, error.message()));
  }
}

Status AgentWindow::wait_signal(size_t rank, Deadline deadline, size_t channel) noexcept {
  Signals& other = ranks_[rank].signals[channel];
  uint64_t seen = other.taken.load(std::memory_order_relaxed);
  for (;;) {
    const uint64_t now = monotonic_now_ns();
    const Status status =
        agent_->wait_counter(other.counter_here, seen + 1, std::min(kLookNs, deadline.remaining_ns(now)));
    if (status == Status::kOk) {
      if (other.taken.compare_exchange_weak(seen, seen + 1, std::memory_order_relaxed)) return Status::kOk;
      continue;
    }
    if (breaker_.broken()) return breaker_.status();
    if (status != Status::kNotYet) return status;
    if (deadline.passed(monotonic_now_ns())) return Status::kNotYet;
    seen = other.taken.load(std::memory_order_relaxed);
  }
}

}  // namespace towline::collectives
