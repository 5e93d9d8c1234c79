#include "gpu/collectives_suite.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "collectives/small_floats.h"

namespace towline::gpu_test {

namespace {
using collectives::Bfloat16, collectives::Float16, collectives::Float8E4m3, collectives::Float8E5m2;
}

towline_collective_store_t MapStore::table() {
  towline_collective_store_t made = {};
  made.struct_size = sizeof made;
  made.context = this;
  made.set = [](void* context, const char* key, const void* value, size_t bytes) -> int32_t {
    auto& self = *static_cast<MapStore*>(context);
    const std::lock_guard lock(self.mutex_);
    const auto* const from = static_cast<const uint8_t*>(value);
    self.values_[key] = {from, from + bytes};
    self.changed_.notify_all();
    return TOWLINE_OK;
  };
  made.get = [](void* context, const char* key, uint64_t timeout_ns, void* value, size_t capacity,
                size_t* bytes) -> int32_t {
    auto& self = *static_cast<MapStore*>(context);
    std::unique_lock lock(self.mutex_);
    const auto limit = std::chrono::nanoseconds(std::min<uint64_t>(timeout_ns, 600'000'000'000));
    if (!self.changed_.wait_for(lock, limit, [&] { return self.values_.contains(key); }))
      return TOWLINE_TIMED_OUT;
    const std::vector<uint8_t>& found = self.values_[key];
    std::memcpy(value, found.data(), std::min(capacity, found.size()));
    *bytes = found.size();
    return TOWLINE_OK;
  };
  return made;
}

void meet(Rank& rank) {
  towline_collective_t call = {};
  call.struct_size = sizeof call;
  call.op = TOWLINE_OP_BARRIER;
  EXPECT_EQ(towline_collective(rank.on_gpu, &call, nullptr, nullptr), TOWLINE_OK) << towline_last_error();
}

std::string communicator_error(const towline_communicator_t* communicator) {
  char text[1024] = "";
  size_t needed = 0;
  (void)towline_communicator_error(communicator, text, sizeof text, &needed);
  return text;
}

void run_on_gpus(const Ranks& ranks, bool with_cpu, const std::function<void(Rank&)>& body) {
  std::string why_not;
  Platform* const gpu = platform(why_not);
  if (gpu == nullptr) GTEST_SKIP() << why_not;
  MapStore store;
  const auto table = store.table();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks.size; ++rank) {
    threads.emplace_back([&, rank] {
      const auto make = [&](const char* name, const char* backend) {
        towline_communicator_options_t options = {};
        options.struct_size = sizeof options;
        options.name = name;
        options.backend = backend;
        options.rank = rank;
        options.size = ranks.size;
        options.store = &table;
        options.timeout_ns = ranks.timeout_ns;
        options.config = ranks.config.c_str();
        towline_communicator_t* made = nullptr;
        EXPECT_EQ(towline_communicator_create(&options, &made), TOWLINE_OK) << towline_last_error();
        return made;
      };
      Rank mine{rank, ranks.size, *gpu, make("gpus", gpu->backend()), nullptr};
      if (with_cpu) mine.on_cpu = make("cpus", "cpu");
      if (mine.on_gpu != nullptr && (!with_cpu || mine.on_cpu != nullptr)) body(mine);
      if (mine.on_cpu != nullptr) towline_communicator_destroy(mine.on_cpu);
      if (mine.on_gpu != nullptr) towline_communicator_destroy(mine.on_gpu);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

namespace {

// ---- Values

template <class T>
void put_value(std::vector<uint8_t>& to, uint64_t i, T value) {
  std::memcpy(to.data() + i * sizeof(T), &value, sizeof value);
}

// Small numbers, whose sums and products round.
std::vector<uint8_t> values(uint32_t datatype, int rank, uint64_t count, uint64_t seed) {
  const uint64_t element = towline_datatype_bytes(datatype);
  std::vector<uint8_t> made(count * element);
  for (uint64_t i = 0; i < count; ++i) {
    const auto mixed = static_cast<uint32_t>((static_cast<uint64_t>(rank) * 31 + i * 7 + seed * 13) % 29);
    const float small = (static_cast<float>(mixed) - 14.0f) * 0.3f;
    switch (datatype) {
      case TOWLINE_FLOAT32:
        put_value(made, i, small);
        break;
      case TOWLINE_FLOAT64:
        put_value(made, i, static_cast<double>(small) / 3);
        break;
      case TOWLINE_FLOAT16:
        put_value(made, i, Float16::narrow(small));
        break;
      case TOWLINE_BFLOAT16:
        put_value(made, i, Bfloat16::narrow(small));
        break;
      case TOWLINE_FLOAT8_E4M3:
        put_value(made, i, Float8E4m3::narrow(small / 2));
        break;
      case TOWLINE_FLOAT8_E5M2:
        put_value(made, i, Float8E5m2::narrow(small / 2));
        break;
      case TOWLINE_BOOL:
        put_value(made, i, static_cast<uint8_t>(mixed % 3 == 0));
        break;
      default: {
        const int64_t value = static_cast<int64_t>(mixed) - 14;
        std::memcpy(made.data() + i * element, &value, element);
      }
    }
  }
  return made;
}

bool can(uint32_t datatype, uint32_t reduction) {
  const bool floating = datatype <= TOWLINE_FLOAT8_E5M2;
  if (reduction >= TOWLINE_BAND && reduction <= TOWLINE_BXOR) return !floating;
  return datatype != TOWLINE_BOOL || (reduction != TOWLINE_AVG && reduction != TOWLINE_PREMUL_SUM);
}

// ---- One operation, on the GPU and on the CPU

struct Try {
  uint32_t op = TOWLINE_OP_ALL_REDUCE;
  uint32_t datatype = TOWLINE_FLOAT32;
  uint32_t reduction = TOWLINE_SUM;
  uint64_t count = 1;
  int root = 0;
  bool in_place = false;
  uint64_t shift = 0;      // bytes
  void* stream = nullptr;  // null: a blocking call
};

std::string name_of(const Try& what, const Rank& ranks) {
  return fmt::format("{} of {} {} ({}), root {}, shift {}{} among {}", towline_collective_op_name(what.op),
                     what.count, towline_datatype_name(what.datatype), towline_reduction_name(what.reduction),
                     what.root, what.shift, what.in_place ? ", in place" : "", ranks.size);
}

void try_one(Rank& ranks, const Try& what) {
  const uint64_t element = towline_datatype_bytes(what.datatype);
  const auto size = static_cast<uint64_t>(ranks.size);
  const auto me = static_cast<uint64_t>(ranks.rank);
  std::vector<uint64_t> in_counts;
  std::vector<uint64_t> out_counts;
  uint64_t in = what.count;
  uint64_t out = what.count;
  const auto sum = [](const std::vector<uint64_t>& all) {
    uint64_t total = 0;
    for (const uint64_t one : all) total += one;
    return total;
  };
  switch (what.op) {
    case TOWLINE_OP_ALL_GATHER:
    case TOWLINE_OP_GATHER:
      out *= size;
      break;
    case TOWLINE_OP_REDUCE_SCATTER:
    case TOWLINE_OP_SCATTER:
      in *= size;
      break;
    case TOWLINE_OP_ALL_TO_ALL:
      in *= size;
      out *= size;
      break;
    case TOWLINE_OP_ALL_GATHER_V:
      for (uint64_t rank = 0; rank < size; ++rank) out_counts.push_back(what.count * (rank % 3) + rank);
      in = out_counts[me];
      out = sum(out_counts);
      break;
    case TOWLINE_OP_REDUCE_SCATTER_V:
      for (uint64_t rank = 0; rank < size; ++rank) in_counts.push_back(what.count * (rank % 3) + rank);
      in = sum(in_counts);
      out = in_counts[me];
      break;
    case TOWLINE_OP_ALL_TO_ALL_V:
      for (uint64_t rank = 0; rank < size; ++rank) {
        in_counts.push_back(what.count * ((me + 2 * rank) % 3) + me);
        out_counts.push_back(what.count * ((rank + 2 * me) % 3) + rank);
      }
      in = sum(in_counts);
      out = sum(out_counts);
      break;
    default:
      break;
  }
  towline_collective_t call = {};
  call.struct_size = sizeof call;
  call.op = what.op;
  call.datatype = what.datatype;
  call.reduction = what.reduction;
  call.root = what.root;
  call.count = what.count;
  call.factor = 1.5 + ranks.rank;
  call.input_counts = in_counts.empty() ? nullptr : in_counts.data();
  call.output_counts = out_counts.empty() ? nullptr : out_counts.data();

  const std::vector<uint8_t> input = values(what.datatype, ranks.rank, in, what.count);
  std::vector<uint8_t> cpu_in = input;
  std::vector<uint8_t> cpu_out(out * element, 0x5a);
  Buffer gpu_in(ranks.gpu, input.size(), what.shift);
  Buffer gpu_out(ranks.gpu, cpu_out.size(), what.shift);
  gpu_in.put(input);
  gpu_out.put(cpu_out);
  call.input = cpu_in.data();
  call.output = what.in_place ? cpu_in.data() : cpu_out.data();
  ASSERT_EQ(towline_collective(ranks.on_cpu, &call, nullptr, nullptr), TOWLINE_OK) << towline_last_error();
  call.input = gpu_in.at();
  call.output = what.in_place ? gpu_in.at() : gpu_out.at();
  if (what.stream == nullptr) {
    ASSERT_EQ(towline_collective(ranks.on_gpu, &call, nullptr, nullptr), TOWLINE_OK)
        << name_of(what, ranks) << ": " << towline_last_error();
  } else {
    ASSERT_EQ(towline_collective_issue(ranks.on_gpu, &call, nullptr, what.stream), TOWLINE_OK)
        << name_of(what, ranks) << ": " << towline_last_error();
    ranks.gpu.drain(what.stream);
    ASSERT_EQ(towline_communicator_error(ranks.on_gpu, nullptr, 0, nullptr), TOWLINE_OK)
        << name_of(what, ranks) << ": " << communicator_error(ranks.on_gpu);
  }
  EXPECT_TRUE(gpu_in.get() == cpu_in) << "the input, " << name_of(what, ranks);
  const std::vector<uint8_t> got = gpu_out.get();
  if (got == cpu_out) return;
  const auto differs =
      static_cast<uint64_t>(std::mismatch(got.begin(), got.end(), cpu_out.begin()).first - got.begin());
  ADD_FAILURE() << name_of(what, ranks) << ": rank " << ranks.rank << " differs from the CPU at byte "
                << differs << ": " << int{got[differs]} << ", not " << int{cpu_out[differs]};
}

constexpr uint32_t kOperations[] = {
    TOWLINE_OP_ALL_REDUCE,   TOWLINE_OP_REDUCE,         TOWLINE_OP_BROADCAST,        TOWLINE_OP_ALL_GATHER,
    TOWLINE_OP_ALL_GATHER_V, TOWLINE_OP_REDUCE_SCATTER, TOWLINE_OP_REDUCE_SCATTER_V, TOWLINE_OP_GATHER,
    TOWLINE_OP_SCATTER,      TOWLINE_OP_ALL_TO_ALL,     TOWLINE_OP_ALL_TO_ALL_V,     TOWLINE_OP_BARRIER};
bool reduces(uint32_t op) {
  return op == TOWLINE_OP_ALL_REDUCE || op == TOWLINE_OP_REDUCE || op == TOWLINE_OP_REDUCE_SCATTER ||
         op == TOWLINE_OP_REDUCE_SCATTER_V;
}

struct Setup {
  const char* name;
  int size;
  const char* config;
};
class CollectivesOnGpu : public testing::TestWithParam<Setup> {
 protected:
  Ranks ranks() const {
    Ranks made;
    made.size = GetParam().size;
    made.config = GetParam().config;
    return made;
  }
};

TEST_P(CollectivesOnGpu, EveryOperationGivesWhatTheCpuGives) {
  run_on_gpus(ranks(), true, [](Rank& rank) {
    void* const stream = rank.gpu.make_stream();
    for (const uint32_t op : kOperations) {
      for (const uint64_t count : {0, 1, 7, 1000, 5001, 70001}) {
        if (testing::Test::HasFailure()) break;
        Try what;
        what.op = op;
        what.count = count;
        what.root = static_cast<int>(count) % rank.size;
        try_one(rank, what);
        what.stream = stream;
        what.shift = 4;
        try_one(rank, what);
      }
    }
    rank.gpu.free_stream(stream);
  });
}

TEST_P(CollectivesOnGpu, EveryTypeAndReductionGivesTheCpusBits) {
  run_on_gpus(ranks(), true, [](Rank& rank) {
    for (uint32_t datatype = 0; datatype <= TOWLINE_BOOL; ++datatype) {
      for (uint32_t reduction = 0; reduction <= TOWLINE_PREMUL_SUM; ++reduction) {
        if (!can(datatype, reduction) || testing::Test::HasFailure()) continue;
        for (const uint64_t count : {33, 6007}) {
          Try what;
          what.datatype = datatype;
          what.reduction = reduction;
          what.count = count;
          what.shift = count == 33 ? 1 : 0;
          try_one(rank, what);
          what.count = 40000;
          what.in_place = true;
          if (count == 33) try_one(rank, what);
          what.in_place = false;
          what.op = TOWLINE_OP_REDUCE_SCATTER;
          what.count = count;
          try_one(rank, what);
        }
      }
    }
  });
}

TEST_P(CollectivesOnGpu, AnyAlignmentDoes) {
  run_on_gpus(ranks(), true, [](Rank& rank) {
    for (const uint32_t op : kOperations) {
      for (const uint64_t shift : {1, 2, 8, 12}) {
        if (testing::Test::HasFailure()) break;
        Try what;
        what.op = op;
        what.datatype = reduces(op) ? TOWLINE_BFLOAT16 : TOWLINE_INT64;
        what.count = 2049;
        what.shift = shift + static_cast<uint64_t>(rank.rank) % 2;  // not the same on every rank
        try_one(rank, what);
      }
    }
  });
}

TEST_P(CollectivesOnGpu, GraphsReplayOperations) {
  run_on_gpus(ranks(), false, [](Rank& rank) {
    constexpr uint64_t kSmall = 1024;
    constexpr uint64_t kLarge = 100000;
    void* const stream = rank.gpu.make_stream();
    Buffer small(rank.gpu, kSmall * 4);
    Buffer large(rank.gpu, kLarge * 4);
    small.put(std::vector<uint8_t>(kSmall * 4));
    large.put(std::vector<uint8_t>(kLarge * 4));
    std::vector<float> ones(kSmall, 1.0f);
    rank.gpu.put(small.at(), ones.data(), kSmall * 4);
    ones.resize(kLarge, 1.0f);
    rank.gpu.put(large.at(), ones.data(), kLarge * 4);
    rank.gpu.record(stream);
    for (const auto& [buffer, count] : {std::pair{&small, kSmall}, std::pair{&large, kLarge}}) {
      towline_collective_t call = {};
      call.struct_size = sizeof call;
      call.op = TOWLINE_OP_ALL_REDUCE;
      call.count = count;
      call.input = call.output = buffer->at();
      EXPECT_EQ(towline_collective_issue(rank.on_gpu, &call, nullptr, stream), TOWLINE_OK)
          << towline_last_error();
    }
    void* const graph = rank.gpu.end_record(stream);
    meet(rank);
    float expected = 1;
    for (int i = 0; i < 3; ++i) {
      rank.gpu.replay(graph, stream);
      expected *= static_cast<float>(rank.size);
    }
    rank.gpu.drain(stream);
    std::vector<float> got(kLarge);
    rank.gpu.get(got.data(), small.at(), kSmall * 4);
    EXPECT_EQ(std::count(got.begin(), got.begin() + kSmall, expected), static_cast<long>(kSmall)) << got[0];
    rank.gpu.get(got.data(), large.at(), kLarge * 4);
    EXPECT_EQ(std::count(got.begin(), got.end(), expected), static_cast<long>(kLarge)) << got[0];
    EXPECT_EQ(communicator_error(rank.on_gpu), "");
    rank.gpu.free_graph(graph);
    rank.gpu.free_stream(stream);
  });
}

TEST_P(CollectivesOnGpu, MessagesGoRoundARing) {
  run_on_gpus(ranks(), false, [](Rank& rank) {
    if (rank.size == 1) return;
    for (const uint64_t count : {0, 1, 5000, 300001}) {
      const std::vector<uint8_t> mine = values(TOWLINE_INT32, rank.rank, count, 5);
      Buffer out(rank.gpu, mine.size(), 4);
      Buffer in(rank.gpu, mine.size());
      out.put(mine);
      towline_work_t* sending = nullptr;
      towline_work_t* receiving = nullptr;
      const int next = (rank.rank + 1) % rank.size;
      const int before = (rank.rank + rank.size - 1) % rank.size;
      ASSERT_EQ(towline_send(rank.on_gpu, out.at(), count, TOWLINE_INT32, next, 9, nullptr, &sending),
                TOWLINE_OK);
      ASSERT_EQ(towline_recv(rank.on_gpu, in.at(), count, TOWLINE_INT32, before, 9, nullptr, &receiving),
                TOWLINE_OK);
      EXPECT_EQ(towline_work_wait(receiving, TOWLINE_FOREVER), TOWLINE_OK) << towline_last_error();
      EXPECT_EQ(towline_work_wait(sending, TOWLINE_FOREVER), TOWLINE_OK) << towline_last_error();
      towline_work_release(sending);
      towline_work_release(receiving);
      EXPECT_TRUE(in.get() == values(TOWLINE_INT32, before, count, 5)) << count;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Ranks, CollectivesOnGpu,
    testing::Values(Setup{"One", 1, ""}, Setup{"Two", 2, ""}, Setup{"Four", 4, ""}, Setup{"Eight", 8, ""},
                    Setup{"ThreeStaged", 3,
                          "[collectives]\ngpu_direct = 0\ngpu_marked_bytes = 0\ngpu_blocks = 3\n"},
                    Setup{"EightStaged", 8, "[collectives]\ngpu_direct = 0\n"}),
    [](const auto& setup) { return setup.param.name; });

// ---- Bad days

towline_collective_t reduce_call(Buffer& buffer, uint64_t count) {
  towline_collective_t call = {};
  call.struct_size = sizeof call;
  call.op = TOWLINE_OP_ALL_REDUCE;
  call.count = count;
  call.input = call.output = buffer.at();
  return call;
}

TEST(CollectivesOnGpuFail, ARankThatNeverComesIsNamedByAllOthers) {
  for (const uint64_t count : {100, 1000000}) {
    run_on_gpus({3, "", 60'000'000'000}, false, [&](Rank& rank) {
      if (rank.rank == 2) {
        // It waits, at no operation, until the others have failed.
        std::string text;
        while ((text = communicator_error(rank.on_gpu)).empty()) std::this_thread::yield();
        EXPECT_NE(text.find("rank 2 did not come"), std::string::npos) << text;
        return;
      }
      Buffer buffer(rank.gpu, count * 4);
      const towline_collective_t call = reduce_call(buffer, count);
      towline_collective_options_t options = {};
      options.struct_size = sizeof options;
      options.timeout_ns = 300'000'000;
      EXPECT_EQ(towline_collective(rank.on_gpu, &call, &options, nullptr), TOWLINE_TIMED_OUT);
      const std::string text = communicator_error(rank.on_gpu);
      EXPECT_NE(text.find("all_reduce"), std::string::npos) << text;
      EXPECT_NE(text.find("rank 2 did not come"), std::string::npos) << text;
    });
  }
}

TEST(CollectivesOnGpuFail, RanksThatDisagreeAreNamedWithTheirOperations) {
  struct Pair {
    uint64_t counts[2];
    uint32_t datatypes[2];
    uint32_t ops[2];
  };
  const Pair pairs[] = {{{64, 65}, {0, 0}, {1, 1}},
                        {{64, 64}, {TOWLINE_FLOAT32, TOWLINE_INT32}, {1, 1}},
                        {{64, 100000}, {0, 0}, {1, 1}},
                        {{64, 64}, {0, 0}, {TOWLINE_OP_ALL_REDUCE, TOWLINE_OP_BROADCAST}},
                        {{100000, 100000}, {0, 0}, {TOWLINE_OP_ALL_REDUCE, TOWLINE_OP_BARRIER}}};
  for (const Pair& pair : pairs) {
    run_on_gpus({2, "", 60'000'000'000}, false, [&](Rank& rank) {
      const auto mine = static_cast<size_t>(rank.rank);
      Buffer buffer(rank.gpu, 400000);
      towline_collective_t call = reduce_call(buffer, pair.counts[mine]);
      call.datatype = pair.datatypes[mine];
      call.op = pair.ops[mine];
      EXPECT_EQ(towline_collective(rank.on_gpu, &call, nullptr, nullptr), TOWLINE_MISMATCH)
          << communicator_error(rank.on_gpu);
      const std::string text = communicator_error(rank.on_gpu);
      EXPECT_NE(text.find("ranks disagree: rank 0 is at all_reduce"), std::string::npos) << text;
    });
  }
}

TEST(CollectivesOnGpuFail, AnAbortEndsWaitingRanks) {
  run_on_gpus({3, "", 60'000'000'000}, false, [](Rank& rank) {
    Buffer buffer(rank.gpu, 4000);
    if (rank.rank == 1) {
      EXPECT_EQ(towline_communicator_abort(rank.on_gpu, "enough"), TOWLINE_OK);
      return;
    }
    const towline_collective_t call = reduce_call(buffer, 1000);
    EXPECT_EQ(towline_collective(rank.on_gpu, &call, nullptr, nullptr), TOWLINE_CANCELLED);
    const std::string text = communicator_error(rank.on_gpu);
    EXPECT_NE(text.find("rank 1 aborted"), std::string::npos) << text;
  });
}

TEST(CollectivesOnGpuFail, ARankThatLeftIsNamed) {
  run_on_gpus({2, "", 60'000'000'000}, false, [](Rank& rank) {
    if (rank.rank == 1) return;
    Buffer buffer(rank.gpu, 4000);
    const towline_collective_t call = reduce_call(buffer, 1000);
    EXPECT_EQ(towline_collective(rank.on_gpu, &call, nullptr, nullptr), TOWLINE_PEER_LOST);
    const std::string text = communicator_error(rank.on_gpu);
    EXPECT_NE(text.find("rank 1 has left"), std::string::npos) << text;
  });
}

TEST(CollectivesOnGpuFail, PartsThatDoNotFitAreAMismatch) {
  for (const char* config : {"", "[collectives]\ngpu_direct = 0\n"}) {
    run_on_gpus({2, config, 60'000'000'000}, false, [](Rank& rank) {
      Buffer buffer(rank.gpu, 4000);
      Buffer other(rank.gpu, 4000);
      const uint64_t sent[2][2] = {{10, 20}, {30, 40}};
      const uint64_t expected[2][2] = {{10, 30}, {21, 40}};
      towline_collective_t call = {};
      call.struct_size = sizeof call;
      call.op = TOWLINE_OP_ALL_TO_ALL_V;
      call.input = buffer.at();
      call.output = other.at();
      call.input_counts = sent[rank.rank];
      call.output_counts = expected[rank.rank];
      EXPECT_EQ(towline_collective(rank.on_gpu, &call, nullptr, nullptr), TOWLINE_MISMATCH);
      const std::string text = communicator_error(rank.on_gpu);
      EXPECT_NE(text.find("rank 0 sends 80 bytes to rank 1, which expects 84"), std::string::npos) << text;
    });
  }
}

TEST(CollectivesOnGpuFail, BrokenCommunicatorsRefuseAndTheGpuStaysUsable) {
  run_on_gpus({2, "", 60'000'000'000}, false, [](Rank& rank) {
    void* const stream = rank.gpu.make_stream();
    Buffer buffer(rank.gpu, 4000);
    const towline_collective_t call = reduce_call(buffer, 1000);
    if (rank.rank == 0) {
      EXPECT_EQ(towline_communicator_abort(rank.on_gpu, nullptr), TOWLINE_OK);
    }
    while (communicator_error(rank.on_gpu).empty()) std::this_thread::yield();
    EXPECT_EQ(towline_collective_issue(rank.on_gpu, &call, nullptr, stream), TOWLINE_CANCELLED);
    rank.gpu.drain(stream);
    rank.gpu.free_stream(stream);
  });
  run_on_gpus({2, "", 60'000'000'000}, true, [](Rank& rank) { try_one(rank, {}); });
}

}  // namespace
}  // namespace towline::gpu_test
