#include "streams.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>

#include "failure.h"
#include "test_file.h"

namespace tool {
namespace {

TEST(Streams, OutputThatCannotBeWrittenIsAFailure) {
  const File full{std::fopen("/dev/full", "w")};
  ASSERT_NE(full, nullptr);
  std::fputs("a result", full.get());
  try {
    finish_output(full.get());
    FAIL() << "a full device takes nothing";
  } catch (const Failure& failure) {
    EXPECT_NE(std::string{failure.what()}.find("No space left"), std::string::npos) << failure.what();
  }
  const File null{std::fopen("/dev/null", "w")};
  std::fputs("a result", null.get());
  EXPECT_NO_THROW(finish_output(null.get()));
}

TEST(Streams, AFailureOfAnEarlierWriteIsNotForgotten) {
  const File full{std::fopen("/dev/full", "w")};
  std::fputs("a result", full.get());
  EXPECT_NE(std::fflush(full.get()), 0);
  EXPECT_THROW(finish_output(full.get()), Failure);
}

TEST(Streams, TellingNeedsNobodyWhoReads) {
  const File full{std::fopen("/dev/full", "w")};
  tell(full.get(), "progress\n");
  const File unreadable{std::fopen("/dev/null", "r")};
  tell(unreadable.get(), "progress\n");
}

TEST(Streams, ClosedOnesAreNotTakenByOtherFiles) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    for (const int fd : {0, 1, 2}) close(fd);
    fill_closed_streams();
    const bool taken = open("/dev/null", O_RDWR) <= 2;
    const bool writable = write(1, "x", 1) == 1 || write(2, "x", 1) == 1;
    _exit(taken || writable ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace
}  // namespace tool
