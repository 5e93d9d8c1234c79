// Ranks of the tests of collectives on GPUs, their values, and one operation beside the CPU backend.
#include "gpu/collectives_suite.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
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
    if (!found.empty()) std::memcpy(value, found.data(), std::min(capacity, found.size()));
    *bytes = found.size();
    return TOWLINE_OK;
  };
  return made;
}

void meet(Rank& rank) {
  if (rank.threads != nullptr) return rank.threads->arrive_and_wait();
  towline_collective_t call = {};
  call.struct_size = sizeof call;
  call.op = TOWLINE_COLLECTIVE_BARRIER;
  EXPECT_EQ(towline_collective(rank.on_gpu, &call, nullptr, nullptr), TOWLINE_OK) << towline_last_error();
}

std::vector<Opened> open_ranks(const std::vector<std::string>& configs) {
  MapStore store;
  const auto table = store.table();
  std::string why_not;
  Platform* const gpu = platform(why_not);
  std::vector<Opened> all(configs.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < configs.size(); ++rank)
    threads.emplace_back([&, rank] {
      towline_communicator_options_t options = {};
      options.struct_size = sizeof options;
      options.backend = gpu->backend();
      options.rank = static_cast<int32_t>(rank);
      options.size = static_cast<int32_t>(configs.size());
      options.store = &table;
      options.timeout_ns = 60'000'000'000;
      options.config = configs[rank].c_str();
      towline_communicator_t* made = nullptr;
      all[rank].status = towline_communicator_create(&options, &made);
      if (all[rank].status < 0) all[rank].text = towline_last_error();
      if (made != nullptr) towline_communicator_destroy(made);
    });
  for (std::thread& thread : threads) thread.join();
  return all;
}

std::string communicator_info(towline_communicator_t* communicator) {
  std::string json(65536, 0);
  size_t needed = 0;
  EXPECT_EQ(towline_communicator_info(communicator, json.data(), json.size(), &needed), TOWLINE_OK);
  return json.c_str();
}

towline_communicator_t* open_another(const Rank& rank, const towline_collective_store_t& store,
                                     const char* name, uint64_t timeout_ns) {
  towline_communicator_options_t options = {};
  options.struct_size = sizeof options;
  options.name = name;
  options.backend = rank.gpu.backend();
  options.rank = rank.rank;
  options.size = rank.size;
  options.store = &store;
  options.timeout_ns = timeout_ns;
  towline_communicator_t* made = nullptr;
  EXPECT_EQ(towline_communicator_create(&options, &made), TOWLINE_OK) << towline_last_error();
  return made;
}

std::string communicator_error(const towline_communicator_t* communicator) {
  char text[1024] = "";
  size_t needed = 0;
  (void)towline_communicator_error(communicator, text, sizeof text, &needed);
  return text;
}

namespace {

// This process is one rank, as run_as_processes starts it: TOWLINE_TEST_PROCESS=RANK/RANKS/FILE, where FILE is where they meet.
struct OwnRank {
  int rank = 0;
  int size = 0;
  std::string bootstrap;
};
const std::optional<OwnRank>& own_rank() {
  static const std::optional<OwnRank> mine = []() -> std::optional<OwnRank> {
    const char* const text = std::getenv("TOWLINE_TEST_PROCESS");
    OwnRank made;
    int taken = 0;
    if (text == nullptr || std::sscanf(text, "%d/%d/%n", &made.rank, &made.size, &taken) != 2)
      return std::nullopt;
    made.bootstrap = std::string("file:/") + (text + taken);
    return made;
  }();
  return mine;
}

void run_as(int rank, const Ranks& ranks, Platform& gpu, bool with_cpu,
            const std::function<void(Rank&)>& body, const towline_collective_store_t* store,
            std::barrier<>* threads) {
  gpu.be(rank);
  const auto make = [&](const char* name, const char* backend) {
    towline_communicator_options_t options = {};
    options.struct_size = sizeof options;
    options.name = name;
    options.backend = backend;
    options.rank = rank;
    options.size = ranks.size;
    options.store = store;
    if (store == nullptr) options.bootstrap = own_rank()->bootstrap.c_str();
    options.timeout_ns = ranks.timeout_ns;
    std::string config = ranks.config;
    if (!ranks.hosts.empty())
      config = fmt::format("collectives.host = \"{}\"\n{}", ranks.hosts[static_cast<size_t>(rank)], config);
    options.config = config.c_str();
    towline_communicator_t* made = nullptr;
    EXPECT_EQ(towline_communicator_create(&options, &made), TOWLINE_OK) << towline_last_error();
    return made;
  };
  Rank mine{rank, ranks.size, gpu, make("gpus", gpu.backend()), nullptr, threads};
  if (with_cpu) mine.on_cpu = make("cpus", "cpu");
  if (mine.on_gpu != nullptr && (!with_cpu || mine.on_cpu != nullptr)) body(mine);
  if (threads != nullptr) threads->arrive_and_drop();  // nobody waits for a rank whose body ended early
  if (mine.on_cpu != nullptr) towline_communicator_destroy(mine.on_cpu);
  if (mine.on_gpu != nullptr) towline_communicator_destroy(mine.on_gpu);
}

}  // namespace

void run_on_gpus(const Ranks& ranks, bool with_cpu, const std::function<void(Rank&)>& body) {
  std::string why_not;
  Platform* const gpu = platform(why_not);
  if (gpu == nullptr) GTEST_SKIP() << why_not;
  if (own_rank()) {
    ASSERT_EQ(own_rank()->size, ranks.size) << "run_as_processes needs a filter for tests of so many ranks";
    return run_as(own_rank()->rank, ranks, *gpu, with_cpu, body, nullptr, nullptr);
  }
  MapStore store;
  const auto table = store.table();
  std::barrier<> meeting(ranks.size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks.size; ++rank)
    threads.emplace_back([&, rank] { run_as(rank, ranks, *gpu, with_cpu, body, &table, &meeting); });
  for (std::thread& thread : threads) thread.join();
}

// ---- Values

namespace {
template <class T>
void put_value(std::vector<uint8_t>& to, uint64_t i, T value) {
  std::memcpy(to.data() + i * sizeof(T), &value, sizeof value);
}
}  // namespace

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
  if (reduction >= TOWLINE_REDUCE_BAND && reduction <= TOWLINE_REDUCE_BXOR) return !floating;
  return datatype != TOWLINE_BOOL ||
         (reduction != TOWLINE_REDUCE_AVG && reduction != TOWLINE_REDUCE_PREMUL_SUM);
}

// ---- One operation, on the GPU and on the CPU

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
    case TOWLINE_COLLECTIVE_ALL_GATHER:
    case TOWLINE_COLLECTIVE_GATHER:
      out *= size;
      break;
    case TOWLINE_COLLECTIVE_REDUCE_SCATTER:
    case TOWLINE_COLLECTIVE_SCATTER:
      in *= size;
      break;
    case TOWLINE_COLLECTIVE_ALL_TO_ALL:
      in *= size;
      out *= size;
      break;
    case TOWLINE_COLLECTIVE_ALL_GATHER_V:
      for (uint64_t rank = 0; rank < size; ++rank) out_counts.push_back(what.count * (rank % 3) + rank);
      in = out_counts[me];
      out = sum(out_counts);
      break;
    case TOWLINE_COLLECTIVE_REDUCE_SCATTER_V:
      for (uint64_t rank = 0; rank < size; ++rank) in_counts.push_back(what.count * (rank % 3) + rank);
      in = sum(in_counts);
      out = in_counts[me];
      break;
    case TOWLINE_COLLECTIVE_ALL_TO_ALL_V:
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

}  // namespace towline::gpu_test
