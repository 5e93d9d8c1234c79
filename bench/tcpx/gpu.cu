#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <stdexcept>

#include "gpu.h"

namespace bench::tcpx {
namespace {

constexpr int kThreads = 512;

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorName(error));
}

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <class Unit>
__device__ void copy_units(const Piece& piece, uint32_t lane) {
  auto* const to = reinterpret_cast<Unit*>(piece.to);
  const auto* const from = reinterpret_cast<const Unit*>(piece.from);
  const auto units = static_cast<uint32_t>(piece.bytes / sizeof(Unit));
  for (uint32_t first = lane; first < units; first += 8 * 32) {
    Unit data[8];
#pragma unroll
    for (uint32_t k = 0; k < 8; ++k)
      if (first + k * 32 < units) data[k] = from[first + k * 32];
#pragma unroll
    for (uint32_t k = 0; k < 8; ++k)
      if (first + k * 32 < units) to[first + k * 32] = data[k];
  }
}

__global__ void __launch_bounds__(kThreads)
    gather(const Piece* list, uint32_t pieces, uint32_t* arrivals, uint64_t* flag, uint64_t value) {
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t warps = gridDim.x * (blockDim.x / 32);
  for (uint32_t i = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; i < pieces; i += warps) {
    const Piece piece = list[i];
    const uint64_t bits = piece.to | piece.from | piece.bytes;
    if ((bits & 15) == 0)
      copy_units<uint4>(piece, lane);
    else if ((bits & 3) == 0)
      copy_units<uint32_t>(piece, lane);
    else
      copy_units<uint8_t>(piece, lane);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence_system();
  if (atomicAdd(arrivals, 1u) != gridDim.x - 1) return;
  *arrivals = 0;
  __threadfence_system();
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
}

}  // namespace

struct Gather::State {
  Piece* list = nullptr;
  bool pinned = false;
  uint32_t pieces = 0;
  uint32_t blocks = 1;
  uint32_t* arrivals = nullptr;
  uint64_t* flag = nullptr;
  uint64_t value = 0;
  cudaStream_t stream = nullptr;
};

bool there_is_a_gpu() {
  int gpus = 0;
  return cudaGetDeviceCount(&gpus) == cudaSuccess && gpus > 0;
}

std::string gpu_name() {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 0), "properties");
  return properties.name;
}

uint64_t allocate(uint64_t bytes) {
  void* pointer = nullptr;
  check(cudaMalloc(&pointer, bytes), "cudaMalloc");
  check(cudaMemset(pointer, 0, bytes), "cudaMemset");
  check(cudaDeviceSynchronize(), "synchronize");
  return reinterpret_cast<uint64_t>(pointer);
}

void write(uint64_t address, const void* from, uint64_t bytes) {
  check(cudaMemcpy(reinterpret_cast<void*>(address), from, bytes, cudaMemcpyDefault), "cudaMemcpy");
}
void read(void* to, uint64_t address, uint64_t bytes) {
  check(cudaMemcpy(to, reinterpret_cast<const void*>(address), bytes, cudaMemcpyDefault), "cudaMemcpy");
}

Gather::Gather(const std::vector<Piece>& list, bool pinned) : state_(new State) {
  State& state = *state_;
  state.pieces = static_cast<uint32_t>(list.size());
  int processors = 1;
  check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0), "attribute");
  state.blocks = std::clamp<uint32_t>((state.pieces + kThreads / 32 - 1) / (kThreads / 32), 1,
                                      static_cast<uint32_t>(4 * processors));
  const std::size_t bytes = std::max<std::size_t>(1, list.size()) * sizeof(Piece);
  state.pinned = pinned;
  check(pinned ? cudaHostAlloc(&state.list, bytes, cudaHostAllocMapped) : cudaMalloc(&state.list, bytes),
        "memory of the list");
  check(cudaMemcpy(state.list, list.data(), list.size() * sizeof(Piece), cudaMemcpyDefault), "cudaMemcpy");
  check(cudaMalloc(&state.arrivals, sizeof *state.arrivals), "cudaMalloc");
  check(cudaMemset(state.arrivals, 0, sizeof *state.arrivals), "cudaMemset");
  check(cudaHostAlloc(&state.flag, sizeof *state.flag, cudaHostAllocMapped), "cudaHostAlloc");
  *state.flag = 0;
  check(cudaStreamCreateWithFlags(&state.stream, cudaStreamNonBlocking), "stream");
  check(cudaDeviceSynchronize(), "synchronize");
}

Gather::~Gather() {
  cudaStreamDestroy(state_->stream);
  state_->pinned ? cudaFreeHost(state_->list) : cudaFree(state_->list);
  cudaFree(state_->arrivals);
  cudaFreeHost(state_->flag);
  delete state_;
}

double Gather::run() {
  State& state = *state_;
  const double begun = now_s();
  gather<<<state.blocks, kThreads, 0, state.stream>>>(state.list, state.pieces, state.arrivals, state.flag,
                                                      ++state.value);
  const std::atomic_ref<uint64_t> flag(*state.flag);
  while (flag.load(std::memory_order_acquire) != state.value)
    if (now_s() > begun + 10) throw std::runtime_error("the plain kernel does not end");
  const double seconds = now_s() - begun;
  check(cudaGetLastError(), "launch");
  return seconds;
}

}  // namespace bench::tcpx
