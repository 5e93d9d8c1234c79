// Ranks that are processes, which need no GPU: they hand their memory over by descriptor.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu/experts_suite.h"

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

void be_rank(const Shape& shape, uint32_t number, int socket, bool dies) {
  Platform& gpu = *found_platform();
  Rank rank(gpu, shape, number);
  give(socket, rank.describe());
  ASSERT_EQ(rank.connect(1 - number, take(socket)), TOWLINE_OK) << rank.error();
  ASSERT_EQ(rank.command(TOWLINE_EXPERTS_UNMASK, 1 - number), TOWLINE_OK) << rank.error();
  for (uint64_t seed = 1; seed <= kRounds; ++seed)
    rank.round({random_tokens(shape, 0, seed), random_tokens(shape, 1, seed)}, {true, true});
  if (dies && number == 1) ::_exit(testing::Test::HasFailure() ? 1 : 0);  // with its memory mapped
  if (!dies) return;
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
  shape.timeout_ns = 1'000'000'000;
  run_processes(shape, true);
}

}  // namespace
}  // namespace towline::gpu_test::experts
