// The limit: a plain shared-memory program without checks, deadlines or handling of lost ranks; float32 sums
// only. Ranks spin, then yield.
#pragma once

#include <cstddef>
#include <cstdint>

namespace bench {

class Bare {
 public:
  static size_t bytes(int ranks);
  Bare(void* shared, int rank, int ranks);
  void barrier();
  void all_reduce(const float* in, float* out, size_t count);
  void reduce_scatter(const float* in, float* out, size_t count);  // of one rank
  void all_gather(const float* in, float* out, size_t count);      // of one rank
  void all_to_all(const float* in, float* out, size_t count);      // for one rank
  void broadcast(float* buffer, size_t count, int root);

 private:
  void sync();
  uint8_t* half(int rank) const;

  uint8_t* base_;
  int rank_;
  int ranks_;
  uint64_t phase_ = 0;
};

}  // namespace bench
