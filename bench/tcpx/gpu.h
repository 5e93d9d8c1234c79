// The GPU's side of parts.cc, and what its copies are held against: kernels that know the whole list. gpu.cu is for a GPU,
// gpu_model.cc the same on processors, for memory of the host.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bench::tcpx {

struct Piece {
  uint64_t to = 0;
  uint64_t from = 0;
  uint64_t bytes = 0;
};

// Throw std::runtime_error.
[[nodiscard]] bool there_is_a_gpu();
[[nodiscard]] std::string gpu_name();
[[nodiscard]] uint64_t allocate(uint64_t bytes);  // on it; for the life of the process
void write(uint64_t address, const void* from, uint64_t bytes);
void read(void* to, uint64_t address, uint64_t bytes);

// One kernel over a list of pieces of any length, a warp a piece, whose last block tells the host by a word in pinned
// memory. An empty list: an empty launch. `pinned`: the list lies in pinned memory, as lists do that are made while data
// arrives, and not on the GPU.
class Gather {
 public:
  explicit Gather(const std::vector<Piece>& list, bool pinned = false);
  Gather(const Gather&) = delete;
  Gather& operator=(const Gather&) = delete;
  ~Gather();
  double run();  // seconds from the launch until the host sees the end

 private:
  struct State;
  State* const state_;
};

}  // namespace bench::tcpx
