#include "collectives.h"

#include <fmt/format.h>
#include <towline/collectives_gpu.h>

#include <algorithm>
#include <atomic>
#include <iostream>
#include <memory>
#include <optional>
#include <stdexcept>

#include "gpu.h"
#include "nccl.h"
#include "ranks.h"
#include "support/statistics.h"
#include "support/table.h"

namespace bench::gpu {

namespace {

constexpr uint64_t kKiB = 1 << 10;
constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kSizes[] = {256,      4 * kKiB, 16 * kKiB, 64 * kKiB, 256 * kKiB, 512 * kKiB,
                               1 * kMiB, 2 * kMiB, 8 * kMiB,  64 * kMiB, 512 * kMiB};

struct Operation {
  const char* name;
  Collective what;
  towline_collective_op_t op;
  void (NcclRank::*theirs)(const float*, float*, size_t, void*);
};
constexpr Operation kOperations[] = {
    {"all_reduce", Collective::kAllReduce, TOWLINE_COLLECTIVE_ALL_REDUCE, &NcclRank::all_reduce},
    {"all_gather", Collective::kAllGather, TOWLINE_COLLECTIVE_ALL_GATHER, &NcclRank::all_gather},
    {"reduce_scatter", Collective::kReduceScatter, TOWLINE_COLLECTIVE_REDUCE_SCATTER,
     &NcclRank::reduce_scatter},
    {"all_to_all", Collective::kAllToAll, TOWLINE_COLLECTIVE_ALL_TO_ALL, &NcclRank::all_to_all}};

struct Run : SharedRun {
  Run(const CollectivesOptions& given, const Nccl& theirs, int ranks)
      : SharedRun(ranks), options(given), nccl(theirs) {}
  const CollectivesOptions& options;
  const Nccl& nccl;
  const std::vector<Way> ways = ways_of(options.ways);
  const NcclId id = nccl.id();
};

class Rank {
 public:
  Rank(Run& run, int rank) : run_(run), rank_(rank) {
    use(rank);
    const uint64_t most = std::min(run.options.most, std::end(kSizes)[-1]);
    input_ = allocate(most);
    output_ = allocate(most);
    for (const Way& way : run.ways) {
      worlds_.push_back(communicator(run.store, way.name.c_str(), rank, run.size, way.config, rank));
      run.meet();
    }
    nccl_.emplace(run.nccl, run.id, rank, run.size);
    run.meet();
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;
  ~Rank() {
    run_.meet();
    for (towline_communicator_t* world : worlds_) towline_communicator_destroy(world);
  }

  void measure() {
    for (const Operation& operation : kOperations) {
      const auto& wanted = run_.options.operations;
      if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), operation.name) == wanted.end())
        continue;
      for (const uint64_t bytes : kSizes)
        if (bytes >= run_.options.least && bytes <= run_.options.most) measure(operation, bytes);
    }
    for (towline_communicator_t* world : worlds_)
      need(towline_communicator_error(world, nullptr, 0, nullptr), "the communicator broke");
  }

 private:
  // Bytes are those of the larger of input and output.
  void measure(const Operation& operation, uint64_t bytes) {
    const auto size = static_cast<uint64_t>(run_.size);
    const uint64_t whole = bytes / 4 / size * size;
    const uint64_t part = whole / size;
    const bool reduced = operation.what == Collective::kReduceScatter;
    const bool parts = operation.what != Collective::kAllReduce;
    const uint64_t results = reduced ? part : whole;
    const int count = bytes <= kMiB ? 200 : bytes <= 64 * kMiB ? 20 : 4;
    const size_t ways = worlds_.size() + 1;  // the last is NCCL's
    number(input_, operation.what == Collective::kAllGather ? part : whole, rank_);
    const auto begin = [&](size_t way, void* stream) {
      auto* const in = reinterpret_cast<float*>(input_);
      auto* const out = reinterpret_cast<float*>(output_);
      const uint64_t each = parts ? part : whole;
      if (way == worlds_.size()) return (*nccl_.*operation.theirs)(in, out, each, stream);
      towline_collective_t call = {};
      call.struct_size = sizeof call;
      call.op = operation.op;
      call.count = each;
      call.input = in;
      call.output = out;
      need(towline_collective_issue(worlds_[way], &call, nullptr, stream), operation.name);
    };
    const auto check = [&](size_t way, const char* how) {
      const uint64_t wrong = wrong_numbers(output_, results, operation.what, rank_, run_.size);
      if (wrong == 0) return;
      run_.wrong += wrong;
      std::cout << fmt::format("WRONG: {} {} of {} bytes, {}, rank {} of {}: {} of {} numbers\n",
                               name_of(way), operation.name, bytes, how, rank_, run_.size, wrong, results)
                << std::flush;
    };
    std::vector<std::unique_ptr<Recording>> graphs;
    for (size_t way = 0; way < ways; ++way) {
      fill(output_, results * 4, 0xff);
      run_.meet();
      begin(way, native_stream());
      synchronize();
      check(way, "at once");
      run_.meet();
      graphs.push_back(std::make_unique<Recording>([&](void* stream) {
        for (int i = 0; i < count; ++i) begin(way, stream);
      }));
    }
    std::vector<std::vector<double>> times(ways);
    for (int round = -2; round < run_.options.rounds; ++round) {
      for (size_t turn = 0; turn < ways; ++turn) {
        const size_t way = (turn + static_cast<size_t>(round + 2)) % ways;
        if (round == -1) fill(output_, results * 4, 0xff);
        run_.meet();
        const double taken = graphs[way]->replay();
        if (round == -1) check(way, "in a graph");
        run_.times[static_cast<size_t>(rank_)] = taken / count;
        run_.meet();
        if (round >= 0) times[way].push_back(run_.slowest());
      }
    }
    run_.meet();
    if (rank_ == 0) tell(operation, bytes, times);
  }

  [[nodiscard]] std::string name_of(size_t way) const {
    return way == run_.ways.size() ? "NCCL" : run_.ways[way].name;
  }

  void tell(const Operation& operation, uint64_t bytes, const std::vector<std::vector<double>>& times) {
    std::vector<double> ratios;
    for (size_t i = 0; i < times.front().size(); ++i) ratios.push_back(times.back()[i] / times.front()[i]);
    std::vector<std::string> row{operation.name,
                                 bytes < kKiB   ? fmt::format("{}", bytes)
                                 : bytes < kMiB ? fmt::format("{} KiB", bytes / kKiB)
                                                : fmt::format("{} MiB", bytes / kMiB),
                                 us_text(times.front()), us_text(times.back()),
                                 fmt::format("{:.2f}", spread_of(ratios).median)};
    for (size_t way = 1; way + 1 < times.size(); ++way) row.push_back(us_text(times[way]));
    run_.rows.push_back(row);
    // A run that is cut short has told what it had.
    std::cout << fmt::format("{}", fmt::join(row, "  ")) << std::endl;
  }

  Run& run_;
  const int rank_;
  uint64_t input_ = 0;
  uint64_t output_ = 0;
  std::vector<towline_communicator_t*> worlds_;
  std::optional<NcclRank> nccl_;
};

}  // namespace

bool measure_collectives(const CollectivesOptions& options) {
  if (!options.plugin.empty())
    need(towline_collective_backend_load("gpu", options.plugin.c_str()), "backend");
  const Nccl nccl(options.nccl);
  bool right = true;
  for (const int size : options.ranks.empty() ? std::vector<int>{2, 4, 8} : options.ranks) {
    if (size > count()) continue;
    Run run(options, nccl, size);
    std::cout << fmt::format("{} of {} x {}, NCCL {}, medians of {} rounds, us of the slower rank\n", size,
                             count(), name(0), nccl.version(), options.rounds)
              << std::flush;
    run_ranks(size, [&](int rank) { Rank(run, rank).measure(); });
    Rows rows{{"operation", "bytes", "Towline us", "NCCL us", "ratio"}};
    for (size_t way = 1; way < run.ways.size(); ++way) rows.front().push_back(run.ways[way].name);
    rows.insert(rows.end(), run.rows.begin(), run.rows.end());
    std::cout << '\n' << render(rows) << std::endl;
    right = right && run.wrong == 0;
  }
  return right;
}

}  // namespace bench::gpu
