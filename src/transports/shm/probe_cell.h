// Cells in which peers try process_vm: 16 bytes that one of them writes and reads back. A peer may do so late, when the
// connection is gone, so a cell is memory of its own that the process never frees. It is used again only after many others
// were, so that a late write doesn't spoil another peer's proof.
#pragma once

#include <cstdint>

namespace towline::shm {

class ProbeCell {
 public:
  ProbeCell();  // throws std::bad_alloc
  ~ProbeCell();
  ProbeCell(const ProbeCell&) = delete;
  ProbeCell& operator=(const ProbeCell&) = delete;
  [[nodiscard]] uint64_t address() const noexcept;

  struct Cell;

 private:
  Cell* cell_;
};

}  // namespace towline::shm
