#include "transports/shm/probe_cell.h"

#include <cstddef>
#include <mutex>

namespace towline::shm {

struct ProbeCell::Cell {
  alignas(16) uint64_t words[2] = {};  // the peer's
  Cell* next = nullptr;                // while it is free
};

namespace {

constexpr size_t kRestingCells = 4096;

// Free cells in the order in which they became free. Never destroyed, like the cells.
struct Pool {
  std::mutex mutex;
  ProbeCell::Cell* first = nullptr;
  ProbeCell::Cell* last = nullptr;
  size_t count = 0;
};

Pool& pool() {
  static auto& of_process = *new Pool;
  return of_process;
}

}  // namespace

ProbeCell::ProbeCell() {
  Pool& cells = pool();
  const std::lock_guard lock(cells.mutex);
  if (cells.count <= kRestingCells) {
    cell_ = new Cell;
    return;
  }
  cell_ = cells.first;
  cells.first = cell_->next;
  --cells.count;
}

ProbeCell::~ProbeCell() {
  Pool& cells = pool();
  const std::lock_guard lock(cells.mutex);
  cell_->next = nullptr;
  (cells.count == 0 ? cells.first : cells.last->next) = cell_;
  cells.last = cell_;
  ++cells.count;
}

uint64_t ProbeCell::address() const noexcept { return reinterpret_cast<uint64_t>(cell_->words); }

}  // namespace towline::shm
