#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <towline/collectives.hpp>

#include "bench/collective.h"
#include "bench/collective_gpu.h"
#include "bench/collective_peer.h"
#include "failure.h"
#include "rank.h"
#include "samples.h"
#include "units.h"

namespace tool::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kMostChecked = 1 << 16;  // elements of a row
constexpr double kSampleSeconds = 10e-6;    // short operations are timed several at a time
constexpr uint64_t kMostRounds = 100'000;

// The input of rank `rank` at index `i`, from 0 to 1.
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
    const std::string folder = configuration.at("folder");
    store_ = "file:" + folder + "/store";
    ours_ = std::make_unique<Contender>("cpu", store_, rank_, size_, "",
                                        options_.tcp ? TOWLINE_COMMUNICATOR_NO_SHARED_MEMORY : 0);
    if (!ours_->problem().empty()) throw Failure{"forming: " + ours_->problem()};
    world_ = ours_->world();
    const uint64_t largest = *std::ranges::max_element(options_.sizes) / sizeof(float);
    const uint64_t most = largest + size_;
    in_.resize(most);
    out_.resize(most);
    for (uint64_t i = 0; i < most; ++i) in_[i] = given(rank_, i);
    if (options_.vram) start_gpu(most);
    start_peers(folder);
  }
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

  void start_gpu(uint64_t floats) {
    buffers_ = std::make_unique<GpuBuffers>(rank_, floats);
    buffers_->put_in(in_);
    std::string config = buffers_->config();
    if (!options_.nccl_from.empty()) config += fmt::format("nccl_from = \"{}\"\n", options_.nccl_from);
    config += "[collectives]\non_gpu = \"gpu\"\n";
    on_gpu_ = std::make_unique<Contender>("gpu", store_, rank_, size_, config, 0);
    if (!on_gpu_->problem().empty()) throw Failure{"forming: " + on_gpu_->problem()};
  }

  // Ranks agree on which peers are installed.
  void start_peers(const std::string& folder) {
    nlohmann::json told = nlohmann::json::object();
    for (const std::string& kind : options_.peers) {
      if (options_.vram) {
        if (kind == "nccl") start_nccl(told);
        continue;
      }
      auto peer = std::make_unique<CollectivePeer>(
          kind, PeerPlace{folder, rank_, size_, options_.tcp, options_.python});
      need(towline_barrier(world_, nullptr, nullptr), "starting peers");
      std::string why;
      const bool here = peer->start(why);
      if (slowest(here ? 0 : 1) == 0) {
        told[kind] = {{"version", peer->version()}};
        peers_.push_back(std::move(peer));
      } else {
        told[kind] = {{"problem", why.empty() ? "it does not start on every rank" : why}};
      }
    }
    if (on_gpu_ != nullptr && !options_.nccl_from.empty() && !on_gpu_->no_nccl().empty())
      told["nccl_from"] = {{"problem", on_gpu_->no_nccl()}};
    if (rank_ == 0) parent_.send({{"peers", told}});
  }

  void start_nccl(nlohmann::json& told) {
    nccl_ = std::make_unique<Contender>("nccl", store_, rank_, size_, buffers_->config(), 0);
    if (slowest(nccl_->problem().empty() ? 0 : 1) == 0) {
      told["nccl"] = {{"version", nccl_->version()}};
      return;
    }
    const std::string why = nccl_->problem();
    nccl_.reset();
    told["nccl"] = {{"problem", why.empty() ? "it does not start on every rank" : why}};
  }

  // One of the contenders that are measured in turns: Towline, or a peer, which may be a communicator here as well.
  struct Track {
    CollectivePeer* peer = nullptr;
    const Contender* here = nullptr;
    std::string name;  // empty: Towline
    CollectiveJob job;
    uint64_t most = 0;  // samples; 0: it does not have the operation
    std::vector<double> times = {};
    double passed = 0;
  };

  struct Operation {
    towline_collective_t call = {};
    towline_collective_t receive = {};  // of send_recv
    bool whole = false;
    std::vector<uint64_t> sends, receives;  // uneven
  };

  void measure(const std::string& operation, uint64_t size) {
    Operation one;
    prepare(operation, size, one);
    const towline_collective_t& call = one.call;
    const Contender& ours = options_.vram ? *on_gpu_ : *ours_;

    nlohmann::json row = {
        {"op", operation}, {"size", call.op == TOWLINE_COLLECTIVE_BARRIER ? 0 : size}, {"ranks", size_}};
    std::ranges::fill(out_, -1.0F);
    if (options_.vram) buffers_->put_out(out_);
    const bool shared = options_.vram && !options_.nccl_from.empty();
    const uint64_t given = shared ? ours.given_to_nccl() : 0;
    do_once(operation, one, ours);
    if (shared) row["by"] = ours.given_to_nccl() > given ? "nccl" : "gpu";
    if (options_.vram) buffers_->get_out(out_);
    check(operation, one, row);
    std::vector<Track> tracks;
    tracks.push_back({nullptr, &ours, "", {operation, call.count, one.sends, one.receives}});
    if (nccl_ != nullptr) tracks.push_back({nullptr, nccl_.get(), "nccl", tracks[0].job});
    for (const auto& peer : peers_) tracks.push_back({peer.get(), nullptr, peer->kind(), tracks[0].job});
    const auto once_of = [&](const Track& track) {
      return [&, here = track.here] { do_once(operation, one, *here); };
    };
    for (Track& track : tracks) calibrate(track, once_of(track));
    // Contenders take turns, block by block, since other programs may slow one down. After each round the
    // ranks agree on whether the time is over.
    for (bool going = true; going;) {
      going = false;
      for (Track& track : tracks) {
        const bool more =
            track.times.size() < track.most &&
            (options_.iterations != 0 || track.times.size() < 5 || track.passed < options_.seconds);
        if (!more) continue;
        going = true;
        track.job.samples =
            std::min<uint64_t>(std::max<uint64_t>(track.most / 20, 1), track.most - track.times.size());
        const auto block = sample(track, once_of(track));
        double spent = 0;
        for (const double time : block.value()) spent += time * static_cast<double>(track.job.batch);
        track.times.insert(track.times.end(), block->begin(), block->end());
        track.passed += slowest(spent);
      }
    }
    row["peers"] = nlohmann::json::object();
    for (Track& track : tracks) {
      if (track.most == 0) continue;
      // For every sample the time of the slowest rank.
      need(towline_all_reduce(world_, track.times.data(), track.times.data(), track.times.size(),
                              TOWLINE_FLOAT64, TOWLINE_REDUCE_MAX, nullptr, nullptr),
           "collecting times");
      const Samples all(std::move(track.times));
      nlohmann::json& into = track.name.empty() ? row : row["peers"][track.name];
      into["samples"] = all.size();
      into["operations_of_a_sample"] = track.job.batch;
      into["p50_s"] = all.median();
      into["p99_s"] = all.quantile(0.99);
      into["max_s"] = all.max();
    }
    if (rank_ != 0) return;
    const double bytes = call.op == TOWLINE_COLLECTIVE_BARRIER
                             ? 0
                             : static_cast<double>((one.whole ? call.count : call.count * size_) * 4);
    const double median = row["p50_s"];
    row["algorithm_bytes_per_s"] = bytes / median;
    row["bus_bytes_per_s"] = bytes / median * bus_factor(operation, size_);
    parent_.send({{"row", row}});
  }

  void prepare(const std::string& operation, uint64_t size, Operation& one) {
    uint32_t op = TOWLINE_COLLECTIVE_BARRIER;
    if (operation == "send_recv") op = TOWLINE_COLLECTIVE_SEND;
    while (op != TOWLINE_COLLECTIVE_SEND && operation != towline_collective_op_name(op)) ++op;
    one.whole = op == TOWLINE_COLLECTIVE_ALL_REDUCE || op == TOWLINE_COLLECTIVE_REDUCE ||
                op == TOWLINE_COLLECTIVE_BROADCAST || op == TOWLINE_COLLECTIVE_SEND;
    const uint64_t elements = std::max<uint64_t>(size / sizeof(float), 1);
    const uint64_t count = one.whole ? elements : std::max<uint64_t>(elements / size_, 1);
    towline_collective_t& call = one.call;
    call.struct_size = sizeof call;
    call.op = op;
    call.datatype = TOWLINE_FLOAT32;
    call.reduction = TOWLINE_REDUCE_SUM;
    call.count = op == TOWLINE_COLLECTIVE_BARRIER ? 0 : count;
    call.input = options_.vram ? buffers_->in() : in_.data();
    call.output = options_.vram ? buffers_->out() : out_.data();
    const std::vector<uint64_t> parts = uneven_parts(count, size_);
    if (op == TOWLINE_COLLECTIVE_ALL_GATHER_V) {
      one.sends = {parts[rank_]};
      one.receives = parts;
    } else if (op == TOWLINE_COLLECTIVE_REDUCE_SCATTER_V) {
      one.sends = parts;
      one.receives = {parts[rank_]};
    } else if (op == TOWLINE_COLLECTIVE_ALL_TO_ALL_V) {
      // Rank r sends uneven part (r + i) to rank i, and receives as much from it.
      for (uint32_t other = 0; other < size_; ++other) one.sends.push_back(parts[(rank_ + other) % size_]);
      one.receives = one.sends;
    }
    call.input_counts = one.sends.empty() ? nullptr : one.sends.data();
    call.output_counts = one.receives.empty() ? nullptr : one.receives.data();
    if (op != TOWLINE_COLLECTIVE_SEND) return;
    one.receive = call;
    one.receive.op = TOWLINE_COLLECTIVE_RECV;
    call.root = static_cast<int32_t>((rank_ + 1) % size_);
    one.receive.root = static_cast<int32_t>((rank_ + size_ - 1) % size_);
  }

  static void do_once(const std::string& operation, const Operation& one, const Contender& who) {
    if (one.call.op != TOWLINE_COLLECTIVE_SEND)
      return need(towline_collective(who.world(), &one.call, nullptr, nullptr), operation);
    need(towline_batch_add(who.batch(), &one.call), operation);
    need(towline_batch_add(who.batch(), &one.receive), operation);
    need(towline_batch_issue(who.batch(), nullptr, nullptr), operation);
  }

  // Chooses the operations per sample and the number of samples, the same on all ranks.
  template <class Once>
  void calibrate(Track& track, Once&& once) {
    track.job.batch = 1;
    track.job.samples = 3;
    const auto block = sample(track, once);
    if (!block) return;
    const double took = slowest(*std::ranges::min_element(*block));
    track.job.batch = static_cast<uint64_t>(std::max(1.0, std::ceil(kSampleSeconds / took)));
    const double fit = options_.seconds / (took * static_cast<double>(track.job.batch));
    track.most = options_.iterations != 0 ? options_.iterations
                                          : std::clamp<uint64_t>(static_cast<uint64_t>(fit), 5, kMostRounds);
  }

  template <class Once>
  std::optional<std::vector<double>> sample(Track& track, Once&& once) {
    if (track.peer != nullptr) return track.peer->run(track.job);
    std::vector<double> times;
    for (uint64_t sample = 0; sample < track.job.samples; ++sample) {
      const auto begin = Clock::now();
      for (uint64_t i = 0; i < track.job.batch; ++i) once();
      times.push_back(seconds_since(begin) / static_cast<double>(track.job.batch));
    }
    return times;
  }

  double slowest(double value) {
    need(towline_all_reduce(world_, &value, &value, 1, TOWLINE_FLOAT64, TOWLINE_REDUCE_MAX, nullptr, nullptr),
         "collecting times");
    return value;
  }

  // The rank and index of the input element that belongs at `i` of the result; rank is size_ for a sum over
  // all ranks.
  std::pair<uint32_t, uint64_t> origin(const Operation& one, uint64_t i) const {
    const uint64_t count = one.call.count;
    const auto part = static_cast<uint32_t>(count == 0 ? 0 : i / count);
    const auto before = [](const std::vector<uint64_t>& parts, uint32_t rank) {
      return std::accumulate(parts.begin(), parts.begin() + rank, uint64_t{0});
    };
    uint32_t from = 0;
    switch (one.call.op) {
      case TOWLINE_COLLECTIVE_BROADCAST:
        return {0, i};
      case TOWLINE_COLLECTIVE_SCATTER:
        return {0, rank_ * count + i};
      case TOWLINE_COLLECTIVE_GATHER:
      case TOWLINE_COLLECTIVE_ALL_GATHER:
        return {part, i % count};
      case TOWLINE_COLLECTIVE_ALL_TO_ALL:
        return {part, rank_ * count + i % count};
      case TOWLINE_COLLECTIVE_SEND:
        return {(rank_ + size_ - 1) % size_, i};
      case TOWLINE_COLLECTIVE_REDUCE_SCATTER:
        return {size_, rank_ * count + i};
      case TOWLINE_COLLECTIVE_REDUCE_SCATTER_V:
        return {size_, before(one.sends, rank_) + i};
      case TOWLINE_COLLECTIVE_ALL_GATHER_V:
      case TOWLINE_COLLECTIVE_ALL_TO_ALL_V:
        while (i >= one.receives[from]) i -= one.receives[from++];
        if (one.call.op == TOWLINE_COLLECTIVE_ALL_GATHER_V) return {from, i};
        for (uint32_t other = 0; other < rank_; ++other)  // what `from` sends to the ranks before this one
          i += uneven_parts(count, size_)[(from + other) % size_];
        return {from, i};
      default:
        return {size_, i};
    }
  }

  // The right result at `i`, and how far float32 may be off.
  std::pair<double, double> expected(const Operation& one, uint64_t i) const {
    const auto [whose, at] = origin(one, i);
    if (whose < size_) return {static_cast<double>(given(whose, at)), 0.0};
    double sum = 0;
    for (uint32_t rank = 0; rank < size_; ++rank) sum += static_cast<double>(given(rank, at));
    return {sum, sum * size_ * static_cast<double>(std::numeric_limits<float>::epsilon())};
  }

  // Checks against float64; in long results kMostChecked evenly spaced elements. Ranks combine their
  // findings.
  void check(const std::string& operation, const Operation& one, nlohmann::json& row) {
    const uint32_t op = one.call.op;
    const bool at_root = op == TOWLINE_COLLECTIVE_REDUCE || op == TOWLINE_COLLECTIVE_GATHER;
    const bool has_result = op != TOWLINE_COLLECTIVE_BARRIER && (!at_root || rank_ == 0) && options_.check;
    const bool parts = op == TOWLINE_COLLECTIVE_ALL_GATHER || op == TOWLINE_COLLECTIVE_GATHER ||
                       op == TOWLINE_COLLECTIVE_ALL_TO_ALL;
    uint64_t length = one.call.count * (parts ? size_ : 1);
    if (operation.ends_with("_v"))
      length = std::accumulate(one.receives.begin(), one.receives.end(), uint64_t{0});
    if (!has_result) length = 0;
    const uint64_t step = std::max<uint64_t>(1, length / kMostChecked);
    double totals[2] = {0, 0};  // checked, wrong
    double error = 0;
    for (uint64_t i = 0; i < length; i += step) {
      const auto [right, tolerance] = expected(one, i);
      const double off = std::abs(static_cast<double>(out_[i]) - right);
      ++totals[0];
      if (!(off <= tolerance)) ++totals[1];
      if (right != 0) error = std::max(error, off / right);
    }
    need(towline_all_reduce(world_, totals, totals, 2, TOWLINE_FLOAT64, TOWLINE_REDUCE_SUM, nullptr, nullptr),
         "collecting errors");
    row["checked_elements"] = static_cast<uint64_t>(totals[0]);
    row["wrong_elements"] = static_cast<uint64_t>(totals[1]);
    row["largest_relative_error"] = slowest(error);
  }

  const CollectiveOptions options_;
  const uint32_t rank_;
  const uint32_t size_;
  Channel& parent_;
  std::string store_;
  std::unique_ptr<Contender> ours_;
  towline_communicator_t* world_ = nullptr;  // its
  std::unique_ptr<GpuBuffers> buffers_;      // with vram
  std::unique_ptr<Contender> on_gpu_;
  std::unique_ptr<Contender> nccl_;
  std::vector<std::unique_ptr<CollectivePeer>> peers_;
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
