// Helpers of the storage fault tests: folders, mounts, quiet agents, and running a transfer to its end.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "support/temporary_folder.h"
#include "towline/storage.hpp"
#include "towline/towline.hpp"

namespace towline::faults {

using namespace std::chrono_literals;

// A folder that may become a small file system of its own.
class Folder : public support::TemporaryFolder {
 public:
  ~Folder() {
    if (mounted_) (void)::umount2(path().c_str(), MNT_DETACH);
  }
  // False: not allowed here.
  bool mount_small(const char* options) {
    mounted_ = ::mount("none", path().c_str(), "tmpfs", 0, options) == 0;
    return mounted_;
  }
  [[nodiscard]] bool make_read_only() const {
    return ::mount("none", path().c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, "size=1m") == 0;
  }

 private:
  bool mounted_ = false;
};

inline AgentOptions quiet(std::string config = {}) {
  AgentOptions options;
  options.listen = "none";
  options.config = std::move(config);
  return options;
}

inline Status run(const Transfer& transfer) {
  const Status posted = transfer.post();
  const Status outcome = posted == Status::kInProgress ? transfer.wait(30s) : posted;
  (void)transfer.wait_fenced(Fence::kBoth, 30s);
  return outcome;
}

inline void make_file(const std::string& path, size_t bytes, char value = 'a') {
  const int fd = ::open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600);
  ASSERT_GE(fd, 0) << path;
  const std::vector<char> contents(bytes, value);
  ASSERT_EQ(::write(fd, contents.data(), bytes), static_cast<ssize_t>(bytes));
  ::close(fd);
}

// The error of registering; empty when it works.
inline std::pair<Status, std::string> refusal(const Agent& agent, const std::string& uri,
                                              StorageOptions options = {}) {
  try {
    (void)agent.register_storage(uri, options);
    return {Status::kOk, {}};
  } catch (const Error& error) {
    return {error.code(), error.what()};
  }
}

}  // namespace towline::faults
