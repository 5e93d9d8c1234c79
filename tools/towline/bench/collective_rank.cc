#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <towline/collectives.hpp>

#include "bench/collective.h"
#include "failure.h"
#include "rank.h"
#include "samples.h"

namespace tool::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kMostChecked = 1 << 16;  // elements of a row
constexpr double kSampleSeconds = 10e-6;    // short operations are timed several at a time
constexpr uint64_t kMostSamples = 100'000;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// What rank `rank` gives at `i`, from 0 to 1.
float given(uint32_t rank, uint64_t i) {
  uint64_t x = (i + 1) * 0x9E3779B97F4A7C15ULL + rank * 0xD1B54A32D192ED03ULL;
  x = (x ^ (x >> 31)) * 0xBF58476D1CE4E5B9ULL;
  return static_cast<float>(x >> 40) / static_cast<float>(1 << 24);
}

class CollectiveRank {
 public:
  CollectiveRank(const nlohmann::json& configuration, Channel& parent)
      : options_(configuration.at("options").get<CollectiveOptions>()),
        rank_(configuration.at("rank")),
        size_(configuration.at("size")),
        parent_(parent) {
    const std::string store = configuration.at("store");
    towline_communicator_options_t options = {};
    options.struct_size = sizeof options;
    options.rank = static_cast<int32_t>(rank_);
    options.size = static_cast<int32_t>(size_);
    options.bootstrap = store.c_str();
    options.flags = options_.tcp ? TOWLINE_COMMUNICATOR_NO_SHARED_MEMORY : 0;
    options.timeout_ns = 60'000'000'000;
    need(towline_communicator_create(&options, &world_), "forming");
    const uint64_t most = *std::ranges::max_element(options_.sizes) / sizeof(float) + size_;
    in_.resize(most);
    out_.resize(most);
    for (uint64_t i = 0; i < most; ++i) in_[i] = given(rank_, i);
  }
  ~CollectiveRank() { towline_communicator_destroy(world_); }
  CollectiveRank(const CollectiveRank&) = delete;

  void run() {
    for (const std::string& operation : options_.operations) {
      for (const uint64_t size : options_.sizes) {
        if (parent_.closed()) throw Stopped{};
        measure(operation, size);
        if (operation == "barrier") break;
      }
    }
  }

 private:
  static void need(int32_t status, const std::string& what) {
    if (status < 0) throw Failure{fmt::format("{}: {}", what, towline_last_error())};
  }

  void measure(const std::string& operation, uint64_t size) {
    uint32_t op = TOWLINE_OP_BARRIER;
    while (operation != towline_collective_op_name(op)) ++op;
    const bool whole = op == TOWLINE_OP_ALL_REDUCE || op == TOWLINE_OP_REDUCE || op == TOWLINE_OP_BROADCAST;
    const uint64_t elements = std::max<uint64_t>(size / sizeof(float), 1);
    const uint64_t count = whole ? elements : std::max<uint64_t>(elements / size_, 1);
    towline_collective_t call = {};
    call.struct_size = sizeof call;
    call.op = op;
    call.datatype = TOWLINE_FLOAT32;
    call.reduction = TOWLINE_SUM;
    call.count = op == TOWLINE_OP_BARRIER ? 0 : count;
    call.input = in_.data();
    call.output = out_.data();
    const auto once = [&] { need(towline_collective(world_, &call, nullptr, nullptr), operation); };

    nlohmann::json row = {{"op", operation}, {"size", op == TOWLINE_OP_BARRIER ? 0 : size}, {"ranks", size_}};
    std::ranges::fill(out_, -1.0F);
    once();
    check(call, row);
    // So many at a time, and so many samples: the same on all ranks.
    double took = std::numeric_limits<double>::max();
    for (int i = 0; i < 3; ++i) {
      const auto begin = Clock::now();
      once();
      took = std::min(took, slowest(seconds_since(begin)));
    }
    const auto batch = static_cast<uint64_t>(std::max(1.0, std::ceil(kSampleSeconds / took)));
    const double fit = options_.seconds / (took * static_cast<double>(batch));
    const uint64_t most = options_.iterations != 0
                              ? options_.iterations
                              : std::clamp<uint64_t>(static_cast<uint64_t>(fit), 5, kMostSamples);
    // By blocks, after which ranks agree on whether the time is over: other programs may slow it down.
    std::vector<double> times;
    double passed = 0;
    while (times.size() < most &&
           (options_.iterations != 0 || times.size() < 5 || passed < options_.seconds)) {
      const uint64_t block = std::min<uint64_t>(std::max<uint64_t>(most / 20, 1), most - times.size());
      double spent = 0;
      for (uint64_t sample = 0; sample < block; ++sample) {
        const auto begin = Clock::now();
        for (uint64_t i = 0; i < batch; ++i) once();
        const double all = seconds_since(begin);
        spent += all;
        times.push_back(all / static_cast<double>(batch));
      }
      passed += slowest(spent);
    }
    // Of every sample the slowest rank's.
    need(towline_all_reduce(world_, times.data(), times.data(), times.size(), TOWLINE_FLOAT64, TOWLINE_MAX,
                            nullptr, nullptr),
         "collecting times");
    if (rank_ != 0) return;
    const Samples all(std::move(times));
    const double bytes =
        op == TOWLINE_OP_BARRIER ? 0 : static_cast<double>((whole ? count : count * size_) * 4);
    row["samples"] = all.size();
    row["operations_of_a_sample"] = batch;
    row["p50_s"] = all.median();
    row["p99_s"] = all.quantile(0.99);
    row["max_s"] = all.max();
    row["algorithm_bytes_per_s"] = bytes / all.median();
    row["bus_bytes_per_s"] = bytes / all.median() * bus_factor(operation, size_);
    parent_.send({{"row", row}});
  }

  double slowest(double value) {
    need(towline_all_reduce(world_, &value, &value, 1, TOWLINE_FLOAT64, TOWLINE_MAX, nullptr, nullptr),
         "collecting times");
    return value;
  }

  // The right result at `i`, and how far float32 may be off.
  std::pair<double, double> expected(const towline_collective_t& call, uint64_t i) const {
    const uint64_t count = call.count;
    const uint64_t mine = rank_ * count;
    const auto exactly = [](float value) { return std::pair{static_cast<double>(value), 0.0}; };
    const auto part = static_cast<uint32_t>(i / count);
    switch (call.op) {
      case TOWLINE_OP_BROADCAST:
        return exactly(given(0, i));
      case TOWLINE_OP_SCATTER:
        return exactly(given(0, mine + i));
      case TOWLINE_OP_GATHER:
      case TOWLINE_OP_ALL_GATHER:
        return exactly(given(part, i % count));
      case TOWLINE_OP_ALL_TO_ALL:
        return exactly(given(part, mine + i % count));
      default:
        break;
    }
    const uint64_t at = call.op == TOWLINE_OP_REDUCE_SCATTER ? mine + i : i;
    double sum = 0;
    for (uint32_t rank = 0; rank < size_; ++rank) sum += static_cast<double>(given(rank, at));
    return {sum, sum * size_ * static_cast<double>(std::numeric_limits<float>::epsilon())};
  }

  // Against float64; of long results as many elements as kMostChecked, evenly. Ranks come together on it.
  void check(const towline_collective_t& call, nlohmann::json& row) {
    const bool at_root = call.op == TOWLINE_OP_REDUCE || call.op == TOWLINE_OP_GATHER;
    const bool has_result = call.op != TOWLINE_OP_BARRIER && (!at_root || rank_ == 0) && options_.check;
    const bool parts =
        call.op == TOWLINE_OP_ALL_GATHER || call.op == TOWLINE_OP_GATHER || call.op == TOWLINE_OP_ALL_TO_ALL;
    const uint64_t length = has_result ? call.count * (parts ? size_ : 1) : 0;
    const uint64_t step = std::max<uint64_t>(1, length / kMostChecked);
    double totals[2] = {0, 0};  // checked, wrong
    double error = 0;
    for (uint64_t i = 0; i < length; i += step) {
      const auto [right, tolerance] = expected(call, i);
      const double off = std::abs(static_cast<double>(out_[i]) - right);
      ++totals[0];
      if (!(off <= tolerance)) ++totals[1];
      if (right != 0) error = std::max(error, off / right);
    }
    need(towline_all_reduce(world_, totals, totals, 2, TOWLINE_FLOAT64, TOWLINE_SUM, nullptr, nullptr),
         "collecting errors");
    row["checked_elements"] = static_cast<uint64_t>(totals[0]);
    row["wrong_elements"] = static_cast<uint64_t>(totals[1]);
    row["largest_relative_error"] = slowest(error);
  }

  const CollectiveOptions options_;
  const uint32_t rank_;
  const uint32_t size_;
  Channel& parent_;
  towline_communicator_t* world_ = nullptr;
  std::vector<float> in_;
  std::vector<float> out_;
};

}  // namespace

void run_collective_rank(const nlohmann::json& configuration, Channel& parent) {
  try {
    CollectiveRank rank(configuration, parent);
    rank.run();
    parent.send({{"done", true}});
    while (!parent.closed()) {
      pollfd wait{parent.fd(), POLLIN, 0};
      (void)::poll(&wait, 1, 1000);
      if (const auto message = parent.try_receive(); message && message->value("command", "") == "stop")
        break;
    }
  } catch (const Stopped&) {
  }
}

}  // namespace tool::bench
