#include "base/os/memfd.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "base/error.h"

namespace towline {
namespace {

template <class Call>
Status code_of(Call&& call, std::string* message = nullptr) {
  try {
    call();
  } catch (const Error& error) {
    if (message != nullptr) *message = error.what();
    return error.code();
  }
  return Status::kOk;
}

TEST(MemfdTest, TwoMappingsShareTheirBytes) {
  const UniqueFd fd = create_memfd("towline test", 10000);
  EXPECT_EQ(file_bytes(fd.get()), 10000u);
  const Mapping writer = Mapping::map_shared(fd.get(), 10000, MapAccess::kReadWrite);
  const Mapping reader = Mapping::map_shared(fd.get(), 10000, MapAccess::kRead);
  writer.address()[9999] = 42;
  EXPECT_EQ(reader.address()[9999], 42);
}

TEST(MemfdTest, SizeIsSealed) {
  const UniqueFd fd = create_memfd("sealed", 4096);
  EXPECT_NE(ftruncate(fd.get(), 0), 0);
  EXPECT_NE(ftruncate(fd.get(), 8192), 0);
  EXPECT_EQ(file_bytes(fd.get()), 4096u);
  EXPECT_NO_THROW(require_sealed(fd.get(), 4096));
  EXPECT_THROW(require_sealed(fd.get(), 4097), Error);
}

TEST(MemfdTest, UnsealedAndUnsealableFilesAreRefused) {
  const UniqueFd fd = create_memfd("open", 4096, {.seal_size = false});
  EXPECT_EQ(code_of([&] { require_sealed(fd.get(), 4096); }), Status::kInvalidArgument);
  const UniqueFd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(code_of([&] { require_sealed(null.get(), 0); }), Status::kInvalidArgument);
  EXPECT_EQ(code_of([&] { require_sealed(-1, 0); }), Status::kInvalidArgument);
}

TEST(MemfdTest, AfterSealingWritesOnlyTheOldMappingWrites) {
  const UniqueFd fd = create_memfd("read only", 4096);
  const Mapping writer = Mapping::map_shared(fd.get(), 4096, MapAccess::kReadWrite);
  seal_future_writes(fd.get());
  writer.address()[0] = 7;
  EXPECT_EQ(Mapping::map_shared(fd.get(), 4096, MapAccess::kRead).address()[0], 7);
  EXPECT_EQ(code_of([&] { Mapping::map_shared(fd.get(), 4096, MapAccess::kReadWrite); }),
            Status::kPermissionDenied);
  EXPECT_LT(write(fd.get(), "x", 1), 0);
}

TEST(MemfdTest, ImpossibleSizesSayWhatWasAskedFor) {
  std::string message;
  EXPECT_EQ(code_of([] { create_memfd("none", 0); }), Status::kInvalidArgument);
  EXPECT_EQ(code_of([] { create_memfd("odd", 4096, {.huge_page_bytes = 2 << 20}); }),
            Status::kInvalidArgument);
  EXPECT_EQ(code_of([] { create_memfd("vast", uint64_t{1} << 61); }, &message), Status::kNoSpace);
  EXPECT_NE(message.find("memory.max"), std::string::npos) << message;
  EXPECT_NE(message.find("memfd \"vast\" of 2305843009213693952 bytes"), std::string::npos) << message;
}

TEST(MemfdTest, RunningOutOfHugePagesIsAnErrorNotASignal) {
  std::string message;
  const uint64_t page = 2 << 20;
  const Status status =
      code_of([&] { create_memfd("huge", page << 20, {.huge_page_bytes = page}); }, &message);
  ASSERT_NE(status, Status::kOk);  // 2 TiB of huge pages
  if (status == Status::kNoSpace || status == Status::kOutOfMemory) {
    EXPECT_NE(message.find("nr_hugepages"), std::string::npos) << message;
  }
}

// The kernel's signal for it would end the process.
TEST(MemfdTest, TheLimitOfAFilesSizeIsAnErrorThatNamesIt) {
  const pid_t pid = fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    std::signal(SIGXFSZ, SIG_DFL);
    const rlimit limit = {8192, 8192};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(2);
    std::string message;
    for (const bool reserve : {false, true}) {
      if (code_of([&] { create_memfd("limited", 10000, {.reserve = reserve}); }, &message) !=
          Status::kOutOfRange)
        _exit(3);
      if (message.find("ulimit -f") == std::string::npos) _exit(4);
    }
    sigset_t blocked;
    sigset_t pending;
    pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
    sigpending(&pending);
    if (sigismember(&blocked, SIGXFSZ) != 0 || sigismember(&pending, SIGXFSZ) != 0) _exit(5);
    _exit(create_memfd("fits", 8192) ? 0 : 6);
  }
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(MappingTest, MovedFromMappingsAreEmpty) {
  const UniqueFd fd = create_memfd("move", 4096);
  Mapping first = Mapping::map_shared(fd.get(), 4096, MapAccess::kReadWrite);
  uint8_t* address = first.address();
  Mapping second = std::move(first);
  EXPECT_FALSE(first.valid());
  EXPECT_EQ(second.address(), address);
  first = std::move(second);
  EXPECT_EQ(first.bytes(), 4096u);
  first.reset();
  EXPECT_FALSE(first.valid());
  EXPECT_NE(msync(address, 4096, MS_ASYNC), 0);  // really unmapped
  EXPECT_EQ(code_of([&] { Mapping::map_shared(fd.get(), 0, MapAccess::kRead); }), Status::kInvalidArgument);
}

TEST(PrivateMapping, IsZeroedAlignedForHugePagesAndGoesWithItsOwner) {
  constexpr uint64_t kHugePage = 2 << 20;
  const uint64_t bytes = 3 * kHugePage + 4096;
  uint8_t* address = nullptr;
  {
    const Mapping mapping = Mapping::map_private(bytes);
    address = mapping.address();
    EXPECT_EQ(mapping.bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<uint64_t>(address) % kHugePage, 0u);
    for (uint64_t at = 0; at < bytes; at += 4096) EXPECT_EQ(address[at], 0) << at;
    address[bytes - 1] = 1;
  }
  unsigned char there = 0;
  EXPECT_NE(::mincore(address, 4096, &there), 0) << "it is still mapped";
  EXPECT_THROW((void)Mapping::map_private(uint64_t{1} << 60), Error);
}

}  // namespace
}  // namespace towline
