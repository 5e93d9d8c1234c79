#include "base/os/unique_fd.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <thread>
#include <vector>

#include "base/error.h"

namespace towline {
namespace {

bool is_open(int fd) { return fcntl(fd, F_GETFD) >= 0; }

struct Pipe {
  Pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) fail_errno(errno, "pipe2");
    read_end.reset(ends[0]);
    write_end.reset(ends[1]);
  }
  UniqueFd read_end;
  UniqueFd write_end;
};

TEST(UniqueFdTest, ClosesExactlyOnceByItsLastOwner) {
  Pipe pipe;
  const int number = pipe.read_end.get();
  UniqueFd moved = std::move(pipe.read_end);
  EXPECT_FALSE(pipe.read_end.valid());
  EXPECT_TRUE(is_open(number));
  moved = UniqueFd();
  EXPECT_FALSE(is_open(number));
}

TEST(UniqueFdTest, ReleasedDescriptorsStayOpen) {
  Pipe pipe;
  const int number = pipe.write_end.release();
  pipe.write_end.reset();
  EXPECT_TRUE(is_open(number));
  close(number);
}

TEST(UniqueFdTest, FlagsAreSetAndCleared) {
  Pipe pipe;
  set_nonblocking(pipe.read_end.get());
  EXPECT_NE(fcntl(pipe.read_end.get(), F_GETFL) & O_NONBLOCK, 0);
  set_nonblocking(pipe.read_end.get(), false);
  EXPECT_EQ(fcntl(pipe.read_end.get(), F_GETFL) & O_NONBLOCK, 0);
  set_close_on_exec(pipe.read_end.get(), false);
  EXPECT_EQ(fcntl(pipe.read_end.get(), F_GETFD) & FD_CLOEXEC, 0);
  const UniqueFd copy = duplicate_fd(pipe.read_end.get());
  EXPECT_NE(fcntl(copy.get(), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_THROW(set_nonblocking(-1), Error);
  EXPECT_THROW(duplicate_fd(-1), Error);
}

TEST(UniqueFdTest, LongWritesAndReadsGoThroughAPipeWhole) {
  Pipe pipe;
  std::vector<uint8_t> data(1 << 20);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<uint8_t>(i * 7);
  std::thread writer([&] {
    write_fully(pipe.write_end.get(), data);
    pipe.write_end.reset();
  });
  std::vector<uint8_t> got(data.size() + 10);
  EXPECT_EQ(read_fully(pipe.read_end.get(), got), data.size());  // stops at the end of the file
  writer.join();
  got.resize(data.size());
  EXPECT_EQ(got, data);
}

TEST(UniqueFdTest, TextFilesAreReadWholeOrNotAtAll) {
  const std::optional<std::string> text = read_text_file("/proc/self/stat");
  ASSERT_TRUE(text);
  EXPECT_TRUE(text->ends_with('\n'));
  EXPECT_FALSE(read_text_file("/proc/self/stat", 10));
  EXPECT_FALSE(read_text_file("/no/such/file"));
  EXPECT_FALSE(read_text_file("/proc"));
}

}  // namespace
}  // namespace towline
