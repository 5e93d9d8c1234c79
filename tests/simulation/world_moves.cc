#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "world.h"

namespace towline::simulation {

// ---- moves

bool World::drop(SimulatedMove& move) {
  if (move.transfer == nullptr) return true;
  if (towline_transfer_destroy(move.transfer, 0) == TOWLINE_NOT_YET) return false;
  move.transfer = nullptr;
  return true;
}

bool World::make(SimulatedMove& move) {
  SimulatedAgent& agent = agents_[move.from];
  Acquaintance& other = agent.others[move.to];
  const towline_picks_t own = {nullptr, 0, 0, move.own_block(), 1, kBlocksEach};
  const towline_picks_t shared = {nullptr, 0, 0, move.shared_block(), 1, kBlocksEach};
  towline_transfer_options_t options{};
  options.struct_size = sizeof options;
  options.notice = "?";
  options.notice_bytes = 1;
  const bool reads = move.op == TOWLINE_READ;
  options.from = reads ? shared : own;
  options.to = reads ? own : shared;
  if (towline_transfer_create(&agent.handle, reads ? other.theirs : agent.mine,
                              reads ? agent.mine : other.theirs, &options, &move.transfer) != TOWLINE_OK)
    return false;  // no connection just now; a later turn tries again
  move.made_for = other.registration;
  return true;
}

void World::touch(SimulatedMove& move) {
  SimulatedAgent& agent = agents_[move.from];
  if (agent.agent == nullptr) return;
  if (move.state == SimulatedMove::State::kInFlight) {
    if (havoc_ && random_.below(50) == 0) (void)towline_transfer_cancel(move.transfer);
    return;
  }
  // The region that the transfer was made for is gone: from now on the transfer always says so.
  if (move.transfer != nullptr && move.made_for != agent.others[move.to].registration && !drop(move)) return;
  if (agents_[move.to].registration == 0 && move.op == TOWLINE_READ)
    return;  // its bytes could not be stamped
  if (agent.others[move.to].theirs == nullptr) return;
  if (move.transfer == nullptr && !make(move)) return;
  if (towline_transfer_wait_fenced(move.transfer, TOWLINE_FENCE_LOCAL, 0) != TOWLINE_OK) return;
  post(move);
}

void World::post(SimulatedMove& move) {
  move.stamp = static_cast<uint8_t>(1 + random_.below(kPrivate - 1));
  if (move.op == TOWLINE_WRITE)
    write_own(move, move.stamp);
  else
    std::memset(shared_of(move), move.stamp, kBytesEach);
  const std::string notice =
      fmt::format("{} {} {} {}", &move - moves_.data(), move.posts, move.stamp,
                  agents_[move.to].agent == nullptr ? "nobody" : agents_[move.to].agent->incarnation_text());
  if (towline_transfer_set_notice(move.transfer, notice.data(), notice.size()) != TOWLINE_OK) return;
  const int32_t status = towline_transfer_post(move.transfer);
  if (status < 0) {
    // The peer's memory was given back, or the peer was: only another transfer will do.
    if (status == TOWLINE_STALE || status == TOWLINE_PEER_RESTARTED) (void)drop(move);
    return;
  }
  sent_.insert(notice);
  ++move.posts;
  move.registration = agents_[move.to].registration;
  move.posted_at_ns = clock_.now_ns();
  move.state = SimulatedMove::State::kInFlight;
  settle(move);
}

void World::settle(SimulatedMove& move) {
  const int32_t status = towline_transfer_poll(move.transfer);
  if (status == TOWLINE_IN_PROGRESS) {
    // A whole pass that began after the deadline has ended it.
    EXPECT_LE(pass_began_ns_, move.posted_at_ns + testing::kTimeoutNs)
        << "no outcome by the deadline: agent " << move.from
        << (move.op == TOWLINE_READ ? " reads from " : " writes to ") << move.to;
    return;
  }
  move.state = SimulatedMove::State::kIdle;
  if (status != TOWLINE_OK) {
    ++tally_.failed;
    if (status == TOWLINE_STALE || status == TOWLINE_PEER_RESTARTED) (void)drop(move);
    return;
  }
  check_done(move);
  ++move.done_since_mended;
  ++(move.op == TOWLINE_READ ? tally_.reads : tally_.writes);
  if (agents_[move.from].own_kind != Own::kDram) ++tally_.staged;
  if (agents_[move.from].own_kind == Own::kVram) ++tally_.on_gpu;
}

void World::check_done(const SimulatedMove& move) {
  const bool same = agents_[move.to].registration == move.registration && move.registration != 0;
  if (move.op == TOWLINE_READ) {
    // A READ that waited while its owner registered the memory again is of the later region.
    const std::vector<uint8_t> here = read_own(move);
    for (uint64_t i = 0; i < kBytesEach; ++i)
      ASSERT_TRUE(here[i] == move.stamp || (!same && here[i] == kPrivate))
          << "read, but byte " << i << " is not here";
    return;
  }
  if (!same) return;  // the owner has used the memory for something else since
  const uint8_t* const there = shared_of(move);
  for (uint64_t i = 0; i < kBytesEach; ++i)
    ASSERT_EQ(there[i], move.stamp) << "written, but byte " << i << " is not there";
}

void World::receive(uint32_t index, const std::string& text, const std::string& sender) {
  ++tally_.notices;
  EXPECT_TRUE(sent_.contains(text)) << "nobody sent '" << text << "'";
  EXPECT_TRUE(received_.insert(text).second) << "'" << text << "' came twice";
  uint64_t number = 0;
  uint64_t post = 0;
  unsigned stamp = 0;
  char addressee[64] = "";
  ASSERT_EQ(std::sscanf(text.c_str(), "%lu %lu %u %63s", &number, &post, &stamp, addressee), 4);
  const SimulatedMove& move = moves_.at(number);
  EXPECT_EQ(move.to, index) << "'" << text << "' went to another agent";
  EXPECT_EQ(agents_[index].agent->incarnation_text(), addressee)
      << "'" << text << "' was for an earlier life";
  EXPECT_EQ(sender, fmt::format("agent-{}", move.from));
  // Posted again since, or the memory is in use for something else: it may hold other bytes.
  if (move.posts != post + 1 || move.registration != agents_[index].registration || move.op == TOWLINE_READ)
    return;
  const uint8_t* const there = shared_of(move);
  for (uint64_t i = 0; i < kBytesEach; ++i) ASSERT_EQ(there[i], stamp) << "the notice came before byte " << i;
}

void World::write_own(const SimulatedMove& move, uint8_t value) {
  SimulatedAgent& agent = agents_[move.from];
  const std::vector<uint8_t> bytes(kBytesEach, value);
  if (agent.own_kind != Own::kFile) {
    std::copy(bytes.begin(), bytes.end(), agent.own.begin() + static_cast<long>(move.own_offset()));
    return;
  }
  ASSERT_EQ(::pwrite(agent.file, bytes.data(), kBytesEach, static_cast<off_t>(move.own_offset())),
            static_cast<ssize_t>(kBytesEach));
}

std::vector<uint8_t> World::read_own(const SimulatedMove& move) const {
  const SimulatedAgent& agent = agents_[move.from];
  const auto first = agent.own.begin() + static_cast<long>(move.own_offset());
  std::vector<uint8_t> bytes(first, first + static_cast<long>(kBytesEach));
  if (agent.own_kind == Own::kFile) {
    EXPECT_EQ(::pread(agent.file, bytes.data(), kBytesEach, static_cast<off_t>(move.own_offset())),
              static_cast<ssize_t>(kBytesEach));
  }
  return bytes;
}

// ---- the loop

void World::drive() {
  pass_began_ns_ = clock_.now_ns();
  for (uint64_t i = random_.below(4); i > 0; --i) command_gpus("step", random_.next() >> 1);
  for (uint32_t i = 0; i < kAgents; ++i) {
    SimulatedAgent& agent = agents_[i];
    if (agent.agent == nullptr) continue;
    agent.agent->progress();
    towline_notice_t notice;
    while (towline_notice_receive(&agent.handle, &notice, sizeof notice) == TOWLINE_OK) {
      receive(i, {static_cast<const char*>(notice.data), notice.bytes}, notice.peer_name);
      towline_notice_release(&agent.handle, &notice);
    }
  }
  for (SimulatedMove& move : moves_)
    if (move.state == SimulatedMove::State::kInFlight) settle(move);
  for (uint32_t i = 0; i < kAgents; ++i) look_after(i);
}

void World::check_private(uint32_t index) const {
  const SimulatedAgent& agent = agents_[index];
  const bool clean =
      std::all_of(agent.shared.begin(), agent.shared.end(), [](uint8_t byte) { return byte == kPrivate; });
  EXPECT_TRUE(clean) << "bytes landed in memory that agent " << index << " had deregistered";
}

// Silence is noticed within peer.suspect, at the next heartbeat.
void World::check_health() const {
  constexpr uint64_t kNoticedNs = testing::kSuspectNs + testing::kHeartbeatNs;
  for (uint32_t i = 0; i < kAgents; ++i) {
    for (uint32_t j = 0; j < kAgents; ++j) {
      if (i == j || !network_.is_cut(i, j) || agents_[i].agent == nullptr) continue;
      const towline_peer_t* const peer = agents_[i].others[j].peer;
      if (peer == nullptr || pass_began_ns_ <= cut_since_ns_[i][j] + kNoticedNs) continue;
      EXPECT_NE(towline_peer_health(peer), TOWLINE_HEALTH_ALIVE)
          << "agent " << i << " has not noticed that agent " << j << " is silent";
    }
  }
}

void World::wreak_havoc() {
  const auto index = static_cast<uint32_t>(random_.below(kAgents));
  SimulatedAgent& agent = agents_[index];
  if (random_.below(300) == 0) cut_or_mend();
  if (random_.below(700) == 0 && agent.shared_region != nullptr && !agent.deregistering)
    begin_deregistering(index);
  if (random_.below(2000) == 0 && agent.agent != nullptr) {
    const bool crash = random_.below(2) == 0;
    stop(index, crash);
    agent.private_until_ns = clock_.now_ns() + random_.below(100 * kMillisecondNs);
    ++(crash ? tally_.crashes : tally_.restarts);
  }
  if (random_.below(64) == 0) check_health();
}

void World::run(uint64_t virtual_ns) {
  const auto step = [this] {
    if (random_.below(2) == 0) touch(moves_[random_.below(moves_.size())]);
    if (havoc_) wreak_havoc();
    drive();
  };
  const uint64_t end_ns = clock_.now_ns() + virtual_ns;
  while (clock_.now_ns() < end_ns && !::testing::Test::HasFailure()) step();

  havoc_ = false;
  network_.mend_all();
  for (SimulatedMove& move : moves_) move.done_since_mended = 0;
  const auto all_done = [this] {
    return std::all_of(moves_.begin(), moves_.end(),
                       [](const SimulatedMove& move) { return move.done_since_mended != 0; });
  };
  const uint64_t healed_ns = clock_.now_ns() + 20 * kSecondNs;
  while (clock_.now_ns() < healed_ns && !all_done() && !::testing::Test::HasFailure()) step();
  for (const SimulatedMove& move : moves_)
    EXPECT_NE(move.done_since_mended, 0u)
        << "agent " << move.from << (move.op == TOWLINE_READ ? " can't read from " : " can't write to ")
        << move.to << " although the network is mended";
}

}  // namespace towline::simulation
