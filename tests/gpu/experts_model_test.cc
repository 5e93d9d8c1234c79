// Ranks that are processes, which need no GPU: they hand their memory over by descriptor.
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <thread>

#include "gpu/experts_batch_rank.h"

namespace towline::gpu_test::experts {
namespace {

constexpr uint64_t kRounds = 6;

void give(int socket, const std::vector<uint8_t>& bytes) {
  const uint64_t length = bytes.size();
  ASSERT_EQ(::write(socket, &length, sizeof length), static_cast<ssize_t>(sizeof length));
  ASSERT_EQ(::write(socket, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
}

std::vector<uint8_t> take(int socket) {
  uint64_t length = 0;
  EXPECT_EQ(::read(socket, &length, sizeof length), static_cast<ssize_t>(sizeof length));
  std::vector<uint8_t> bytes(length);
  EXPECT_EQ(::recv(socket, bytes.data(), bytes.size(), MSG_WAITALL), static_cast<ssize_t>(bytes.size()));
  return bytes;
}

void say_that_all_came(int socket) { ASSERT_EQ(::write(socket, "c", 1), 1); }
void hear_that_all_came(int socket) {
  char said = 0;
  ASSERT_EQ(::read(socket, &said, 1), 1);
}

void be_rank(const Shape& shape, uint32_t number, int socket, bool dies) {
  Platform& gpu = *found_platform();
  Rank rank(gpu, shape, number);
  give(socket, rank.describe());
  ASSERT_EQ(rank.connect(1 - number, take(socket)), TOWLINE_OK) << rank.error();
  ASSERT_EQ(rank.command(TOWLINE_EXPERTS_UNMASK, 1 - number), TOWLINE_OK) << rank.error();
  for (uint64_t seed = 1; seed <= kRounds; ++seed)
    rank.round({random_tokens(shape, 0, seed), random_tokens(shape, 1, seed)}, {true, true});
  if (!dies) return;
  // Between hosts, what a rank has sent is still on its way when its kernels have ended.
  if (number == 1) {
    hear_that_all_came(socket);
    ::_exit(testing::Test::HasFailure() ? 1 : 0);  // with its memory mapped
  }
  say_that_all_came(socket);
  for (uint64_t seed = kRounds + 1; seed <= kRounds + 3; ++seed)
    rank.round({random_tokens(shape, 0, seed), random_tokens(shape, 1, seed)}, {true, false});
  EXPECT_EQ(rank.masks(), (std::vector<int32_t>{0, 1}));
}

void run_processes(const Shape& shape, bool dies) {
  int sockets[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    be_rank(shape, 1, sockets[1], dies);
    ::_exit(testing::Test::HasFailure() ? 1 : 0);
  }
  be_rank(shape, 0, sockets[0], dies);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "the other process failed";
  ::close(sockets[0]);
  ::close(sockets[1]);
}

TEST(ExpertsProcesses, ExchangeTokens) {
  Shape shape;
  shape.hidden = 256;
  run_processes(shape, false);
}

TEST(ExpertsProcesses, GoOnWithoutOneThatDied) {
  Shape shape;
  shape.timeout_ns = 4'000'000'000;
  run_processes(shape, true);
}

// ---- A rank that another takes the place of

constexpr uint64_t kSeedOfSecond = 100;

std::vector<Tokens> both(const Shape& shape, uint64_t seed) {
  return {random_tokens(shape, 0, seed), random_tokens(shape, 1, seed)};
}

void join(Rank& rank, int socket) {
  give(socket, rank.describe());
  ASSERT_EQ(rank.connect(1 - rank.number(), take(socket)), TOWLINE_OK) << rank.error();
  ASSERT_EQ(rank.command(TOWLINE_EXPERTS_UNMASK, 1 - rank.number()), TOWLINE_OK) << rank.error();
}

// It goes by the signal when its part of an exchange is under way.
void be_first(const Shape& shape, int socket, int signal) {
  Rank rank(*found_platform(), shape, 1);
  join(rank, socket);
  for (uint64_t seed = 1; seed <= kRounds; ++seed) rank.round(both(shape, seed), {true, true});
  hear_that_all_came(socket);
  rank.set(both(shape, kRounds + 1)[1]);
  towline_experts_call call = rank.dispatch_call();
  call.phases = TOWLINE_EXPERTS_SEND;
  ASSERT_EQ(rank.issue(call), TOWLINE_OK) << rank.error();
  ::raise(signal);
}

void be_second(const Shape& shape, int socket) {
  char go = 0;
  if (::read(socket, &go, 1) != 1) return;
  Rank rank(*found_platform(), shape, 1);
  join(rank, socket);
  for (uint64_t i = 0; i < kRounds; ++i) rank.round(both(shape, kSeedOfSecond + i), {true, true});
}

struct Child {
  explicit Child(const std::function<void(int socket)>& body) {
    int sockets[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
    socket = sockets[0];
    pid = ::fork();
    EXPECT_GE(pid, 0);
    if (pid == 0) {
      ::close(sockets[0]);
      body(sockets[1]);
      ::_exit(testing::Test::HasFailure() ? 1 : 0);
    }
    ::close(sockets[1]);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    ::close(socket);
    if (pid > 0) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
  }
  void expect_good_end() {
    int status = 0;
    EXPECT_EQ(::waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "the other process failed";
    pid = -1;
  }
  int socket = -1;
  pid_t pid = -1;
};

void run_replaced(int signal) {
  Shape shape;
  shape.timeout_ns = 4'000'000'000;
  const Child first([&](int socket) { be_first(shape, socket, signal); });
  Child second([&](int socket) { be_second(shape, socket); });
  Rank rank(*found_platform(), shape, 0);
  join(rank, first.socket);
  for (uint64_t seed = 1; seed <= kRounds; ++seed) rank.round(both(shape, seed), {true, true});
  say_that_all_came(first.socket);
  // What comes of the exchange that it goes in is not known.
  rank.set(both(shape, kRounds + 1)[0]);
  towline_experts_call dispatch = rank.dispatch_call();
  ASSERT_EQ(rank.issue(dispatch), TOWLINE_OK) << rank.error();
  rank.drain();
  rank.compute();
  towline_experts_call combine = rank.combine_call();
  ASSERT_EQ(rank.issue(combine), TOWLINE_OK) << rank.error();
  rank.drain();
  for (uint64_t seed = 20; seed < 23; ++seed) rank.round(both(shape, seed), {true, false});
  EXPECT_EQ(rank.masks(), (std::vector<int32_t>{0, 1}));
  ASSERT_EQ(rank.disconnect(1), TOWLINE_OK) << rank.error();
  ASSERT_EQ(::write(second.socket, "g", 1), 1);
  join(rank, second.socket);
  for (uint64_t i = 0; i < kRounds; ++i) rank.round(both(shape, kSeedOfSecond + i), {true, true});
  EXPECT_EQ(rank.masks(), (std::vector<int32_t>{0, 0}));
  second.expect_good_end();
}

TEST(ExpertsProcesses, ARankThatIsKilledInAnExchangeIsLeftOutAndReplaced) { run_replaced(SIGKILL); }

TEST(ExpertsProcesses, ARankThatFallsSilentIsLeftOutAndReplaced) { run_replaced(SIGSTOP); }

// ---- Batches

constexpr uint64_t kBatchSeeds = 4;
constexpr uint64_t kRowGrain = 16;  // bytes to which rows are aligned
constexpr uint16_t kSigned = 0x7a5c;

// With memory for whole batches, and with less: then they go in rounds.
batches::BatchShape batch_shape(uint32_t room) {
  batches::BatchShape shape;
  shape.tokens = 120;
  shape.hidden = 128;
  shape.room = room;
  shape.timeout_ns = 4'000'000'000;
  return shape;
}

void run_batches_of_two(uint32_t room) {
  const batches::BatchShape shape = batch_shape(room);
  const auto be = [&](uint32_t number, int socket) {
    Rank rank(*found_platform(), shape.memory(), number);
    batches::BatchRank batch(rank, shape);
    join(rank, socket);
    for (uint64_t seed = 1; seed <= kBatchSeeds; ++seed) batch.round(seed);
    EXPECT_EQ(rank.masks(), (std::vector<int32_t>{0, 0}));
  };
  Child other([&](int socket) { be(1, socket); });
  be(0, other.socket);
  other.expect_good_end();
}

TEST(BatchesProcesses, ExchangeTokens) { run_batches_of_two(512); }

TEST(BatchesProcesses, ExchangeTokensInRounds) { run_batches_of_two(8); }

// It goes with its rows for the other one under way.
void be_first_of_batch(const batches::BatchShape& shape, int socket, int signal) {
  Rank rank(*found_platform(), shape.memory(), 1);
  batches::BatchRank batch(rank, shape);
  join(rank, socket);
  for (uint64_t seed = 1; seed <= kBatchSeeds; ++seed) batch.round(seed);
  hear_that_all_came(socket);
  ASSERT_EQ(batch.repeat(), TOWLINE_OK) << rank.error();
  ::raise(signal);
}

void be_second_of_batch(const batches::BatchShape& shape, int socket) {
  char go = 0;
  if (::read(socket, &go, 1) != 1) return;
  Rank rank(*found_platform(), shape.memory(), 1);
  batches::BatchRank batch(rank, shape);
  join(rank, socket);
  for (uint64_t seed = 1; seed <= kBatchSeeds; ++seed) batch.round(kSeedOfSecond + seed);
}

void run_batches_replaced(int signal) {
  const batches::BatchShape shape = batch_shape(8);
  const Child first([&](int socket) { be_first_of_batch(shape, socket, signal); });
  Child second([&](int socket) { be_second_of_batch(shape, socket); });
  Rank rank(*found_platform(), shape.memory(), 0);
  batches::BatchRank batch(rank, shape);
  join(rank, first.socket);
  for (uint64_t seed = 1; seed <= kBatchSeeds; ++seed) batch.round(seed);
  say_that_all_came(first.socket);
  // What comes of the batch that it goes in is not known.
  ASSERT_EQ(batch.repeat(), TOWLINE_OK) << rank.error();
  rank.drain();
  batch.set(batches::random_part(shape, 0, kBatchSeeds + 1));
  EXPECT_EQ(batch.dispatch(), TOWLINE_TIMED_OUT);
  EXPECT_NE(rank.error().find("rank 1"), std::string::npos) << rank.error();
  rank.drain();
  EXPECT_EQ(rank.masks(), (std::vector<int32_t>{0, 1}));
  ASSERT_EQ(rank.disconnect(1), TOWLINE_OK) << rank.error();
  ASSERT_EQ(::write(second.socket, "g", 1), 1);
  join(rank, second.socket);
  for (uint64_t seed = 1; seed <= kBatchSeeds; ++seed) batch.round(kSeedOfSecond + seed);
  EXPECT_EQ(rank.masks(), (std::vector<int32_t>{0, 0}));
  second.expect_good_end();
}

// Rows are all of one value, and a rank's memory is looked through for the other's.
TEST(BatchesHosts, NothingGoesToARankThatItDoesNotGet) {
  if (ranks_a_host() != 1) GTEST_SKIP() << kOtherHosts;
  batches::BatchShape shape;
  shape.room = 512;
  run_ranks(shape.memory(), [&](Rank& rank, Group& group) {
    batches::BatchRank batch(rank, shape);
    const auto mine = static_cast<uint16_t>(0x4001 + 0x1111 * rank.number());
    const auto others = static_cast<uint16_t>(0x4001 + 0x1111 * (1 - rank.number()));
    for (const uint32_t gets : {1, 0}) {
      batches::Part part = batches::random_part(shape, rank.number(), 5);
      std::fill(part.x.begin(), part.x.end(), mine);
      std::fill(part.in_rank.begin(), part.in_rank.end(), 0);
      for (uint32_t token = 0; token < part.count; ++token)
        part.in_rank[2 * token + (token == 3 && gets != 0 ? 1 - rank.number() : rank.number())] = 1;
      batch.set(part);
      group.meet();
      void* address = nullptr;
      uint64_t bytes = 0;
      ASSERT_EQ(table().memory(rank.member(), &address, &bytes), TOWLINE_OK) << rank.error();
      auto* const memory = static_cast<uint16_t*>(address);
      std::fill(memory, memory + bytes / sizeof(uint16_t), 0);
      group.meet();
      ASSERT_EQ(batch.dispatch(), TOWLINE_OK) << rank.error();
      rank.drain();
      EXPECT_EQ(std::count(memory, memory + bytes / sizeof(uint16_t), others), gets * shape.hidden);
      group.meet();
    }
  });
}

// ---- One copy of a token for each host

// Puts the token's source and number where its row begins.
void sign(batches::Part& part, const batches::BatchShape& shape, uint32_t rank) {
  for (uint32_t token = 0; token < part.count; ++token) {
    uint16_t* const row = part.x.data() + uint64_t{token} * shape.hidden;
    row[0] = kSigned;
    row[1] = static_cast<uint16_t>(rank);
    row[2] = static_cast<uint16_t>(token);
    row[3] = kSigned;
  }
}

// How often each token of that source lies in a rank's memory.
std::vector<uint32_t> copies_of(uint32_t source, uint32_t tokens, Rank& in) {
  void* address = nullptr;
  uint64_t bytes = 0;
  EXPECT_EQ(table().memory(in.member(), &address, &bytes), TOWLINE_OK) << in.error();
  std::vector<uint32_t> made(tokens);
  const auto* const memory = static_cast<const uint16_t*>(address);
  for (uint64_t at = 0; at < bytes / sizeof(uint16_t); at += kRowGrain / sizeof(uint16_t)) {
    const uint16_t* const row = memory + at;
    if (row[0] == kSigned && row[1] == source && row[2] < tokens && row[3] == kSigned) ++made[row[2]];
  }
  return made;
}

// Hosts of so many ranks, and one of those that are left.
std::vector<uint32_t> ranks_of_host(uint32_t host, uint32_t ranks) {
  std::vector<uint32_t> made;
  for (uint32_t rank = 0; rank < ranks; ++rank)
    if (rank / ranks_a_host() == host) made.push_back(rank);
  return made;
}

// Every token that a rank of another host gets lies there once, in the memory of the rank whose place is the source's.
void expect_one_copy_a_host(Rank& rank, const std::vector<batches::Part>& all, uint32_t ranks) {
  const uint32_t host = rank.number() / ranks_a_host();
  const std::vector<uint32_t> here = ranks_of_host(host, ranks);
  for (uint32_t source = 0; source < ranks; ++source) {
    if (source / ranks_a_host() == host) continue;
    const bool is_relay = here[source % ranks_a_host() % here.size()] == rank.number();
    std::vector<uint32_t> wanted(all[source].count);
    for (uint32_t token = 0; token < all[source].count; ++token)
      for (const uint32_t reader : here)
        if (is_relay && all[source].in_rank[uint64_t{token} * ranks + reader] != 0) wanted[token] = 1;
    EXPECT_EQ(copies_of(source, all[source].count, rank), wanted)
        << "of rank " << source << " at rank " << rank.number();
  }
}

void run_one_copy(const batches::BatchShape& shape) {
  run_ranks(shape.memory(), [&](Rank& rank, Group& group) {
    batches::BatchRank batch(rank, shape);
    std::vector<batches::Part> all = batches::random_parts(shape, 5);
    for (uint32_t source = 0; source < shape.ranks; ++source) sign(all[source], shape, source);
    batch.set(all[rank.number()]);
    void* address = nullptr;
    uint64_t bytes = 0;
    ASSERT_EQ(table().memory(rank.member(), &address, &bytes), TOWLINE_OK) << rank.error();
    std::fill_n(static_cast<uint8_t*>(address), bytes, uint8_t{0});
    group.meet();
    ASSERT_EQ(batch.dispatch(), TOWLINE_OK) << rank.error();
    rank.drain();
    EXPECT_TRUE(batch.gets() == batches::expected_dispatch(shape, rank.number(), all));
    expect_one_copy_a_host(rank, all, shape.ranks);
    group.meet();
  });
}

TEST(BatchesRelays, ATokenCrossesOnceForAllRanksOfAHost) {
  if (ranks_a_host() < 2) GTEST_SKIP() << kOtherHosts;  // a host has one rank, or there is only one
  batches::BatchShape shape;
  shape.ranks = 2 * ranks_a_host();
  shape.local = 8;
  shape.topk = 8;
  shape.room = 512;
  run_one_copy(shape);
}

TEST(BatchesRelays, HostsOfOneRankAndOfSeveral) {
  if (ranks_a_host() < 2) GTEST_SKIP() << kOtherHosts;
  batches::BatchShape shape;
  shape.ranks = 2 * ranks_a_host() + 1;
  shape.topk = 4;
  shape.room = 512;
  run_one_copy(shape);
}

// Rank 2, of the second host, is the relay of rank 0 for rank 3.
constexpr uint32_t kRelay = 2;

void join_as_relay(Rank& rank, int socket) {
  give(socket, rank.describe());
  for (uint32_t peer = 0; peer < 4; ++peer) {
    if (peer == kRelay) continue;
    ASSERT_EQ(rank.connect(peer, take(socket)), TOWLINE_OK) << rank.error();
    ASSERT_EQ(rank.command(TOWLINE_EXPERTS_UNMASK, peer), TOWLINE_OK) << rank.error();
  }
}

batches::BatchShape relayed_shape() {
  batches::BatchShape shape;
  shape.ranks = 4;
  shape.topk = 3;
  shape.timeout_ns = 4'000'000'000;
  return shape;
}

// Goes by the signal with the others' next batch before it.
void be_first_relay(int socket, int signal) {
  const batches::BatchShape shape = relayed_shape();
  Rank rank(*found_platform(), shape.memory(), kRelay);
  batches::BatchRank batch(rank, shape);
  join_as_relay(rank, socket);
  for (uint64_t seed = 1; seed <= kBatchSeeds; ++seed) batch.round(seed);
  hear_that_all_came(socket);
  ::raise(signal);
}

void be_second_relay(int socket) {
  char go = 0;
  if (::read(socket, &go, 1) != 1) return;
  const batches::BatchShape shape = relayed_shape();
  Rank rank(*found_platform(), shape.memory(), kRelay);
  batches::BatchRank batch(rank, shape);
  join_as_relay(rank, socket);
  for (uint64_t seed = 1; seed <= kBatchSeeds; ++seed) batch.round(kSeedOfSecond + seed);
  EXPECT_EQ(rank.masks(), std::vector<int32_t>(4, 0));
}

// Of what a rank got without the relay: each other's rows whole and, of those that were to come through it, all or none.
void expect_rows_without_relay(const batches::BatchShape& shape, uint32_t rank, const batches::Gets& wanted,
                               const std::vector<uint16_t>& got) {
  for (uint32_t source = 0; source < shape.ranks; ++source) {
    const auto part = [&](const std::vector<uint16_t>& rows) {
      const auto at = [&](int32_t row) {
        return rows.begin() + static_cast<std::ptrdiff_t>(row) * static_cast<std::ptrdiff_t>(shape.hidden);
      };
      return std::vector<uint16_t>(at(source == 0 ? 0 : wanted.prefix[source - 1]),
                                   at(wanted.prefix[source]));
    };
    const std::vector<uint16_t> rows = part(wanted.x);
    const std::vector<uint16_t> missing(rows.size(), 0xffff);
    const bool came = part(got) == rows;
    const bool is_missing = part(got) == missing;
    const bool through_relay = source == 0 && rank == 3;
    EXPECT_TRUE(source == kRelay ? is_missing : came || (through_relay && is_missing))
        << "rank " << rank << ", of rank " << source;
  }
}

// A rank of the test's own process, with those beside it.
struct Beside {
  std::barrier<>& meeting;
  std::vector<std::vector<uint8_t>>& descriptions;
  void meet() const { meeting.arrive_and_wait(); }
  void let_join(int socket) const {
    for (uint32_t rank = 0; rank < 4; ++rank)
      if (rank == kRelay)
        descriptions[rank] = take(socket);
      else
        give(socket, descriptions[rank]);
  }
};

void connect_to(Rank& rank, uint32_t peer, const Beside& beside) {
  ASSERT_EQ(rank.connect(peer, beside.descriptions[peer]), TOWLINE_OK) << rank.error();
  ASSERT_EQ(rank.command(TOWLINE_EXPERTS_UNMASK, peer), TOWLINE_OK) << rank.error();
}

void be_beside_relay(uint32_t number, const Child& first, const Child& second, const Beside& beside) {
  const batches::BatchShape shape = relayed_shape();
  Rank rank(*found_platform(), shape.memory(), number);
  batches::BatchRank batch(rank, shape);
  beside.descriptions[number] = rank.describe();
  beside.meet();
  if (number == 0) beside.let_join(first.socket);
  beside.meet();
  for (uint32_t peer = 0; peer < 4; ++peer)
    if (peer != number) connect_to(rank, peer, beside);
  for (uint64_t seed = 1; seed <= kBatchSeeds; ++seed) batch.round(seed);
  const batches::Gets wanted = batch.gets();
  batch.clear();
  beside.meet();
  if (number == 0) {
    say_that_all_came(first.socket);
    siginfo_t gone = {};
    EXPECT_EQ(::waitid(P_PID, static_cast<id_t>(first.pid), &gone, WEXITED | WSTOPPED | WNOWAIT), 0);
  }
  beside.meet();
  EXPECT_EQ(batch.repeat(), TOWLINE_OK) << rank.error();
  rank.drain();
  expect_rows_without_relay(shape, number, wanted, batch.got());
  EXPECT_EQ(rank.masks(), (std::vector<int32_t>{0, 0, 1, 0})) << "rank " << number;
  EXPECT_EQ(batch.repeat(), TOWLINE_TIMED_OUT);
  EXPECT_NE(rank.error().find("experts: rank 2 is masked"), std::string::npos) << rank.error();
  ASSERT_EQ(rank.disconnect(kRelay), TOWLINE_OK) << rank.error();
  beside.meet();
  if (number == 0) {
    EXPECT_EQ(::write(second.socket, "g", 1), 1);
    beside.let_join(second.socket);
  }
  beside.meet();
  connect_to(rank, kRelay, beside);  // and nothing of the others
  for (uint64_t seed = 1; seed <= kBatchSeeds; ++seed) batch.round(kSeedOfSecond + seed);
  EXPECT_EQ(rank.masks(), std::vector<int32_t>(4, 0));
  beside.meet();
}

void run_relay_replaced(int signal) {
  if (ranks_a_host() != 2) GTEST_SKIP() << kOtherHosts;
  const Child first([&](int socket) { be_first_relay(socket, signal); });
  Child second([&](int socket) { be_second_relay(socket); });
  std::barrier<> meeting(3);
  std::vector<std::vector<uint8_t>> descriptions(4);
  std::vector<std::thread> threads;
  for (const uint32_t number : {0u, 1u, 3u})
    threads.emplace_back([&, number] { be_beside_relay(number, first, second, {meeting, descriptions}); });
  for (std::thread& thread : threads) thread.join();
  second.expect_good_end();
}

TEST(BatchesProcesses, ARelayThatIsKilledIsNamedAloneAndReplaced) { run_relay_replaced(SIGKILL); }

TEST(BatchesProcesses, ARelayThatFallsSilentIsNamedAloneAndReplaced) { run_relay_replaced(SIGSTOP); }

// ---- Ranks that go

TEST(BatchesProcesses, ARankThatIsKilledInABatchIsNamedAndReplaced) { run_batches_replaced(SIGKILL); }

TEST(BatchesProcesses, ARankThatFallsSilentInABatchIsNamedAndReplaced) { run_batches_replaced(SIGSTOP); }

}  // namespace
}  // namespace towline::gpu_test::experts
