// Communicators over NCCL. The tests' libnccl.so does what NCCL's documentation says, for ranks that are threads.
#include <dlfcn.h>
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>

#include "collectives/nccl/nccl_table.h"
#include "gpu/collectives_suite.h"
#include "gpu/fake/fake_kernels.h"
#include "gpu/fake_nccl_control.h"

namespace towline::gpu_test {
namespace {

constexpr const char* kLibrary = "[collectives]\nnccl_library = \"" TOWLINE_FAKE_NCCL "\"\n";

// All ranks are on one of the two GPUs of host memory.
const int kSeveralOnAGpu = ::setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);

const towline_collective_table_v1_t& nccl_table() {
  return collectives::nccl::table_over(cuda::fake::fake_kernel_device);
}

Ranks of(int size, uint64_t timeout_ns = 60'000'000'000) { return {size, kLibrary, timeout_ns}; }

// NCCL has no bitwise operations and no 16-bit integers.
bool nccl_can(uint32_t datatype, uint32_t reduction) {
  if (!can(datatype, reduction) || datatype == TOWLINE_INT16 || datatype == TOWLINE_UINT16) return false;
  if (reduction == TOWLINE_REDUCE_BXOR) return false;
  return datatype == TOWLINE_BOOL || (reduction != TOWLINE_REDUCE_BAND && reduction != TOWLINE_REDUCE_BOR);
}

towline_collective_t call_of(uint32_t op, uint64_t count, void* input, void* output) {
  towline_collective_t call = {};
  call.struct_size = sizeof call;
  call.op = op;
  call.count = count;
  call.input = input;
  call.output = output;
  return call;
}

std::vector<uint8_t> floats(uint64_t count, float value) {
  std::vector<uint8_t> bytes(count * sizeof value);
  for (uint64_t i = 0; i < count; ++i) std::memcpy(bytes.data() + i * sizeof value, &value, sizeof value);
  return bytes;
}

class CollectivesOverNccl : public testing::TestWithParam<int> {};

TEST_P(CollectivesOverNccl, EveryOperationGivesWhatTheCpuGives) {
  run_on_gpus(of(GetParam()), true, [](Rank& rank) {
    void* const stream = rank.gpu.make_stream();
    for (const uint32_t op : kOperations) {
      for (const uint64_t count : {0, 1, 1000, 70001}) {
        if (testing::Test::HasFailure()) break;
        Try what;
        what.op = op;
        what.count = count;
        what.root = static_cast<int>(count) % rank.size;
        try_one(rank, what);
        what.stream = stream;
        try_one(rank, what);
      }
    }
    rank.gpu.free_stream(stream);
  });
}

TEST_P(CollectivesOverNccl, EveryTypeAndReductionThatNcclHasGivesTheCpusBits) {
  run_on_gpus(of(GetParam()), true, [](Rank& rank) {
    for (uint32_t datatype = 0; datatype <= TOWLINE_BOOL; ++datatype) {
      for (uint32_t reduction = 0; reduction <= TOWLINE_REDUCE_PREMUL_SUM; ++reduction) {
        if (!nccl_can(datatype, reduction) || testing::Test::HasFailure()) continue;
        Try what;
        what.datatype = datatype;
        what.reduction = reduction;
        what.count = 1000;
        try_one(rank, what);
        what.op = TOWLINE_COLLECTIVE_REDUCE_SCATTER;
        try_one(rank, what);
      }
    }
  });
}

TEST_P(CollectivesOverNccl, PartsMayLieAnywhereOnOneRankAndSideBySideOnAnother) {
  run_on_gpus(of(GetParam()), false, [](Rank& rank) {
    constexpr uint64_t kCount = 100;
    const auto size = static_cast<uint64_t>(rank.size);
    Buffer whole(rank.gpu, size * kCount * 4);
    std::vector<std::unique_ptr<Buffer>> parts;
    std::vector<void*> outputs;
    std::vector<const void*> inputs;
    for (uint64_t i = 0; i < size; ++i) {
      parts.push_back(std::make_unique<Buffer>(rank.gpu, kCount * 4));
      parts.back()->put(floats(kCount, static_cast<float>(i + 1)));
      outputs.push_back(parts.back()->at());
      inputs.push_back(parts.back()->at());
    }
    Buffer one(rank.gpu, kCount * 4);
    towline_collective_t call = call_of(TOWLINE_COLLECTIVE_REDUCE_SCATTER, kCount, nullptr, one.at());
    call.inputs = inputs.data();
    ASSERT_EQ(towline_collective(rank.on_gpu, &call, nullptr, nullptr), TOWLINE_OK) << towline_last_error();
    EXPECT_EQ(one.get(), floats(kCount, static_cast<float>(rank.size * (rank.rank + 1))));
    one.put(floats(kCount, static_cast<float>(10 + rank.rank)));
    call = call_of(TOWLINE_COLLECTIVE_ALL_GATHER, kCount, one.at(), whole.at());
    if (rank.rank == 0) {
      call.output = nullptr;
      call.outputs = outputs.data();
    }
    ASSERT_EQ(towline_collective(rank.on_gpu, &call, nullptr, nullptr), TOWLINE_OK) << towline_last_error();
    if (rank.rank != 0) return;
    for (uint64_t i = 0; i < size; ++i)
      EXPECT_EQ(parts[i]->get(), floats(kCount, static_cast<float>(10 + i)));
  });
}

TEST_P(CollectivesOverNccl, GraphsReplayOperations) {
  run_on_gpus(of(GetParam()), false, [](Rank& rank) {
    constexpr uint64_t kCount = 1000;
    Buffer buffer(rank.gpu, kCount * 4);
    buffer.put(floats(kCount, 1));
    void* const stream = rank.gpu.make_stream();
    rank.gpu.record(stream);
    const towline_collective_t call =
        call_of(TOWLINE_COLLECTIVE_ALL_REDUCE, kCount, buffer.at(), buffer.at());
    ASSERT_EQ(towline_collective_issue(rank.on_gpu, &call, nullptr, stream), TOWLINE_OK)
        << towline_last_error();
    void* const graph = rank.gpu.end_record(stream);
    meet(rank);
    for (int i = 0; i < 3; ++i) rank.gpu.replay(graph, stream);
    rank.gpu.drain(stream);
    EXPECT_EQ(buffer.get(), floats(kCount, static_cast<float>(rank.size * rank.size * rank.size)));
    meet(rank);
    rank.gpu.free_graph(graph);
    rank.gpu.free_stream(stream);
  });
}

TEST_P(CollectivesOverNccl, ABatchGoesBothWaysAtOnce) {
  run_on_gpus(of(GetParam()), false, [](Rank& rank) {
    constexpr uint64_t kCount = 5000;
    Buffer mine(rank.gpu, kCount * 4);
    Buffer theirs(rank.gpu, kCount * 4);
    mine.put(floats(kCount, static_cast<float>(rank.rank)));
    const int next = (rank.rank + 1) % rank.size;
    const int before = (rank.rank + rank.size - 1) % rank.size;
    towline_batch_t* batch = nullptr;
    ASSERT_EQ(towline_batch_create(rank.on_gpu, &batch), TOWLINE_OK);
    towline_collective_t send = call_of(TOWLINE_COLLECTIVE_SEND, kCount, mine.at(), nullptr);
    send.root = next;
    towline_collective_t receive = call_of(TOWLINE_COLLECTIVE_RECV, kCount, nullptr, theirs.at());
    receive.root = before;
    ASSERT_EQ(towline_batch_add(batch, &send), TOWLINE_OK);
    ASSERT_EQ(towline_batch_add(batch, &receive), TOWLINE_OK);
    EXPECT_EQ(towline_batch_issue(batch, nullptr, nullptr), TOWLINE_OK) << towline_last_error();
    towline_batch_destroy(batch);
    EXPECT_EQ(theirs.get(), floats(kCount, static_cast<float>(before)));
  });
}

TEST_P(CollectivesOverNccl, OperationsBesideAStreamKeepTheirOrder) {
  run_on_gpus(of(GetParam()), false, [](Rank& rank) {
    Buffer buffer(rank.gpu, 400);
    buffer.put(floats(100, 1));
    void* const stream = rank.gpu.make_stream();
    const towline_collective_t call = call_of(TOWLINE_COLLECTIVE_ALL_REDUCE, 100, buffer.at(), buffer.at());
    towline_work_t* work = nullptr;
    ASSERT_EQ(towline_collective_issue(rank.on_gpu, &call, nullptr, stream), TOWLINE_OK);
    ASSERT_EQ(towline_collective_issue_beside(rank.on_gpu, &call, nullptr, stream, &work), TOWLINE_OK);
    ASSERT_EQ(towline_work_wait_on(work, stream), TOWLINE_OK);
    ASSERT_EQ(towline_collective_issue(rank.on_gpu, &call, nullptr, stream), TOWLINE_OK);
    rank.gpu.drain(stream);
    towline_work_release(work);
    EXPECT_EQ(buffer.get(), floats(100, static_cast<float>(rank.size * rank.size * rank.size)));
    rank.gpu.free_stream(stream);
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, CollectivesOverNccl, testing::Values(1, 2, 3));

// ---- What NCCL does not have

TEST(NcclCommunicators, AskForTheOtherBackendWhereNcclCannot) {
  run_on_gpus(of(2), false, [](Rank& rank) {
    Buffer buffer(rank.gpu, 400);
    towline_collective_t call = call_of(TOWLINE_COLLECTIVE_ALL_REDUCE, 100, buffer.at(), buffer.at());
    call.datatype = TOWLINE_INT32;
    call.reduction = TOWLINE_REDUCE_BXOR;
    void* const stream = rank.gpu.make_stream();
    EXPECT_EQ(towline_collective_issue(rank.on_gpu, &call, nullptr, stream), TOWLINE_UNSUPPORTED);
    EXPECT_NE(std::string(towline_last_error()).find("NCCL has no bxor of int32: the backend gpu has"),
              std::string::npos)
        << towline_last_error();
    meet(rank);  // the communicator is whole
    rank.gpu.free_stream(stream);
  });
}

std::string create_fails(const char* config, int32_t expected) {
  const Opened opened = open_ranks({config}).front();
  EXPECT_EQ(opened.status, expected);
  return opened.text;
}

TEST(NcclCommunicators, SayHowToGetALibraryThatIsMissing) {
  const std::string text =
      create_fails("[collectives]\nnccl_library = \"/nowhere/libnccl.so.2\"\n", TOWLINE_NOT_FOUND);
  EXPECT_NE(text.find("/nowhere/libnccl.so.2"), std::string::npos) << text;
  EXPECT_NE(text.find("collectives.nccl_library"), std::string::npos) << text;
}

// The others are in the middle of forming, or in NCCL's own start.
TEST(NcclCommunicators, NameARankThatCannotFormAtOnce) {
  const auto begun = std::chrono::steady_clock::now();
  const auto opened =
      open_ranks({kLibrary, "[collectives]\nnccl_library = \"/nowhere/libnccl.so.2\"\n", kLibrary});
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(20));
  EXPECT_EQ(opened[1].status, TOWLINE_NOT_FOUND);
  for (const Opened& one : opened)
    EXPECT_NE(one.text.find("/nowhere/libnccl.so.2"), std::string::npos) << one.text;
  for (const size_t other : {0, 2}) {
    EXPECT_EQ(opened[other].status, TOWLINE_PEER_LOST);
    EXPECT_NE(opened[other].text.find("rank 1 failed: "), std::string::npos) << opened[other].text;
  }
}

TEST(NcclCommunicators, RefuseAnOldLibrary) {
  const std::string text =
      create_fails("[collectives]\nnccl_library = \"" TOWLINE_OLD_NCCL "\"\n", TOWLINE_UNSUPPORTED);
  EXPECT_NE(text.find("is NCCL 2.13; 2.14 or later is needed"), std::string::npos) << text;
}

TEST(NcclCommunicators, NameRanksThatShareAGpu) {
  ::unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
  const auto opened = open_ranks({kLibrary, kLibrary});
  ::setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  for (const Opened& one : opened) {
    EXPECT_EQ(one.status, TOWLINE_UNSUPPORTED);
    EXPECT_NE(one.text.find("ranks 0 and 1 both use GPU 0 of one host"), std::string::npos) << one.text;
  }
}

// ---- In the place of the backend gpu

// Registers a backend "gpu" that does not work between hosts, and "nccl".
void register_both() {
  static const int32_t registered = [] {
    static towline_collective_table_v1_t gpu = nccl_table();
    gpu.open = [](const towline_collective_open_args* args, towline_collective_backend**) -> int32_t {
      args->host->fail(args->host->context, "rank 1 is on another host");
      return TOWLINE_UNSUPPORTED;
    };
    towline_collective_backend_register("gpu", &gpu);
    return towline_collective_backend_register("nccl", &nccl_table());
  }();
  EXPECT_EQ(registered, TOWLINE_OK);
}

std::string backend_of(const std::string& config, const char* const* hints, std::string& text) {
  register_both();
  MapStore store;
  const auto table = store.table();
  towline_communicator_options_t options = {};
  options.struct_size = sizeof options;
  options.backend = "gpu";
  options.size = 1;
  options.store = &table;
  options.config = config.c_str();
  options.hints = hints;
  towline_communicator_t* made = nullptr;
  if (towline_communicator_create(&options, &made) < 0) return text = towline_last_error(), "";
  const std::string name = towline_communicator_backend(made);
  towline_communicator_destroy(made);
  return name;
}

TEST(NcclCommunicators, ComeWhereTheBackendGpuCannot) {
  std::string text;
  EXPECT_EQ(backend_of(kLibrary, nullptr, text), "nccl") << text;
  EXPECT_EQ(backend_of(std::string(kLibrary) + "on_gpu = \"gpu\"\n", nullptr, text), "");
  EXPECT_NE(text.find("rank 1 is on another host"), std::string::npos) << text;
  EXPECT_EQ(backend_of("[collectives]\nnccl_library = \"/nowhere.so\"\n", nullptr, text), "");
  EXPECT_NE(text.find("rank 1 is on another host; nor with NCCL: "), std::string::npos) << text;
}

TEST(NcclCommunicators, AreInTheClearSoWithKeysTheyHaveToBeNamed) {
  const std::string keyed = std::string("[secure]\nkey_file = \"/a/key\"\n") + kLibrary;
  std::string text;
  EXPECT_EQ(backend_of(keyed, nullptr, text), "");
  EXPECT_NE(text.find("rank 1 is on another host; nor with NCCL: it moves data in the clear"),
            std::string::npos)
      << text;
  EXPECT_EQ(backend_of(keyed + "on_gpu = \"nccl\"\n", nullptr, text), "nccl") << text;
}

TEST(NcclCommunicators, ComeWhereTheyAreAskedFor) {
  std::string text;
  EXPECT_EQ(backend_of(std::string(kLibrary) + "on_gpu = \"nccl\"\n", nullptr, text), "nccl") << text;
  const char* const hints[] = {"on_gpu", "nccl", nullptr};
  EXPECT_EQ(backend_of(kLibrary, hints, text), "nccl") << text;
  EXPECT_EQ(backend_of(std::string(kLibrary) + "on_gpu = \"hardware\"\n", nullptr, text), "");
  EXPECT_NE(text.find("expected auto, gpu or nccl"), std::string::npos) << text;
}

// ---- Bad days

TEST(NcclCommunicators, NameARankThatNeverComes) {
  std::atomic<int> failed{0};
  run_on_gpus(of(3, 1'500'000'000), false, [&](Rank& rank) {
    Buffer buffer(rank.gpu, 400);
    const towline_collective_t call = call_of(TOWLINE_COLLECTIVE_ALL_REDUCE, 100, buffer.at(), buffer.at());
    // Rank 2 is at no operation, and learns of the failure at its next.
    while (rank.rank == 2 && failed < 2) std::this_thread::yield();
    EXPECT_EQ(towline_collective(rank.on_gpu, &call, nullptr, nullptr), TOWLINE_TIMED_OUT);
    EXPECT_EQ(communicator_error(rank.on_gpu),
              "timed out in all_reduce #0 of 100 float32 (sum): rank 2 did not come");
    ++failed;
  });
}

TEST(NcclCommunicators, NameRanksThatDisagree) {
  run_on_gpus(of(2), false, [](Rank& rank) {
    Buffer buffer(rank.gpu, 800);
    const towline_collective_t call =
        call_of(TOWLINE_COLLECTIVE_ALL_REDUCE, rank.rank == 0 ? 100 : 200, buffer.at(), buffer.at());
    EXPECT_EQ(towline_collective(rank.on_gpu, &call, nullptr, nullptr), TOWLINE_MISMATCH);
    EXPECT_EQ(communicator_error(rank.on_gpu),
              "ranks disagree: rank 0 is at all_reduce #0 of 100 float32 (sum), rank 1 at all_reduce #0 of "
              "200 float32 "
              "(sum)");
  });
}

TEST(NcclCommunicators, AnAbortEndsWaitingRanks) {
  run_on_gpus(of(2), false, [](Rank& rank) {
    Buffer buffer(rank.gpu, 400);
    const towline_collective_t call = call_of(TOWLINE_COLLECTIVE_ALL_REDUCE, 100, buffer.at(), buffer.at());
    meet(rank);
    if (rank.rank == 0) {
      EXPECT_EQ(towline_communicator_abort(rank.on_gpu, "enough"), TOWLINE_OK);
      return;
    }
    EXPECT_EQ(towline_collective(rank.on_gpu, &call, nullptr, nullptr), TOWLINE_CANCELLED);
  });
}

TEST(NcclCommunicators, ARankThatLeftIsNamed) {
  run_on_gpus(of(2), false, [](Rank& rank) {
    Buffer buffer(rank.gpu, 400);
    const towline_collective_t call = call_of(TOWLINE_COLLECTIVE_ALL_REDUCE, 100, buffer.at(), buffer.at());
    meet(rank);
    if (rank.rank == 0) return;
    EXPECT_EQ(towline_collective(rank.on_gpu, &call, nullptr, nullptr), TOWLINE_PEER_LOST);
    EXPECT_EQ(communicator_error(rank.on_gpu), "rank 0 has left");
  });
}

TEST(NcclCommunicators, AnErrorThatNcclNoticesEndsTheOperationOnEveryRank) {
  run_on_gpus(of(2), false, [](Rank& rank) {
    Buffer buffer(rank.gpu, 400);
    const towline_collective_t call = call_of(TOWLINE_COLLECTIVE_ALL_REDUCE, 100, buffer.at(), buffer.at());
    meet(rank);
    if (rank.rank == 1) of_fake_nccl<void (*)(int, int)>("towline_fake_nccl_set_error")(1, 6);
    const int32_t status = rank.rank == 0 ? towline_collective(rank.on_gpu, &call, nullptr, nullptr) : 0;
    while (towline_communicator_error(rank.on_gpu, nullptr, 0, nullptr) == TOWLINE_OK)
      std::this_thread::yield();
    EXPECT_EQ(status, rank.rank == 0 ? TOWLINE_PEER_LOST : TOWLINE_OK);
    EXPECT_EQ(communicator_error(rank.on_gpu),
              "rank 1: NCCL failed: remote process exited or there was a network error");
  });
}

TEST(NcclCommunicators, AnOperationThatNcclRefusesBreaksTheCommunicator) {
  run_on_gpus(of(1), false, [](Rank& rank) {
    Buffer buffer(rank.gpu, 400);
    const towline_collective_t call = call_of(TOWLINE_COLLECTIVE_ALL_REDUCE, 100, buffer.at(), buffer.at());
    of_fake_nccl<void (*)(int)>("towline_fake_nccl_refuse")(2);
    EXPECT_EQ(towline_collective(rank.on_gpu, &call, nullptr, nullptr), TOWLINE_IO);
    EXPECT_EQ(communicator_error(rank.on_gpu), "rank 0: NCCL failed in all_reduce: unhandled system error");
    EXPECT_EQ(towline_collective(rank.on_gpu, &call, nullptr, nullptr), TOWLINE_IO);
  });
}

TEST(NcclCommunicators, LeaveNothingBehind) {
  run_on_gpus(of(2), false, [](Rank& rank) { meet(rank); });
  EXPECT_EQ(of_fake_nccl<int (*)()>("towline_fake_nccl_living")(), 0);
}

}  // namespace
}  // namespace towline::gpu_test
