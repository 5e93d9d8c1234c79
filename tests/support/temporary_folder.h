// A folder that is gone with it.
#pragma once

#include <stdlib.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>

namespace towline::support {

class TemporaryFolder {
 public:
  // Below the current folder: a build folder is on a real file system, where direct I/O and extended
  // attributes are to be had.
  TemporaryFolder() : TemporaryFolder(std::filesystem::current_path()) {}
  // For sockets, whose paths must be short: "/tmp".
  explicit TemporaryFolder(const std::filesystem::path& parent) {
    std::string pattern = (parent / "towline-test-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr)
      throw std::system_error(errno, std::generic_category(), pattern);
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace towline::support
