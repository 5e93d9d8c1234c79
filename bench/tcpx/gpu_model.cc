#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>

#include "gpu.h"

namespace bench::tcpx {

struct Gather::State {
  std::vector<Piece> list;
};

bool there_is_a_gpu() { return true; }
std::string gpu_name() { return "a model on processors: only the bytes mean something"; }

uint64_t allocate(uint64_t bytes) {
  void* const memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  if (memory == nullptr) throw std::bad_alloc();
  std::memset(memory, 0, bytes);
  return reinterpret_cast<uint64_t>(memory);
}

void write(uint64_t address, const void* from, uint64_t bytes) {
  std::memcpy(reinterpret_cast<void*>(address), from, bytes);
}
void read(void* to, uint64_t address, uint64_t bytes) {
  std::memcpy(to, reinterpret_cast<const void*>(address), bytes);
}

Gather::Gather(const std::vector<Piece>& list, bool) : state_(new State{list}) {}
Gather::~Gather() { delete state_; }

double Gather::run() {
  const auto begun = std::chrono::steady_clock::now();
  for (const Piece& piece : state_->list)
    std::memcpy(reinterpret_cast<void*>(piece.to), reinterpret_cast<const void*>(piece.from), piece.bytes);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
}

}  // namespace bench::tcpx
