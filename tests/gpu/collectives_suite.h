// Collectives on GPUs, over a real one or over a model: the same tests. Ranks are threads of this process, each with
// streams of its own, and every result is compared with the CPU backend's, bit for bit.
#pragma once

#include <gtest/gtest.h>

#include <barrier>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "gpu/kernel_device.h"
#include "towline/collectives_gpu.h"

namespace towline::gpu_test {

// The GPUs as the tests need them. Any thread.
class Platform {
 public:
  virtual ~Platform() = default;
  [[nodiscard]] virtual const char* backend() const = 0;
  // The calling thread is this rank from now on: what it makes lies on the rank's GPU.
  virtual void be(int rank) { (void)rank; }
  // So many ranks on one GPU do not stand in one another's way: the driver puts streams onto 32 queues at most, and a kernel
  // whose turn has not come holds up what other streams have behind it there.
  [[nodiscard]] virtual int most_ranks() const { return 1 << 10; }
  // Ranks have GPUs of their own, which don't reach one another's ordinary memory.
  [[nodiscard]] virtual bool spread() const { return false; }
  // A model's GPUs have few multiprocessors unless tests ask for as many as real ones have.
  virtual void enlarge(bool large) { (void)large; }
  virtual void* allocate(uint64_t bytes) = 0;
  virtual void release(void* memory) = 0;
  virtual void put(void* to, const void* from, uint64_t bytes) = 0;
  virtual void get(void* to, const void* from, uint64_t bytes) = 0;
  virtual void* make_stream() = 0;
  virtual void drain(void* stream) = 0;
  virtual void free_stream(void* stream) = 0;
  virtual void record(void* stream) = 0;
  virtual void* end_record(void* stream) = 0;
  virtual void replay(void* graph, void* stream) = 0;
  virtual void free_graph(void* graph) = 0;
  // From the pool of shareable memory.
  virtual void* pool_allocate(uint64_t bytes) = 0;
  virtual void pool_release(void* memory) = 0;
  virtual cuda::KernelDevice& device() = 0;
};

// Null, with the reason: there is no GPU here.
Platform* platform(std::string& why_not);

// Memory on the GPU, of so many bytes, `shift` bytes into an allocation.
class Buffer {
 public:
  Buffer(Platform& platform, uint64_t bytes, uint64_t shift = 0)
      : platform_(platform), base_(platform.allocate(bytes + shift + 16)), shift_(shift), bytes_(bytes) {}
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { platform_.release(base_); }
  [[nodiscard]] void* at() const { return static_cast<uint8_t*>(base_) + shift_; }
  void put(const std::vector<uint8_t>& from) { platform_.put(at(), from.data(), from.size()); }
  [[nodiscard]] std::vector<uint8_t> get() const {
    std::vector<uint8_t> bytes(bytes_);
    platform_.get(bytes.data(), at(), bytes_);
    return bytes;
  }

 private:
  Platform& platform_;
  void* const base_;
  const uint64_t shift_;
  const uint64_t bytes_;
};

// The sum of `count` float32 of every rank; the same buffer twice: in place.
inline towline_collective_t reduce_call(const Buffer& from, const Buffer& to, uint64_t count) {
  towline_collective_t call = {};
  call.struct_size = sizeof call;
  call.op = TOWLINE_COLLECTIVE_ALL_REDUCE;
  call.count = count;
  call.input = from.at();
  call.output = to.at();
  return call;
}

class MapStore {
 public:
  [[nodiscard]] towline_collective_store_t table();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::vector<uint8_t>> values_;
};

struct Ranks {
  int size = 2;
  std::string config;  // TOML
  uint64_t timeout_ns = 60'000'000'000;
  std::vector<std::string> hosts = {};  // of each rank, as if they were different ones; empty: as they are
};

struct Rank {
  int rank;
  int size;
  Platform& gpu;
  towline_communicator_t* on_gpu;
  towline_communicator_t* on_cpu;  // null unless asked for
  std::barrier<>* threads;         // of the ranks; null where they are processes
};

// After an operation that failed: kernels of other ranks of this process may still read this rank's buffers until all calls have
// returned.
inline void await_others(const Rank& rank) {
  if (rank.threads != nullptr) rank.threads->arrive_and_wait();
}

// Runs the body as every rank and waits.
void run_on_gpus(const Ranks& ranks, bool with_cpu, const std::function<void(Rank&)>& body);

// A barrier of all ranks, which waits. Before the first operation or replay of a graph: what another rank does until it has one
// (allocating, instantiating) may wait for the kernels of those that are ahead. So ranks of one process meet without a kernel.
void meet(Rank& rank);

// What ranks with a configuration each get when they make a communicator, which is destroyed again.
struct Opened {
  int32_t status = TOWLINE_OK;
  std::string text;  // of a failure
};
std::vector<Opened> open_ranks(const std::vector<std::string>& configs);

// Another communicator of the same ranks, with a store of all; null, after a failure, if it can't be made.
towline_communicator_t* open_another(const Rank& rank, const towline_collective_store_t& store,
                                     const char* name, uint64_t timeout_ns);
std::string communicator_error(const towline_communicator_t* communicator);
std::string communicator_info(towline_communicator_t* communicator);  // JSON

// Small numbers, whose sums and products round.
std::vector<uint8_t> values(uint32_t datatype, int rank, uint64_t count, uint64_t seed);
bool can(uint32_t datatype, uint32_t reduction);

struct Try {
  uint32_t op = TOWLINE_COLLECTIVE_ALL_REDUCE;
  uint32_t datatype = TOWLINE_FLOAT32;
  uint32_t reduction = TOWLINE_REDUCE_SUM;
  uint64_t count = 1;
  int root = 0;
  bool in_place = false;
  uint64_t shift = 0;      // bytes
  void* stream = nullptr;  // null: a blocking call
};

std::string name_of(const Try& what, const Rank& ranks);
// The operation on the GPU and on the CPU: the same bits, and inputs that stay.
void try_one(Rank& ranks, const Try& what);

inline constexpr uint32_t kOperations[] = {
    TOWLINE_COLLECTIVE_ALL_REDUCE,       TOWLINE_COLLECTIVE_REDUCE,       TOWLINE_COLLECTIVE_BROADCAST,
    TOWLINE_COLLECTIVE_ALL_GATHER,       TOWLINE_COLLECTIVE_ALL_GATHER_V, TOWLINE_COLLECTIVE_REDUCE_SCATTER,
    TOWLINE_COLLECTIVE_REDUCE_SCATTER_V, TOWLINE_COLLECTIVE_GATHER,       TOWLINE_COLLECTIVE_SCATTER,
    TOWLINE_COLLECTIVE_ALL_TO_ALL,       TOWLINE_COLLECTIVE_ALL_TO_ALL_V, TOWLINE_COLLECTIVE_BARRIER};
inline bool reduces(uint32_t op) {
  return op == TOWLINE_COLLECTIVE_ALL_REDUCE || op == TOWLINE_COLLECTIVE_REDUCE ||
         op == TOWLINE_COLLECTIVE_REDUCE_SCATTER || op == TOWLINE_COLLECTIVE_REDUCE_SCATTER_V;
}

}  // namespace towline::gpu_test
