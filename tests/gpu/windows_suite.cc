// Windows in memory of GPUs: the host's calls, calls in streams and graphs, and an application's own kernels.
#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>

#include "gpu/device_image.h"
#include "gpu/device_kernels.h"
#include "gpu/hosts_ranks.h"
#include "gpu/kernel_device.h"

namespace towline::gpu_test {
namespace {

constexpr uint64_t kBytes = 100'004;

std::vector<uint8_t> bytes_of(int rank, uint64_t bytes = kBytes) {
  std::vector<uint8_t> made(bytes);
  for (uint64_t i = 0; i < bytes; ++i)
    made[i] = static_cast<uint8_t>(i * 7 + static_cast<uint64_t>(rank) * 31 + 1);
  return made;
}

class Window {
 public:
  Window(Rank& rank, void* address, uint64_t bytes) {
    EXPECT_EQ(towline_window_create(rank.on_gpu, address, bytes, &window_), TOWLINE_OK)
        << towline_last_error();
  }
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;
  ~Window() {
    if (window_ == nullptr) return;
    EXPECT_EQ(towline_window_destroy(window_, 60'000'000'000), TOWLINE_OK);
  }
  [[nodiscard]] towline_window_t* get() const { return window_; }
  void issue(uint32_t op, int rank, void* address, uint64_t bytes, void* stream) const {
    towline_window_call_t call = {};
    call.struct_size = sizeof call;
    call.op = op;
    call.rank = rank;
    call.address = address;
    call.bytes = bytes;
    EXPECT_EQ(towline_window_issue(window_, &call, 0, stream), TOWLINE_OK) << towline_last_error();
  }

 private:
  towline_window_t* window_ = nullptr;
};

struct Where {
  const char* name;
  int size;
  std::vector<std::string> hosts = {};  // of each rank; empty: one
};

class GpuWindows : public testing::TestWithParam<Where> {
 protected:
  static Ranks ranks(uint64_t timeout_ns = 60'000'000'000) {
    if (!GetParam().hosts.empty()) return on_hosts(GetParam().hosts, timeout_ns);
    return {GetParam().size, "", timeout_ns};
  }
};
class GpuWindowsOfOneHost : public GpuWindows {};
class GpuWindowsBetweenHosts : public GpuWindows {};

// Agents reach other hosts, which load the plugin for memory of GPUs by this.
const int agents_have_gpus = ::setenv("TOWLINE_PLUGINS", TOWLINE_CUDA_PLUGIN, 0);

int next(const Rank& rank) { return (rank.rank + 1) % rank.size; }
int before(const Rank& rank) { return (rank.rank + rank.size - 1) % rank.size; }

TEST_P(GpuWindows, BytesGoToAnotherRankAndAreSeenAfterItsSignal) {
  run_on_gpus(ranks(), false, [](Rank& rank) {
    const Window window(rank, nullptr, kBytes);
    Buffer mine(rank.gpu, kBytes);
    Buffer theirs(rank.gpu, kBytes);
    mine.put(bytes_of(rank.rank));
    for (int round = 0; round < 2; ++round) {
      ASSERT_EQ(towline_window_put(window.get(), next(rank), 0, mine.at(), kBytes), TOWLINE_OK)
          << towline_last_error();
      ASSERT_EQ(towline_window_signal(window.get(), next(rank)), TOWLINE_OK);
      ASSERT_EQ(towline_window_wait_signal(window.get(), before(rank), 60'000'000'000), TOWLINE_OK)
          << towline_last_error();
      ASSERT_EQ(towline_window_get(window.get(), rank.rank, 0, theirs.at(), kBytes), TOWLINE_OK);
      EXPECT_TRUE(theirs.get() == bytes_of(before(rank)));
      meet(rank);
    }
    EXPECT_EQ(towline_window_put(window.get(), next(rank), 1, mine.at(), kBytes), TOWLINE_OUT_OF_RANGE);
  });
}

TEST_P(GpuWindows, ASignalThatIsLateIsATimeoutAndBreaksNothing) {
  run_on_gpus(ranks(), false, [](Rank& rank) {
    const Window window(rank, nullptr, 64);
    EXPECT_EQ(towline_window_wait_signal(window.get(), next(rank), 20'000'000), TOWLINE_NOT_YET);
    EXPECT_EQ(std::string(towline_last_error()), "towline_window_wait_signal: no signal of rank " +
                                                     std::to_string(next(rank)) + " came within 0.02 s");
    meet(rank);
    ASSERT_EQ(towline_window_signal(window.get(), before(rank)), TOWLINE_OK);
    EXPECT_EQ(towline_window_wait_signal(window.get(), next(rank), 60'000'000'000), TOWLINE_OK);
  });
}

TEST_P(GpuWindows, MemoryOfTheApplicationAndOfThePoolWillDo) {
  run_on_gpus(ranks(), false, [](Rank& rank) {
    Buffer own(rank.gpu, kBytes);
    void* const pooled = rank.gpu.pool_allocate(kBytes + 4096);
    ASSERT_NE(pooled, nullptr);
    for (void* const memory : {own.at(), static_cast<void*>(static_cast<uint8_t*>(pooled) + 4096)}) {
      // Ranks of a host share it, of other hosts have it moved.
      const bool shared = GetParam().hosts.empty() ? rank.size > 1 : rank.size > 2;
      if (memory == own.at() && rank.gpu.spread() && shared) {
        towline_window_t* refused = nullptr;
        EXPECT_EQ(towline_window_create(rank.on_gpu, memory, kBytes, &refused), TOWLINE_UNSUPPORTED);
        continue;
      }
      const Window window(rank, memory, kBytes);
      EXPECT_EQ(towline_window_address(window.get()), memory);
      Buffer mine(rank.gpu, kBytes);
      mine.put(bytes_of(rank.rank));
      ASSERT_EQ(towline_window_put(window.get(), next(rank), 0, mine.at(), kBytes), TOWLINE_OK)
          << towline_last_error();
      meet(rank);
      std::vector<uint8_t> got(kBytes);
      rank.gpu.get(got.data(), memory, kBytes);
      EXPECT_TRUE(got == bytes_of(before(rank)));
    }
    rank.gpu.pool_release(pooled);
  });
}

TEST_P(GpuWindows, CallsInAStreamAndInGraphsKeepItsOrder) {
  run_on_gpus(ranks(), false, [](Rank& rank) {
    const Window window(rank, nullptr, kBytes);
    Buffer mine(rank.gpu, kBytes);
    Buffer theirs(rank.gpu, kBytes);
    void* const stream = rank.gpu.make_stream();
    const auto once = [&] {
      window.issue(TOWLINE_WINDOW_PUT, next(rank), mine.at(), kBytes, stream);
      window.issue(TOWLINE_WINDOW_SIGNAL, next(rank), nullptr, 0, stream);
      window.issue(TOWLINE_WINDOW_WAIT_SIGNAL, before(rank), nullptr, 0, stream);
      window.issue(TOWLINE_WINDOW_GET, rank.rank, theirs.at(), kBytes, stream);
    };
    mine.put(bytes_of(rank.rank));
    once();
    rank.gpu.drain(stream);
    EXPECT_TRUE(theirs.get() == bytes_of(before(rank)));
    rank.gpu.record(stream);
    once();
    void* const graph = rank.gpu.end_record(stream);
    for (int round = 1; round < 4; ++round) {
      mine.put(bytes_of(rank.rank + 5 * round));
      meet(rank);
      rank.gpu.replay(graph, stream);
      rank.gpu.drain(stream);
      EXPECT_TRUE(theirs.get() == bytes_of(before(rank) + 5 * round));
    }
    meet(rank);
    rank.gpu.free_graph(graph);
    rank.gpu.free_stream(stream);
  });
}

// Freeing what a window needed, as drivers do it, would wait for the kernels that wait for the signals.
TEST_P(GpuWindows, OneIsClosedWhileKernelsWaitForSignalsOfAnother) {
  run_on_gpus(ranks(), false, [](Rank& rank) {
    const Window window(rank, nullptr, kBytes);
    Buffer mine(rank.gpu, kBytes);
    mine.put(bytes_of(rank.rank));
    void* const stream = rank.gpu.make_stream();
    window.issue(TOWLINE_WINDOW_WAIT_SIGNAL, before(rank), nullptr, 0, stream);
    for (int round = 0; round < 2; ++round) {
      const Window other(rank, nullptr, kBytes);
      ASSERT_EQ(towline_window_put(other.get(), next(rank), 0, mine.at(), kBytes), TOWLINE_OK)
          << towline_last_error();
      meet(rank);
    }
    EXPECT_EQ(towline_window_signal(window.get(), next(rank)), TOWLINE_OK) << towline_last_error();
    rank.gpu.drain(stream);
    rank.gpu.free_stream(stream);
  });
}

TEST_P(GpuWindows, SignalsOfChannelsDoNotMeet) {
  run_on_gpus(ranks(), false, [](Rank& rank) {
    const Window window(rank, nullptr, kBytes);
    Buffer mine(rank.gpu, kBytes);
    void* const stream = rank.gpu.make_stream();
    void* const other = rank.gpu.make_stream();
    towline_window_call_t call = {};
    call.struct_size = sizeof call;
    const auto issue = [&](uint32_t op, int peer, uint64_t channel, void* where) {
      call.op = op;
      call.rank = peer;
      call.channel = channel;
      return towline_window_issue(window.get(), &call, 0, where);
    };
    // Only what comes after the wait for channel 63 may see the second put.
    ASSERT_EQ(issue(TOWLINE_WINDOW_WAIT_SIGNAL, before(rank), 63, other), TOWLINE_OK) << towline_last_error();
    ASSERT_EQ(issue(TOWLINE_WINDOW_SIGNAL, next(rank), 0, stream), TOWLINE_OK);
    ASSERT_EQ(issue(TOWLINE_WINDOW_SIGNAL, next(rank), 1, stream), TOWLINE_OK);
    ASSERT_EQ(issue(TOWLINE_WINDOW_WAIT_SIGNAL, before(rank), 1, stream), TOWLINE_OK);
    ASSERT_EQ(issue(TOWLINE_WINDOW_WAIT_SIGNAL, before(rank), 0, stream), TOWLINE_OK);
    rank.gpu.drain(stream);
    meet(rank);  // all others' signals came: those of channel 63 have not been sent
    mine.put(bytes_of(rank.rank));
    window.issue(TOWLINE_WINDOW_PUT, next(rank), mine.at(), kBytes, stream);
    ASSERT_EQ(issue(TOWLINE_WINDOW_SIGNAL, next(rank), 63, stream), TOWLINE_OK);
    rank.gpu.drain(other);
    std::vector<uint8_t> got(kBytes);
    rank.gpu.get(got.data(), towline_window_address(window.get()), kBytes);
    EXPECT_TRUE(got == bytes_of(before(rank)));
    EXPECT_EQ(issue(TOWLINE_WINDOW_SIGNAL, next(rank), 64, stream), TOWLINE_OUT_OF_RANGE);
    EXPECT_NE(std::string(towline_last_error()).find("channel 64 is out of range"), std::string::npos)
        << towline_last_error();
    // As a program gives it that was compiled before there were channels.
    call.struct_size = offsetof(towline_window_call_t, channel);
    EXPECT_EQ(issue(TOWLINE_WINDOW_SIGNAL, next(rank), 64, stream), TOWLINE_OK) << towline_last_error();
    EXPECT_EQ(issue(TOWLINE_WINDOW_WAIT_SIGNAL, before(rank), 64, stream), TOWLINE_OK);
    rank.gpu.drain(stream);
    meet(rank);
    rank.gpu.free_stream(other);
    rank.gpu.free_stream(stream);
  });
}

TEST_P(GpuWindows, ASignalThatAStreamAwaitsForeverIsNamed) {
  run_on_gpus(ranks(GetParam().hosts.empty() ? 300'000'000 : 4'000'000'000), false, [](Rank& rank) {
    towline_window_t* window = nullptr;
    ASSERT_EQ(towline_window_create(rank.on_gpu, nullptr, 64, &window), TOWLINE_OK) << towline_last_error();
    void* const stream = rank.gpu.make_stream();
    towline_window_call_t call = {};
    call.struct_size = sizeof call;
    call.op = TOWLINE_WINDOW_WAIT_SIGNAL;
    call.rank = next(rank);
    ASSERT_EQ(towline_window_issue(window, &call, 0, stream), TOWLINE_OK);
    rank.gpu.drain(stream);
    while (towline_communicator_error(rank.on_gpu, nullptr, 0, nullptr) == TOWLINE_OK)
      std::this_thread::yield();
    const std::string said = communicator_error(rank.on_gpu);
    bool named = rank.size == 1 && said == "rank 0 timed out";
    for (int one = 0; one < rank.size; ++one)
      named = named || said.find(fmt::format("rank {} timed out in waiting for a signal of rank {}", one,
                                             (one + 1) % rank.size)) != std::string::npos;
    EXPECT_TRUE(named) << said;
    EXPECT_EQ(towline_window_issue(window, &call, 0, stream), TOWLINE_TIMED_OUT);
    (void)towline_window_destroy(window, 1'000'000'000);
    rank.gpu.free_stream(stream);
  });
}

// ---- An application's kernels

constexpr const char* kNames[] = {"towline_test_go_round", "towline_test_wait_in_vain"};
constexpr cuda::KernelModel kModels[] = {
    [](const void* what, uint32_t, uint32_t) { go_round(*static_cast<const DeviceTry*>(what)); },
    [](const void* what, uint32_t, uint32_t) { wait_in_vain(*static_cast<const DeviceTry*>(what)); }};

TEST_P(GpuWindowsOfOneHost, KernelsPutSignalWaitMeetAndGet) {
  run_on_gpus(ranks(), false, [](Rank& rank) {
    cuda::KernelDevice& device = rank.gpu.device();
    device.start();
    const auto kernels =
        device.load(device.current_gpu(), {device_test_image(), kNames, kModels, sizeof(DeviceTry), 256});
    const Window window(rank, nullptr, kBytes);
    Buffer mine(rank.gpu, kBytes);
    Buffer result(rank.gpu, kBytes + 8);
    void* const stream = rank.gpu.make_stream();
    DeviceTry what = {};
    ASSERT_EQ(towline_window_symmetric(window.get(), &what.group, sizeof what.group), TOWLINE_OK)
        << towline_last_error();
    EXPECT_EQ(towline_window_symmetric(window.get(), &what.group, 8), TOWLINE_INVALID_ARGUMENT);
    what.source = reinterpret_cast<uint64_t>(mine.at());
    what.result = reinterpret_cast<uint64_t>(result.at());
    what.bytes = kBytes / 8 * 8;
    what.limit_ns = 30'000'000'000;
    const auto outcome = [&](uint32_t kernel) {
      EXPECT_EQ(kernels->launch(kernel, &what, {}, stream), 0);
      rank.gpu.drain(stream);
      uint64_t told = 0;
      const std::vector<uint8_t> all = result.get();
      std::memcpy(&told, all.data() + what.bytes, sizeof told);
      return told;
    };
    meet(rank);  // all have loaded their kernels
    for (what.round = 1; what.round <= 3; ++what.round) {
      mine.put(bytes_of(rank.rank + static_cast<int>(what.round)));
      ASSERT_EQ(outcome(0), kOk);
      std::vector<uint8_t> got = result.get();
      got.resize(what.bytes);
      EXPECT_TRUE(got == bytes_of(rank.rank + static_cast<int>(what.round), what.bytes));
      std::vector<uint8_t> here(what.bytes);
      rank.gpu.get(here.data(), towline_window_address(window.get()), what.bytes);
      EXPECT_TRUE(here == bytes_of(before(rank) + static_cast<int>(what.round), what.bytes));
      meet(rank);  // all have looked
    }
    what.limit_ns = 20'000'000;
    EXPECT_EQ(outcome(1), kLate);
    rank.gpu.free_stream(stream);
  });
}

TEST_P(GpuWindowsBetweenHosts, KernelsAreRefusedWithTheReason) {
  run_on_gpus(ranks(), false, [](Rank& rank) {
    const Window window(rank, nullptr, kBytes);
    device::Symmetric group = {};
    EXPECT_EQ(towline_window_symmetric(window.get(), &group, 8), TOWLINE_INVALID_ARGUMENT);
    EXPECT_EQ(towline_window_symmetric(window.get(), &group, sizeof group), TOWLINE_UNSUPPORTED);
    EXPECT_NE(std::string(towline_last_error()).find("this window is of 2 hosts"), std::string::npos)
        << towline_last_error();
  });
}

const auto kName = [](const auto& made) { return std::string(made.param.name); };
const Where kOfOneHost[] = {{"One", 1}, {"Two", 2}, {"Four", 4}};
const Where kBetweenHosts[] = {{"OneOnEach", 2, {"a", "b"}}, {"TwoOnEach", 4, {"a", "a", "b", "b"}}};
INSTANTIATE_TEST_SUITE_P(OfOneHost, GpuWindows, testing::ValuesIn(kOfOneHost), kName);
INSTANTIATE_TEST_SUITE_P(OfOneHost, GpuWindowsOfOneHost, testing::ValuesIn(kOfOneHost), kName);
INSTANTIATE_TEST_SUITE_P(BetweenHosts, GpuWindows, testing::ValuesIn(kBetweenHosts), kName);
INSTANTIATE_TEST_SUITE_P(BetweenHosts, GpuWindowsBetweenHosts, testing::ValuesIn(kBetweenHosts), kName);

}  // namespace
}  // namespace towline::gpu_test
