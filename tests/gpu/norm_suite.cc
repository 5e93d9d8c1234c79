// all_reduce with an addition and RMSNorm, beside the steps one by one: the CPU's all_reduce, and arithmetic in double.
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <thread>
#include <tuple>

#include "collectives/small_floats.h"
#include "gpu/collectives_suite.h"
#include "gpu/hosts_ranks.h"

namespace towline::gpu_test {
namespace {

using collectives::Bfloat16, collectives::Float16;

constexpr float kEpsilon = 1e-5f;

float element(uint32_t datatype, const std::vector<uint8_t>& from, uint64_t i) {
  if (datatype == TOWLINE_FLOAT32) {
    float value = 0;
    std::memcpy(&value, from.data() + i * 4, 4);
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, from.data() + i * 2, 2);
  return datatype == TOWLINE_FLOAT16 ? Float16::widen(bits) : Bfloat16::widen(bits);
}
void set_element(uint32_t datatype, std::vector<uint8_t>& to, uint64_t i, float value) {
  if (datatype == TOWLINE_FLOAT32) {
    std::memcpy(to.data() + i * 4, &value, 4);
    return;
  }
  const uint16_t bits = datatype == TOWLINE_FLOAT16 ? Float16::narrow(value) : Bfloat16::narrow(value);
  std::memcpy(to.data() + i * 2, &bits, 2);
}
// A result's tolerance: one unit in the last place, or the float's rounding of a sum of squares in another order.
double tolerance(uint32_t datatype) {
  return datatype == TOWLINE_FLOAT32 ? 5e-6 : datatype == TOWLINE_FLOAT16 ? 0x1p-10 : 0x1p-7;
}

struct Norm {
  uint32_t datatype = TOWLINE_BFLOAT16;
  uint64_t rows = 1;
  uint64_t width = 512;
  bool adds = true;
  bool weighs = true;
  bool in_place = false;
  uint64_t shift = 0;
  uint64_t seed = 0;
};

std::string name_of(const Norm& norm) {
  return fmt::format("{} rows of {} {}{}{}{}, shift {}", norm.rows, norm.width,
                     towline_datatype_name(norm.datatype), norm.adds ? ", residual" : "",
                     norm.weighs ? ", weight" : "", norm.in_place ? ", in place" : "", norm.shift);
}

// One norm's memory, and what must come out.
class Tried {
 public:
  Tried(Rank& rank, const Norm& norm)
      : rank_(rank),
        norm_(norm),
        bytes_(norm.rows * norm.width * towline_datatype_bytes(norm.datatype)),
        given_(values(norm.datatype, rank.rank, norm.rows * norm.width, norm.seed)),
        sums_(values(norm.datatype, 77, norm.rows * norm.width, norm.seed)),
        weights_(values(norm.datatype, 78, norm.width, norm.seed)),
        input_(rank.gpu, bytes_, norm.shift),
        residual_(rank.gpu, bytes_, norm.shift),
        weight_(rank.gpu, weights_.size(), norm.shift),
        output_(rank.gpu, bytes_, norm.shift) {
    input_.put(given_);
    residual_.put(sums_);
    weight_.put(weights_);
    expect();
  }

  [[nodiscard]] towline_collective_norm_t call() const {
    towline_collective_norm_t made = {};
    made.struct_size = sizeof made;
    made.datatype = norm_.datatype;
    made.epsilon = kEpsilon;
    made.rows = norm_.rows;
    made.width = norm_.width;
    made.input = input_.at();
    made.residual = norm_.adds ? residual_.at() : nullptr;
    made.weight = norm_.weighs ? weight_.at() : nullptr;
    made.output = norm_.in_place ? input_.at() : output_.at();
    return made;
  }
  void issue(void* stream) const { issue(stream, rank_.on_gpu); }
  void issue(void* stream, towline_communicator_t* by) const {
    const towline_collective_norm_t made = call();
    ASSERT_EQ(towline_collective_issue_norm(by, &made, nullptr, stream), TOWLINE_OK)
        << name_of(norm_) << ": " << towline_last_error();
  }
  // After the stream was drained.
  void check() const {
    ASSERT_EQ(communicator_error(rank_.on_gpu), "") << name_of(norm_);
    if (norm_.adds) {
      EXPECT_TRUE(residual_.get() == sums_) << "the residual, " << name_of(norm_);
    }
    const std::vector<uint8_t> got = norm_.in_place ? input_.get() : output_.get();
    for (uint64_t i = 0; i < expected_.size(); ++i) {
      const double value = element(norm_.datatype, got, i);
      if (std::abs(value - expected_[i]) <= std::abs(expected_[i]) * tolerance(norm_.datatype) + 1e-9)
        continue;
      ADD_FAILURE() << name_of(norm_) << ": rank " << rank_.rank << " has " << value << ", not "
                    << expected_[i] << " at " << i;
      return;
    }
  }
  [[nodiscard]] std::vector<uint8_t> result() const { return (norm_.in_place ? input_ : output_).get(); }

 private:
  // The steps one by one. Collective.
  void expect() {
    std::vector<uint8_t> reduced(bytes_);
    towline_collective_t sum = {};
    sum.struct_size = sizeof sum;
    sum.op = TOWLINE_COLLECTIVE_ALL_REDUCE;
    sum.datatype = norm_.datatype;
    sum.count = norm_.rows * norm_.width;
    sum.input = given_.data();
    sum.output = reduced.data();
    ASSERT_EQ(towline_collective(rank_.on_cpu, &sum, nullptr, nullptr), TOWLINE_OK) << towline_last_error();
    for (uint64_t i = 0; i < sum.count; ++i) {
      const float added = norm_.adds ? element(norm_.datatype, sums_, i) : 0;
      if (norm_.adds) set_element(norm_.datatype, reduced, i, element(norm_.datatype, reduced, i) + added);
    }
    sums_ = reduced;
    for (uint64_t row = 0; row < norm_.rows; ++row) {
      double squares = 0;
      for (uint64_t i = 0; i < norm_.width; ++i)
        squares += std::pow(element(norm_.datatype, sums_, row * norm_.width + i), 2.0);
      const double scale = 1 / std::sqrt(squares / static_cast<double>(norm_.width) + double{kEpsilon});
      for (uint64_t i = 0; i < norm_.width; ++i)
        expected_.push_back(element(norm_.datatype, sums_, row * norm_.width + i) * scale *
                            (norm_.weighs ? element(norm_.datatype, weights_, i) : 1));
    }
  }

  Rank& rank_;
  const Norm norm_;
  const uint64_t bytes_;
  const std::vector<uint8_t> given_;
  std::vector<uint8_t> sums_;
  const std::vector<uint8_t> weights_;
  std::vector<double> expected_;
  Buffer input_;
  Buffer residual_;
  Buffer weight_;
  Buffer output_;
};

// Widths of one block's slots, of several, of no whole slots, rows that no block has alone, and some whose blocks on a GPU do not get
// the same of them.
const std::vector<Norm>& shapes() {
  static const std::vector<Norm> all = [] {
    std::vector<Norm> made;
    for (const auto& [rows, width] : std::initializer_list<std::pair<uint64_t, uint64_t>>{{1, 512},
                                                                                          {3, 100},
                                                                                          {2, 33},
                                                                                          {1, 8192},
                                                                                          {4, 2048},
                                                                                          {37, 260},
                                                                                          {16, 4096},
                                                                                          {1, 1},
                                                                                          {70, 4},
                                                                                          {1, 8180},
                                                                                          {2, 4100},
                                                                                          {4, 4096},
                                                                                          {5, 8192},
                                                                                          {7, 8192}})
      made.push_back({.rows = rows, .width = width});
    // The model has room for one row of three and more ranks in lines, of no more than 32 lines.
    made.push_back({.rows = 1, .width = 1900, .in_place = true});
    made.push_back({.rows = 1, .width = 700, .adds = false, .shift = 2});
    made.push_back({.datatype = TOWLINE_FLOAT32, .rows = 1, .width = 950, .weighs = false, .shift = 4});
    made.push_back({.datatype = TOWLINE_FLOAT32, .rows = 3, .width = 700});
    made.push_back({.datatype = TOWLINE_FLOAT16, .rows = 5, .width = 1024, .in_place = true});
    made.push_back({.rows = 2, .width = 1000, .adds = false});
    made.push_back({.rows = 20, .width = 2048, .adds = false, .in_place = true});
    made.push_back({.rows = 2, .width = 64, .weighs = false});
    made.push_back({.rows = 4, .width = 512, .shift = 2});
    made.push_back(
        {.datatype = TOWLINE_FLOAT32, .rows = 60, .width = 514, .adds = false, .weighs = false, .shift = 4});
    return made;
  }();
  return all;
}

class CollectivesNorm : public testing::TestWithParam<std::tuple<int, const char*>> {
 protected:
  static Ranks ranks() {
    Ranks made;
    made.size = std::get<0>(GetParam());
    made.config = std::get<1>(GetParam());
    return made;
  }
};

TEST_P(CollectivesNorm, IsTheStepsOneByOne) {
  run_on_gpus(ranks(), true, [](Rank& rank) {
    void* const stream = rank.gpu.make_stream();
    std::vector<std::unique_ptr<Tried>> all;
    for (uint64_t turn = 0; turn < 2; ++turn)
      for (Norm norm : shapes()) {
        norm.seed = turn;
        all.push_back(std::make_unique<Tried>(rank, norm));
      }
    meet(rank);
    for (const auto& one : all) one->issue(stream);
    rank.gpu.drain(stream);
    for (const auto& one : all) one->check();
    rank.gpu.free_stream(stream);
  });
}

TEST_P(CollectivesNorm, EveryRankGetsTheSameBits) {
  std::mutex mutex;
  std::vector<std::vector<uint8_t>> seen;
  run_on_gpus(ranks(), true, [&](Rank& rank) {
    void* const stream = rank.gpu.make_stream();
    const Tried small(rank, {.rows = 2, .width = 4096});
    const Tried large(rank, {.rows = 64, .width = 4096, .in_place = true});
    // Only some ranks' data starts at multiples of 8.
    const uint64_t shift = rank.rank % 2 == 0 ? 0 : 2;
    const Tried shifted(rank, {.rows = 2, .width = 4096, .shift = shift});
    const Tried alone(rank, {.rows = 1, .width = 700, .shift = shift});
    meet(rank);
    const Tried* const tried[] = {&small, &large, &shifted, &alone};
    for (const Tried* const one : tried) one->issue(stream);
    rank.gpu.drain(stream);
    std::vector<uint8_t> all;
    for (const Tried* const one : tried) {
      one->check();
      const std::vector<uint8_t> got = one->result();
      all.insert(all.end(), got.begin(), got.end());
    }
    const std::lock_guard lock(mutex);
    seen.push_back(std::move(all));
    rank.gpu.free_stream(stream);
  });
  for (const auto& one : seen) EXPECT_TRUE(one == seen[0]);
}

TEST_P(CollectivesNorm, MixesWithAllReducesAndReplays) {
  run_on_gpus(ranks(), true, [](Rank& rank) {
    constexpr uint64_t kCount = 3000;
    void* const stream = rank.gpu.make_stream();
    const Tried small(rank, {.rows = 3, .width = 1024, .adds = false});
    const Tried large(rank, {.rows = 40, .width = 2048, .adds = false});
    Buffer sums(rank.gpu, kCount * 4);
    const std::vector<float> ones(kCount, 1);
    rank.gpu.put(sums.at(), ones.data(), kCount * 4);
    towline_collective_t sum = {};
    sum.struct_size = sizeof sum;
    sum.op = TOWLINE_COLLECTIVE_ALL_REDUCE;
    sum.count = kCount;
    sum.input = sum.output = sums.at();
    rank.gpu.record(stream);
    for (int i = 0; i < 3; ++i) {
      small.issue(stream);
      ASSERT_EQ(towline_collective_issue(rank.on_gpu, &sum, nullptr, stream), TOWLINE_OK);
      large.issue(stream);
    }
    void* const graph = rank.gpu.end_record(stream);
    meet(rank);
    for (int i = 0; i < 2; ++i) rank.gpu.replay(graph, stream);
    rank.gpu.drain(stream);
    small.check();
    large.check();
    std::vector<float> got(kCount);
    rank.gpu.get(got.data(), sums.at(), kCount * 4);
    for (const float one : got)
      ASSERT_EQ(one, static_cast<float>(std::pow(static_cast<double>(rank.size), 6.0)));
    rank.gpu.free_graph(graph);
    rank.gpu.free_stream(stream);
  });
}

// Where a GPU has room for it a row is divided among several blocks, many rows at once. The model's GPU has no room by itself.
TEST(CollectivesNormInParts, IsTheStepsOneByOne) {
  std::string why_not;
  Platform* const gpus = platform(why_not);
  if (gpus == nullptr) GTEST_SKIP() << why_not;
  gpus->enlarge(true);
  for (const int size : {2, 3, 4, 8})
    for (const char* const config : {"", "[tuning.collectives]\ngpu_marked_bytes = 64\n",
                                     "[tuning.collectives]\ngpu_direct = 0\ngpu_lines = 1\n"})
      run_on_gpus({size, config}, true, [](Rank& rank) {
        void* const stream = rank.gpu.make_stream();
        const uint64_t of_one = rank.rank == 1 ? 2 : 0;  // it takes another kernel than the others
        std::vector<std::unique_ptr<Tried>> all;
        for (const Norm& norm : std::initializer_list<Norm>{{.rows = 1, .width = 8180},
                                                            {.rows = 3, .width = 4096},
                                                            {.rows = 4, .width = 4096, .in_place = true},
                                                            {.rows = 2, .width = 2500, .shift = 2},
                                                            {.rows = 16, .width = 4096},
                                                            {.rows = 8, .width = 4096},
                                                            {.rows = 64, .width = 4096},
                                                            {.rows = 2, .width = 4096, .shift = of_one},
                                                            {.rows = 1, .width = 4096}})
          all.push_back(std::make_unique<Tried>(rank, norm));
        meet(rank);
        for (const auto& one : all) one->issue(stream);
        rank.gpu.drain(stream);
        for (const auto& one : all) one->check();
        rank.gpu.free_stream(stream);
      });
  gpus->enlarge(false);
}

// Rows whose parts have as many units as a block can have threads. Their squares are added in the same order on every rank.
TEST(CollectivesNormInParts, GivesTheSameBitsWhateverARanksMemory) {
  std::string why_not;
  Platform* const gpus = platform(why_not);
  if (gpus == nullptr) GTEST_SKIP() << why_not;
  gpus->enlarge(true);
  for (const auto& [size, rows] :
       std::initializer_list<std::pair<int, uint64_t>>{{2, 32}, {4, 16}, {4, 32}, {3, 32}, {8, 8}, {8, 16}}) {
    std::mutex mutex;
    std::vector<std::vector<uint8_t>> seen;
    run_on_gpus({size, ""}, true, [&, rows = rows](Rank& rank) {
      void* const stream = rank.gpu.make_stream();
      const uint64_t shift = rank.rank % 2 == 0 ? 0 : 4;
      const Tried tried(rank, {.datatype = TOWLINE_FLOAT32, .rows = rows, .width = 2048, .shift = shift});
      meet(rank);
      tried.issue(stream);
      rank.gpu.drain(stream);
      tried.check();
      const std::lock_guard lock(mutex);
      seen.push_back(tried.result());
      rank.gpu.free_stream(stream);
    });
    for (const auto& one : seen) EXPECT_TRUE(one == seen[0]) << size << " ranks";
  }
  gpus->enlarge(false);
}

// In two shots wherever there is room.
INSTANTIATE_TEST_SUITE_P(InTwoShots, CollectivesNorm,
                         testing::Combine(testing::Values(3, 4, 7, 8),
                                          testing::Values("[tuning.collectives]\ngpu_marked_bytes = 64\n")));
// By rows, with marked stores, with a kernel of its own, and in lines.
INSTANTIATE_TEST_SUITE_P(
    Ranks, CollectivesNorm,
    testing::Combine(
        testing::Values(1, 2, 3, 8),
        testing::Values(
            "", "[tuning.collectives]\ngpu_direct = 0\n",
            "[tuning.collectives]\ngpu_direct = 0\ngpu_marked_bytes = 0\ngpu_marked_two_bytes = 0\n",
            "[tuning.collectives]\ngpu_direct = 0\ngpu_lines = 1\ngpu_marked_bytes = 2000000\n")));

// ---- Between hosts

class CollectivesNormBetweenHosts : public testing::TestWithParam<std::vector<std::string>> {};

TEST_P(CollectivesNormBetweenHosts, IsTheStepsOneByOneAndReplays) {
  run_on_gpus(on_hosts(GetParam()), true, [](Rank& rank) {
    void* const stream = rank.gpu.make_stream();
    std::vector<std::unique_ptr<Tried>> all;
    for (const Norm& norm : shapes()) all.push_back(std::make_unique<Tried>(rank, norm));
    all.push_back(std::make_unique<Tried>(rank, Norm{.rows = 200, .width = 2048}));  // several chunks
    meet(rank);
    for (const auto& one : all) one->issue(stream);
    rank.gpu.drain(stream);
    for (const auto& one : all) one->check();

    const Tried replayed(rank, {.rows = 40, .width = 2048, .adds = false});
    rank.gpu.record(stream);
    replayed.issue(stream);
    void* const graph = rank.gpu.end_record(stream);
    meet(rank);
    for (int i = 0; i < 3; ++i) rank.gpu.replay(graph, stream);
    rank.gpu.drain(stream);
    replayed.check();
    meet(rank);
    rank.gpu.free_graph(graph);
    rank.gpu.free_stream(stream);
  });
}

TEST_P(CollectivesNormBetweenHosts, RanksThatDisagreeAreTold) {
  run_on_gpus(on_hosts(GetParam()), true, [](Rank& rank) {
    void* const stream = rank.gpu.make_stream();
    const Tried tried(rank, {.rows = 2, .width = 256});
    towline_collective_norm_t call = tried.call();
    if (rank.rank == 0) call.epsilon = 1e-6f;
    // A rank that comes last may find that the others have disagreed.
    const int32_t status = towline_collective_issue_norm(rank.on_gpu, &call, nullptr, stream);
    ASSERT_TRUE(status == TOWLINE_OK || status == TOWLINE_MISMATCH) << status;
    rank.gpu.drain(stream);
    std::string text;
    while ((text = communicator_error(rank.on_gpu)).empty()) std::this_thread::yield();
    EXPECT_NE(text.find("ranks disagree"), std::string::npos) << text;
    EXPECT_NE(text.find("all_reduce #0 of 512 bfloat16"), std::string::npos) << text;
    rank.gpu.free_stream(stream);
    await_others(rank);
  });
}

using Hosts = std::vector<std::string>;
INSTANTIATE_TEST_SUITE_P(Layouts, CollectivesNormBetweenHosts,
                         testing::Values(Hosts{"a", "b"}, Hosts{"a", "a", "b", "b"}, Hosts{"a", "b", "b"},
                                         Hosts{"a", "b", "c"}));

Ranks two() {
  Ranks made;
  made.size = 2;
  return made;
}

TEST(CollectivesNormFails, RanksThatDisagreeAreTold) {
  for (const bool width : {true, false}) {
    run_on_gpus(two(), true, [&](Rank& rank) {
      void* const stream = rank.gpu.make_stream();
      const Tried tried(rank, rank.rank == 0 ? Norm{.rows = 1, .width = 512} : Norm{.rows = 2, .width = 256});
      const towline_collective_norm_t call = tried.call();
      meet(rank);
      if (rank.rank == 0 || width) {
        ASSERT_EQ(towline_collective_issue_norm(rank.on_gpu, &call, nullptr, stream), TOWLINE_OK);
      } else {
        towline_collective_t plain = {};
        plain.struct_size = sizeof plain;
        plain.op = TOWLINE_COLLECTIVE_ALL_REDUCE;
        plain.datatype = TOWLINE_BFLOAT16;
        plain.count = 512;
        plain.input = plain.output = call.output;
        ASSERT_EQ(towline_collective_issue(rank.on_gpu, &plain, nullptr, stream), TOWLINE_OK);
      }
      rank.gpu.drain(stream);
      std::string text;
      while ((text = communicator_error(rank.on_gpu)).empty()) std::this_thread::yield();
      // Processes have met at an operation of their own before.
      const int number = rank.threads != nullptr ? 0 : 1;
      const std::string first = fmt::format(
          "ranks disagree: rank 0 is at all_reduce #{} of 512 bfloat16 (sum) with RMSNorm of rows of 512",
          number);
      const std::string second = fmt::format("rank 1 at all_reduce #{} of 512 bfloat16 (sum){}", number,
                                             width ? " with RMSNorm of rows of 256" : "");
      EXPECT_NE(text.find(first), std::string::npos) << text;
      EXPECT_NE(text.find(second), std::string::npos) << text;
      rank.gpu.free_stream(stream);
      await_others(rank);
    });
  }
}

TEST(CollectivesNormFails, ARankThatDoesNotComeIsNamed) {
  struct Way {
    Ranks ranks;
    uint64_t rows;
    uint64_t width;
  };
  const char* const lines = "[tuning.collectives]\ngpu_direct = 0\ngpu_lines = 1\n";
  constexpr uint64_t kTimeout = 300'000'000;
  // In slots, in one block and in several; in lines likewise.
  for (const auto& [ranks, rows, width] : std::initializer_list<Way>{{{2, "", kTimeout}, 2, 256},
                                                                     {{2, "", kTimeout}, 2, 8192},
                                                                     {{3, lines, kTimeout}, 1, 512},
                                                                     {{3, lines, kTimeout}, 2, 8192}})
    run_on_gpus(ranks, true, [rows = rows, width = width](Rank& rank) {
      const Tried tried(rank, {.rows = rows, .width = width});
      if (rank.rank == 1) {
        while (communicator_error(rank.on_gpu).empty()) std::this_thread::yield();
        return;
      }
      void* const stream = rank.gpu.make_stream();
      tried.issue(stream);
      rank.gpu.drain(stream);
      std::string text;
      while ((text = communicator_error(rank.on_gpu)).empty()) std::this_thread::yield();
      EXPECT_NE(text.find("rank 1 did not come"), std::string::npos) << text;
      rank.gpu.free_stream(stream);
    });
}

// A row's blocks begin together, for which another communicator's must leave room.
TEST(CollectivesNormFails, TwoCommunicatorsInOppositeOrdersDoNotDeadlock) {
  for (const int size : {2, 4}) {  // 16 streams of 8 ranks get no work queues of their own
    MapStore store;
    const auto table = store.table();
    run_on_gpus({size, "", 60'000'000'000}, true, [&](Rank& rank) {
      void* const streams[] = {rank.gpu.make_stream(), rank.gpu.make_stream()};
      towline_communicator_t* const worlds[] = {rank.on_gpu,
                                                open_another(rank, table, "second", 60'000'000'000)};
      ASSERT_NE(worlds[1], nullptr);
      std::vector<std::unique_ptr<Tried>> all;
      for (const uint64_t rows : {1, 2, 4, 8})
        for (int world = 0; world < 2; ++world)
          all.push_back(std::make_unique<Tried>(rank, Norm{.rows = rows, .width = 4096, .adds = false}));
      meet(rank);
      for (size_t turn = 0; turn < 100; ++turn) {
        const size_t swapped = (static_cast<size_t>(rank.rank) + turn) % 2;
        for (const size_t which : {swapped, 1 - swapped})
          all[2 * (turn % 4) + which]->issue(streams[which], worlds[which]);
      }
      for (void* const stream : streams) {
        rank.gpu.drain(stream);
        rank.gpu.free_stream(stream);
      }
      for (const auto& one : all) one->check();
      EXPECT_EQ(communicator_error(worlds[0]) + communicator_error(worlds[1]), "");
      towline_communicator_destroy(worlds[1]);
    });
  }
}

TEST(CollectivesNormFails, WhatItCannotDoIsRefusedAndNothingIsEnqueued) {
  Ranks one;
  one.size = 1;
  run_on_gpus(one, true, [](Rank& rank) {
    void* const stream = rank.gpu.make_stream();
    const Tried tried(rank, {});
    const auto refused = [&](int32_t status, auto&& change, towline_communicator_t* by) {
      towline_collective_norm_t call = tried.call();
      change(call);
      EXPECT_EQ(towline_collective_issue_norm(by, &call, nullptr, stream), status) << towline_last_error();
    };
    using Call = towline_collective_norm_t;
    refused(
        TOWLINE_UNSUPPORTED, [](Call& call) { call.datatype = TOWLINE_FLOAT64; }, rank.on_gpu);
    refused(
        TOWLINE_INVALID_ARGUMENT, [](Call& call) { call.width = 0; }, rank.on_gpu);
    refused(
        TOWLINE_INVALID_ARGUMENT, [](Call& call) { call.rows = UINT64_MAX; }, rank.on_gpu);
    refused(
        TOWLINE_INVALID_ARGUMENT, [](Call& call) { call.epsilon = -1; }, rank.on_gpu);
    refused(
        TOWLINE_INVALID_ARGUMENT, [](Call& call) { call.output = call.residual; }, rank.on_gpu);
    refused(
        TOWLINE_INVALID_ARGUMENT, [](Call& call) { call.struct_size = 8; }, rank.on_gpu);
    refused(
        TOWLINE_INVALID_ARGUMENT, [](Call& call) { call.input = nullptr; }, rank.on_gpu);
    refused(
        TOWLINE_UNSUPPORTED, [](Call&) {}, rank.on_cpu);
    tried.issue(stream);
    rank.gpu.drain(stream);
    tried.check();
    rank.gpu.free_stream(stream);
  });
}

}  // namespace
}  // namespace towline::gpu_test
