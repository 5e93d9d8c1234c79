// The framed engine under seeded random load: two connections in one thread on a virtual clock, joined by
// rings or sockets that shorten, pause and break; random READs and WRITEs of stamped blocks both ways with
// messages, cancels and bad keys. Held: each part ends exactly once; its bytes are right, and nothing else is
// touched; nothing lands after a fence; a message comes at most once, and only after its data; plain messages
// come in order; every pin is given back; a side that armed and sleeps is woken.
//
// TOWLINE_SIMULATIONS=10000 runs as many seeds, from TOWLINE_SIMULATION_SEED on (1).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <string>

#include "base/random.h"
#include "framing/faulty_lane.h"
#include "framing/test_support.h"

namespace towline::framing {
namespace {

using testing::FakePlan;
using testing::RingPair;
using testing::Side;

constexpr std::size_t kArenaBytes = 256 << 10;
constexpr uint8_t kFill = 0xee;

struct Move {
  uint64_t cookie = 0;
  int side = 0;  // that initiates
  uint32_t op = 0;
  uint64_t begin = 0;
  uint64_t end = 0;
  Status expected = Status::kOk;  // unless cancelled or lost
  bool has_message = false;
  bool cancelled = false;
  bool ended = false;
  uint32_t messages_seen = 0;
  towline_part_result result = plugin::sized<towline_part_result>();
  std::vector<uint8_t> source;  // in the plan's order
  std::vector<uint8_t> target;
  std::vector<std::pair<uint32_t, uint32_t>> remote_blocks;  // arena offset and length, in the plan's order
  std::vector<std::pair<uint32_t, uint32_t>> local_blocks;
  std::vector<uint8_t> when_fenced;  // the target as it was then
  std::unique_ptr<FakePlan> plan;
};

class Simulation {
 public:
  explicit Simulation(uint64_t seed) : random_(seed) {
    options_ = random_options();
    for (int i = 0; i < 2; ++i) make_side(i);
    const auto lanes = 1 + random_.below(4);
    const bool rings = random_.chance(0.7);
    faults_.shorten = random_.chance(0.7) ? random_.uniform() : 0;
    faults_.delay = random_.chance(0.5) ? random_.uniform() * 0.2 : 0;
    faults_.delay_ns = 1 + random_.below(100'000);
    faults_.cut = random_.chance(0.3) ? 0.002 : 0;
    for (uint64_t i = 0; i < lanes; ++i) add_lane(rings);
  }

  // Empty, or what went wrong first.
  std::string run() {
    const uint64_t moves = 1 + random_.below(60);
    for (uint64_t step = 0; error_.empty() && (moves_.size() < moves || !quiet()); ++step) {
      if (moves_.size() < moves && random_.chance(0.3)) start_move();
      if (moves_.size() < moves && random_.chance(0.2)) send_plain(static_cast<int>(random_.below(2)));
      if (random_.chance(0.02) && !moves_.empty()) cancel(*moves_[random_.below(moves_.size())]);
      turn(static_cast<int>(random_.below(2)));
      if (random_.chance(0.3)) advance(random_.below(20'000));
      if (step > 400'000) fail("hangs: {}", describe());
    }
    for (int i = 0; i < 1000 && error_.empty(); ++i) {
      turn(i % 2);
      advance(200'000);
    }
    if (error_.empty()) check_end();
    return error_.empty() ? error_ : error_ + describe();
  }

 private:
  struct Party {
    std::unique_ptr<Side> side;
    std::vector<uint8_t> arena = std::vector<uint8_t>(kArenaBytes, kFill);
    std::vector<bool> used = std::vector<bool>(kArenaBytes / 64);
    uint64_t key = 0;
    uint64_t read_only_key = 0;
    uint64_t sent = 0;
    uint64_t received = 0;
    bool asleep = false;
  };

  template <class... Args>
  void fail(fmt::format_string<Args...> format, Args&&... args) {
    if (error_.empty()) error_ = fmt::format(format, std::forward<Args>(args)...);
  }

  ConnectionOptions random_options() {
    ConnectionOptions options;
    const auto size = [&](uint32_t low, uint32_t high) {  // evenly over magnitudes
      const auto bits = random_.between(0, 31 - static_cast<uint32_t>(std::countl_zero(high / low)));
      return static_cast<uint32_t>(std::min<uint64_t>(high, (uint64_t{low} << bits) + random_.below(low)));
    };
    options.max_frame_bytes = size(64, 64 << 10);
    options.max_segments = size(1, 64);
    options.max_parts = size(1, 64);
    options.max_reads = size(1, 64);
    options.read_request_bytes = size(64, 64 << 10);
    options.most_read_bytes = size(64, 1 << 20);
    options.small_bytes = random_.chance(0.2) ? 0 : size(64, 16 << 10);
    options.most_uncounted_frames = size(1, 64);
    options.pass_bytes = size(64, 1 << 20);
    options.checksum = random_.chance(0.5);
    return options;
  }

  void make_side(int index) {
    Party& party = parties_[index];
    party.side = std::make_unique<Side>(options_);
    testing::FakeHost& host = party.side->host;
    party.key = host.add(party.arena.data(), kArenaBytes);
    party.read_only_key = host.add(party.arena.data(), kArenaBytes, TOWLINE_ACCESS_READ);
    host.on_message = [this, index](std::string_view text) { take_message(index, text); };
    host.on_complete = [this](uint64_t cookie, const towline_part_result& result) {
      take_result(cookie, result);
    };
  }

  void add_lane(bool ring) {
    testing::LanePair lanes;
    if (ring) {
      rings_.push_back(std::make_unique<RingPair>(std::size_t{128} << random_.below(10)));
      const auto wake = [](void* party) { static_cast<Party*>(party)->asleep = false; };
      lanes = rings_.back()->lanes({wake, &parties_[1]}, {wake, &parties_[0]});
    } else {
      lanes = testing::socket_lanes();
    }
    if (faults_.any()) {
      lanes.first = faulty(std::move(lanes.first));
      lanes.second = faulty(std::move(lanes.second));
    }
    parties_[0].side->connection.add_lane(std::move(lanes.first));
    parties_[1].side->connection.add_lane(std::move(lanes.second));
  }

  std::unique_ptr<Lane> faulty(std::unique_ptr<Lane> lane) {
    faults_.seed = random_.next();
    return std::make_unique<FaultyLane>(std::move(lane), faults_, [this] { return now_ns_; });
  }

  void advance(uint64_t ns) { now_ns_ += ns; }

  void turn(int index) {
    Party& party = parties_[index];
    if (party.side->host.wakes != 0) {
      party.side->host.wakes = 0;
      party.asleep = false;
    }
    if (party.asleep) return;
    party.side->connection.disarm();
    party.side->connection.progress(now_ns_);
    if (random_.chance(0.3)) party.asleep = !party.side->connection.arm() && !party.side->connection.down();
  }

  // Blocks that no other move uses; empty when there is no room.
  std::vector<std::pair<uint32_t, uint32_t>> take_blocks(Party& party, const std::vector<uint32_t>& lengths) {
    std::vector<std::pair<uint32_t, uint32_t>> blocks;
    for (const uint32_t length : lengths) {
      const uint32_t granules = (length + 63) / 64;
      uint32_t at = static_cast<uint32_t>(random_.below(party.used.size()));
      bool found = false;
      for (int tries = 0; tries < 50 && !found; ++tries) {
        found = at + granules <= party.used.size() &&
                std::none_of(party.used.begin() + at, party.used.begin() + at + granules,
                             [](bool used) { return used; });
        if (!found) at = static_cast<uint32_t>(random_.below(party.used.size()));
      }
      if (!found) break;
      std::fill(party.used.begin() + at, party.used.begin() + at + granules, true);
      blocks.emplace_back(at * 64, length);
    }
    return blocks;
  }

  void start_move() {
    auto move = std::make_unique<Move>();
    move->cookie = moves_.size() + 1;
    move->side = static_cast<int>(random_.below(2));
    move->op = random_.chance(0.5) ? TOWLINE_READ : TOWLINE_WRITE;
    Party& own = parties_[move->side];
    Party& peer = parties_[1 - move->side];
    std::vector<uint32_t> lengths(1 + random_.below(random_.chance(0.5) ? 3 : 40));
    const uint64_t longest = random_.chance(0.3) ? 8000 : 300;
    for (uint32_t& length : lengths) length = static_cast<uint32_t>(1 + random_.below(longest));
    if (random_.chance(0.5)) std::fill(lengths.begin(), lengths.end(), lengths[0]);
    move->local_blocks = take_blocks(own, lengths);
    move->remote_blocks = take_blocks(peer, lengths);
    const std::size_t count = std::min(move->local_blocks.size(), move->remote_blocks.size());
    move->local_blocks.resize(count);
    move->remote_blocks.resize(count);
    uint64_t key = peer.key;
    if (random_.chance(0.1)) {
      key = random_.chance(0.5) ? 77 : peer.read_only_key;
      if (key == 77) move->expected = Status::kStale;
      if (key != 77 && move->op == TOWLINE_WRITE) move->expected = Status::kPermissionDenied;
    }
    move->plan = std::make_unique<FakePlan>(key);
    for (std::size_t i = 0; i < count; ++i)
      move->plan->add(own.arena.data() + move->local_blocks[i].first,
                      peer.arena.data() + move->remote_blocks[i].first, move->local_blocks[i].second);
    if (count != 0) post(own, *move);
    moves_.push_back(std::move(move));
  }

  void post(Party& own, Move& move) {
    stamp(move);
    move.begin = random_.chance(0.7) ? 0 : random_.below(move.plan->bytes());
    move.end = random_.chance(0.7) ? move.plan->bytes() : random_.between(move.begin + 1, move.plan->bytes());
    move.target = gather(move, false);
    std::copy(move.source.begin() + static_cast<std::ptrdiff_t>(move.begin),
              move.source.begin() + static_cast<std::ptrdiff_t>(move.end),
              move.target.begin() + static_cast<std::ptrdiff_t>(move.begin));
    std::string message;
    if (random_.chance(0.6))
      message = fmt::format("m {} {}", move.cookie, std::string(random_.below(3000), '.'));
    move.has_message = !message.empty();
    own.side->host.results.clear();
    towline_prepared* prepared = own.side->prepare(move.plan->plan(), move.op);
    posted_[move.cookie] = &move;
    const Status status = own.side->submit(prepared, move.cookie, move.begin, move.end, message);
    if (status == Status::kInProgress) return;
    posted_.erase(move.cookie);
    if (status != Status::kAgain && !own.side->connection.down())
      fail("submit answers {}", status_name(status));
  }

  // Writes fresh bytes into the source; the target keeps what it has.
  void stamp(Move& move) {
    const auto& blocks = move.op == TOWLINE_WRITE ? move.local_blocks : move.remote_blocks;
    Party& party = source_party(move);
    uint64_t position = 0;
    for (const auto& [offset, length] : blocks)
      for (uint32_t i = 0; i < length; ++i, ++position)
        party.arena[offset + i] =
            static_cast<uint8_t>((move.cookie * 37 + position * 11 + position / 251) & 0x7f);
    move.source = gather(move, true);
  }

  Party& source_party(const Move& move) {
    return parties_[move.op == TOWLINE_WRITE ? move.side : 1 - move.side];
  }
  Party& target_party(const Move& move) {
    return parties_[move.op == TOWLINE_WRITE ? 1 - move.side : move.side];
  }

  std::vector<uint8_t> gather(const Move& move, bool source) {
    const auto& blocks = (move.op == TOWLINE_WRITE) == source ? move.local_blocks : move.remote_blocks;
    const Party& party = source ? source_party(move) : target_party(move);
    std::vector<uint8_t> bytes;
    for (const auto& [offset, length] : blocks)
      bytes.insert(bytes.end(), party.arena.begin() + offset, party.arena.begin() + offset + length);
    return bytes;
  }

  void cancel(Move& move) {
    if (!posted_.contains(move.cookie) || move.ended) return;
    move.cancelled = true;
    parties_[move.side].side->connection.cancel(move.cookie);
  }

  void send_plain(int index) {
    Party& party = parties_[index];
    const std::string text = fmt::format("p {} {}", party.sent, std::string(random_.below(500), '.'));
    if (static_cast<Status>(party.side->connection.send(text.data(), text.size())) == Status::kOk)
      ++party.sent;
  }

  void take_message(int index, std::string_view text) {
    uint64_t number = 0;
    if (std::sscanf(std::string(text.substr(2)).c_str(), "%lu", &number) != 1)
      return fail("message \"{}\"", text);
    if (text[0] == 'p') {
      if (number != parties_[index].received++) fail("plain message {} out of order", number);
      return;
    }
    const auto found = posted_.find(number);
    if (found == posted_.end()) return fail("message of move {}, which was not accepted", number);
    Move& move = *found->second;
    if (++move.messages_seen != 1) fail("message of move {} came twice", number);
    if (gather(move, false) != move.target) fail("message of move {} came before its data", number);
  }

  void take_result(uint64_t cookie, const towline_part_result& result) {
    const auto found = posted_.find(cookie);
    if (found == posted_.end()) return fail("move {} was not accepted, and ended", cookie);
    Move& move = *found->second;
    if (move.ended) return fail("move {} ended twice", cookie);
    move.ended = true;
    move.result = result;
    const auto status = static_cast<Status>(result.status);
    if (status == Status::kOk) {
      if (move.expected != Status::kOk) fail("move {} should have been refused", cookie);
      if (gather(move, false) != move.target) fail("move {} is done, and its data wrong", cookie);
      if (result.bytes != move.end - move.begin || result.fences != 3)
        fail("move {}: bytes or fences", cookie);
    } else if (status != move.expected && !(status == Status::kCancelled && move.cancelled) &&
               !(status == Status::kPeerLost && cut())) {
      fail("move {} ended with {}", cookie, status_name(status));
    } else {
      check_failed(move);
    }
    const uint32_t fence = move.op == TOWLINE_READ ? TOWLINE_PART_FENCED_LOCAL : TOWLINE_PART_FENCED_REMOTE;
    if ((result.fences & fence) != 0) move.when_fenced = gather(move, false);
  }

  void check_failed(const Move& move) {
    const std::vector<uint8_t> now = gather(move, false);
    for (std::size_t i = 0; i < now.size(); ++i)
      if (now[i] != kFill && now[i] != move.target[i])
        fail("move {} failed and byte {} is wrong", move.cookie, i);
    const towline_part_result& result = move.result;
    // Empty where all is there, and only the message did not leave.
    const bool message_only = move.has_message && result.bytes == move.end - move.begin;
    if (result.failed_begin < move.begin || result.failed_end > move.end ||
        result.failed_begin > result.failed_end ||
        (result.failed_begin == result.failed_end && !message_only))
      fail("move {}: failed range {} to {}", move.cookie, result.failed_begin, result.failed_end);
    if (result.bytes > move.end - move.begin) fail("move {}: {} bytes", move.cookie, result.bytes);
    if ((result.fences & TOWLINE_PART_FENCED_REMOTE) == 0) return;
    for (std::size_t i = move.begin; i < move.end; ++i)
      if ((i < result.failed_begin || i >= result.failed_end) && now[i] != move.target[i])
        fail("move {}: byte {} outside the failed range is missing", move.cookie, i);
  }

  std::string describe() const {
    std::string text;
    for (const Party& party : parties_)
      text += fmt::format("\n{}{}", party.asleep ? "asleep " : "", party.side->connection.describe());
    for (const Party& party : parties_)
      for (const auto& event : party.side->host.events) text += fmt::format("\nevent: {}", event.text);
    for (const auto& [cookie, move] : posted_)
      if (!move->ended)
        text += fmt::format("\nmove {} of side {}, op {}, {} bytes", cookie, move->side, move->op,
                            move->end - move->begin);
    return text;
  }

  bool cut() const { return faults_.cut > 0; }
  bool lost() const { return parties_[0].side->connection.down() || parties_[1].side->connection.down(); }

  bool quiet() const {
    for (const auto& [cookie, move] : posted_)
      if (!move->ended) return false;
    if (lost()) return parties_[0].side->connection.down() && parties_[1].side->connection.down();
    return parties_[0].side->connection.idle() && parties_[1].side->connection.idle();
  }

  void check_end() {
    for (const auto& [cookie, move] : posted_) {
      const auto status = static_cast<Status>(move->result.status);
      if (!move->when_fenced.empty() && move->when_fenced != gather(*move, false))
        fail("move {}: bytes landed after the fence", cookie);
      if (status == Status::kOk && !lost() && move->messages_seen != (move->has_message ? 1 : 0))
        fail("move {}: message seen {} times", cookie, move->messages_seen);
      if (status != Status::kOk && status != Status::kPeerLost && move->messages_seen != 0)
        fail("move {}: message of a failed move", cookie);
    }
    for (int i = 0; i < 2; ++i) {
      const Party& party = parties_[i];
      if (party.side->host.pins_held() != 0) fail("side {} holds {} pins", i, party.side->host.pins_held());
      if (party.side->host.events.size() != (lost() ? 1 : 0))
        fail("side {}: {} events", i, party.side->host.events.size());
      for (const auto& event : party.side->host.events)
        if (event.status != Status::kPeerLost)
          fail("side {}: {} {}", i, status_name(event.status), event.text);
      if (!lost() && party.received != parties_[1 - i].sent)
        fail("side {} got {} plain messages", i, party.received);
    }
    if (lost() && !cut()) fail("lost without a cut");
  }

  Random random_;
  ConnectionOptions options_;
  FaultOptions faults_;
  uint64_t now_ns_ = 0;
  std::vector<std::unique_ptr<RingPair>> rings_;
  Party parties_[2];
  std::vector<std::unique_ptr<Move>> moves_;
  std::map<uint64_t, Move*> posted_;
  std::string error_;
};

uint64_t from_environment(const char* name, uint64_t fallback) {
  const char* text = std::getenv(name);
  return text == nullptr ? fallback : std::strtoull(text, nullptr, 10);
}

TEST(FramingSimulation, EveryPartEndsOnceWithTheRightBytesAndItsMessageAfterThem) {
  const uint64_t first = from_environment("TOWLINE_SIMULATION_SEED", 1);
  const uint64_t count = from_environment("TOWLINE_SIMULATIONS", 200);
  for (uint64_t seed = first; seed < first + count; ++seed) {
    Simulation simulation{seed};
    ASSERT_EQ(simulation.run(), "") << "TOWLINE_SIMULATION_SEED=" << seed << " TOWLINE_SIMULATIONS=1";
  }
}

}  // namespace
}  // namespace towline::framing
