// Communicators on GPUs that give some operations to NCCL, over the model of GPUs and the tests' libnccl.so.
#include <fmt/format.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "collectives/nccl/nccl_table.h"
#include "gpu/collectives_suite.h"
#include "gpu/fake/fake_kernels.h"
#include "gpu/fake_nccl_control.h"

namespace towline::gpu_test {
namespace {

constexpr const char* kLibrary = "collectives.nccl_library = \"" TOWLINE_FAKE_NCCL "\"\n";

// All ranks are on one of the two GPUs of host memory.
const int kSeveralOnAGpu = ::setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
const int32_t kRegistered = towline_collective_backend_register(
    "nccl", &collectives::nccl::table_over(cuda::fake::fake_kernel_device));

Ranks from(int size, const std::string& shapes, uint64_t timeout_ns = 60'000'000'000) {
  return {size, fmt::format("{}tuning.collectives.nccl_from = \"{}\"\n", kLibrary, shapes), timeout_ns};
}

std::string info(const Rank& rank) {
  size_t needed = 0;
  std::string text(65536, 0);
  EXPECT_EQ(towline_communicator_info(rank.on_gpu, text.data(), text.size(), &needed), TOWLINE_OK);
  return text.c_str();
}

void expect_in_info(const Rank& rank, const std::string& part) {
  EXPECT_NE(info(rank).find(part), std::string::npos) << part << " in " << info(rank);
}

void expect_given(const Rank& rank, int operations) {
  expect_in_info(rank, fmt::format("\"nccl_operations\":{},", operations));
}

std::vector<uint8_t> floats(uint64_t count, float value) {
  std::vector<uint8_t> bytes(count * sizeof value);
  for (uint64_t i = 0; i < count; ++i) std::memcpy(bytes.data() + i * sizeof value, &value, sizeof value);
  return bytes;
}

class NcclBySize : public testing::TestWithParam<int> {};

TEST_P(NcclBySize, TakesAnOperationFromItsSizeOn) {
  ASSERT_EQ(kRegistered, TOWLINE_OK);
  run_on_gpus(from(GetParam(), "all_reduce=4KiB, all_to_all=1MiB"), true, [](Rank& rank) {
    expect_in_info(rank, "\"nccl_from\":\"all_reduce=4096, all_to_all=1048576\"");
    Try what;
    what.count = 1023;
    try_one(rank, what);
    expect_given(rank, 0);
    what.count = 1024;
    try_one(rank, what);
    expect_given(rank, 1);
    what.datatype = TOWLINE_BFLOAT16;  // 2 KiB
    try_one(rank, what);
    expect_given(rank, 1);
    // NCCL does not have all reductions, and takes none of integers.
    what.datatype = TOWLINE_INT32;
    what.reduction = TOWLINE_REDUCE_BXOR;
    try_one(rank, what);
    expect_given(rank, 1);
    // Others are never given away.
    what = {};
    what.op = TOWLINE_COLLECTIVE_ALL_GATHER;
    what.count = 4096;
    try_one(rank, what);
    expect_given(rank, 1);
    // The size is that of all parts.
    what.op = TOWLINE_COLLECTIVE_ALL_TO_ALL;
    what.count = (1 << 18) / static_cast<uint64_t>(rank.size) + 1;
    try_one(rank, what);
    expect_given(rank, 2);
  });
}

TEST_P(NcclBySize, OperationsOfAStreamAreInOrderWhoeverDoesThem) {
  run_on_gpus(from(GetParam(), "all_reduce=4KiB"), false, [](Rank& rank) {
    Buffer buffer(rank.gpu, 4096);
    buffer.put(floats(1024, 1));
    void* const stream = rank.gpu.make_stream();
    meet(rank);
    const auto size = static_cast<float>(rank.size);
    for (const uint64_t count : {1024, 1000, 1024}) {
      const towline_collective_t call = reduce_call(buffer, buffer, count);
      ASSERT_EQ(towline_collective_issue(rank.on_gpu, &call, nullptr, stream), TOWLINE_OK)
          << towline_last_error();
    }
    rank.gpu.drain(stream);
    const std::vector<uint8_t> expected = floats(1000, size * size * size);
    std::vector<uint8_t> got = buffer.get();
    got.resize(4000);
    EXPECT_EQ(got, expected);
    expect_given(rank, 2);
    rank.gpu.free_stream(stream);
  });
}

// Replays of what NCCL does aren't watched, and a hook that was told of some would mislead.
TEST_P(NcclBySize, ReplaysAreNotTold) {
  run_on_gpus(from(GetParam(), "all_reduce=4KiB"), false, [](Rank& rank) {
    towline_hook_t* hook = nullptr;
    const auto nothing = [](void*, const towline_hook_args_t*) {};
    EXPECT_EQ(towline_communicator_hook(rank.on_gpu, TOWLINE_HOOK_REPLAY, nothing, nullptr, &hook),
              TOWLINE_UNSUPPORTED);
  });
}

TEST_P(NcclBySize, OperationsBesideAStreamAreOfEither) {
  run_on_gpus(from(GetParam(), "all_reduce=4KiB"), false, [](Rank& rank) {
    Buffer small(rank.gpu, 400);
    Buffer large(rank.gpu, 4096);
    small.put(floats(100, 1));
    large.put(floats(1024, 2));
    void* const stream = rank.gpu.make_stream();
    meet(rank);
    for (Buffer* const buffer : {&large, &small}) {
      const towline_collective_t call = reduce_call(*buffer, *buffer, buffer == &small ? 100 : 1024);
      towline_work_t* work = nullptr;
      ASSERT_EQ(towline_collective_issue_beside(rank.on_gpu, &call, nullptr, stream, &work), TOWLINE_OK)
          << towline_last_error();
      EXPECT_EQ(towline_work_wait_on(work, stream), TOWLINE_OK) << towline_last_error();
      towline_work_release(work);
    }
    rank.gpu.drain(stream);
    EXPECT_EQ(small.get(), floats(100, static_cast<float>(rank.size)));
    EXPECT_EQ(large.get(), floats(1024, static_cast<float>(2 * rank.size)));
    expect_given(rank, 1);
    rank.gpu.free_stream(stream);
  });
}

TEST_P(NcclBySize, WithoutItsLibraryEveryRankUsesTheOwnBackend) {
  Ranks ranks = from(GetParam(), "all_reduce=1");
  ranks.config =
      "collectives.nccl_library = \"/nowhere/libnccl.so.2\"\n"
      "tuning.collectives.nccl_from = \"all_reduce=1\"\n";
  run_on_gpus(ranks, true, [](Rank& rank) {
    expect_in_info(rank, "\"no_nccl\":\"rank 0: ");
    expect_in_info(rank, "/nowhere/libnccl.so.2");
    Try what;
    what.count = 1000;
    try_one(rank, what);
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, NcclBySize, testing::Values(2, 3));

TEST(NcclBySizeOpens, OnlyWhereItWasMeasuredToBeFaster) {
  run_on_gpus(from(2, "measured"), false, [](Rank& rank) {
    expect_in_info(rank, "\"no_nccl\":\"it was not measured to be faster with 2 ranks\"");
    meet(rank);
  });
  run_on_gpus(from(4, "measured"), false, [](Rank& rank) {
    expect_in_info(rank, "\"nccl_from\":\"all_reduce=536870912\"");
    expect_given(rank, 0);
    meet(rank);
  });
}

// Creates a communicator of two ranks that fails on both, and gives what rank 1 is told.
std::string create_fails(const std::array<std::string, 2>& shapes, int32_t expected) {
  auto opened = open_ranks({from(2, shapes[0]).config, from(2, shapes[1]).config});
  for (size_t rank = 0; rank < 2; ++rank) {
    std::string& text = opened[rank].text;
    EXPECT_EQ(opened[rank].status, expected) << text;
    // A rank puts its number before its own reason.
    const std::string own = fmt::format("form: rank {}: ", rank);
    if (const size_t at = text.find(own); at != std::string::npos) text.erase(at, own.size());
  }
  EXPECT_EQ(opened[0].text, opened[1].text);
  return opened[1].text;
}

TEST(NcclBySizeOpens, NamesRanksWhoseTablesDiffer) {
  const std::string text = create_fails({"all_reduce=1MiB", "all_reduce=2MiB"}, TOWLINE_MISMATCH);
  EXPECT_NE(text.find("tuning.collectives.nccl_from: rank 0 has all_reduce=1048576, rank 1 has "
                      "all_reduce=2097152"),
            std::string::npos)
      << text;
}

TEST(NcclBySizeOpens, RefusesATableThatItCannotRead) {
  for (const char* const shapes : {"all_reduce", "all_reduce=big", "broadcast=1MiB", "all_reduce=1MiB,"}) {
    const std::string text = create_fails({shapes, shapes}, TOWLINE_INVALID_ARGUMENT);
    EXPECT_NE(text.find(fmt::format("nccl_from = \"{}\": expected none, measured, or entries", shapes)),
              std::string::npos)
        << text;
  }
}

// Rank 1 does not come to an operation of NCCL's: the operations of both backends end on both ranks.
TEST(NcclBySizeFails, ARankThatDoesNotComeIsNamedAndEndsBothBackends) {
  std::atomic<bool> failed{false};
  run_on_gpus(from(2, "all_reduce=4KiB", 1'500'000'000), false, [&](Rank& rank) {
    Buffer buffer(rank.gpu, 4096);
    buffer.put(floats(1024, 1));
    const towline_collective_t large = reduce_call(buffer, buffer, 1024);
    const towline_collective_t small = reduce_call(buffer, buffer, 4);
    if (rank.rank == 0) {
      EXPECT_EQ(towline_collective(rank.on_gpu, &large, nullptr, nullptr), TOWLINE_TIMED_OUT);
      EXPECT_NE(communicator_error(rank.on_gpu).find("rank 1 did not come"), std::string::npos)
          << communicator_error(rank.on_gpu);
      failed = true;
    }
    while (!failed) std::this_thread::yield();
    EXPECT_LT(towline_collective(rank.on_gpu, &small, nullptr, nullptr), 0);
    EXPECT_LT(towline_collective(rank.on_gpu, &large, nullptr, nullptr), 0);
  });
}

// Ranks 0 and 2 are inside NCCL when rank 1 aborts. It stays, so that they don't learn only that it went.
TEST(NcclBySizeFails, AnAbortEndsAnOperationOfNcclWithItsReasonOnEveryRank) {
  std::atomic<int> ended{0};
  run_on_gpus(from(3, "all_reduce=4KiB"), false, [&](Rank& rank) {
    Buffer buffer(rank.gpu, 4096);
    buffer.put(floats(1024, 1));
    const towline_collective_t large = reduce_call(buffer, buffer, 1024);
    const auto inside = of_fake_nccl<int (*)()>("towline_fake_nccl_inside");
    if (rank.rank == 1) {
      while (inside() != 2) std::this_thread::yield();
      const auto begun = std::chrono::steady_clock::now();
      EXPECT_EQ(towline_communicator_abort(rank.on_gpu, "enough"), TOWLINE_OK);
      while (ended != 2) std::this_thread::yield();
      EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(5));
      EXPECT_EQ(inside(), 0);
    } else {
      EXPECT_EQ(towline_collective(rank.on_gpu, &large, nullptr, nullptr), TOWLINE_CANCELLED);
      ++ended;
    }
    EXPECT_NE(communicator_error(rank.on_gpu).find("rank 1 aborted communicator gpus: enough"),
              std::string::npos)
        << communicator_error(rank.on_gpu);
  });
}

}  // namespace
}  // namespace towline::gpu_test
