#include "team.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>

#include "bare.h"

namespace bench {

size_t Team::bytes(int ranks) { return sizeof(Board) + Bare::bytes(ranks); }

Team::Team(const std::string& name, int rank, int ranks) : rank_(rank), ranks_(ranks) {
  const int fd = ::shm_open(name.c_str(), O_RDWR, 0);
  memory_ = fd < 0 ? MAP_FAILED : ::mmap(nullptr, bytes(ranks), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (fd >= 0) ::close(fd);
  if (memory_ == MAP_FAILED) throw std::runtime_error("cannot map the team's shared memory " + name);
}

Team::~Team() { ::munmap(memory_, bytes(ranks_)); }

void Team::meet() {
  Board& all = board();
  const uint32_t generation = all.generation.load(std::memory_order_acquire);
  if (all.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<uint32_t>(ranks_)) {
    all.arrived.store(0, std::memory_order_relaxed);
    all.generation.store(generation + 1, std::memory_order_release);
    return;
  }
  while (all.generation.load(std::memory_order_acquire) == generation) sched_yield();
}

uint64_t Team::agree(uint64_t value) {
  board().calls[rank_] = value;
  meet();
  const uint64_t most = *std::max_element(board().calls, board().calls + ranks_);
  meet();
  return most;
}

}  // namespace bench
