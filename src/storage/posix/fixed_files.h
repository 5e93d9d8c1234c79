// Descriptors that an io_uring knows beforehand, which saves it finding and counting the file for each
// operation. For one ring, under the worker's lock.
#pragma once

#ifdef TOWLINE_HAVE_LIBURING

#include <liburing.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace towline::posix {

class FixedFiles {
 public:
  // Nothing is attached where the kernel has no such table.
  void open(io_uring& ring) {
    if (io_uring_register_files_sparse(&ring, kFiles) != 0) return;
    for (int slot = kFiles; slot > 0; --slot) free_.push_back(slot - 1);
  }

  // Counts a use, also of a file for which the table has no room: each use is detached once, whatever it
  // found here, and a slot must outlive the last one that may name it. Throws std::bad_alloc, and has counted
  // nothing then.
  void attach(io_uring& ring, int fd) {
    if (files_.size() <= static_cast<size_t>(fd)) files_.resize(static_cast<size_t>(fd) + 1);
    File& file = files_[static_cast<size_t>(fd)];
    if (file.uses++ != 0 || free_.empty()) return;
    const int slot = free_.back();
    if (io_uring_register_files_update(&ring, static_cast<unsigned>(slot), &fd, 1) != 1) return;
    free_.pop_back();
    file.slot = slot;
  }

  void detach(io_uring& ring, int fd) noexcept {
    File& file = files_[static_cast<size_t>(fd)];
    if (--file.uses != 0 || file.slot < 0) return;
    const int none = -1;
    (void)io_uring_register_files_update(&ring, static_cast<unsigned>(file.slot), &none, 1);
    free_.push_back(std::exchange(file.slot, -1));  // within what was there once: no allocation
  }

  // The number to give instead of the descriptor, with IOSQE_FIXED_FILE; -1: it has no slot.
  [[nodiscard]] int slot_of(int fd) const noexcept {
    return static_cast<size_t>(fd) < files_.size() ? files_[static_cast<size_t>(fd)].slot : -1;
  }

 private:
  static constexpr int kFiles = 1024;

  struct File {
    int slot = -1;
    uint32_t uses = 0;
  };

  std::vector<File> files_;  // by descriptor
  std::vector<int> free_;
};

}  // namespace towline::posix

#endif
