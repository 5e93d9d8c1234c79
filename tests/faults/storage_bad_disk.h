// A file system of the tests' own (FUSE, served by a child process) whose one file goes wrong on demand: the
// device answers EIO for a stretch of it, can't write back, or says nothing for a while.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <string>

namespace towline::faults {

class BadDisk {
 public:
  // The state that the child polls; the test sets it at any time.
  struct Faults {
    std::atomic<uint64_t> read_begin{0};  // reading any byte of this stretch fails
    std::atomic<uint64_t> read_end{0};
    std::atomic<uint64_t> write_begin{0};  // writing any byte of this one
    std::atomic<uint64_t> write_end{0};
    std::atomic<uint32_t> sync_fails{0};
    std::atomic<uint32_t> reads_hang{0};  // until it is 0 again
    std::atomic<uint32_t> writes_hang{0};
    std::atomic<uint64_t> writes_hang_begin{0};  // those of any byte of this stretch
    std::atomic<uint64_t> writes_hang_end{UINT64_MAX};
    std::atomic<uint32_t> hanging{0};  // how many have hung
  };

  // `folder` is there and empty. See why_not().
  BadDisk(const std::string& folder, uint64_t file_bytes);
  BadDisk(const BadDisk&) = delete;
  BadDisk& operator=(const BadDisk&) = delete;
  ~BadDisk();

  // Not empty: it can't be had here, and why.
  [[nodiscard]] const std::string& why_not() const { return why_not_; }
  [[nodiscard]] std::string file() const { return folder_ + "/file"; }
  [[nodiscard]] Faults& faults() { return *faults_; }

 private:
  std::string folder_;
  std::string why_not_;
  Faults* faults_ = nullptr;
  pid_t child_ = -1;
};

}  // namespace towline::faults
