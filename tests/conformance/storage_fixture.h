// Joins a way of storing to the storage suite: an agent whose files go that way, and files with known
// contents.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "support/azure_server.h"
#include "support/directed.h"
#include "support/s3_server.h"
#include "support/stamps.h"
#include "support/temporary_folder.h"
#include "towline/storage.hpp"
#include "towline/towline.hpp"

namespace towline::conformance {

using namespace std::chrono_literals;
using support::first_difference;
using support::stamp_bytes;

// Longer where storage is slow for reasons that are not under test, such as an emulated host.
inline const std::chrono::seconds kPatience{std::getenv("STORAGE_TEST_PATIENCE_S") == nullptr
                                                ? 30
                                                : std::atoi(std::getenv("STORAGE_TEST_PATIENCE_S"))};

struct Store {
  const char* name;    // in the test's name
  const char* config;  // TOML
  bool direct = false;
  bool is_object = false;
  const char* scheme = "file";
};

inline void PrintTo(const Store& store, std::ostream* out) { *out << store.name; }

// Backends over vendors' libraries, each with a fake of the library.
#define TOWLINE_GDS "plugins = \"gds\"\n[gds]\nlibrary = \"" TOWLINE_FAKE_CUFILE "\"\n[tuning.gds]\n"
#define TOWLINE_NIXL "plugins = \"nixl\"\n[nixl]\nlibrary = \"" TOWLINE_FAKE_NIXL "\"\n[tuning.nixl]\n"
#define TOWLINE_HF3FS "plugins = \"hf3fs\"\n[hf3fs]\nlibrary = \"" TOWLINE_FAKE_USRBIO "\"\n[tuning.hf3fs]\n"

// Every way bytes can take to a file today. A new backend, or a new path of one, joins here.
inline const Store kStores[] = {
    {"auto", ""},
    {"auto_never_inline", "[tuning.posix]\ninline_bytes = 0\nparallel_bytes = 0\n"},
    {"uring", "[tuning.posix]\nengine = \"uring\"\nqueue_depth = 16\n"},
    {"uring_polled", "[tuning.posix]\nengine = \"uring\"\nsqpoll = true\n"},
    {"uring_registered",
     "[tuning.posix]\nengine = \"uring\"\nregister_files = true\nregister_buffers = true\n"},
    {"aio", "[tuning.posix]\nengine = \"aio\"\n"},
    {"threads", "[tuning.posix]\nengine = \"threads\"\n"},
    {"pread", "[tuning.posix]\nengine = \"pread\"\n"},
    {"auto_direct", "", true},
    {"uring_direct", "[tuning.posix]\nengine = \"uring\"\nqueue_depth = 8\n", true},
    {"uring_registered_direct",
     "[tuning.posix]\nengine = \"uring\"\nregister_files = true\nregister_buffers = true\n", true},
    {"aio_direct", "[tuning.posix]\nengine = \"aio\"\nqueue_depth = 8\n", true},
    {"threads_direct", "[tuning.posix]\nengine = \"threads\"\n", true},
    {"pread_direct", "[tuning.posix]\nengine = \"pread\"\n", true},
    {"object", "part = \"5MiB\"\nmultipart = \"6MiB\"\n", false, true, "s3"},
    {"gcs", "part = \"5MiB\"\nmultipart = \"6MiB\"\n", false, true, "gs"},
    {"azure", "part = \"5MiB\"\nmultipart = \"6MiB\"\n", false, true, "az"},
    {"gds", TOWLINE_GDS, false, false, "gds"},
    {"gds_small_pieces", TOWLINE_GDS "batch = 4\npiece = \"64KiB\"\n", false, false, "gds"},
    {"gds_calls", TOWLINE_GDS "mode = \"calls\"\n", false, false, "gds"},
    {"hf3fs", TOWLINE_HF3FS, false, false, "hf3fs"},
    {"nixl", TOWLINE_NIXL, false, false, "nixl"},
    {"nixl_small_pieces", TOWLINE_NIXL "batch = 4\npiece = \"64KiB\"\n", false, false, "nixl"},
    {"hf3fs_small_pieces", TOWLINE_HF3FS "batch = 4\npiece = \"64KiB\"\n", false, false, "hf3fs"},
};

// With NIXL's own plugin for files, if TOWLINE_TEST_NIXL_PLUGIN is its path and TOWLINE_TEST_NIXL_PARAMETERS, which may be
// empty, what it is told.
inline std::vector<Store> stores() {
  std::vector<Store> all(std::begin(kStores), std::end(kStores));
  const char* const plugin = std::getenv("TOWLINE_TEST_NIXL_PLUGIN");
  if (plugin == nullptr) return all;
  const char* const parameters = std::getenv("TOWLINE_TEST_NIXL_PARAMETERS");
  static const std::string config = std::string("plugins = \"nixl\"\n[nixl]\nlibrary = \"") + plugin +
                                    "\"\nparameters = \"" + (parameters == nullptr ? "" : parameters) +
                                    "\"\n";
  all.push_back({"nixl_given", config.c_str(), false, false, "nixl"});
  return all;
}

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

// A store's files or objects, reached past the agent under test.
class Place {
 public:
  virtual ~Place() = default;
  [[nodiscard]] virtual std::string uri(const std::string& name) const = 0;
  virtual void put(const std::string& name, const std::vector<std::byte>& contents) = 0;
  [[nodiscard]] virtual std::vector<std::byte> get(const std::string& name) const = 0;
  // The names of everything there, including hidden files.
  [[nodiscard]] virtual std::vector<std::string> names() const = 0;
  [[nodiscard]] virtual std::string config() const { return {}; }
};

class FolderPlace final : public Place {
 public:
  explicit FolderPlace(std::string scheme = "file") : scheme_(std::move(scheme)) {}
  [[nodiscard]] std::string uri(const std::string& name) const override { return scheme_ + ":" + path(name); }
  void put(const std::string& name, const std::vector<std::byte>& contents) override {
    write_file(path(name), contents);
  }
  [[nodiscard]] std::vector<std::byte> get(const std::string& name) const override {
    return read_file(path(name));
  }
  [[nodiscard]] std::vector<std::string> names() const override {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path()))
      found.push_back(entry.path().filename());
    return found;
  }
  [[nodiscard]] std::string path(const std::string& name) const { return folder_ / name; }

 private:
  const std::string scheme_;
  support::TemporaryFolder folder_;
};

// Keys below a separate prefix, in the bucket of a server that all tests share. Throws if there is no server.
class BucketPlace final : public Place {
 public:
  explicit BucketPlace(const std::string& scheme = "s3")
      : scheme_(scheme), prefix_(scheme + "://bucket/" + std::to_string(++made_) + "/") {}
  [[nodiscard]] std::string uri(const std::string& name) const override { return prefix_ + name; }
  void put(const std::string& name, const std::vector<std::byte>& contents) override {
    std::vector<std::byte> copy = contents;
    const Region object = other_.register_storage(
        uri(name), {.create = true, .truncate = true, .bytes = std::max<uint64_t>(contents.size(), 1)});
    move(Op::write, copy, object);
  }
  [[nodiscard]] std::vector<std::byte> get(const std::string& name) const override {
    std::vector<std::byte> contents(other_.query_storage(uri(name)).bytes);
    move(Op::read, contents, other_.register_storage(uri(name)));
    return contents;
  }
  [[nodiscard]] std::vector<std::string> names() const override {
    std::vector<std::string> found;
    for (const StorageEntry& entry : other_.list_storage(prefix_))
      found.push_back(entry.uri.substr(prefix_.size()));
    return found;
  }
  [[nodiscard]] std::string config() const override {
    if (scheme_ == "az") return support::AzureServer::config(azure().port());
    return support::S3Server::config(server().url(), {}, scheme_ == "gs" ? "gcs" : "object");
  }
  // Empty: the server of this scheme is here.
  [[nodiscard]] static std::string missing(const std::string& scheme) {
    if (scheme == "az") return support::AzureServer::program().empty() ? support::AzureServer::kMissing : "";
    return support::S3Server::program().empty() ? support::S3Server::kMissing : "";
  }

 private:
  static support::S3Server& server() {
    static support::S3Server server;
    return server;
  }
  static support::AzureServer& azure() {
    static support::AzureServer server;
    return server;
  }
  void move(Op op, std::vector<std::byte>& contents, const Region& object) const {
    const Region memory =
        other_.register_memory(dram(contents.data(), contents.size()), {.access = Access::kAll});
    const Transfer transfer =
        directed(other_, op, other_.block_list(Blocks::at(contents.data(), contents.size())),
                 other_.block_list(object.blocks(0, contents.size())));
    Status status = transfer.post();
    if (status == Status::kInProgress) status = transfer.wait(60s);
    if (is_error(status))
      throw Error(status, std::string(op == Op::read ? "reading: " : "writing: ") + status_name(status));
  }

  static inline int made_ = 0;
  const std::string scheme_;
  const std::string prefix_;
  const Agent other_{"other", {.listen = "none", .config = config(), .default_timeout = 60s}};
};

// An agent with memory, and a place.
class StorageTest : public ::testing::TestWithParam<Store> {
 protected:
  static constexpr uint64_t kBytes = 8 << 20;

  void SetUp() override {
    if (GetParam().is_object) {
      if (const std::string missing = BucketPlace::missing(GetParam().scheme); !missing.empty())
        GTEST_SKIP() << missing;
      place_ = std::make_unique<BucketPlace>(GetParam().scheme);
    } else {
      auto folder = std::make_unique<FolderPlace>(GetParam().scheme);
      folder_ = folder.get();
      place_ = std::move(folder);
    }
    agent_ = std::make_unique<Agent>("store", agent_options());
    // Not aligned to anything on purpose: direct I/O has to cope.
    memory_.resize(kBytes + 4096);
    region_ = std::make_unique<Region>(
        agent_->register_memory(dram(memory_.data(), memory_.size()), {.access = Access::kAll}));
    why_not_ = reason_against();
    if (!why_not_.empty()) GTEST_SKIP() << why_not_;
  }

  [[nodiscard]] AgentOptions agent_options() const {
    AgentOptions options;
    options.listen = "none";
    options.config = place_->config() + GetParam().config;
    options.default_timeout = kPatience;
    return options;
  }

  // Empty: this way can be had here.
  std::string reason_against() {
    place_->put("probe", std::vector<std::byte>(4096));
    try {
      const Region file = open("probe");
      (void)agent_->transfer(in_file(file, 0, 4096), in_memory(0, 4096));
      return {};
    } catch (const Error& error) {
      return error.what();
    }
  }

  [[nodiscard]] Region open(const std::string& name, StorageOptions options = {}) {
    options.direct = GetParam().direct;
    return agent_->register_storage(place_->uri(name), options);
  }
  [[nodiscard]] BlockList in_memory(uint64_t offset, uint64_t bytes) {
    return agent_->block_list(Blocks::at(memory_.data() + offset, bytes));
  }
  [[nodiscard]] BlockList in_file(const Region& file, uint64_t offset, uint64_t bytes) {
    return agent_->block_list(file.blocks(offset, bytes));
  }
  static Status run(const Transfer& transfer) {
    const Status posted = transfer.post();
    return posted == Status::kInProgress ? transfer.wait(kPatience) : posted;
  }
  Status move(Op op, uint64_t memory_offset, const Region& file, uint64_t file_offset, uint64_t bytes) {
    return run(directed(*agent_, op, in_memory(memory_offset, bytes), in_file(file, file_offset, bytes)));
  }
  // Something with stamped contents; a file that is not `cached` is not in the page cache any more, as far as
  // the kernel is willing.
  void make_file(const std::string& name, uint64_t bytes, uint64_t seed, bool cached = true) {
    std::vector<std::byte> contents(bytes);
    stamp_bytes(contents.data(), bytes, seed);
    place_->put(name, contents);
    if (cached || folder_ == nullptr) return;
    const int fd = ::open(folder_->path(name).c_str(), O_RDONLY);
    (void)::fdatasync(fd);
    (void)::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    ::close(fd);
  }

  std::unique_ptr<Place> place_;
  FolderPlace* folder_ = nullptr;  // null: objects
  std::vector<std::byte> memory_;
  std::unique_ptr<Agent> agent_;
  std::unique_ptr<Region> region_;
  std::string why_not_;
};

// For tests of things that only files can do.
#define FILES_ONLY(why) \
  if (GetParam().is_object) GTEST_SKIP() << "objects: " << (why)

}  // namespace towline::conformance
