#include "shared.h"

#include <fmt/format.h>
#include <towline/collectives_gpu.h>

#include <algorithm>
#include <iostream>
#include <memory>

#include "gpu.h"
#include "ranks.h"
#include "support/table.h"

namespace bench::gpu {

namespace {

constexpr uint64_t kSizes[] = {4 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20, 4 << 20};
constexpr int kInGraph = 200;

struct Run : SharedRun {
  Run(const std::vector<Way>& ours, int ranks, int measured)
      : SharedRun(ranks), ways(ours), plain(ranks), rounds(measured) {}
  const std::vector<Way>& ways;
  PlainAllReduce plain;
  const int rounds;
};

class Rank {
 public:
  Rank(Run& run, int rank) : run_(run), rank_(rank) {
    use(0);
    input_ = allocate(std::end(kSizes)[-1]);
    output_ = allocate(std::end(kSizes)[-1]);
    number(input_, std::end(kSizes)[-1] / sizeof(float), rank);
    run.plain.set(rank, input_, output_);
    for (const Way& way : run.ways)
      worlds_.push_back(communicator(run.store, way.name.c_str(), rank, run.size, way.config, 0));
    run.meet();
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;
  ~Rank() {
    run_.meet();
    for (towline_communicator_t* const world : worlds_) towline_communicator_destroy(world);
  }

  void measure() {
    for (const uint64_t bytes : kSizes) measure(bytes);
    for (towline_communicator_t* const world : worlds_)
      need(towline_communicator_error(world, nullptr, 0, nullptr), "the communicator broke");
  }

 private:
  void all_reduce(towline_communicator_t* world, uint64_t bytes, void* stream) const {
    towline_collective_t call = {};
    call.struct_size = sizeof call;
    call.op = TOWLINE_COLLECTIVE_ALL_REDUCE;
    call.count = bytes / sizeof(float);
    call.input = reinterpret_cast<void*>(input_);
    call.output = reinterpret_cast<void*>(output_);
    need(towline_collective_issue(world, &call, nullptr, stream), "all_reduce");
  }

  void measure(uint64_t bytes) {
    std::vector<std::unique_ptr<Recording>> graphs;  // the plain kernel's first
    for (size_t way = 0; way <= worlds_.size(); ++way) {
      graphs.push_back(std::make_unique<Recording>([&](void* stream) {
        for (int i = 0; i < kInGraph; ++i) {
          if (way == 0)
            run_.plain.put(stream, rank_, bytes);
          else
            all_reduce(worlds_[way - 1], bytes, stream);
        }
      }));
    }
    std::vector<std::vector<double>> times(graphs.size());
    for (int round = -2; round < run_.rounds; ++round) {
      for (size_t turn = 0; turn < graphs.size(); ++turn) {
        const size_t way = (turn + static_cast<size_t>(round + 2)) % graphs.size();
        fill(output_, bytes, 0xff);
        synchronize();
        run_.meet();
        run_.times[static_cast<size_t>(rank_)] = graphs[way]->replay() / kInGraph;
        check(bytes, way);
        run_.meet();
        if (round >= 0) times[way].push_back(run_.slowest());
        run_.meet();
      }
    }
    if (rank_ == 0) tell(bytes, times);
    run_.meet();
  }

  void check(uint64_t bytes, size_t way) {
    const uint64_t wrong =
        wrong_numbers(output_, bytes / sizeof(float), Collective::kAllReduce, rank_, run_.size);
    if (wrong == 0) return;
    run_.wrong += wrong;
    std::cout << fmt::format("WRONG: {} bytes, way {}, rank {} of {}: {} numbers\n", bytes, way, rank_,
                             run_.size, wrong)
              << std::flush;
  }

  void tell(uint64_t bytes, const std::vector<std::vector<double>>& times) {
    std::vector<std::string> row = {fmt::format("{}", bytes >> 10), us_text(times[0])};
    for (size_t way = 1; way < times.size(); ++way) {
      row.push_back(us_text(times[way]));
      row.push_back(fmt::format("{:.2f}", spread_of(times[0]).median / spread_of(times[way]).median));
    }
    run_.rows.push_back(std::move(row));
  }

  Run& run_;
  const int rank_;
  uint64_t input_ = 0;
  uint64_t output_ = 0;
  std::vector<towline_communicator_t*> worlds_;
};

}  // namespace

bool measure_shared(const SharedOptions& options) {
  if (!options.plugin.empty())
    need(towline_collective_backend_load("gpu", options.plugin.c_str()), "backend");
  const std::vector<Way> ours = ways_of(options.ways);
  bool right = true;
  for (const int size : options.ranks.empty() ? std::vector<int>{2, 4, 8} : options.ranks) {
    use(0);
    Run run(ours, size, options.rounds);
    run_ranks(size, [&](int rank) { Rank(run, rank).measure(); });
    Rows rows{{"KiB", "plain, us"}};
    for (const Way& one : ours) {
      rows.front().push_back(one.name + ", us");
      rows.front().push_back("plain / it");
    }
    rows.insert(rows.end(), run.rows.begin(), run.rows.end());
    std::cout << fmt::format(
                     "{} ranks on one {}, all_reduce of float32, medians of {} rounds, us of the slowest "
                     "rank, in graphs\n",
                     size, name(0), options.rounds)
              << render(rows) << std::endl;
    right = right && run.wrong == 0;
  }
  return right;
}

}  // namespace bench::gpu
