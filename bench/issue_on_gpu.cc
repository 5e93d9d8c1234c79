// Measures what issuing an all_reduce into a stream costs the host: microseconds a call, medians of rounds in which all cases take turns.
// Beside it the driver's calls that it consists of, and launches of a kernel that does nothing with other parameters and
// attributes, so that what is not the driver's shows.
//
//   issue_on_gpu [PLUGIN]     a libtowline_collectives_gpu.so; without it the one beside the library
//
// Calls come in bursts that fit into the driver's queue, on a stream that is empty. Nothing else uses the GPU or the thread's processor.
#include <dlfcn.h>
#include <fmt/format.h>
#include <towline/collectives_gpu.h>

#include <array>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "support/gpu_driver.h"
#include "support/rank_store.h"
#include "support/statistics.h"

namespace {

using bench::need;
using Pointer = unsigned long long;
using Clock = std::chrono::steady_clock;

constexpr int kCalls = 200;  // a burst
constexpr int kRounds = 25;

template <class... Arguments>
using DriverCall = int (*)(Arguments...);

template <class... Arguments>
DriverCall<Arguments...> find(const char* name) {
  void* const function = dlsym(bench::driver_library(), name);
  if (function != nullptr) return reinterpret_cast<DriverCall<Arguments...>>(function);
  fmt::print(stderr, "{}: not found in libcuda.so.1\n", name);
  std::exit(77);
}

void check(int code, const char* what) {
  if (code == 0) return;
  fmt::print(stderr, "{}: CUDA error {}\n", what, code);
  std::exit(1);
}

// As cuda.h lays them out.
struct LaunchAttribute {
  int id = 0;
  int padding = 0;
  union {
    struct {
      void* event;
      int flags;
      int at_block_start;
    } event;
    int number;
    unsigned char bytes[64] = {};
  } value;
};
static_assert(sizeof(LaunchAttribute) == 72);
struct LaunchConfig {
  unsigned grid[3] = {1, 1, 1};
  unsigned block[3] = {512, 1, 1};
  unsigned shared_bytes = 0;
  void* stream = nullptr;
  LaunchAttribute* attributes = nullptr;
  unsigned attribute_count = 0;
};
static_assert(sizeof(LaunchConfig) == 56);
constexpr int kCooperative = 2;
constexpr int kMayBeginEarly = 6;
constexpr int kEventAtItsEnd = 7;
constexpr unsigned kEventWithoutTime = 2;
constexpr unsigned kStreamNonBlocking = 1;

struct Driver {
  DriverCall<const LaunchConfig*, void*, void**, void**> launch_with =
      find<const LaunchConfig*, void*, void**, void**>("cuLaunchKernelEx");
  DriverCall<void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,
             void**>
      launch = find<void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*,
                    void**, void**>("cuLaunchKernel");
  DriverCall<void*, void*> event_record = find<void*, void*>("cuEventRecord");
  DriverCall<void**> context_get_current = find<void**>("cuCtxGetCurrent");
  DriverCall<void*, int*, uint64_t*, void**, const void**, size_t*> get_capture =
      find<void*, int*, uint64_t*, void**, const void**, size_t*>("cuStreamGetCaptureInfo_v2");
  DriverCall<unsigned, int*, void**, Pointer> get_attributes =
      find<unsigned, int*, void**, Pointer>("cuPointerGetAttributes");
  DriverCall<void*> synchronize = find<void*>("cuStreamSynchronize");
};

constexpr std::array kParameterBytes = {8u, 256u, 512u, 936u, 2048u, 4000u};

// Kernels that do nothing, one for each size of parameters.
std::string kernels(int major) {
  std::string text = fmt::format(".version 7.8\n.target sm_{}\n.address_size 64\n", major >= 9 ? 90 : 80);
  for (const unsigned bytes : kParameterBytes)
    text += fmt::format(
        ".visible .entry nothing_{0}(.param .align 8 .b8 given[{0}]) .maxntid 512,1,1 {{ ret; }}\n", bytes);
  return text;
}

struct Case {
  std::string name;
  std::function<void()> call;
  std::vector<double> us = {};
};

// One thread's GPU and all that it calls.
class Thread {
 public:
  Thread() {
    check(find<void**, int>("cuDevicePrimaryCtxRetain")(&context_, 0), "cuDevicePrimaryCtxRetain");
    check(find<void*>("cuCtxSetCurrent")(context_), "cuCtxSetCurrent");
    check(find<void**, unsigned>("cuStreamCreate")(&stream_, kStreamNonBlocking), "cuStreamCreate");
    check(find<void**, unsigned>("cuEventCreate")(&event_, kEventWithoutTime), "cuEventCreate");
    for (Pointer* const one : {&input_, &output_})
      check(find<Pointer*, size_t>("cuMemAlloc_v2")(one, 4096), "cuMemAlloc");
    check(find<Pointer, unsigned char, size_t>("cuMemsetD8_v2")(input_, 0, 4096), "cuMemsetD8");
    int major = 0;
    check(find<int*, int, int>("cuDeviceGetAttribute")(&major, 75, 0), "cuDeviceGetAttribute");
    void* module = nullptr;
    check(find<void**, const void*>("cuModuleLoadData")(&module, kernels(major).c_str()), "cuModuleLoadData");
    for (const unsigned bytes : kParameterBytes)
      check(find<void**, void*, const char*>("cuModuleGetFunction")(&functions_.emplace_back(), module,
                                                                    fmt::format("nothing_{}", bytes).c_str()),
            "cuModuleGetFunction");
  }
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;
  ~Thread() = default;  // the process ends

  void form(int rank, int size, bench::RankStore& store) {
    const auto table = store.table();
    towline_communicator_options_t options = {};
    options.struct_size = sizeof options;
    options.backend = "gpu";
    options.rank = rank;
    options.size = size;
    options.store = &table;
    options.timeout_ns = 20'000'000'000;
    need(towline_communicator_create(&options, &world_), "communicator");
  }
  void leave() {
    need(towline_communicator_error(world_, nullptr, 0, nullptr), "the communicator broke");
    towline_communicator_destroy(world_);
  }

  // Returns the driver's code.
  int try_launch(size_t kernel, unsigned blocks, LaunchAttribute* attribute) {
    LaunchConfig config;
    config.grid[0] = blocks;
    config.stream = stream_;
    config.attributes = attribute;
    config.attribute_count = attribute == nullptr ? 0 : 1;
    void* arguments[] = {given_.data()};
    return driver_.launch_with(&config, functions_[kernel], arguments, nullptr);
  }
  void launch(size_t kernel, unsigned blocks, LaunchAttribute* attribute) {
    check(try_launch(kernel, blocks, attribute), "cuLaunchKernelEx");
  }
  void launch_plainly(size_t kernel, unsigned blocks) {
    void* arguments[] = {given_.data()};
    check(driver_.launch(functions_[kernel], blocks, 1, 1, 512, 1, 1, 0, stream_, arguments, nullptr),
          "cuLaunchKernel");
  }
  void record() { check(driver_.event_record(event_, stream_), "cuEventRecord"); }
  void issue(bool in_place, uint64_t bytes) {
    towline_collective_t call = {};
    call.struct_size = sizeof call;
    call.op = TOWLINE_COLLECTIVE_ALL_REDUCE;
    call.count = bytes / 4;
    call.input = reinterpret_cast<void*>(input_);
    call.output = reinterpret_cast<void*>(in_place ? input_ : output_);
    need(towline_collective_issue(world_, &call, nullptr, stream_), "issue");
  }

  // Of launches that nobody else takes part in.
  std::vector<Case> bare() {
    std::vector<Case> cases;
    constexpr size_t kAsOurs = 3;
    for (size_t i = 0; i < kParameterBytes.size(); ++i)
      cases.push_back({fmt::format("cuLaunchKernelEx, {} bytes of parameters", kParameterBytes[i]),
                       [this, i] { launch(i, 1, nullptr); }});
    cases.push_back({"cuLaunchKernel, 936 bytes", [this] { launch_plainly(kAsOurs, 1); }});
    cases.push_back({"cuLaunchKernelEx, 936 bytes, 64 blocks", [this] { launch(kAsOurs, 64, nullptr); }});
    for (const int id : {kMayBeginEarly, kCooperative})
      cases.push_back(
          {fmt::format("the same with the attribute {}", id == kCooperative ? "cooperative" : "programmatic"),
           [this, id] {
             LaunchAttribute attribute;
             attribute.id = id;
             attribute.value.number = 1;
             launch(kAsOurs, 64, &attribute);
           }});
    LaunchAttribute at_end;
    at_end.id = kEventAtItsEnd;
    at_end.value.event = {event_, 0, 0};
    if (try_launch(kAsOurs, 64, &at_end) == 0)
      cases.push_back({"the same with an event at its end (attribute)",
                       [this, at_end]() mutable { launch(kAsOurs, 64, &at_end); }});
    cases.push_back({"the same, and cuEventRecord", [this] {
                       launch(kAsOurs, 64, nullptr);
                       record();
                     }});
    cases.push_back({"cuEventRecord alone", [this] { record(); }});
    cases.push_back({"cuCtxGetCurrent", [this] {
                       void* now = nullptr;
                       check(driver_.context_get_current(&now), "cuCtxGetCurrent");
                     }});
    cases.push_back({"cuStreamGetCaptureInfo", [this] {
                       int status = 0;
                       uint64_t graph = 0;
                       check(driver_.get_capture(stream_, &status, &graph, nullptr, nullptr, nullptr),
                             "cuStreamGetCaptureInfo");
                     }});
    cases.push_back({"cuPointerGetAttributes, 3 of one", [this] {
                       int kinds[] = {2, 9, 8};
                       unsigned type = 0;
                       int gpu = 0;
                       unsigned managed = 0;
                       void* answers[] = {&type, &gpu, &managed};
                       check(driver_.get_attributes(3, kinds, answers, input_), "cuPointerGetAttributes");
                     }});
    return cases;
  }
  std::vector<Case> ours() {
    return {{"issue of an all_reduce of 4 KiB, in place", [this] { issue(true, 4096); }},
            {"the same, not in place", [this] { issue(false, 4096); }},
            {"a barrier's", [this] {
               towline_collective_t call = {};
               call.struct_size = sizeof call;
               call.op = TOWLINE_COLLECTIVE_BARRIER;
               need(towline_collective_issue(world_, &call, nullptr, stream_), "issue");
             }}};
  }
  // Returns microseconds a call.
  double burst(const Case& one) {
    const auto began = Clock::now();
    for (int i = 0; i < kCalls; ++i) one.call();
    return std::chrono::duration<double, std::micro>(Clock::now() - began).count() / kCalls;
  }
  void settle() { check(driver_.synchronize(stream_), "cuStreamSynchronize"); }

 private:
  const Driver driver_;
  void* context_ = nullptr;
  void* stream_ = nullptr;
  void* event_ = nullptr;
  Pointer input_ = 0;
  Pointer output_ = 0;
  std::vector<void*> functions_;
  std::array<unsigned char, 4096> given_ = {};
  towline_communicator_t* world_ = nullptr;
};

void print(const char* title, const std::vector<Case>& cases) {
  fmt::print("{}: us a call, median (min, max) of {} rounds\n", title, kRounds);
  for (const Case& one : cases) {
    const bench::Spread spread = bench::spread_of(one.us);
    fmt::print("  {:<52} {:>6.2f} ({:.2f}, {:.2f})\n", one.name, spread.median, spread.min, spread.max);
  }
  std::fflush(stdout);
}

// The ranks issue one after another, or at once.
void measure(int size, bool at_once) {
  bench::RankStore store;
  std::barrier<> together(size);
  std::vector<Case> first;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank)
    ranks.emplace_back([&, rank] {
      Thread thread;
      together.arrive_and_wait();
      thread.form(rank, size, store);
      std::vector<Case> cases = thread.ours();
      for (Case& one : thread.bare()) cases.push_back(std::move(one));
      for (int round = -2; round < kRounds; ++round) {
        for (Case& one : cases) {
          for (int turn = 0; turn < (at_once ? 1 : size); ++turn) {
            together.arrive_and_wait();
            if (!at_once && turn != rank) continue;
            const double us = thread.burst(one);
            if (round >= 0) one.us.push_back(us);
          }
          together.arrive_and_wait();
          thread.settle();
        }
      }
      together.arrive_and_wait();
      thread.leave();
      if (rank == 0) first = std::move(cases);
    });
  for (std::thread& rank : ranks) rank.join();
  print(fmt::format("{} rank{}{}", size, size == 1 ? "" : "s",
                    size == 1 ? ""
                    : at_once ? " at once"
                              : " in turn")
            .c_str(),
        first);
}

}  // namespace

int main(int argc, char** argv) {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  check(find<unsigned>("cuInit")(0), "cuInit");
  if (argc > 1) need(towline_collective_backend_load("gpu", argv[1]), "backend");
  measure(1, false);
  measure(2, false);
  measure(2, true);
  return 0;
}
