// The ranks of one measurement: processes that the parent started, and the memory it shares with them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace bench {

constexpr int kMostRanks = 64;
constexpr int kMostContenders = 4;
constexpr int kMostRounds = 256;

// At the front of the shared memory.
struct Board {
  alignas(128) std::atomic<uint32_t> arrived;
  alignas(128) std::atomic<uint32_t> generation;
  std::atomic<uint32_t> failed;  // ranks that found a wrong result or an error
  double samples_us[kMostContenders][kMostRounds][kMostRanks];
  uint64_t calls[kMostRanks];
};

class Team {
 public:
  // `name`: of shared memory (shm_open) of at least `bytes(ranks)` zeroed bytes.
  Team(const std::string& name, int rank, int ranks);
  Team(const Team&) = delete;
  ~Team();
  static size_t bytes(int ranks);

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  Board& board() const { return *static_cast<Board*>(memory_); }
  // For the bare program.
  void* bare_memory() const { return static_cast<uint8_t*>(memory_) + sizeof(Board); }
  // Outside of what is timed; sleeps rather than spins for long.
  void meet();
  // The largest of what all ranks give.
  uint64_t agree(uint64_t value);

 private:
  const int rank_;
  const int ranks_;
  void* memory_;
};

}  // namespace bench
