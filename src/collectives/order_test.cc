// The hint `order`: between hosts, parts are added as they come.
#include <atomic>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "collectives/calls/types.h"
#include "collectives/reduce.h"
#include "collectives/test_support.h"

namespace towline::collectives {
namespace {

constexpr uint64_t kPiece = 1 << 20;  // of a part between hosts, in bytes

std::map<std::string, std::string> in_order(const char* order) { return {{"order", order}}; }

nlohmann::json details(Communicator& ranks) { return nlohmann::json::parse(ranks.info_json())["details"]; }

// Exact in float32, also when they are added in any order.
std::vector<float> parts_of(int rank, uint64_t count) {
  std::vector<float> made(count);
  for (uint64_t i = 0; i < count; ++i)
    made[i] = static_cast<float>((i * 7 + static_cast<uint64_t>(rank) * 13) % 1000);
  return made;
}

std::vector<float> sum_of(int size, uint64_t count, float divisor = 1) {
  std::vector<float> sum(count);
  for (int rank = 0; rank < size; ++rank) {
    const std::vector<float> parts = parts_of(rank, count);
    for (uint64_t i = 0; i < count; ++i) sum[i] += parts[i];
  }
  for (float& one : sum) one /= divisor;
  return sum;
}

struct Hosts {
  const char* name;
  int size;
  int ranks_per_host;
};

class OrderAny : public testing::TestWithParam<Hosts> {};

// Parts of no piece, of one, and of several with a shorter last one.
TEST_P(OrderAny, ReductionsAreRight) {
  World world;
  world.size = GetParam().size;
  world.ranks_per_host = GetParam().ranks_per_host;
  world.hints = in_order("any");
  run_ranks(world, [&](Communicator& ranks) {
    const int n = world.size;
    EXPECT_EQ(details(ranks)["order"], "any");
    for (const uint64_t count : {uint64_t{1}, uint64_t{5000}, uint64_t{300'001}, uint64_t{1'500'007}}) {
      const std::vector<float> in = parts_of(ranks.rank(), count);
      const std::vector<float> kept = in;
      for (const uint32_t reduction : {TOWLINE_REDUCE_SUM, TOWLINE_REDUCE_AVG}) {
        const std::vector<float> expected =
            sum_of(n, count, reduction == TOWLINE_REDUCE_AVG ? static_cast<float>(n) : 1);
        std::vector<float> out(count);
        auto call = call_of(TOWLINE_COLLECTIVE_ALL_REDUCE, TOWLINE_FLOAT32, count, in.data(), out.data());
        call.reduction = reduction;
        do_run(ranks, call);
        EXPECT_TRUE(out == expected) << count;
        EXPECT_TRUE(in == kept) << "the input changed";
        out = in;
        call.input = call.output = out.data();
        do_run(ranks, call);
        EXPECT_TRUE(out == expected) << count << " in place";
      }
    }
    const uint64_t part = 700'001;
    const std::vector<float> in = parts_of(ranks.rank(), part * static_cast<uint64_t>(n));
    std::vector<float> out(part);
    do_run(ranks, call_of(TOWLINE_COLLECTIVE_REDUCE_SCATTER, TOWLINE_FLOAT32, part, in.data(), out.data()));
    const std::vector<float> all = sum_of(n, in.size());
    EXPECT_EQ(std::memcmp(out.data(), all.data() + part * static_cast<uint64_t>(ranks.rank()),
                          part * sizeof(float)),
              0);
  });
}

// What does not sum exactly has the same bits on all ranks nevertheless.
TEST_P(OrderAny, AllRanksGetTheSameBits) {
  World world;
  world.size = GetParam().size;
  world.ranks_per_host = GetParam().ranks_per_host;
  world.hints = in_order("any");
  constexpr uint64_t kCount = 900'000;
  std::vector<std::vector<float>> results(static_cast<size_t>(world.size), std::vector<float>(kCount));
  run_ranks(world, [&](Communicator& ranks) {
    std::vector<float> in(kCount);
    for (uint64_t i = 0; i < kCount; ++i)
      in[i] = 1.0F / static_cast<float>(1 + i * 31 % 977 + static_cast<uint64_t>(ranks.rank()));
    do_run(ranks, call_of(TOWLINE_COLLECTIVE_ALL_REDUCE, TOWLINE_FLOAT32, kCount, in.data(),
                          results[static_cast<size_t>(ranks.rank())].data()));
  });
  for (const std::vector<float>& result : results)
    EXPECT_EQ(std::memcmp(result.data(), results[0].data(), kCount * sizeof(float)), 0);
}

INSTANTIATE_TEST_SUITE_P(Shapes, OrderAny,
                         testing::Values(Hosts{"three_hosts", 3, 1}, Hosts{"three_hosts_of_two", 6, 2},
                                         Hosts{"uneven_hosts", 5, 2}, Hosts{"two_hosts", 4, 2}),
                         [](const auto& made) { return std::string(made.param.name); });

// Ranks 0 and 1 add all pieces of one another before rank 2 begins. In rank order they would do nothing.
TEST(OrderAny, ALateHostDoesNotHoldUpTheOthersParts) {
  World world;
  world.size = 3;
  world.ranks_per_host = 1;
  world.hints = in_order("any");
  constexpr uint64_t kPieces = 3;
  constexpr uint64_t kCount = 3 * kPieces * kPiece / sizeof(float);
  std::atomic<Communicator*> others[2] = {};
  run_ranks(world, [&](Communicator& ranks) {
    const std::vector<float> in = parts_of(ranks.rank(), kCount);
    std::vector<float> out(kCount);
    if (ranks.rank() < 2) others[ranks.rank()] = &ranks;
    if (ranks.rank() == 2) {
      for (std::atomic<Communicator*>& other : others) {
        eventually([&] { return other != nullptr && details(*other)["added_early"] == kPieces; });
      }
    }
    do_run(ranks, call_of(TOWLINE_COLLECTIVE_ALL_REDUCE, TOWLINE_FLOAT32, kCount, in.data(), out.data()));
    EXPECT_TRUE(out == sum_of(3, kCount));
    if (ranks.rank() < 2) {
      EXPECT_EQ(details(ranks)["added_early"], kPieces);
    }
  });
}

struct SmallFloat {
  const char* name;
  uint32_t datatype;
};

class OrderAnySmall : public testing::TestWithParam<SmallFloat> {};

// In the order that is given to the sums of ranks 0 and 1: rank 2 comes when they have one another's pieces. Their sum is kept
// in float32, so that a result is rounded once, as in rank order.
TEST_P(OrderAnySmall, PiecesAreAddedAsTheyComeAndRoundedOnce) {
  const uint32_t datatype = GetParam().datatype;
  const uint64_t element = datatype_bytes(datatype);
  World world;
  world.size = 3;
  world.ranks_per_host = 1;
  world.hints = in_order("any");
  constexpr uint64_t kPieces = 2;
  const uint64_t count = (3 * kPieces * kPiece - 7 * 64) / element;  // last pieces are shorter
  std::vector<std::vector<uint8_t>> inputs(3, std::vector<uint8_t>(count * element));
  // Few bits of all exponents: float32 has room for sums of three, while these types have not.
  for (size_t rank = 0; rank < inputs.size(); ++rank)
    for (uint64_t i = 0; i < inputs[rank].size(); ++i)
      inputs[rank][i] = static_cast<uint8_t>(0x30 + (i * 7 + rank * 5) % 13 + (i / 3 + rank) % 2);
  for (const uint32_t reduction : {TOWLINE_REDUCE_SUM, TOWLINE_REDUCE_AVG, TOWLINE_REDUCE_MAX}) {
    const void* from[] = {inputs[0].data(), inputs[1].data(), inputs[2].data()};
    std::vector<uint8_t> expected(count * element);
    reduce({expected.data(), from, 3, datatype, reduction, 3, count});
    std::atomic<Communicator*> others[2] = {};
    run_ranks(world, [&](Communicator& ranks) {
      const auto me = static_cast<size_t>(ranks.rank());
      if (me < 2) others[me] = &ranks;
      if (me == 2) {
        for (std::atomic<Communicator*>& other : others)
          eventually([&] { return other != nullptr && details(*other)["added_early"] == kPieces; });
      }
      std::vector<uint8_t> out(count * element);
      auto call = call_of(TOWLINE_COLLECTIVE_ALL_REDUCE, datatype, count, inputs[me].data(), out.data());
      call.reduction = reduction;
      do_run(ranks, call);
      EXPECT_TRUE(out == expected) << reduction_name(reduction);
      out = inputs[me];
      call.input = call.output = out.data();
      do_run(ranks, call);
      EXPECT_TRUE(out == expected) << reduction_name(reduction) << " in place";
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Types, OrderAnySmall,
                         testing::Values(SmallFloat{"float16", TOWLINE_FLOAT16},
                                         SmallFloat{"bfloat16", TOWLINE_BFLOAT16},
                                         SmallFloat{"float8_e4m3", TOWLINE_FLOAT8_E4M3},
                                         SmallFloat{"float8_e5m2", TOWLINE_FLOAT8_E5M2}),
                         [](const auto& made) { return std::string(made.param.name); });

TEST(Order, IsRefusedByNameWhereItIsUnknown) {
  World world;
  world.size = 1;
  world.hints = in_order("fastest");
  try {
    (void)join(world, 0, std::make_shared<rendezvous::MemoryStore>());
    FAIL() << "it was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Status::kInvalidArgument);
    EXPECT_NE(error.message().find("order = \"fastest\""), std::string::npos) << error.message();
    EXPECT_NE(error.message().find("rank or any"), std::string::npos) << error.message();
  }
}

TEST(Order, RanksThatDifferAreTold) {
  auto store = std::make_shared<rendezvous::MemoryStore>();
  run_threads(2, [&](int rank) {
    World world;
    world.hints = in_order(rank == 0 ? "rank" : "any");
    try {
      (void)join(world, rank, store, "differ");
      ADD_FAILURE() << "rank " << rank << " was taken";
    } catch (const Error& error) {
      EXPECT_NE(error.message().find("order any"), std::string::npos) << error.message();
    }
  });
}

}  // namespace
}  // namespace towline::collectives
