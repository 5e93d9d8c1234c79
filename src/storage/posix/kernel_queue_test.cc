#include "storage/posix/kernel_queue.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <iterator>

#include "base/os/unique_fd.h"

namespace towline::posix {
namespace {

Operation read_of(int fd, char* into, size_t bytes) {
  Operation operation;
  operation.fd = fd;
  operation.bytes = operation.needed = bytes;
  operation.iov[0] = {into, bytes};
  operation.iov_count = 1;
  return operation;
}

bool readable(int fd) {
  pollfd watched = {fd, POLLIN, 0};
  return ::poll(&watched, 1, 0) == 1;
}

// A worker that sleeps has nothing else to learn it from.
TEST(Aio, tells_of_an_operation_that_the_kernel_did_not_take) {
  Settings settings;
  settings.queue_depth = 8;
  std::string reason;
  for (const bool never_waits : {true, false}) {
    const auto queue = KernelQueue::open_aio(settings, never_waits, reason);
    if (queue == nullptr) GTEST_SKIP() << reason;
    int pipes[2];
    ASSERT_EQ(::pipe2(pipes, O_CLOEXEC), 0);
    const UniqueFd from(pipes[0]);
    UniqueFd into(pipes[1]);
    char letters[4];
    Operation operation = read_of(into.get(), letters, sizeof letters);  // not open for reading
    ASSERT_TRUE(queue->push(operation));
    EXPECT_FALSE(readable(queue->fd()));
    queue->flush();
    EXPECT_TRUE(readable(queue->fd()));
    KernelQueue::Ended ended[2];
    ASSERT_EQ(queue->reap(ended, 2), 1u);
    EXPECT_EQ(ended[0].operation, &operation);
    EXPECT_EQ(ended[0].result, -EBADF);
    EXPECT_EQ(queue->reap(ended, 2), 0u);
  }
}

TEST(Aio, takes_as_many_operations_as_it_is_deep_and_ends_them_all) {
  Settings settings;
  settings.queue_depth = 4;
  std::string reason;
  const auto queue = KernelQueue::open_aio(settings, false, reason);
  if (queue == nullptr) GTEST_SKIP() << reason;
  const UniqueFd file(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(file);
  char letters[5][4] = {};
  Operation operations[5];
  for (int i = 0; i < 5; ++i) operations[i] = read_of(file.get(), letters[i], 4);
  for (int round = 0; round < 100; ++round) {
    for (int i = 0; i < 4; ++i) ASSERT_TRUE(queue->push(operations[i])) << i;
    EXPECT_FALSE(queue->push(operations[4]));
    size_t count = 0;
    while (count < 4) {
      queue->wait();
      KernelQueue::Ended ended[4];
      const size_t found = queue->reap(ended, 4);
      for (size_t i = 0; i < found; ++i) EXPECT_EQ(ended[i].result, 4);
      count += found;
    }
  }
  EXPECT_EQ(std::string(letters[3] + 1, 3), "ELF");
}

// Before Linux 5.6 it can't be asked what it does (IORING_REGISTER_PROBE), and reads and writes vectors alone.
int open_as_before_5_6() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_register, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter = {std::size(program), program};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
    return 77;
  Settings settings;
  settings.queue_depth = 4;
  std::string reason;
  const auto queue = KernelQueue::open_uring(settings, reason);
  return queue != nullptr ? 1 : reason.find("5.6") == std::string::npos ? 2 : 0;
}

TEST(Uring, is_not_opened_where_its_kernel_has_no_reads_and_writes_of_one_piece) {
  Settings settings;
  settings.queue_depth = 4;
  std::string reason;
  if (KernelQueue::open_uring(settings, reason) == nullptr) GTEST_SKIP() << reason;
  const pid_t child = ::fork();
  if (child == 0) ::_exit(open_as_before_5_6());
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "seccomp is not to be had";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace towline::posix
