// Whether the keys' files are others than before: one look asks the file system for their times and numbers, and reads
// nothing.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>

#include "secure/keys.h"

namespace towline::secure {

class FilesLook {
 public:
  static FilesLook at(const Keys::Files& files) noexcept;

  bool operator==(const FilesLook&) const = default;
  // Throws Error where one is there and no plain file: opening it might wait.
  void check_plain(const Keys::Files& files) const;
  [[nodiscard]] bool plain() const noexcept;
  // One has changed so shortly before `now_ns` (of the wall clock) that another change may have left its time as it is.
  [[nodiscard]] bool fresh(int64_t now_ns) const noexcept;

 private:
  struct File {
    bool operator==(const File&) const = default;
    int error = 0;  // an errno
    mode_t type = 0;
    dev_t device = 0;
    ino_t number = 0;
    off_t bytes = 0;
    // Its content, or its number of links, owner or rights. No program can set this time.
    int64_t changed_ns = 0;
  };
  std::array<File, 4> files_{};  // as in Keys::kSettings
};

// A file system that asks another host or process, which may not answer.
bool waits_for_others(uint64_t file_system_type) noexcept;
bool lie_where_looking_may_wait(const Keys::Files& files) noexcept;

}  // namespace towline::secure
