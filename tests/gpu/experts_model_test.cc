// Ranks that are processes, which need no GPU: they hand their memory over by descriptor.
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>

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
  if (ranks_a_host() != 1) return;
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

TEST(BatchesProcesses, ARankThatIsKilledInABatchIsNamedAndReplaced) { run_batches_replaced(SIGKILL); }

TEST(BatchesProcesses, ARankThatFallsSilentInABatchIsNamedAndReplaced) { run_batches_replaced(SIGSTOP); }

}  // namespace
}  // namespace towline::gpu_test::experts
