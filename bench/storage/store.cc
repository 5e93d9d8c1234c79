#include "store.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace bench {
namespace {

constexpr std::size_t kHugePage = 2 << 20;
constexpr std::size_t kCheckedBytes = 64 << 20;

[[noreturn]] void fail(const std::string& what) {
  throw std::runtime_error(what + ": " + std::strerror(errno));
}

}  // namespace

Store::Store(const std::string& folder, std::size_t span, std::size_t fill_bytes, bool direct)
    : path_(folder + "/towline-bench-storage-" + std::to_string(::getpid())), span_(span), direct_(direct) {
  fd_ = ::open(path_.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
  if (fd_ < 0) fail("making " + path_);
  const std::vector<std::byte> zeros(fill_bytes);  // what is written at once is cached as one piece
  for (std::size_t at = 0; at < span_; at += zeros.size()) {
    const std::size_t bytes = std::min(zeros.size(), span_ - at);
    if (::pwrite(fd_, zeros.data(), bytes, static_cast<off_t>(at)) != static_cast<ssize_t>(bytes))
      fail("filling " + path_);
  }
  if (::fdatasync(fd_) != 0) fail("writing " + path_);
  if (direct_) {
    (void)::posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED);
    ::close(fd_);
    fd_ = ::open(path_.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC);
    if (fd_ < 0) fail("opening " + path_ + " for direct I/O");
  }
  pages_ = Memory::anonymous(span_ + kHugePage);
  const auto address = reinterpret_cast<std::uintptr_t>(pages_.data());
  memory_ = pages_.data() + (kHugePage - address % kHugePage) % kHugePage;
  // Dropped and touched again, this time as huge pages: where buffers lie then matters less to direct I/O.
  (void)::madvise(memory_, span_, MADV_DONTNEED);
  (void)::madvise(memory_, span_, MADV_HUGEPAGE);
  std::memset(memory_, 1, span_);
}

Store::~Store() {
  if (fd_ >= 0) ::close(fd_);
  (void)::unlink(path_.c_str());
}

// The file as memory, for stamps; with direct I/O nothing of that stays in the page cache.
template <class Work>
void Store::with_mapping(Work work) {
  const int fd = ::open(path_.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) fail("opening " + path_);
  void* mapping = ::mmap(nullptr, span_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (mapping == MAP_FAILED) fail("mapping " + path_);
  work(static_cast<std::byte*>(mapping));
  ::munmap(mapping, span_);
  if (direct_) {
    (void)::fdatasync(fd);
    (void)::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  }
  ::close(fd);
}

void Store::stamp(const std::vector<std::uint64_t>& blocks, std::size_t block, std::uint64_t epoch) {
  with_mapping([&](std::byte* base) { stamp_blocks(base, blocks, block, epoch); });
}

std::size_t Store::count_wrong(const std::vector<std::uint64_t>& blocks, std::size_t block,
                               std::uint64_t epoch) {
  std::size_t wrong = 0;
  with_mapping([&](std::byte* base) { wrong = count_wrong_blocks(base, blocks, block, epoch); });
  return wrong;
}

// ---- contenders

void StoreContender::prepare(const Cell& cell, const BlockLists& lists) {
  cell_ = cell;
  lists_ = lists;
  prepare_cell();
}

double StoreContender::run(std::uint64_t iterations) {
  const int warm_ups = cell_.bytes() <= (8 << 20) ? 2 : 0;
  for (int i = 0; i < warm_ups; ++i) run_once();
  const double start = now_s();
  for (std::uint64_t i = 0; i < iterations; ++i) run_once();
  return now_s() - start;
}

std::vector<std::uint64_t> StoreContender::checked(const std::vector<std::uint64_t>& blocks) const {
  const std::size_t count = std::clamp<std::size_t>(kCheckedBytes / cell_.block, 1, blocks.size());
  return {blocks.begin(), blocks.begin() + static_cast<std::ptrdiff_t>(count)};
}

void StoreContender::stamp_source(std::uint64_t epoch) {
  if (cell_.op == Op::kRead)
    store_.stamp(checked(lists_.remote), cell_.block, epoch);
  else
    stamp_blocks(store_.memory(), checked(lists_.local), cell_.block, epoch);
}

std::size_t StoreContender::verify(std::uint64_t epoch) {
  if (cell_.op == Op::kWrite) return store_.count_wrong(checked(lists_.remote), cell_.block, epoch);
  return count_wrong_blocks(store_.memory(), checked(lists_.local), cell_.block, epoch);
}

}  // namespace bench
