#include "norm.h"

#include <fmt/format.h>
#include <towline/collectives_gpu.h>

#include <algorithm>
#include <atomic>
#include <iostream>
#include <memory>

#include "gpu.h"
#include "ranks.h"
#include "support/table.h"

namespace bench::gpu {

namespace {

constexpr int kInGraph = 200;
constexpr uint64_t kBf16 = 2;  // bytes
constexpr uint16_t kOne = 0x3f80;
constexpr int kInputByte = 0x3f;  // 0x3f3f: every element is 0.746, so that normalised ones are 1

struct Shape {
  uint64_t rows;  // tokens
  uint64_t width;
};
constexpr Shape kShapes[] = {{1, 4096},  {1, 8192},  {8, 8192},   {16, 8192},
                             {32, 8192}, {64, 8192}, {128, 8192}, {512, 8192}};

struct Run : SharedRun {
  Run(const NormOptions& given, int ranks) : SharedRun(ranks), options(given) {}
  const NormOptions& options;
};

class Rank {
 public:
  Rank(Run& run, int rank) : run_(run), rank_(rank) {
    use(rank);
    const Shape& most = std::end(kShapes)[-1];
    for (uint64_t* memory : {&input_, &output_, &residual_, &weight_})
      *memory = allocate(most.rows * most.width * kBf16);
    world_ = communicator(run.store, "norm", rank, run.size, "", rank);
    run.meet();
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;
  ~Rank() {
    run_.meet();
    towline_communicator_destroy(world_);
  }

  void measure() {
    for (const Shape& shape : kShapes) measure(shape);
    need(towline_communicator_error(world_, nullptr, 0, nullptr), "the communicator broke");
  }

 private:
  void all_reduce(const Shape& shape, void* stream) {
    towline_collective_t call = {};
    call.struct_size = sizeof call;
    call.op = TOWLINE_COLLECTIVE_ALL_REDUCE;
    call.datatype = TOWLINE_BFLOAT16;
    call.count = shape.rows * shape.width;
    call.input = reinterpret_cast<void*>(input_);
    call.output = reinterpret_cast<void*>(output_);
    need(towline_collective_issue(world_, &call, nullptr, stream), "all_reduce");
  }

  void fused(const Shape& shape, void* stream) {
    towline_collective_norm_t norm = {};
    norm.struct_size = sizeof norm;
    norm.datatype = TOWLINE_BFLOAT16;
    norm.rows = shape.rows;
    norm.width = shape.width;
    norm.input = reinterpret_cast<void*>(input_);
    norm.residual = reinterpret_cast<void*>(residual_);
    norm.weight = reinterpret_cast<void*>(weight_);
    norm.output = reinterpret_cast<void*>(output_);
    need(towline_collective_issue_norm(world_, &norm, nullptr, stream), "all_reduce with RMSNorm");
  }

  void measure(const Shape& shape) {
    const uint64_t elements = shape.rows * shape.width;
    const std::vector<uint16_t> ones(shape.width, kOne);
    fill(input_, elements * kBf16, kInputByte);
    fill(residual_, elements * kBf16, 0);
    write(weight_, ones.data(), ones.size() * kBf16);
    synchronize();
    run_.meet();
    const auto record = [&](auto&& put) {
      return std::make_unique<Recording>([&](void* stream) {
        for (int i = 0; i < kInGraph; ++i) put(stream);
      });
    };
    const std::unique_ptr<Recording> graphs[] = {record([&](void* stream) { all_reduce(shape, stream); }),
                                                 record([&](void* stream) { fused(shape, stream); })};
    std::vector<double> times[2];
    for (int round = -2; round < run_.options.rounds; ++round) {
      for (size_t turn = 0; turn < 2; ++turn) {
        const size_t way = (turn + static_cast<size_t>(round + 2)) % 2;
        if (way == 1) fill(output_, elements * kBf16, 0xff);
        synchronize();
        run_.meet();
        run_.times[static_cast<size_t>(rank_)] = graphs[way]->replay() / kInGraph;
        if (way == 1) check(shape);
        run_.meet();
        if (round >= 0) times[way].push_back(run_.slowest());
        run_.meet();
      }
    }
    if (rank_ == 0) tell(shape, times[0], times[1]);
  }

  void check(const Shape& shape) {
    std::vector<uint16_t> got(shape.rows * shape.width);
    read(got.data(), output_, got.size() * kBf16);
    const auto wrong = static_cast<uint64_t>(got.size()) - std::count(got.begin(), got.end(), kOne);
    if (wrong == 0) return;
    run_.wrong += wrong;
    std::cout << fmt::format("WRONG: {} x {}, rank {} of {}: {} of {} numbers\n", shape.rows, shape.width,
                             rank_, run_.size, wrong, got.size())
              << std::flush;
  }

  void tell(const Shape& shape, const std::vector<double>& plain, const std::vector<double>& fused) {
    std::vector<double> over;
    for (size_t i = 0; i < plain.size(); ++i) over.push_back(fused[i] - plain[i]);
    run_.rows.push_back({fmt::format("{} x {}", shape.rows, shape.width),
                         fmt::format("{}", shape.rows * shape.width * kBf16 >> 10), us_text(plain),
                         us_text(fused), us_text(over)});
  }

  Run& run_;
  const int rank_;
  uint64_t input_ = 0;
  uint64_t output_ = 0;
  uint64_t residual_ = 0;
  uint64_t weight_ = 0;
  towline_communicator_t* world_ = nullptr;
};

}  // namespace

bool measure_norms(const NormOptions& options) {
  if (!options.plugin.empty())
    need(towline_collective_backend_load("gpu", options.plugin.c_str()), "backend");
  bool right = true;
  for (const int size : options.ranks.empty() ? std::vector<int>{2, 4, 8} : options.ranks) {
    if (size > count()) continue;
    Run run(options, size);
    run_ranks(size, [&](int rank) { Rank(run, rank).measure(); });
    Rows rows{{"bfloat16", "KiB", "all_reduce, us", "with addition and RMSNorm, us", "over it, us"}};
    rows.insert(rows.end(), run.rows.begin(), run.rows.end());
    std::cout << fmt::format("{} of {} x {}, medians of {} rounds, us of the slower rank, in graphs\n", size,
                             count(), name(0), options.rounds)
              << render(rows) << std::endl;
    right = right && run.wrong == 0;
  }
  return right;
}

}  // namespace bench::gpu
