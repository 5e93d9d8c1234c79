// The GPU's side of the harness: memory, stamps, and the limits that transfers are held against.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace bench::gpu {

struct Pair {
  uint64_t to;
  uint64_t from;
};

int count();
std::string name(int gpu);
// Throw std::runtime_error on any error. Work on `gpu` until the next call.
void use(int gpu);
void reach(int gpu);  // from the GPU in use
uint64_t allocate(uint64_t bytes);
void* allocate_pinned(uint64_t bytes);
void* allocate_pageable(uint64_t bytes);      // stamped
std::string export_handle(uint64_t address);  // 64 bytes
uint64_t import_handle(const std::string& handle);
void stamp(uint64_t address, uint64_t bytes, uint64_t seed);  // each word by its place
void fill(uint64_t address, uint64_t bytes, int byte);
void write(uint64_t address, const void* from, uint64_t bytes);
void read(void* to, uint64_t address, uint64_t bytes);
void synchronize();
void* native_stream();  // of this thread

// A list of pages on the GPU in use, and the plain kernel over it. The end
// is a word in pinned memory, written by the last block, as a transfer's is.
class PageList {
 public:
  PageList(const std::vector<Pair>& pairs, uint64_t page_bytes);
  PageList(const PageList&) = delete;
  PageList& operator=(const PageList&) = delete;
  ~PageList();
  double copy(int blocks);  // seconds from the launch until the host sees the end
  // Seconds for a cudaMemcpyPeerAsync for each page, all on one stream, and a wait.
  double copy_by_calls(int to_gpu, int from_gpu);
  uint64_t differing_words();  // between each page and its source

  void begin(int blocks);  // to be waited for with wait()
  void wait();

 private:
  [[nodiscard]] uint32_t units() const noexcept { return static_cast<uint32_t>(page_bytes_ / 16); }
  [[nodiscard]] uint32_t team() const noexcept {
    uint32_t threads = 32;
    while (threads < 1024 && threads * 4 < units()) threads *= 2;
    return threads;
  }

  uint64_t page_bytes_;
  uint64_t pairs_;
  std::vector<Pair> kept_;
  Pair* list_ = nullptr;
  uint32_t* arrivals_ = nullptr;
  uint64_t* wrong_ = nullptr;
  uint64_t* flag_ = nullptr;
  uint64_t value_ = 0;
  void* stream_ = nullptr;  // its own
};

// Whole numbers, whose sums are exact: what ranks put into a collective of float32, and what comes of it.
enum class Collective { kAllReduce, kAllGather, kReduceScatter, kAllToAll };
void number(uint64_t address, uint64_t floats, int rank);
// Counts the wrong ones among a rank's `floats` of output, in which each rank has a part (all_reduce: everything).
uint64_t wrong_numbers(uint64_t address, uint64_t floats, Collective what, int rank, int size);

// A graph on the GPU, recorded from what a function puts into this thread's stream. It must not outlive that stream.
class Recording {
 public:
  explicit Recording(const std::function<void(void* stream)>& body);
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  ~Recording();
  double replay();  // seconds on the GPU's clock, until it ended

 private:
  void* graph_ = nullptr;
  void* begun_ = nullptr;
  void* ended_ = nullptr;
};

// What all_reduces of ranks that share the GPU in use are held against: each rank reads all inputs, between two barriers of flags. Blocks of
// 256 threads, 1 for 16 KiB up to 16.
class PlainAllReduce {
 public:
  static constexpr int kMostRanks = 8;
  static constexpr int kMostBlocks = 16;
  explicit PlainAllReduce(int ranks);
  PlainAllReduce(const PlainAllReduce&) = delete;
  PlainAllReduce& operator=(const PlainAllReduce&) = delete;
  ~PlainAllReduce();
  void set(int rank, uint64_t input, uint64_t output);  // before any rank puts
  void put(void* stream, int rank, uint64_t bytes) const;

 private:
  const int ranks_;
  uint64_t flags_ = 0;
  uint64_t inputs_[kMostRanks] = {};
  uint64_t outputs_[kMostRanks] = {};
};

double copy_engine(uint64_t to, uint64_t from, uint64_t bytes);  // seconds, by cudaMemcpyAsync and a wait

}  // namespace bench::gpu
