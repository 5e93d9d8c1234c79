// Engines of several hosts over a loopback network with faults, on a virtual clock, from one seed: rails die
// and come back, connections break with requests in the network, control messages are lost and repeated,
// connections are scarce. Held: each transfer has one outcome, by its deadline; done means that the bytes are
// there; nothing is placed after the fence, nor after the receiver has counted; counts and messages arrive
// once, after their bytes; no queue is overrun.
//
// TOWLINE_SIMULATIONS=10000 runs as many seeds, from TOWLINE_SIMULATION_SEED on (1).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <map>
#include <set>

#include "base/log.h"
#include "base/random.h"
#include "fabric/engine.h"
#include "fabric/loopback/loopback.h"
#include "fabric/test_support.h"

namespace towline::fabric {
namespace {

constexpr std::size_t kArenaBytes = 1 << 20;
constexpr uint8_t kFill = 0xee;
constexpr uint8_t kReused = 0xdd;

struct Move {
  uint64_t number = 0;
  uint32_t source_host = 0;  // where the bytes come from
  uint32_t target_host = 0;
  uint32_t initiator = 0;
  TransferOp op = TransferOp::kNone;
  Handle handle;
  std::vector<towline_segment> segments;
  std::size_t given = 0;
  uint64_t bytes = 0;
  uint32_t count = 0;
  bool message = false;
  bool refused = false;  // its remote key does not permit it
  uint64_t deadline_ns = kNoDeadline;
  std::vector<uint8_t> text;
  // Observed so far.
  bool ended = false;
  Status status = Status::kOk;
  uint32_t fences = 0;
  bool fenced = false;
  uint32_t counted = 0;
  uint32_t messages = 0;
  bool reused = false;  // the target's owner has put its memory to other use

  static std::size_t next(void* context, towline_segment* out, std::size_t capacity) {
    Move& move = *static_cast<Move*>(context);
    const std::size_t count = std::min(capacity, move.segments.size() - move.given);
    std::copy_n(move.segments.begin() + static_cast<std::ptrdiff_t>(move.given), count, out);
    move.given += count;
    return count;
  }
};

class Simulation {
 public:
  explicit Simulation(uint64_t seed) : random_(seed), fabric_(random_.next(), [this] { return now_ns_; }) {
    make_options();
    const auto hosts = static_cast<uint32_t>(2 + random_.below(random_.chance(0.3) ? 4 : 2));
    for (uint32_t i = 0; i < hosts; ++i) hosts_.push_back(std::make_unique<Host>(*this, i));
    for (auto& host : hosts_)
      for (auto& other : hosts_)
        if (host != other) host->peers[other->index] = host->engine->add_peer(other->engine->address());
    for (auto& host : hosts_) {
      for (auto& other : hosts_) {
        const auto blob = encode(Engine::describe(other->memory));
        host->remote[other->index] = *decode_memory(blob);
        const auto closed = encode(Engine::describe(other->read_only));
        host->remote_read_only[other->index] = *decode_memory(closed);
      }
    }
    fabric_.set_faults(faults_);
  }

  ~Simulation() {
    for (auto& host : hosts_) {
      host->engine->deregister_memory(host->memory);
      host->engine->deregister_memory(host->read_only);
    }
  }

  std::string run() {
    const uint64_t moves = 1 + random_.below(80);
    uint64_t steps = 0;
    while (error_.empty() && (moves_.size() < moves || !quiet())) {
      if (moves_.size() < moves && random_.chance(0.2)) start_move();
      if (random_.chance(0.01) && !moves_.empty()) cancel(*moves_[random_.below(moves_.size())]);
      if (kills_ && random_.chance(0.003)) toggle_rail();
      step();
      if (++steps > 300'000) fail("hangs: {}", describe());
    }
    heal();
    for (int i = 0; i < 2000 && error_.empty(); ++i) step();
    if (error_.empty()) check_end();
    return error_.empty() ? error_ : error_ + "\n" + describe();
  }

  uint64_t late_arrivals() const { return fabric_.late_arrivals(); }
  uint64_t retried() const {
    uint64_t sum = 0;
    for (const auto& host : hosts_)
      for (std::size_t i = 0; i < host->engine->rails(); ++i) sum += host->engine->counters(i).retried;
    return sum;
  }
  uint64_t refused() const { return refused_; }
  uint64_t evictions() const {
    uint64_t sum = 0;
    for (const auto& host : hosts_)
      for (std::size_t i = 0; i < host->engine->rails(); ++i) sum += host->engine->counters(i).evictions;
    return sum;
  }

 private:
  // Takes some of the requests only, or none.
  struct FullPort final : testing::PortAround {
    FullPort(Simulation& owner, std::unique_ptr<Domain> port)
        : PortAround(std::move(port)), simulation(owner) {}
    std::size_t post(uint32_t number, const WorkRequest* requests, std::size_t count) noexcept override {
      Random& random = simulation.random_;
      const bool full = random.chance(simulation.full_) && !traits().completes_in_order;
      const std::size_t room = full ? random.below(count) : count;
      simulation.refused_ += full ? 1 : 0;
      return room == 0 ? 0 : PortAround::post(number, requests, room);
    }

    Simulation& simulation;
  };
  struct Host final : EngineHost {
    Host(Simulation& owner, uint32_t number)
        : simulation(owner), index(number), arena(kArenaBytes, kFill), used(kArenaBytes / 64) {
      std::vector<std::unique_ptr<Domain>> domains;
      const uint64_t rails = 1 + owner.random_.below(4);
      for (uint64_t i = 0; i < rails; ++i) {
        LoopbackOptions options;
        options.traits = owner.traits_;
        if (owner.random_.chance(0.3))
          options.bytes_per_s = 1'000'000'000 + owner.random_.below(20'000'000'000);
        domains.push_back(std::make_unique<FullPort>(owner, owner.fabric_.make_domain(options)));
        ports.push_back(owner.ports_++);
      }
      engine = std::make_unique<Engine>(owner.options_, std::move(domains), *this);
      memory = engine->register_memory({arena.data(), arena.size(), true, true});
      read_only = engine->register_memory({arena.data(), arena.size(), true, false});
    }

    void complete(uint64_t cookie, const TransferResult& result) noexcept override {
      simulation.on_complete(cookie, result);
    }
    void fenced(uint64_t cookie, uint32_t fences) noexcept override { simulation.on_fenced(cookie, fences); }
    void counted(Handle, uint32_t immediate, uint32_t count) noexcept override {
      simulation.on_counted(index, immediate, count);
    }
    void received(Handle, std::span<const uint8_t> message) noexcept override {
      simulation.on_message(index, message);
    }
    void lost(Handle, Status, std::string_view why) noexcept override {
      simulation.fail("host {} lost a peer: {}", index, why);
    }
    void send_control(Handle peer, std::span<const uint8_t> message) noexcept override {
      for (const auto& [other, handle] : peers)
        if (handle == peer) simulation.carry(index, other, message);
    }

    Simulation& simulation;
    uint32_t index;
    std::vector<uint8_t> arena;
    std::vector<bool> used;
    std::vector<uint32_t> ports;
    std::unique_ptr<Engine> engine;
    uint64_t asleep_until_ns = 0;
    LocalMemory memory;
    LocalMemory read_only;
    std::map<uint32_t, Handle> peers;
    std::map<uint32_t, RemoteMemory> remote;
    std::map<uint32_t, RemoteMemory> remote_read_only;
  };

  struct Letter {
    uint32_t from;
    uint32_t to;
    std::vector<uint8_t> bytes;
  };

  template <class... Args>
  void fail(fmt::format_string<Args...> format, Args&&... args) {
    if (error_.empty()) error_ = fmt::format(format, std::forward<Args>(args)...);
  }

  uint64_t size(uint64_t low, uint64_t high) {  // evenly over magnitudes
    uint64_t value = low;
    while (value < high && random_.chance(0.7)) value *= 2;
    return std::min(high, value);
  }

  void make_options() {
    traits_.ordered = random_.chance(0.6);
    traits_.completes_in_order = traits_.ordered && random_.chance(0.8);
    const uint32_t bits[] = {0, 32, 64};
    traits_.immediate_bits = bits[random_.below(3)];
    traits_.send_depth = static_cast<uint32_t>(size(4, 256));
    traits_.receive_depth = static_cast<uint32_t>(size(8, 64));
    traits_.completion_depth = static_cast<uint32_t>(size(128, 4096));
    traits_.chain = static_cast<uint32_t>(size(1, 64));
    traits_.slice_bytes = size(64, 64 << 10);
    traits_.window_bytes = size(1024, 4 << 20);
    options_.max_transfers = 256;
    options_.max_connections = static_cast<uint32_t>(size(1, 64));
    options_.record_bytes = static_cast<uint32_t>(size(128, 1024));
    options_.credits = static_cast<uint32_t>(size(2, 64));
    options_.evict_idle_ns = random_.below(2'000'000);
    options_.tick_ns = 100'000;
    faults_.max_delay_ns = faults_.min_delay_ns + size(1, 50'000);
    faults_.drop = random_.chance(0.5) ? random_.uniform() * 0.1 : 0;
    faults_.repeat = random_.chance(0.5) ? random_.uniform() * 0.2 : 0;
    faults_.cut = random_.chance(0.5) ? random_.uniform() * 0.02 : 0;
    kills_ = random_.chance(0.5);
    sleepy_ = random_.chance(0.5) ? 0.01 : 0;
    data_ = random_.chance(0.8) ? 0.85 : 0.2;
    full_ = random_.chance(0.5) ? random_.uniform() : 0;
    control_loss_ = random_.chance(0.5) ? random_.uniform() * 0.2 : 0;
    // Longer than anything here lasts: no peer dies.
    options_.stall_ns = 200'000'000;
    options_.lost_ns = 100'000'000'000;
    options_.give_up_ns = 100'000'000'000;
    options_.fence_ns = 50'000'000;
  }

  void step() {
    now_ns_ += random_.below(random_.chance(0.1) ? 200'000 : 5'000);
    if (random_.chance(0.01)) now_ns_ += random_.below(5'000'000);
    while (!letters_.empty() && letters_.begin()->first <= now_ns_) {
      const Letter letter = letters_.extract(letters_.begin()).mapped();
      Host& to = *hosts_[letter.to];
      to.engine->on_control(to.peers[letter.from], letter.bytes);
    }
    Host& host = *hosts_[random_.below(hosts_.size())];
    if (random_.chance(sleepy_)) host.asleep_until_ns = now_ns_ + random_.below(3'000'000);
    if (now_ns_ >= host.asleep_until_ns) host.engine->progress(now_ns_);
  }

  void carry(uint32_t from, uint32_t to, std::span<const uint8_t> bytes) {
    if (bytes.empty()) return fail("an empty control message");
    if (random_.chance(control_loss_)) return;
    const int copies = random_.chance(control_loss_) ? 2 : 1;
    for (int i = 0; i < copies; ++i)
      letters_.emplace(now_ns_ + 1'000 + random_.below(200'000),
                       Letter{from, to, {bytes.begin(), bytes.end()}});
  }

  void toggle_rail() {
    const auto port = static_cast<uint32_t>(random_.below(ports_));
    if (dead_.contains(port)) {
      fabric_.revive(port);
      dead_.erase(port);
    } else {
      fabric_.kill(port);
      dead_.insert(port);
    }
  }

  void heal() {
    for (const uint32_t port : dead_) fabric_.revive(port);
    dead_.clear();
  }

  bool take(Host& host, uint32_t length, uint64_t& address) {
    const std::size_t granules = (length + 63) / 64;
    for (int tries = 0; tries < 50; ++tries) {
      const std::size_t at = random_.below(host.used.size() - granules + 1);
      const auto begin = host.used.begin() + static_cast<std::ptrdiff_t>(at);
      const auto end = begin + static_cast<std::ptrdiff_t>(granules);
      if (std::find(begin, end, true) != end) continue;
      std::fill(begin, end, true);
      address = reinterpret_cast<uint64_t>(host.arena.data()) + at * 64;
      return true;
    }
    return false;
  }

  void start_move() {
    auto move = std::make_unique<Move>();
    move->number = moves_.size();
    move->initiator = static_cast<uint32_t>(random_.below(hosts_.size()));
    auto other = static_cast<uint32_t>(random_.below(hosts_.size() - 1));
    if (other >= move->initiator) ++other;
    Host& mine = *hosts_[move->initiator];
    Host& theirs = *hosts_[other];
    const bool data = random_.chance(data_);
    if (data) move->op = random_.chance(0.7) ? TransferOp::kWrite : TransferOp::kRead;
    move->source_host = move->op == TransferOp::kRead ? other : move->initiator;
    move->target_host = move->op == TransferOp::kRead ? move->initiator : other;
    const uint64_t segments = data ? 1 + random_.below(random_.chance(0.3) ? 60 : 3) : 0;
    for (uint64_t i = 0; i < segments; ++i) {
      const auto length = static_cast<uint32_t>(1 + random_.below(random_.chance(0.1) ? 60'000 : 2'000));
      towline_segment segment{};
      if (!take(mine, length, segment.local) || !take(theirs, length, segment.remote)) break;
      segment.length = length;
      move->bytes += length;
      move->segments.push_back(segment);
    }
    if (move->segments.empty()) move->op = TransferOp::kNone;
    if (move->op == TransferOp::kNone || random_.chance(0.5))
      move->count = static_cast<uint32_t>(1 + random_.below(random_.chance(0.5) ? 1 : 100));
    move->message = random_.chance(0.2);
    move->refused = move->op == TransferOp::kWrite && random_.chance(0.03);
    if (random_.chance(0.1)) move->deadline_ns = now_ns_ + random_.below(3'000'000);
    stamp(*move);

    const std::string text = fmt::format("move {}", move->number);
    move->text.assign(text.begin(), text.end());
    const LocalMemory* local = &mine.memory;
    const RemoteMemory* remote = move->refused ? &mine.remote_read_only[other] : &mine.remote[other];
    locals_.push_back(local);
    remotes_.push_back(remote);
    TransferRequest request;
    request.peer = mine.peers[other];
    request.op = move->op;
    request.segments = {Move::next, move.get()};
    request.local = &locals_.back();
    request.remote = &remotes_.back();
    request.bytes = move->bytes;
    request.immediate = static_cast<uint32_t>(move->number);
    request.count = move->count;
    request.message = move->text;
    request.has_message = move->message;
    if (!move->message) request.message = {};
    request.deadline_ns = move->deadline_ns;
    request.cookie = move->number;
    request.urgent = random_.chance(0.2);
    if (random_.chance(0.3)) request.rails = static_cast<uint32_t>(random_.next());
    Move& kept = *move;
    moves_.push_back(std::move(move));
    const Status status = mine.engine->submit(request, &kept.handle);
    if (status == Status::kInProgress) return;
    if (status != Status::kAgain) fail("submit answers {}", status_name(status));
    kept.ended = kept.fenced = true;
    kept.status = Status::kAgain;
  }

  static uint8_t byte_of(const Move& move, uint64_t position) {
    return static_cast<uint8_t>((move.number * 37 + position * 11 + position / 251) & 0x7f);
  }

  template <class Visit>
  void each_byte(const Move& move, bool source, Visit&& visit) {
    const bool local = (move.op == TransferOp::kRead) != source;
    uint64_t position = 0;
    for (const towline_segment& segment : move.segments)
      for (uint64_t i = 0; i < segment.length; ++i, ++position)
        visit(*reinterpret_cast<uint8_t*>((local ? segment.local : segment.remote) + i), position);
  }

  void stamp(Move& move) {
    each_byte(move, true, [&](uint8_t& byte, uint64_t position) { byte = byte_of(move, position); });
  }

  void check_there(Move& move, const char* when) {
    if (move.reused) return;
    each_byte(move, false, [&](const uint8_t& byte, uint64_t position) {
      if (byte != byte_of(move, position))
        fail("move {}: byte {} is not there {}", move.number, position, when);
    });
  }

  // Its owner uses the memory for something else: nothing may change it from here on.
  void reuse(Move& move) {
    if (move.op == TransferOp::kNone) return;
    if (move.reused) return check_reused(move);
    move.reused = true;
    each_byte(move, false, [](uint8_t& byte, uint64_t) { byte = kReused; });
  }

  void check_reused(const Move& move) {
    each_byte(move, false, [&](const uint8_t& byte, uint64_t position) {
      if (byte != kReused)
        fail("move {}: byte {} was placed after the fence or count", move.number, position);
    });
  }

  void cancel(Move& move) {
    if (!move.ended) hosts_[move.initiator]->engine->cancel(move.handle);
    if (!move.ended) cancelled_.insert(move.number);
  }

  void on_complete(uint64_t cookie, const TransferResult& result) {
    Move& move = *moves_.at(cookie);
    if (move.ended) return fail("move {} ended twice", cookie);
    move.ended = true;
    move.status = result.status;
    move.fences = result.fences;
    if (result.status == Status::kOk) {
      if (move.refused) fail("move {} should have been refused", cookie);
      if (result.fences != kFencedBoth) fail("move {} is done and not fenced", cookie);
      if (result.bytes != move.bytes) fail("move {}: {} of {} bytes", cookie, result.bytes, move.bytes);
      check_there(move, "when done");
    } else {
      const bool expected = (move.refused && result.status == Status::kPermissionDenied) ||
                            (cancelled_.contains(cookie) && result.status == Status::kCancelled) ||
                            (move.deadline_ns != kNoDeadline && result.status == Status::kTimedOut &&
                             now_ns_ >= move.deadline_ns);
      if (!expected) fail("move {} ended with {}", cookie, status_name(result.status));
      check_failed(move, result);
    }
    if (result.fences == kFencedBoth) fence(move);
  }

  void check_failed(Move& move, const TransferResult& result) {
    if (move.reused) return;
    if (result.failed_begin > result.failed_end || result.failed_end > move.bytes)
      fail("move {}: failed range {} to {}", move.number, result.failed_begin, result.failed_end);
    each_byte(move, false, [&](const uint8_t& byte, uint64_t position) {
      const bool outside = position < result.failed_begin || position >= result.failed_end;
      if (outside && byte != byte_of(move, position))
        fail("move {}: byte {} outside the failed range is missing", move.number, position);
    });
  }

  void on_fenced(uint64_t cookie, uint32_t fences) {
    Move& move = *moves_.at(cookie);
    if (!move.ended || move.fenced) return fail("move {} is fenced twice, or too early", cookie);
    if (fences != kFencedBoth) return fail("move {}: fence {}", cookie, fences);
    fence(move);
  }

  void fence(Move& move) {
    if (move.fenced) return fail("move {} is fenced twice", move.number);
    move.fenced = true;
    reuse(move);
  }

  void on_counted(uint32_t host, uint32_t immediate, uint32_t count) {
    Move& move = *moves_.at(immediate);
    const uint32_t receiver = move.initiator == move.target_host ? move.source_host : move.target_host;
    if (receiver != host && move.op != TransferOp::kNone)
      return fail("a count of host {} reaches {}", receiver, host);
    if (count != move.count) return fail("move {} counts {} instead of {}", immediate, count, move.count);
    if (++move.counted != 1) return fail("move {} is counted twice", immediate);
    if (move.op == TransferOp::kWrite && !move.message) {
      check_there(move, "when counted");
      reuse(move);
    }
  }

  void on_message(uint32_t, std::span<const uint8_t> message) {
    const std::string text{message.begin(), message.end()};
    Move& move = *moves_.at(std::strtoull(text.c_str() + 5, nullptr, 10));
    if (text != fmt::format("move {}", move.number)) return fail("message \"{}\"", text);
    if (++move.messages != 1) return fail("message of move {} comes twice", move.number);
    if (move.op == TransferOp::kWrite) {
      check_there(move, "when its message comes");
      reuse(move);
    }
  }

  bool quiet() const {
    return std::all_of(moves_.begin(), moves_.end(),
                       [](const auto& move) { return move->ended && move->fenced; });
  }

  void check_end() {
    for (const auto& entry : moves_) {
      Move& move = *entry;
      const bool ok = move.status == Status::kOk;
      if (ok && move.count != 0 && move.counted != 1)
        fail("move {} was counted {} times", move.number, move.counted);
      if (ok && move.message && move.messages != 1) fail("move {}: {} messages", move.number, move.messages);
      if (move.refused && move.counted + move.messages != 0)
        fail("move {} failed and was counted", move.number);
      if (move.reused) check_reused(move);
    }
    if (fabric_.receive_overruns() != 0) fail("{} sends found no receive", fabric_.receive_overruns());
    if (fabric_.completion_overruns() != 0) fail("{} completions too many", fabric_.completion_overruns());
  }

  std::string describe() const {
    std::string text = fmt::format("at {} ns, {} moves\n", now_ns_, moves_.size());
    for (const auto& host : hosts_) text += host->engine->describe();
    return text;
  }

  Random random_;
  uint64_t now_ns_ = 1;
  LoopbackFabric fabric_;
  DomainTraits traits_;
  EngineOptions options_;
  LoopbackFaults faults_;
  bool kills_ = false;
  double sleepy_ = 0;  // how often a host does not poll for a while
  double data_ = 0;    // share of moves that move bytes
  double full_ = 0;    // how often a port has no room for all
  uint64_t refused_ = 0;
  double control_loss_ = 0;
  uint32_t ports_ = 0;
  std::set<uint32_t> dead_;
  std::vector<std::unique_ptr<Host>> hosts_;
  std::deque<const LocalMemory*> locals_;
  std::deque<const RemoteMemory*> remotes_;
  std::multimap<uint64_t, Letter> letters_;
  std::vector<std::unique_ptr<Move>> moves_;
  std::set<uint64_t> cancelled_;
  std::string error_;
};

// Usually. Under a sanitizer each takes ten times as long.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kSeeds = 200;
#else
constexpr uint64_t kSeeds = 1000;
#endif

uint64_t from_environment(const char* name, uint64_t fallback) {
  const char* text = std::getenv(name);
  return text == nullptr ? fallback : std::strtoull(text, nullptr, 10);
}

TEST(FabricSimulation, BytesArriveOnceAndCountsOnceWhileRailsDieAndConnectionsBreak) {
  set_log_level(LogLevel::kError);  // of ports that are down
  const uint64_t first = from_environment("TOWLINE_SIMULATION_SEED", 1);
  const uint64_t count = from_environment("TOWLINE_SIMULATIONS", kSeeds);
  uint64_t late = 0;
  uint64_t retried = 0;
  uint64_t evictions = 0;
  uint64_t refused = 0;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    Simulation simulation{seed};
    ASSERT_EQ(simulation.run(), "") << "TOWLINE_SIMULATION_SEED=" << seed << " TOWLINE_SIMULATIONS=1";
    late += simulation.late_arrivals();
    retried += simulation.retried();
    evictions += simulation.evictions();
    refused += simulation.refused();
  }
  if (count < 200) return;
  // The faults that matter have occurred.
  EXPECT_GT(late, count / 10);
  EXPECT_GT(retried, count);
  EXPECT_GT(evictions, count / 10);
  EXPECT_GT(refused, count);
}

}  // namespace
}  // namespace towline::fabric
