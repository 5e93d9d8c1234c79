#include "memory/shared_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <towline/towline.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "base/error.h"
#include "memory/mapping_lookup.h"

namespace towline {
namespace {

const auto kPage = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));

// Anonymous memory with a page before and behind it that may not be touched.
class Private {
 public:
  explicit Private(uint64_t bytes, int flags = MAP_PRIVATE | MAP_ANONYMOUS) : bytes_(bytes) {
    whole_ = static_cast<uint8_t*>(
        ::mmap(nullptr, bytes + 2 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_NE(::mmap(whole_ + kPage, bytes, PROT_READ | PROT_WRITE, flags | MAP_FIXED, -1, 0), MAP_FAILED);
  }
  ~Private() { ::munmap(whole_, bytes_ + 2 * kPage); }
  Private(const Private&) = delete;
  Private& operator=(const Private&) = delete;
  [[nodiscard]] uint8_t* data() const { return whole_ + kPage; }
  [[nodiscard]] uint64_t bytes() const { return bytes_; }
  void fill() const {
    for (uint64_t i = 0; i < bytes_; ++i) data()[i] = static_cast<uint8_t>(i * 7 + i / 4096);
  }
  [[nodiscard]] bool is_filled() const {
    for (uint64_t i = 0; i < bytes_; ++i)
      if (data()[i] != static_cast<uint8_t>(i * 7 + i / 4096)) return false;
    return true;
  }

 private:
  uint64_t bytes_;
  uint8_t* whole_;
};

Status refusal(void* address, uint64_t bytes, std::string* text = nullptr) {
  try {
    const auto share = share_in_place(address, bytes);
  } catch (const Error& error) {
    if (text != nullptr) *text = error.message();
    return error.code();
  }
  return Status::kOk;
}

// A peer's view: the bytes through a mapping of the descriptor.
uint8_t byte_through(const SharedRange& range) {
  uint8_t value = 0;
  EXPECT_EQ(::pread(range.file->fd(), &value, 1, static_cast<off_t>(range.offset)), 1);
  return value;
}

TEST(SharedMemory, is_zeroed_sealed_and_found_in_any_part) {
  const auto memory = SharedMemory::allocate(3 * kPage + 17, 0);
  auto* const data = static_cast<uint8_t*>(memory->address());
  EXPECT_EQ(memory->bytes(), 3 * kPage + 17);
  EXPECT_EQ(reinterpret_cast<uint64_t>(data) % kPage, 0U);
  for (uint64_t i = 0; i < memory->bytes(); ++i) ASSERT_EQ(data[i], 0);
  std::string reason;
  for (const uint64_t offset : {uint64_t{0}, uint64_t{1}, kPage, 2 * kPage + 100}) {
    const SharedRange range = find_shared_range(data + offset, 16, reason);
    ASSERT_NE(range.file, nullptr) << reason;
    EXPECT_EQ(range.offset, offset);
    EXPECT_TRUE(range.file->writable());
    EXPECT_EQ(::fcntl(range.file->fd(), F_GET_SEALS) & (F_SEAL_SHRINK | F_SEAL_GROW),
              F_SEAL_SHRINK | F_SEAL_GROW);
    data[offset] = 42;
    EXPECT_EQ(byte_through(range), 42);
  }
  EXPECT_EQ(find_shared_range(data, 4 * kPage + 1, reason).file, nullptr);
  EXPECT_EQ(find_shared_range(data, UINT64_MAX, reason).file, nullptr);
  EXPECT_EQ(find_shared_range(data, 0, reason).file, nullptr);
  EXPECT_EQ(share_in_place(data, kPage), nullptr);  // nothing to do
}

TEST(SharedMemory, is_forgotten_when_freed) {
  auto memory = SharedMemory::allocate(kPage, 0);
  void* const address = memory->address();
  std::string reason;
  const SharedRange range = find_shared_range(address, kPage, reason);
  memory.reset();
  EXPECT_EQ(find_shared_range(address, kPage, reason).file, nullptr);
  EXPECT_FALSE(reason.empty());
  EXPECT_EQ(byte_through(range), 0);  // the descriptor lives as long as its user
}

TEST(SharedMemory, refuses_senseless_sizes_and_flags) {
  EXPECT_THROW(SharedMemory::allocate(0, 0), Error);
  EXPECT_THROW(SharedMemory::allocate(kPage, 1), Error);
  EXPECT_THROW(SharedMemory::allocate(UINT64_MAX, 0), Error);
  EXPECT_THROW(SharedMemory::allocate(uint64_t{1} << 63, 0), Error);
  EXPECT_THROW(SharedMemory::allocate((uint64_t{1} << 62) + 1, 0), Error);
}

TEST(SharedMemory, fails_clearly_without_huge_pages) {
  try {
    const auto memory = SharedMemory::allocate(1, TOWLINE_ALLOCATE_HUGE);
    static_cast<uint8_t*>(memory->address())[0] = 1;
    std::string reason;
    EXPECT_NE(find_shared_range(memory->address(), 1, reason).file, nullptr);
  } catch (const Error& error) {
    EXPECT_FALSE(error.message().empty());
  }
}

TEST(ShareInPlace, keeps_contents_and_address_there_and_back) {
  for (const uint64_t pages : {uint64_t{1}, uint64_t{5}, (uint64_t{130} << 20) / kPage}) {
    const Private memory(pages * kPage);
    memory.fill();
    std::string reason;
    EXPECT_EQ(find_shared_range(memory.data(), kPage, reason).file, nullptr);
    auto share = share_in_place(memory.data(), memory.bytes());
    ASSERT_NE(share, nullptr);
    EXPECT_TRUE(memory.is_filled());
    SharedRange range = find_shared_range(memory.data() + 5, memory.bytes() - 5, reason);
    ASSERT_NE(range.file, nullptr) << reason;
    EXPECT_EQ(range.offset, 5U);
    memory.data()[5] = 99;
    EXPECT_EQ(byte_through(range), 99);
    memory.data()[5] = 35;
    const UniqueFd peers = duplicate_fd(range.file->fd());
    range = {};
    share.reset();
    EXPECT_TRUE(memory.is_filled());
    EXPECT_EQ(find_shared_range(memory.data(), kPage, reason).file, nullptr);
    EXPECT_FALSE(find_shared_mapping(memory.data(), memory.bytes()).found);
    const uint8_t stray = 1;  // a peer that kept its mapping reaches nothing any more
    EXPECT_EQ(::pwrite(peers.get(), &stray, 1, 5), 1);
    EXPECT_EQ(memory.data()[5], 35);
  }
}

TEST(ShareInPlace, is_undone_when_the_last_of_several_lets_go) {
  const Private memory(8 * kPage);
  memory.fill();
  auto first = share_in_place(memory.data(), memory.bytes());
  auto second = share_in_place(memory.data() + kPage, kPage);
  EXPECT_EQ(first, second);
  std::string reason;
  first.reset();
  EXPECT_NE(find_shared_range(memory.data(), memory.bytes(), reason).file, nullptr);
  second.reset();
  EXPECT_EQ(find_shared_range(memory.data(), memory.bytes(), reason).file, nullptr);
  EXPECT_TRUE(memory.is_filled());
  EXPECT_NE(share_in_place(memory.data(), memory.bytes()), nullptr);
}

TEST(ShareInPlace, stays_as_long_as_a_range_of_it_is_known) {
  auto* const data = static_cast<uint8_t*>(
      ::mmap(nullptr, 4 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(data, MAP_FAILED);
  auto share = share_in_place(data, 4 * kPage);
  std::string reason;
  SharedRange range = find_shared_range(data + kPage, kPage, reason);
  ASSERT_NE(range.file, nullptr) << reason;
  share.reset();
  data[kPage] = 7;
  EXPECT_EQ(byte_through(range), 7) << "who mapped the file sees the memory";
  range = {};
  EXPECT_EQ(find_shared_range(data, kPage, reason).file, nullptr);
  EXPECT_EQ(data[kPage], 7);
  ::munmap(data, 4 * kPage);
}

TEST(ShareInPlace, leaves_memory_alone_that_the_application_has_remapped) {
  const Private memory(4 * kPage);
  auto share = share_in_place(memory.data(), memory.bytes());
  ASSERT_NE(
      ::mmap(memory.data(), kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
      MAP_FAILED);
  memory.data()[0] = 1;
  std::string reason;
  EXPECT_EQ(find_shared_range(memory.data(), memory.bytes(), reason).file, nullptr);
  share.reset();
  EXPECT_EQ(memory.data()[0], 1);
}

TEST(ShareInPlace, leaves_a_childs_and_a_parents_memory_alone_across_fork) {
  const Private memory(4 * kPage);
  memory.fill();
  auto share = share_in_place(memory.data(), memory.bytes());
  const pid_t child = ::fork();
  if (child == 0) {
    share.reset();  // not the child's to undo
    ::_exit(memory.is_filled() ? 0 : 1);
  }
  int status = 1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(memory.is_filled());
  share.reset();
  EXPECT_TRUE(memory.is_filled());
}

TEST(ShareInPlace, refuses_what_it_cannot_move_and_leaves_it_as_it_was) {
  const Private memory(4 * kPage);
  memory.fill();
  std::string text;
  EXPECT_EQ(refusal(nullptr, kPage), Status::kInvalidArgument);
  EXPECT_EQ(refusal(memory.data(), 0), Status::kInvalidArgument);
  EXPECT_EQ(refusal(memory.data() + 1, kPage), Status::kInvalidArgument);
  EXPECT_EQ(refusal(memory.data(), kPage + 1), Status::kInvalidArgument);
  EXPECT_EQ(refusal(memory.data(), UINT64_MAX - kPage + 1), Status::kOutOfRange);
  EXPECT_EQ(refusal(memory.data(), 5 * kPage, &text), Status::kInvalidArgument);  // runs into the guard
  EXPECT_NE(text.find("not readable and writable"), std::string::npos) << text;
  const Private shared(kPage, MAP_SHARED | MAP_ANONYMOUS);
  EXPECT_EQ(refusal(shared.data(), kPage, &text), Status::kInvalidArgument);
  EXPECT_NE(text.find("shared already"), std::string::npos) << text;
  // The kernel put these bytes on the true stack; a local variable may live elsewhere under AddressSanitizer.
  void* const stack_page = reinterpret_cast<void*>(::getauxval(AT_RANDOM) & ~(kPage - 1));
  EXPECT_EQ(refusal(stack_page, kPage), Status::kInvalidArgument);
  {
    const auto part = share_in_place(memory.data(), kPage);
    EXPECT_EQ(refusal(memory.data(), 2 * kPage, &text), Status::kBusy);
  }
  ASSERT_EQ(::munmap(memory.data() + 2 * kPage, kPage), 0);
  EXPECT_EQ(refusal(memory.data(), 4 * kPage, &text), Status::kInvalidArgument);
  EXPECT_NE(text.find("nothing is mapped"), std::string::npos) << text;
  memory.data()[0] = 0;  // still ours, writable
}

TEST(FindSharedRange, finds_mapped_files_of_every_sort) {
  char path[] = "/tmp/towline_shared_XXXXXX";
  const int file = ::mkstemp(path);
  ASSERT_GE(file, 0);
  ASSERT_EQ(::ftruncate(file, static_cast<off_t>(4 * kPage)), 0);
  const int memfd = ::memfd_create("other", MFD_CLOEXEC);
  ASSERT_EQ(::ftruncate(memfd, static_cast<off_t>(4 * kPage)), 0);
  for (const int fd : {file, memfd}) {
    auto* const mapped = static_cast<uint8_t*>(
        ::mmap(nullptr, 3 * kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(kPage)));
    ASSERT_EQ(::mprotect(mapped + kPage, kPage, PROT_READ), 0);  // now three mappings
    std::string reason;
    const SharedRange range = find_shared_range(mapped + 10, 3 * kPage - 10, reason);
    ASSERT_NE(range.file, nullptr) << reason;
    EXPECT_EQ(range.offset, kPage + 10);
    mapped[10] = 77;
    EXPECT_EQ(byte_through(range), 77);
    const SharedRange again = find_shared_range(mapped, 1, reason);
    EXPECT_EQ(again.file, range.file);  // one descriptor for all
    EXPECT_EQ(find_shared_range(mapped, 4 * kPage + 1, reason).file, nullptr);
    ::munmap(mapped, 3 * kPage);
  }
  ::close(memfd);
  ::close(file);
  ::unlink(path);
}

TEST(FindSharedRange, finds_a_file_by_its_path_when_no_descriptor_is_open) {
  char path[] = "/tmp/towline_shared_XXXXXX";
  const int file = ::mkstemp(path);
  ASSERT_EQ(::ftruncate(file, static_cast<off_t>(kPage)), 0);
  void* const mapped = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  std::string reason;
  EXPECT_NE(find_shared_range(mapped, kPage, reason).file, nullptr) << reason;
  // Another file under the same name is not it.
  ::unlink(path);
  const int other = ::open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  ASSERT_GE(other, 0);
  const SharedRange range = find_shared_range(mapped, kPage, reason);
  struct stat status = {};
  struct stat wrong = {};
  ASSERT_EQ(::fstat(other, &wrong), 0);
  if (range.file != nullptr) {
    ASSERT_EQ(::fstat(range.file->fd(), &status), 0);
    EXPECT_NE(status.st_ino, wrong.st_ino);
  } else {
    EXPECT_NE(reason.find("keep one open"), std::string::npos) << reason;
  }
  ::close(other);
  ::unlink(path);
  ::munmap(mapped, kPage);
}

TEST(FindSharedRange, finds_an_unlinked_file_whose_descriptor_is_open) {
  char path[] = "/dev/shm/towline_shared_XXXXXX";
  const int file = ::mkstemp(path);
  ASSERT_GE(file, 0);
  ::unlink(path);  // as torch's share_memory_ does
  ASSERT_EQ(::ftruncate(file, static_cast<off_t>(kPage)), 0);
  void* const mapped = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  std::string reason;
  const SharedRange range = find_shared_range(mapped, kPage, reason);
  ASSERT_NE(range.file, nullptr) << reason;
  EXPECT_TRUE(range.file->writable());
  ::munmap(mapped, kPage);
  ::close(file);
}

TEST(FindSharedRange, says_why_a_file_that_shrank_cannot_be_used) {
  const int memfd = ::memfd_create("short", MFD_CLOEXEC);
  ASSERT_EQ(::ftruncate(memfd, static_cast<off_t>(2 * kPage)), 0);
  void* const mapped = ::mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
  ASSERT_EQ(::ftruncate(memfd, static_cast<off_t>(kPage)), 0);
  std::string reason;
  EXPECT_EQ(find_shared_range(mapped, 2 * kPage, reason).file, nullptr);
  EXPECT_NE(reason.find("has 4096 bytes"), std::string::npos) << reason;
  EXPECT_NE(find_shared_range(mapped, kPage, reason).file, nullptr);
  ::munmap(mapped, 2 * kPage);
  ::close(memfd);
}

TEST(MapsLine, is_parsed_as_the_kernel_writes_it) {
  const auto file =
      parse_maps_line("7f7d91cd4000-7f7d91cfa000 rw-s 00026000 fe:01 326269    /a path (deleted)");
  ASSERT_TRUE(file);
  EXPECT_EQ(file->begin, 0x7f7d91cd4000U);
  EXPECT_EQ(file->end, 0x7f7d91cfa000U);
  EXPECT_EQ(file->offset, 0x26000U);
  EXPECT_EQ(file->inode, 326269U);
  EXPECT_TRUE(file->shared && file->readable && file->writable && !file->executable);
  EXPECT_EQ(file->name, "/a path (deleted)");
  const auto anonymous = parse_maps_line("557ac01eb000-557ac020c000 ---p 00000000 00:00 0 ");
  ASSERT_TRUE(anonymous);
  EXPECT_EQ(anonymous->name, "");
  EXPECT_FALSE(anonymous->shared || anonymous->readable);
  for (const char* odd : {"", "hello", "1-2", "2-1 rw-p 0 0:0 0", "557ac01eb000-557ac020c000 rw-p"})
    EXPECT_FALSE(parse_maps_line(odd)) << odd;
}

TEST(MappingReader, tells_the_same_by_query_and_by_text) {
  const Private memory(4 * kPage);
  std::vector<MemoryMapping> read;
  MappingReader reader(reinterpret_cast<uint64_t>(memory.data()));
  while (auto mapping = reader.next()) read.push_back(*mapping);
  EXPECT_TRUE(reader.problem().empty());
  ASSERT_FALSE(read.empty());
  EXPECT_EQ(read[0].begin, reinterpret_cast<uint64_t>(memory.data()));
  MappingReader text(reinterpret_cast<uint64_t>(memory.data()), MappingReader::Source::kText);
  for (const MemoryMapping& mapping : read) {
    const auto line = text.next();
    ASSERT_TRUE(line);
    if (line->begin != mapping.begin) break;  // the reading itself allocates
    EXPECT_EQ(line->end, mapping.end);
    EXPECT_EQ(line->offset, mapping.offset);
    EXPECT_EQ(line->inode, mapping.inode);
    EXPECT_EQ(line->device, mapping.device);
    EXPECT_EQ(line->shared, mapping.shared);
    EXPECT_EQ(line->name, mapping.name);
  }
}

}  // namespace
}  // namespace towline
