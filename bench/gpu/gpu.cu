#include "gpu.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <new>
#include <stdexcept>

namespace bench::gpu {

namespace {

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorName(error));
}

// One for each GPU and thread.
cudaStream_t stream() {
  thread_local cudaStream_t made[64] = {};
  int gpu = 0;
  check(cudaGetDevice(&gpu), "cudaGetDevice");
  if (made[gpu] == nullptr) check(cudaStreamCreateWithFlags(&made[gpu], cudaStreamNonBlocking), "stream");
  return made[gpu];
}

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

__global__ void stamp_words(uint64_t* words, uint64_t count, uint64_t seed) {
  const uint64_t step = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step)
    words[i] = seed * 0x9e3779b97f4a7c15ull ^ i * 0xbf58476d1ce4e5b9ull;
}

// As many threads to a page as it has work for: up to a whole block, and no fewer than a warp.
__global__ void __launch_bounds__(1024)
    copy_pages(const Pair* list, uint64_t pairs, uint32_t units, uint32_t threads, uint32_t* arrivals,
               uint64_t* flag, uint64_t value) {
  const uint32_t lane = threadIdx.x % threads;
  const uint32_t teams = blockDim.x / threads;
  const uint64_t step = uint64_t{gridDim.x} * teams;
  for (uint64_t p = uint64_t{blockIdx.x} * teams + threadIdx.x / threads; p < pairs; p += step) {
    auto* const to = reinterpret_cast<uint4*>(list[p].to);
    const auto* const from = reinterpret_cast<const uint4*>(list[p].from);
    for (uint32_t i = lane; i < units; i += 4 * threads) {
      uint4 data[4];
#pragma unroll
      for (int k = 0; k < 4; ++k)
        if (i + k * threads < units) data[k] = __ldcs(from + i + k * threads);
#pragma unroll
      for (int k = 0; k < 4; ++k)
        if (i + k * threads < units) __stcs(to + i + k * threads, data[k]);
    }
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence_system();
  if (atomicAdd(arrivals, 1u) != gridDim.x - 1) return;
  *arrivals = 0;
  __threadfence_system();
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
}

__global__ void compare_pages(const Pair* list, uint64_t pairs, uint64_t words, uint64_t* wrong) {
  for (uint64_t p = blockIdx.x; p < pairs; p += gridDim.x) {
    const auto* const to = reinterpret_cast<const uint64_t*>(list[p].to);
    const auto* const from = reinterpret_cast<const uint64_t*>(list[p].from);
    for (uint64_t i = threadIdx.x; i < words; i += blockDim.x)
      if (to[i] != from[i]) atomicAdd(reinterpret_cast<unsigned long long*>(wrong), 1ull);
  }
}

// One of 19 whole numbers, in another mix for each rank.
__device__ float number_of(uint32_t rank, uint64_t i) {
  const uint32_t mixed = static_cast<uint32_t>(i) * 2654435761u + rank * 2246822519u;
  return static_cast<float>(static_cast<int>((mixed >> 16) % 19) - 9);
}

__global__ void number_floats(float* to, uint64_t count, uint32_t rank) {
  const uint64_t step = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step)
    to[i] = number_of(rank, i);
}

__global__ void count_wrong_numbers(const float* of, uint64_t count, Collective what, uint32_t rank,
                                    uint32_t size, uint64_t* wrong) {
  const uint64_t step = uint64_t{gridDim.x} * blockDim.x;
  const uint64_t part = what == Collective::kReduceScatter ? count : count / size;
  const uint64_t before = what == Collective::kAllReduce || what == Collective::kAllGather ? 0 : rank * part;
  uint64_t mine = 0;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    float right = 0;
    if (what == Collective::kAllReduce || what == Collective::kReduceScatter) {
      for (uint32_t each = 0; each < size; ++each) right += number_of(each, before + i);
    } else {
      right = number_of(static_cast<uint32_t>(i / part), before + i % part);
    }
    mine += of[i] == right ? 0 : 1;  // not a number is wrong, too
  }
  if (mine != 0) atomicAdd(reinterpret_cast<unsigned long long*>(wrong), mine);
}

constexpr int kPlainRanks = PlainAllReduce::kMostRanks;
constexpr int kPlainBlocks = PlainAllReduce::kMostBlocks;
constexpr int kPlainThreads = 256;

// A rank's words: how often its block has met the others, and what each other rank's block says of that.
struct PlainFlags {
  uint32_t met[kPlainBlocks];
  uint32_t from[kPlainRanks][kPlainBlocks];
};
struct PlainJob {
  const float4* in[kPlainRanks];
  float4* out;
  PlainFlags* flags;
  uint64_t packs;
  uint32_t rank;
};

template <int kRanks>
__device__ void meet_plainly(const PlainJob& job, uint32_t epoch) {
  __syncthreads();
  if (threadIdx.x < kRanks) {
    uint32_t* const there = &job.flags[threadIdx.x].from[job.rank][blockIdx.x];
    const uint32_t* const here = &job.flags[job.rank].from[threadIdx.x][blockIdx.x];
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(there), "r"(epoch) : "memory");
    uint32_t seen = 0;
    do asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(here) : "memory");
    while (static_cast<int32_t>(seen - epoch) < 0);
  }
  __syncthreads();
}

template <int kRanks>
__global__ void __launch_bounds__(kPlainThreads) plain_all_reduce(const __grid_constant__ PlainJob job) {
  uint32_t& met = job.flags[job.rank].met[blockIdx.x];
  const uint32_t epoch = met;
  meet_plainly<kRanks>(job, epoch + 1);
  const uint64_t step = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < job.packs; i += step) {
    float4 each[kRanks];
#pragma unroll
    for (int rank = 0; rank < kRanks; ++rank) each[rank] = job.in[rank][i];
    float4 sum = each[0];
#pragma unroll
    for (int rank = 1; rank < kRanks; ++rank) {
      sum.x += each[rank].x;
      sum.y += each[rank].y;
      sum.z += each[rank].z;
      sum.w += each[rank].w;
    }
    job.out[i] = sum;
  }
  meet_plainly<kRanks>(job, epoch + 2);
  if (threadIdx.x == 0) met = epoch + 2;
}

cudaEvent_t event(void* one) { return static_cast<cudaEvent_t>(one); }

}  // namespace

int count() {
  int gpus = 0;
  return cudaGetDeviceCount(&gpus) == cudaSuccess ? gpus : 0;
}

std::string name(int gpu) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, gpu), "properties");
  return properties.name;
}

void use(int gpu) { check(cudaSetDevice(gpu), "cudaSetDevice"); }

void reach(int gpu) {
  const cudaError_t error = cudaDeviceEnablePeerAccess(gpu, 0);
  if (error == cudaErrorPeerAccessAlreadyEnabled)
    cudaGetLastError();
  else
    check(error, "cudaDeviceEnablePeerAccess");
}

uint64_t allocate(uint64_t bytes) {
  void* pointer = nullptr;
  check(cudaMalloc(&pointer, bytes), "cudaMalloc");
  return reinterpret_cast<uint64_t>(pointer);
}

void* allocate_pinned(uint64_t bytes) {
  void* pointer = nullptr;
  check(cudaHostAlloc(&pointer, bytes, cudaHostAllocPortable | cudaHostAllocMapped), "cudaHostAlloc");
  return pointer;
}

void* allocate_pageable(uint64_t bytes) {
  auto* const words = static_cast<uint64_t*>(std::aligned_alloc(4096, bytes));
  if (words == nullptr) throw std::bad_alloc();
  for (uint64_t i = 0; i < bytes / 8; ++i) words[i] = i * 0xbf58476d1ce4e5b9ull;
  return words;
}

std::string export_handle(uint64_t address) {
  cudaIpcMemHandle_t handle{};
  check(cudaIpcGetMemHandle(&handle, reinterpret_cast<void*>(address)), "cudaIpcGetMemHandle");
  return {reinterpret_cast<const char*>(&handle), sizeof handle};
}

uint64_t import_handle(const std::string& bytes) {
  cudaIpcMemHandle_t handle{};
  bytes.copy(reinterpret_cast<char*>(&handle), sizeof handle);
  void* pointer = nullptr;
  check(cudaIpcOpenMemHandle(&pointer, handle, cudaIpcMemLazyEnablePeerAccess), "cudaIpcOpenMemHandle");
  return reinterpret_cast<uint64_t>(pointer);
}

void stamp(uint64_t address, uint64_t bytes, uint64_t seed) {
  stamp_words<<<1024, 256, 0, stream()>>>(reinterpret_cast<uint64_t*>(address), bytes / 8, seed);
  synchronize();
}

void fill(uint64_t address, uint64_t bytes, int byte) {
  check(cudaMemsetAsync(reinterpret_cast<void*>(address), byte, bytes, stream()), "cudaMemset");
  synchronize();
}

void write(uint64_t address, const void* from, uint64_t bytes) {
  check(cudaMemcpy(reinterpret_cast<void*>(address), from, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
}
void read(void* to, uint64_t address, uint64_t bytes) {
  check(cudaMemcpy(to, reinterpret_cast<const void*>(address), bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
}

void* native_stream() { return stream(); }

void synchronize() { check(cudaStreamSynchronize(stream()), "synchronize"); }

PageList::PageList(const std::vector<Pair>& pairs, uint64_t page_bytes)
    : page_bytes_(page_bytes), pairs_(pairs.size()), kept_(pairs) {
  check(cudaMalloc(&list_, pairs.size() * sizeof(Pair)), "cudaMalloc");
  check(cudaMemcpy(list_, pairs.data(), pairs.size() * sizeof(Pair), cudaMemcpyHostToDevice), "cudaMemcpy");
  check(cudaMalloc(&arrivals_, sizeof *arrivals_), "cudaMalloc");
  check(cudaMemset(arrivals_, 0, sizeof *arrivals_), "cudaMemset");
  check(cudaMalloc(&wrong_, sizeof *wrong_), "cudaMalloc");
  check(cudaHostAlloc(&flag_, sizeof *flag_, cudaHostAllocMapped), "cudaHostAlloc");
  *flag_ = 0;
  cudaStream_t own = nullptr;
  check(cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking), "stream");
  stream_ = own;
  check(cudaDeviceSynchronize(), "synchronize");
}

PageList::~PageList() {
  cudaStreamDestroy(static_cast<cudaStream_t>(stream_));
  cudaFree(list_);
  cudaFree(arrivals_);
  cudaFree(wrong_);
  cudaFreeHost(flag_);
}

void PageList::begin(int blocks) {
  copy_pages<<<blocks, 1024, 0, static_cast<cudaStream_t>(stream_)>>>(list_, pairs_, units(), team(),
                                                                      arrivals_, flag_, ++value_);
}

void PageList::wait() {
  const double begun = now_s();
  const std::atomic_ref<uint64_t> flag(*flag_);
  while (flag.load(std::memory_order_acquire) != value_) {
    if (now_s() > begun + 10) throw std::runtime_error("the bare kernel does not end");
  }
  check(cudaGetLastError(), "launch");
}

double PageList::copy(int blocks) {
  const double begun = now_s();
  begin(blocks);
  wait();
  return now_s() - begun;
}

double PageList::copy_by_calls(int to_gpu, int from_gpu) {
  const double begun = now_s();
  for (const Pair& pair : kept_)
    check(cudaMemcpyPeerAsync(reinterpret_cast<void*>(pair.to), to_gpu, reinterpret_cast<void*>(pair.from),
                              from_gpu, page_bytes_, stream()),
          "cudaMemcpyPeerAsync");
  synchronize();
  return now_s() - begun;
}

uint64_t PageList::differing_words() {
  check(cudaMemset(wrong_, 0, sizeof *wrong_), "cudaMemset");
  compare_pages<<<1024, 256, 0, stream()>>>(list_, pairs_, page_bytes_ / 8, wrong_);
  synchronize();
  uint64_t wrong = 0;
  check(cudaMemcpy(&wrong, wrong_, sizeof wrong, cudaMemcpyDeviceToHost), "cudaMemcpy");
  return wrong;
}

void number(uint64_t address, uint64_t floats, int rank) {
  number_floats<<<1024, 256, 0, stream()>>>(reinterpret_cast<float*>(address), floats,
                                            static_cast<uint32_t>(rank));
  check(cudaGetLastError(), "launch");
  synchronize();
}

uint64_t wrong_numbers(uint64_t address, uint64_t floats, Collective what, int rank, int size) {
  thread_local auto* const wrong = static_cast<uint64_t*>(allocate_pinned(sizeof(uint64_t)));
  *wrong = 0;
  count_wrong_numbers<<<1024, 256, 0, stream()>>>(reinterpret_cast<const float*>(address), floats, what,
                                                  static_cast<uint32_t>(rank), static_cast<uint32_t>(size),
                                                  wrong);
  check(cudaGetLastError(), "launch");
  synchronize();
  return *wrong;
}

PlainAllReduce::PlainAllReduce(int ranks) : ranks_(ranks) {
  if (ranks != 2 && ranks != 4 && ranks != kMostRanks)
    throw std::runtime_error("the plain kernel is for 2, 4 and 8 ranks");
  flags_ = allocate(sizeof(PlainFlags) * kMostRanks);
  fill(flags_, sizeof(PlainFlags) * kMostRanks, 0);
  synchronize();
}

PlainAllReduce::~PlainAllReduce() { cudaFree(reinterpret_cast<void*>(flags_)); }

void PlainAllReduce::set(int rank, uint64_t input, uint64_t output) {
  inputs_[rank] = input;
  outputs_[rank] = output;
}

void PlainAllReduce::put(void* stream, int rank, uint64_t bytes) const {
  PlainJob job{};
  for (int each = 0; each < ranks_; ++each) job.in[each] = reinterpret_cast<const float4*>(inputs_[each]);
  job.out = reinterpret_cast<float4*>(outputs_[rank]);
  job.flags = reinterpret_cast<PlainFlags*>(flags_);
  job.packs = bytes / sizeof(float4);
  job.rank = static_cast<uint32_t>(rank);
  const auto blocks = static_cast<unsigned>(std::min<uint64_t>(kMostBlocks, (bytes + 16383) / 16384));
  auto* const in = static_cast<cudaStream_t>(stream);
  if (ranks_ == 2)
    plain_all_reduce<2><<<blocks, kPlainThreads, 0, in>>>(job);
  else if (ranks_ == 4)
    plain_all_reduce<4><<<blocks, kPlainThreads, 0, in>>>(job);
  else
    plain_all_reduce<8><<<blocks, kPlainThreads, 0, in>>>(job);
  check(cudaGetLastError(), "launch");
}

Recording::Recording(const std::function<void(void* stream)>& body) {
  cudaEvent_t events[2] = {};
  for (cudaEvent_t& one : events) check(cudaEventCreate(&one), "cudaEventCreate");
  begun_ = events[0];
  ended_ = events[1];
  cudaGraph_t recorded = nullptr;
  cudaGraphExec_t ready = nullptr;
  check(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeRelaxed), "cudaStreamBeginCapture");
  body(stream());
  check(cudaStreamEndCapture(stream(), &recorded), "cudaStreamEndCapture");
  check(cudaGraphInstantiate(&ready, recorded, 0), "cudaGraphInstantiate");
  check(cudaGraphDestroy(recorded), "cudaGraphDestroy");
  check(cudaGraphUpload(ready, stream()), "cudaGraphUpload");
  synchronize();
  graph_ = ready;
}

Recording::~Recording() {
  cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph_));
  cudaEventDestroy(event(begun_));
  cudaEventDestroy(event(ended_));
}

double Recording::replay() {
  check(cudaEventRecord(event(begun_), stream()), "cudaEventRecord");
  check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph_), stream()), "cudaGraphLaunch");
  check(cudaEventRecord(event(ended_), stream()), "cudaEventRecord");
  check(cudaEventSynchronize(event(ended_)), "cudaEventSynchronize");
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, event(begun_), event(ended_)), "cudaEventElapsedTime");
  return milliseconds * 1e-3;
}

double copy_engine(uint64_t to, uint64_t from, uint64_t bytes) {
  const double begun = now_s();
  check(cudaMemcpyAsync(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes, cudaMemcpyDefault,
                        stream()),
        "cudaMemcpyAsync");
  synchronize();
  return now_s() - begun;
}

}  // namespace bench::gpu
