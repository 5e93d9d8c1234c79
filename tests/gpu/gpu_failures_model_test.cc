// Bad days of communicators on GPUs that the model of GPUs can have at will: wrong streams, one rank's capture, GPUs without room.
#include <dlfcn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "collectives/gpu/gpu_table.h"
#include "gpu/collectives_suite.h"
#include "gpu/fake/fake_device.h"

namespace towline::gpu_test {
namespace {

using cuda::fake::FakeStream;

constexpr uint64_t kCount = 1000;
constexpr uint64_t kMinuteNs = 60'000'000'000;
constexpr auto kPromptly = std::chrono::seconds(20);  // a rank that waits for another one waits for a minute

class CollectivesOnGpuRefuse : public testing::Test {
 protected:
  void TearDown() override { cuda::fake::faults().reset(); }
};

TEST_F(CollectivesOnGpuRefuse, AStreamOfAnotherGpuAndGoOn) {
  std::atomic<bool> refused{false};
  run_on_gpus({2, "", kMinuteNs}, false, [&](Rank& rank) {
    Buffer buffer(rank.gpu, kCount * 4);
    const std::vector<float> ones(kCount, 1.0f);
    buffer.put({reinterpret_cast<const uint8_t*>(ones.data()),
                reinterpret_cast<const uint8_t*>(ones.data()) + kCount * 4});
    const towline_collective_t call = reduce_call(buffer, buffer, kCount);
    FakeStream own(0);
    const auto expect_refused = [](int32_t status) {
      EXPECT_EQ(status, TOWLINE_INVALID_ARGUMENT);
      EXPECT_NE(
          std::string(towline_last_error()).find("the stream is not of GPU 0, which this communicator uses"),
          std::string::npos)
          << towline_last_error();
    };
    if (rank.rank == 1) {  // the other rank does not notice
      FakeStream foreign(1);
      towline_work_t* work = nullptr;
      std::vector<int32_t> told;  // by hooks before and after
      const auto tell = [](void* context, const towline_hook_args_t* args) {
        static_cast<std::vector<int32_t>*>(context)->push_back(args->status);
      };
      towline_hook_t* before = nullptr;
      towline_hook_t* after = nullptr;
      ASSERT_EQ(towline_communicator_hook(rank.on_gpu, TOWLINE_HOOK_PRE, tell, &told, &before), TOWLINE_OK);
      ASSERT_EQ(towline_communicator_hook(rank.on_gpu, TOWLINE_HOOK_POST, tell, &told, &after), TOWLINE_OK);
      expect_refused(towline_collective_issue(rank.on_gpu, &call, nullptr, &foreign));
      expect_refused(towline_collective_issue_beside(rank.on_gpu, &call, nullptr, &foreign, &work));
      EXPECT_EQ(work, nullptr);
      EXPECT_EQ(told, (std::vector<int32_t>{0, TOWLINE_INVALID_ARGUMENT, 0, TOWLINE_INVALID_ARGUMENT}));
      towline_hook_remove(before);
      towline_hook_remove(after);
      while (!refused) std::this_thread::yield();
    }
    towline_work_t* work = nullptr;
    ASSERT_EQ(towline_collective_issue_beside(rank.on_gpu, &call, nullptr, &own, &work), TOWLINE_OK)
        << towline_last_error();
    if (rank.rank == 0) {  // whose work can't have ended: the other rank is not there yet
      FakeStream foreign(1);
      expect_refused(towline_work_wait_on(work, &foreign));
      refused = true;
    }
    EXPECT_EQ(towline_work_wait(work, TOWLINE_FOREVER), TOWLINE_OK) << towline_last_error();
    towline_work_release(work);
    EXPECT_EQ(communicator_error(rank.on_gpu), "");
    float first = 0;
    rank.gpu.get(&first, buffer.at(), sizeof first);
    EXPECT_EQ(first, 2.0f);
  });
}

// The hook was there for an operation that was refused, and gone when the next one was recorded.
TEST_F(CollectivesOnGpuRefuse, AnOperationAndItsReplayHookForgetsIt) {
  run_on_gpus({2, "", kMinuteNs}, false, [](Rank& rank) {
    Buffer buffer(rank.gpu, kCount * 4);
    towline_collective_norm_t norm = {};
    norm.struct_size = sizeof norm;
    norm.rows = 2;
    norm.width = kCount / 2;
    norm.input = norm.output = buffer.at();
    const towline_collective_t call = reduce_call(buffer, buffer, kCount);
    FakeStream own(0);
    FakeStream foreign(1);
    towline_work_t* work = nullptr;
    const std::array<std::function<int32_t()>, 3> refused = {
        [&] { return towline_collective_issue(rank.on_gpu, &call, nullptr, &foreign); },
        [&] { return towline_collective_issue_beside(rank.on_gpu, &call, nullptr, &foreign, &work); },
        [&] { return towline_collective_issue_norm(rank.on_gpu, &norm, nullptr, &foreign); }};
    std::atomic<int> told{0};
    const auto hooked = [&] {
      towline_hook_t* hook = nullptr;
      const auto count = [](void* context, const towline_hook_args_t*) {
        ++*static_cast<std::atomic<int>*>(context);
      };
      EXPECT_EQ(towline_communicator_hook(rank.on_gpu, TOWLINE_HOOK_REPLAY, count, &told, &hook), TOWLINE_OK);
      return hook;
    };
    const auto recorded = [&] {
      own.record();
      EXPECT_EQ(towline_collective_issue(rank.on_gpu, &call, nullptr, &own), TOWLINE_OK)
          << towline_last_error();
      return std::unique_ptr<const FakeStream::Graph>(own.end_record());
    };
    std::vector<std::unique_ptr<const FakeStream::Graph>> graphs;
    for (const auto& issue : refused) {
      towline_hook_t* const before = hooked();
      EXPECT_EQ(issue(), TOWLINE_INVALID_ARGUMENT);
      towline_hook_remove(before);
      graphs.push_back(recorded());
    }
    towline_hook_t* const hook = hooked();
    graphs.push_back(recorded());
    for (const auto& graph : graphs) own.replay(*graph);
    own.drain();
    while (told < 2) std::this_thread::yield();
    EXPECT_EQ(communicator_error(rank.on_gpu), "");
    meet(rank);
    towline_hook_remove(hook);
    EXPECT_EQ(told, 2);  // the beginning and the end of the last one
  });
}

// Its operation is in a graph that nobody replays: the others come to an operation that it never begins.
TEST_F(CollectivesOnGpuRefuse, ACaptureOnOneRankOnlyIsToldOnAllAndNothingHangs) {
  run_on_gpus({3, "", kMinuteNs}, false, [](Rank& rank) {
    Buffer buffer(rank.gpu, kCount * 4);
    const towline_collective_t call = reduce_call(buffer, buffer, kCount);
    towline_collective_options_t options = {};
    options.struct_size = sizeof options;
    options.timeout_ns = 300'000'000;
    FakeStream stream(0);
    meet(rank);
    if (rank.rank == 1) stream.record();
    ASSERT_EQ(towline_collective_issue(rank.on_gpu, &call, &options, &stream), TOWLINE_OK)
        << towline_last_error();
    const auto until = std::chrono::steady_clock::now() + kPromptly;
    while (communicator_error(rank.on_gpu).empty() && std::chrono::steady_clock::now() < until)
      std::this_thread::yield();
    const std::string text = communicator_error(rank.on_gpu);
    EXPECT_NE(text.find("rank 1 did not come"), std::string::npos) << text;
    EXPECT_NE(text.find("all_reduce"), std::string::npos) << text;
    if (rank.rank == 1) {
      const FakeStream::Graph* const graph = stream.end_record();
      stream.replay(*graph);  // ends: the communicator is broken
      stream.drain();
      delete graph;
    }
    stream.drain();
    EXPECT_EQ(towline_collective_issue(rank.on_gpu, &call, &options, &stream), TOWLINE_TIMED_OUT);
  });
}

// The kernel's report and the end of its stream come at once: a look between the two finds neither.
TEST_F(CollectivesOnGpuRefuse, WhatFailsWhileACommunicatorClosesIsTold) {
  for (int round = 0; round < 30; ++round) {
    run_on_gpus({2, "", kMinuteNs}, false, [](Rank& rank) {
      Buffer buffer(rank.gpu, kCount * 4);
      const towline_collective_t call = reduce_call(buffer, buffer, kCount);
      towline_collective_options_t options = {};
      options.struct_size = sizeof options;
      options.timeout_ns = 3'000'000;
      FakeStream stream(0);
      meet(rank);
      if (rank.rank == 1) {
        std::string told;
        towline_hook_t* hook = nullptr;
        const auto keep = [](void* context, const towline_hook_args_t* args) {
          *static_cast<std::string*>(context) = args->text;
        };
        ASSERT_EQ(towline_communicator_hook(rank.on_gpu, TOWLINE_HOOK_ABORT, keep, &told, &hook), TOWLINE_OK);
        ASSERT_EQ(towline_collective_issue(rank.on_gpu, &call, &options, &stream), TOWLINE_OK);
        towline_communicator_destroy(std::exchange(rank.on_gpu, nullptr));
        towline_hook_remove(hook);
        EXPECT_NE(told.find("rank 1 timed out in all_reduce #0"), std::string::npos) << told;
      }
      await_others(rank);
      stream.drain();
    });
    if (HasFailure()) break;
  }
}

// Operations of two graphs, and one of none between them: the text names the graph of the one that timed out.
TEST_F(CollectivesOnGpuRefuse, AReplayThatTimesOutNamesItsGraph) {
  run_on_gpus({2, "", kMinuteNs}, false, [](Rank& rank) {
    Buffer buffer(rank.gpu, kCount * 4);
    const towline_collective_t call = reduce_call(buffer, buffer, kCount);
    towline_collective_options_t options = {};
    options.struct_size = sizeof options;
    options.timeout_ns = 300'000'000;
    FakeStream stream(0);
    meet(rank);
    std::array<std::unique_ptr<const FakeStream::Graph>, 2> graphs;
    std::array<uint64_t, 2> numbers = {};
    for (size_t i = 0; i < graphs.size(); ++i) {
      stream.record();
      numbers[i] = stream.recording();
      for (int each = 0; each < 2; ++each)
        ASSERT_EQ(towline_collective_issue(rank.on_gpu, &call, &options, &stream), TOWLINE_OK)
            << towline_last_error();
      graphs[i].reset(stream.end_record());
      ASSERT_EQ(towline_collective_issue(rank.on_gpu, &call, nullptr, &stream), TOWLINE_OK)
          << towline_last_error();
    }
    stream.replay(*graphs[0]);
    stream.drain();
    EXPECT_EQ(communicator_error(rank.on_gpu), "");
    if (rank.rank == 0) stream.replay(*graphs[1]);
    const auto until = std::chrono::steady_clock::now() + kPromptly;
    while (communicator_error(rank.on_gpu).empty() && std::chrono::steady_clock::now() < until)
      std::this_thread::yield();
    const std::string text = communicator_error(rank.on_gpu);
    if (rank.rank == 0) {
      EXPECT_NE(text.find("which graph " + std::to_string(numbers[1]) + " recorded: rank 1 did not come"),
                std::string::npos)
          << text;
    }
    stream.drain();
  });
}

// The driver may have to wait for kernels before it makes a stream, and they may wait for this rank.
TEST_F(CollectivesOnGpuRefuse, ARankThatHasFormedNeedsNoMoreStreams) {
  run_on_gpus({2, "", kMinuteNs}, false, [](Rank& rank) {
    Buffer sent(rank.gpu, kCount * 4);
    Buffer received(rank.gpu, kCount * 4);
    Buffer reduced(rank.gpu, kCount * 4);
    FakeStream stream(0);
    meet(rank);
    cuda::fake::faults().refuse_streams(0);
    std::vector<towline_work_t*> works;
    const auto beside = [&](uint32_t op, const Buffer& buffer) {
      towline_collective_t call = reduce_call(buffer, buffer, kCount);
      call.op = op;
      call.root = 1 - rank.rank;
      EXPECT_EQ(towline_collective_issue_beside(rank.on_gpu, &call, nullptr, &stream, &works.emplace_back()),
                TOWLINE_OK)
          << towline_last_error();
    };
    beside(TOWLINE_COLLECTIVE_SEND, sent);
    beside(TOWLINE_COLLECTIVE_RECV, received);
    beside(TOWLINE_COLLECTIVE_ALL_REDUCE, reduced);
    stream.record();
    beside(TOWLINE_COLLECTIVE_ALL_REDUCE, reduced);
    ASSERT_NE(works.back(), nullptr);
    EXPECT_EQ(towline_work_wait_on(works.back(), &stream), TOWLINE_OK) << towline_last_error();
    const FakeStream::Graph* const graph = stream.end_record();
    for (towline_work_t* const work : works) {
      EXPECT_EQ(towline_work_wait(work, TOWLINE_FOREVER), TOWLINE_OK) << towline_last_error();
      towline_work_release(work);
    }
    delete graph;
  });
}

// ---- Opening

void expect_all_name_rank_1(const std::vector<Opened>& outcomes, int32_t own, const std::string& reason) {
  EXPECT_EQ(outcomes[1].status, own);
  EXPECT_NE(outcomes[1].text.find("rank 1: " + reason), std::string::npos) << outcomes[1].text;
  for (const size_t other : {0, 2}) {
    EXPECT_EQ(outcomes[other].status, TOWLINE_PEER_LOST) << outcomes[other].text;
    EXPECT_NE(outcomes[other].text.find("rank 1 failed: " + reason), std::string::npos)
        << outcomes[other].text;
  }
}

TEST_F(CollectivesOnGpuRefuse, ARankWithoutRoomIsNamedByAllAtOnce) {
  cuda::fake::faults().fill_gpu(1);
  const auto begun = std::chrono::steady_clock::now();
  const auto outcomes = open_ranks({"", "[tuning.collectives]\ngpu = 1\n", ""});
  EXPECT_LT(std::chrono::steady_clock::now() - begun, kPromptly);
  expect_all_name_rank_1(outcomes, TOWLINE_OUT_OF_MEMORY, "fake GPU: no room for");
}

TEST_F(CollectivesOnGpuRefuse, ARankWithAGpuThatIsNotThereIsNamedByAllAtOnce) {
  const auto begun = std::chrono::steady_clock::now();
  const auto outcomes = open_ranks({"", "[tuning.collectives]\ngpu = 9\n", ""});
  EXPECT_LT(std::chrono::steady_clock::now() - begun, kPromptly);
  expect_all_name_rank_1(outcomes, TOWLINE_INVALID_ARGUMENT, "there is no GPU 9");
}

// After the ranks have one another's memory.
TEST_F(CollectivesOnGpuRefuse, ARankWithoutStreamsIsNamedByAllAtOnce) {
  cuda::fake::faults().refuse_streams(1);
  const auto begun = std::chrono::steady_clock::now();
  const auto outcomes = open_ranks({"", "[tuning.collectives]\ngpu = 1\n", ""});
  EXPECT_LT(std::chrono::steady_clock::now() - begun, kPromptly);
  expect_all_name_rank_1(outcomes, TOWLINE_OUT_OF_MEMORY, "fake GPU: no stream on GPU 1");
}

TEST_F(CollectivesOnGpuRefuse, GpusWithoutPeerAccessAreToldOnAllRanksAtOnce) {
  cuda::fake::faults().separate(true);
  const auto begun = std::chrono::steady_clock::now();
  const auto outcomes = open_ranks({"", "[tuning.collectives]\ngpu = 1\n", ""});
  EXPECT_LT(std::chrono::steady_clock::now() - begun, kPromptly);
  for (const Opened& outcome : outcomes) {
    EXPECT_EQ(outcome.status, TOWLINE_UNSUPPORTED) << outcome.text;
    EXPECT_NE(outcome.text.find("has no path to this memory (no peer access)"), std::string::npos)
        << outcome.text;
    EXPECT_NE(outcome.text.find("rank "), std::string::npos) << outcome.text;
  }
  // As ranks of different hosts they need no path.
  const std::string own = "collectives.on_gpu = \"gpu\"\ncollectives.host = ";
  for (const Opened& outcome :
       open_ranks({own + "\"a\"\n", own + "\"b\"\n[tuning.collectives]\ngpu = 1\n", own + "\"c\"\n"}))
    EXPECT_EQ(outcome.status, TOWLINE_OK) << outcome.text;
  cuda::fake::faults().separate(false);
  for (const Opened& outcome : open_ranks({"", "[tuning.collectives]\ngpu = 1\n", ""}))
    EXPECT_EQ(outcome.status, TOWLINE_OK) << outcome.text;
}

TEST_F(CollectivesOnGpuRefuse, ARankWithAWrongSettingIsNamedByAllAtOnce) {
  const auto begun = std::chrono::steady_clock::now();
  const auto outcomes = open_ranks({"", "[tuning.collectives]\ngpu_blocks = 0\n", ""});
  EXPECT_LT(std::chrono::steady_clock::now() - begun, kPromptly);
  expect_all_name_rank_1(outcomes, TOWLINE_INVALID_ARGUMENT, "tuning.collectives.gpu_blocks is 0");
}

// Whichever rank sees it first, for itself or for the others.
TEST_F(CollectivesOnGpuRefuse, RanksWithDifferentSettingsAreToldAtOnce) {
  for (const char* const setting : {"gpu_marked_bytes = 0", "gpu_blocks = 1", "gpu_two_shot_bytes = 12345",
                                    "gpu_direct = 0", "gpu_lines = 1", "gpu_push = 1"}) {
    const auto begun = std::chrono::steady_clock::now();
    const auto outcomes = open_ranks({"", fmt::format("[tuning.collectives]\n{}\n", setting)});
    EXPECT_LT(std::chrono::steady_clock::now() - begun, kPromptly);
    for (const Opened& outcome : outcomes) {
      EXPECT_TRUE(outcome.status == TOWLINE_MISMATCH || outcome.status == TOWLINE_PEER_LOST)
          << setting << ": " << outcome.status;
      EXPECT_NE(outcome.text.find("ranks have different settings"), std::string::npos) << outcome.text;
    }
  }
}

// Rank 0 is on a host of its own.
TEST_F(CollectivesOnGpuRefuse, ARankWithoutStreamsIsNamedOnEveryHostAtOnce) {
  cuda::fake::faults().refuse_streams(1);
  const std::string first = "[collectives]\non_gpu = \"gpu\"\nhost = \"a\"\n";
  const std::string second = "[collectives]\non_gpu = \"gpu\"\nhost = \"b\"\n";
  const auto begun = std::chrono::steady_clock::now();
  const auto outcomes = open_ranks({first, second + "[tuning.collectives]\ngpu = 1\n", second});
  EXPECT_LT(std::chrono::steady_clock::now() - begun, kPromptly);
  expect_all_name_rank_1(outcomes, TOWLINE_OUT_OF_MEMORY, "fake GPU: no stream on GPU 1");
}

TEST_F(CollectivesOnGpuRefuse, AWindowThatOneRankRefusesFailsOnAllAtOnce) {
  const auto begun = std::chrono::steady_clock::now();
  run_on_gpus({2, "", kMinuteNs}, false, [](Rank& rank) {
    Buffer buffer(rank.gpu, 4096);
    meet(rank);
    if (rank.rank == 1) cuda::fake::faults().forget(reinterpret_cast<uint64_t>(buffer.at()), 4096);
    towline_window_t* window = nullptr;
    EXPECT_EQ(towline_window_create(rank.on_gpu, buffer.at(), 4096, &window),
              rank.rank == 1 ? TOWLINE_INVALID_ARGUMENT : TOWLINE_PEER_LOST);
    if (rank.rank == 1) return;
    EXPECT_NE(std::string(towline_last_error()).find("rank 1 failed: the window's memory"), std::string::npos)
        << towline_last_error();
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begun, kPromptly);
}

TEST_F(CollectivesOnGpuRefuse, WithoutADriverTheErrorNamesTheLibrary) {
  if (::dlopen("libcuda.so.1", RTLD_NOW) != nullptr) GTEST_SKIP() << "this machine has NVIDIA's driver";
  static const int32_t registered =
      towline_collective_backend_register("gpu", &collectives::gpu::nvidia_table());
  ASSERT_EQ(registered, TOWLINE_OK);
  MapStore store;
  const auto table = store.table();
  towline_communicator_options_t options = {};
  options.struct_size = sizeof options;
  options.name = "driverless";
  options.backend = "gpu";
  options.size = 1;
  options.store = &table;
  options.timeout_ns = kMinuteNs;
  towline_communicator_t* made = nullptr;
  EXPECT_EQ(towline_communicator_create(&options, &made), TOWLINE_NOT_FOUND);
  const std::string text = towline_last_error();
  EXPECT_NE(text.find("libcuda.so.1"), std::string::npos) << text;
}

}  // namespace
}  // namespace towline::gpu_test
