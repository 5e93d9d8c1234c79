// The tests of collectives over real GPUs: all ranks on the first one, or with GPU_TESTS_ON=all spread over all of them.
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string_view>
#include <vector>

#include "gpu/collectives_suite.h"
#include "gpu/cuda.h"

namespace towline::gpu_test {
namespace {

namespace driver = cuda::driver;
using ReadyGraph = struct OpaqueReadyGraph*;

// This thread's; each rank is a thread.
thread_local uint32_t gpu = 0;

class DriverPlatform final : public Platform {
 public:
  explicit DriverPlatform(Cuda& cuda) : cuda_(cuda), api_(cuda.api()) {
    EXPECT_EQ(towline_collective_backend_load("gpu", TOWLINE_COLLECTIVES_GPU_PLUGIN), TOWLINE_OK)
        << towline_last_error();
    for (uint32_t each = 0; each < cuda_.gpus(); ++each) {
      cuda_.use(each);
      for (int i = 0; i < kKeptStreams; ++i) kept_.insert(idle_[each].emplace_back(new_stream()));
      copies_[each] =
          std::make_unique<Stream>(cuda_, each);  // another GPU may not reach what a pool has given out
    }
  }
  [[nodiscard]] const char* backend() const override { return "gpu"; }
  [[nodiscard]] bool spread() const override {
    const char* const which = std::getenv("GPU_TESTS_ON");
    return which != nullptr && std::string_view(which) == "all" && cuda_.gpus() > 1;
  }
  [[nodiscard]] int most_ranks() const override {
    return spread() ? kMostRanks * static_cast<int>(cuda_.gpus()) : kMostRanks;
  }
  void be(int rank) override {
    if (spread()) gpu = static_cast<uint32_t>(rank) % cuda_.gpus();
    cuda_.use(gpu);
  }
  void* allocate(uint64_t bytes) override {
    cuda_.use(gpu);
    driver::Pointer pointer = 0;
    api_.check(api_.memory_alloc(&pointer, bytes), "cuMemAlloc");
    return reinterpret_cast<void*>(pointer);
  }
  // Freed at the end: freeing waits for the whole GPU, and so for other ranks.
  void release(void*) override {}
  void put(void* to, const void* from, uint64_t bytes) override { move(to, from, bytes); }
  void get(void* to, const void* from, uint64_t bytes) override { move(to, from, bytes); }
  // The first ones are made together, before any other stream, and kept: the driver gives a new stream a queue that another
  // may have, once streams have come and gone. Then 8 ranks with 12 operations in a row each stood still in 5 of 40 runs on an
  // H200, the first of two ranks behind later ones of others; with these in none of 150.
  void* make_stream() override {
    const std::lock_guard lock(streams_mutex_);
    std::vector<driver::Stream>& idle = idle_[gpu];
    cuda_.use(gpu);
    if (idle.empty()) return new_stream();
    driver::Stream const stream = idle.back();
    idle.pop_back();
    return stream;
  }
  void drain(void* stream) override {
    cuda_.use(gpu);
    api_.check(api_.stream_synchronize(static_cast<driver::Stream>(stream)), "cuStreamSynchronize");
  }
  void free_stream(void* stream) override {
    cuda_.use(gpu);
    auto* const native = static_cast<driver::Stream>(stream);
    const std::lock_guard lock(streams_mutex_);
    if (kept_.count(native) != 0 && api_.stream_query(native) == 0)
      idle_[gpu].push_back(native);
    else
      api_.stream_destroy(native);  // one of many, or a test has left work in it
  }
  void record(void* stream) override {
    cuda_.use(gpu);
    api_.check(symbol<driver::Result (*)(driver::Stream, int)>("cuStreamBeginCapture_v2")(
                   static_cast<driver::Stream>(stream), driver::kCaptureRelaxed),
               "cuStreamBeginCapture");
  }
  void* end_record(void* stream) override {
    cuda_.use(gpu);
    driver::Graph graph = nullptr;
    api_.check(symbol<driver::Result (*)(driver::Stream, driver::Graph*)>("cuStreamEndCapture")(
                   static_cast<driver::Stream>(stream), &graph),
               "cuStreamEndCapture");
    ReadyGraph made = nullptr;
    api_.check(symbol<driver::Result (*)(ReadyGraph*, driver::Graph, unsigned long long)>(
                   "cuGraphInstantiateWithFlags")(&made, graph, 0),
               "cuGraphInstantiate");
    symbol<driver::Result (*)(driver::Graph)>("cuGraphDestroy")(graph);
    // A first launch would upload it, which may wait for kernels of ranks that are ahead.
    api_.check(symbol<driver::Result (*)(ReadyGraph, driver::Stream)>("cuGraphUpload")(
                   made, static_cast<driver::Stream>(stream)),
               "cuGraphUpload");
    drain(stream);
    return made;
  }
  void replay(void* graph, void* stream) override {
    cuda_.use(gpu);
    api_.check(symbol<driver::Result (*)(ReadyGraph, driver::Stream)>("cuGraphLaunch")(
                   static_cast<ReadyGraph>(graph), static_cast<driver::Stream>(stream)),
               "cuGraphLaunch");
  }
  void* pool_allocate(uint64_t bytes) override {
    return plugin_.symbol<void* (*)(int64_t, int, void*)>("towline_gpu_malloc")(
        static_cast<int64_t>(bytes), static_cast<int>(gpu), nullptr);
  }
  void pool_release(void* memory) override {
    plugin_.symbol<void (*)(void*, int64_t, int, void*)>("towline_gpu_free")(memory, 0, 0, nullptr);
  }
  cuda::KernelDevice& device() override { return cuda::nvidia_kernel_device(); }
  void free_graph(void* graph) override {
    symbol<driver::Result (*)(ReadyGraph)>("cuGraphExecDestroy")(static_cast<ReadyGraph>(graph));
  }

 private:
  static constexpr int kMostRanks = 16;  // of one GPU
  static constexpr int kKeptStreams =
      8;  // of each GPU: with those of 8 ranks' communicators fewer than there are queues

  [[nodiscard]] driver::Stream new_stream() const {
    driver::Stream stream = nullptr;
    api_.check(api_.stream_create(&stream, driver::kStreamNonBlocking), "cuStreamCreate");
    return stream;
  }
  template <class Function>
  Function symbol(const char* name) {
    return api_.library.symbol<Function>(name);
  }
  void move(void* to, const void* from, uint64_t bytes) {
    if (bytes == 0) return;
    const std::lock_guard lock(mutex_);
    cuda_.use(gpu);
    auto* const stream = static_cast<driver::Stream>(copies_[gpu]->native());
    api_.check(api_.memory_copy_async(reinterpret_cast<driver::Pointer>(to),
                                      reinterpret_cast<driver::Pointer>(from), bytes, stream),
               "cuMemcpyAsync");
    api_.check(api_.stream_synchronize(stream), "cuMemcpyAsync");
  }

  Cuda& cuda_;
  const driver::Api& api_;
  DynamicLibrary plugin_{TOWLINE_COLLECTIVES_GPU_PLUGIN};
  std::mutex streams_mutex_;
  std::set<driver::Stream> kept_;
  std::map<uint32_t, std::vector<driver::Stream>> idle_;  // of those kept, of each GPU
  std::mutex mutex_;
  std::map<uint32_t, std::unique_ptr<Stream>> copies_;  // of each GPU
};

}  // namespace

Platform* platform(std::string& why_not) {
  // More streams than the driver's default of work queues, so that no rank waits behind another.
  static const int more = ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  (void)more;
  Cuda* const cuda = Cuda::get(why_not);
  if (cuda == nullptr) return nullptr;
  static auto* const of_process = new DriverPlatform(*cuda);  // goes with the driver
  return of_process;
}

}  // namespace towline::gpu_test
