// Joins a way of storing to the storage suite: an agent whose files go that way, and files with known
// contents.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "towline/storage.hpp"
#include "towline/towline.hpp"

namespace towline::conformance {

using namespace std::chrono_literals;

struct Store {
  const char* name;    // in the test's name
  const char* config;  // TOML
  bool direct = false;
};

inline void PrintTo(const Store& store, std::ostream* out) { *out << store.name; }

// Every way bytes can take to a file today. A new backend, or a new path of one, joins here.
inline const Store kStores[] = {
    {"auto", ""},
    {"auto_never_inline", "[posix]\ninline_bytes = 0\nparallel_bytes = 0\n"},
    {"uring", "[posix]\nengine = \"uring\"\nqueue_depth = 16\n"},
    {"uring_polled", "[posix]\nengine = \"uring\"\nsqpoll = true\n"},
    {"uring_registered", "[posix]\nengine = \"uring\"\nregister_files = true\nregister_buffers = true\n"},
    {"aio", "[posix]\nengine = \"aio\"\n"},
    {"threads", "[posix]\nengine = \"threads\"\n"},
    {"pread", "[posix]\nengine = \"pread\"\n"},
    {"auto_direct", "", true},
    {"uring_direct", "[posix]\nengine = \"uring\"\nqueue_depth = 8\n", true},
    {"uring_registered_direct",
     "[posix]\nengine = \"uring\"\nregister_files = true\nregister_buffers = true\n", true},
    {"aio_direct", "[posix]\nengine = \"aio\"\nqueue_depth = 8\n", true},
    {"threads_direct", "[posix]\nengine = \"threads\"\n", true},
    {"pread_direct", "[posix]\nengine = \"pread\"\n", true},
};

// What only this (seed, offset) gives, so that a misplaced or stale byte shows.
inline std::byte byte_at(uint64_t seed, uint64_t offset) {
  const uint64_t word = (seed * 0x9e3779b97f4a7c15ULL) ^ ((offset / 8) * 0xbf58476d1ce4e5b9ULL);
  return static_cast<std::byte>(word >> (offset % 8 * 8));
}
inline void stamp_bytes(std::byte* data, uint64_t bytes, uint64_t seed, uint64_t offset = 0) {
  for (uint64_t i = 0; i < bytes; ++i) data[i] = byte_at(seed, offset + i);
}
// The first offset that is not as stamped, or `bytes`.
inline uint64_t first_difference(const std::byte* data, uint64_t bytes, uint64_t seed, uint64_t offset = 0) {
  for (uint64_t i = 0; i < bytes; ++i) {
    if (data[i] != byte_at(seed, offset + i)) return i;
  }
  return bytes;
}

// A folder of its own below the current one: on a real file system, where direct I/O is to be had.
class Folder {
 public:
  Folder() {
    std::string pattern = (std::filesystem::current_path() / "storage-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error(std::strerror(errno));
    path_ = pattern;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline void write_file(const std::string& path, const std::vector<std::byte>& bytes) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  ASSERT_GE(fd, 0) << path << ": " << std::strerror(errno);
  ASSERT_EQ(::write(fd, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  ::close(fd);
}
inline std::vector<std::byte> read_file(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY);
  EXPECT_GE(fd, 0) << path << ": " << std::strerror(errno);
  struct stat found = {};
  EXPECT_EQ(::fstat(fd, &found), 0);
  std::vector<std::byte> bytes(static_cast<size_t>(found.st_size));
  EXPECT_EQ(::pread(fd, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  ::close(fd);
  return bytes;
}
inline std::string file_uri(const std::string& path) { return "file:" + path; }

// An agent with memory, and a folder.
class StorageTest : public ::testing::TestWithParam<Store> {
 protected:
  static constexpr uint64_t kBytes = 8 << 20;

  void SetUp() override {
    AgentOptions options;
    options.listen = "none";
    options.config = GetParam().config;
    options.default_timeout = 30s;
    agent_ = std::make_unique<Agent>("store", options);
    // Not aligned to anything on purpose: direct I/O has to cope.
    memory_.resize(kBytes + 4096);
    region_ = std::make_unique<Region>(agent_->register_memory(dram(memory_.data(), memory_.size())));
    why_not_ = reason_against();
    if (!why_not_.empty()) GTEST_SKIP() << why_not_;
  }

  // Empty: this way can be had here.
  std::string reason_against() {
    write_file(folder_ / "probe", std::vector<std::byte>(4096));
    try {
      const Region file = open("probe");
      (void)agent_->transfer(Op::read, in_memory(0, 4096), in_file(file, 0, 4096));
      return {};
    } catch (const Error& error) {
      return error.what();
    }
  }

  [[nodiscard]] Region open(const std::string& name, StorageOptions options = {}) {
    options.direct = GetParam().direct;
    return register_storage(*agent_, file_uri(folder_ / name), options);
  }
  [[nodiscard]] BlockList in_memory(uint64_t offset, uint64_t bytes) {
    return agent_->block_list(Blocks::at(memory_.data() + offset, bytes));
  }
  [[nodiscard]] BlockList in_file(const Region& file, uint64_t offset, uint64_t bytes) {
    return agent_->block_list(storage_blocks(file, offset, bytes));
  }
  static Status run(const Transfer& transfer) {
    const Status posted = transfer.post();
    return posted == Status::kInProgress ? transfer.wait(30s) : posted;
  }
  Status move(Op op, uint64_t memory_offset, const Region& file, uint64_t file_offset, uint64_t bytes) {
    return run(agent_->transfer(op, in_memory(memory_offset, bytes), in_file(file, file_offset, bytes)));
  }
  // A file with stamped contents that is not in the page cache any more, as far as the kernel is willing.
  void make_file(const std::string& name, uint64_t bytes, uint64_t seed, bool cached = true) {
    std::vector<std::byte> contents(bytes);
    stamp_bytes(contents.data(), bytes, seed);
    write_file(folder_ / name, contents);
    if (cached) return;
    const int fd = ::open((folder_ / name).c_str(), O_RDONLY);
    (void)::fdatasync(fd);
    (void)::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    ::close(fd);
  }

  Folder folder_;
  std::vector<std::byte> memory_;
  std::unique_ptr<Agent> agent_;
  std::unique_ptr<Region> region_;
  std::string why_not_;
};

}  // namespace towline::conformance
