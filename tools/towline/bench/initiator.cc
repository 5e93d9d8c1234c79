#include "bench/initiator.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>

#include "bench/product.h"
#include "bench/target.h"
#include "buffer.h"
#include "failure.h"
#include "mix.h"
#include "process.h"
#include "rank.h"
#include "samples.h"
#include "units.h"
#include "usage.h"

namespace tool::bench {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using towline::Status;

constexpr size_t kMostReported = 5000;
constexpr std::chrono::seconds kAnswerWithin{120};

// A selection that fits a message: evenly spaced in the sorted samples, including the largest.
std::vector<double> thinned(std::vector<double> samples) {
  std::ranges::sort(samples);
  if (samples.size() <= kMostReported) return samples;
  std::vector<double> chosen;
  for (size_t at = 1; at <= kMostReported; ++at)
    chosen.push_back(samples[at * samples.size() / kMostReported - 1]);
  return chosen;
}

// Memory that another process lends to this one.
struct TargetPeer {
  std::unique_ptr<towline::Peer> peer;
  uint64_t base = 0;
  Place place;
};

// The posts of one thread to or from one target, always of the same blocks.
struct Stream {
  Area local;
  Share share;
  uint32_t thread = 0;
  uint64_t remote_offset = 0;
  uint64_t identity = 0;
  std::vector<uint32_t> local_picks;
  std::vector<uint32_t> remote_picks;
  bool reads = false;
  towline::Plan plan;
  std::optional<towline::Post> post;

  [[nodiscard]] towline::PostOptions how() const {
    towline::PostOptions made{.from = reads ? remote_picks : local_picks,
                              .to = reads ? local_picks : remote_picks};
    made.stream = towline::unordered;  // nothing else uses that memory
    return made;
  }
};

struct ThreadTimes {
  std::vector<double> samples;
  uint64_t iterations = 0;
  Status failure = Status::kOk;
};

class Initiator {
 public:
  Initiator(const json& configuration, Channel& parent)
      : options_(configuration.get<InitiatorOptions>()),
        most_threads_(std::ranges::max(options_.rows, {}, &Row::threads).threads),
        rank_(fmt::format("bench-initiator-{}-{}", options_.rank, getpid()),
              {.workers = options_.workers, .listen = options_.listen}, parent) {}

  void run() {
    const auto addresses = rank_.wait_for_parent("start").at("start").get<std::vector<std::string>>();
    targets_ = static_cast<uint32_t>(addresses.size());
    for (size_t row = 0; row < options_.rows.size(); ++row) measure_memory(options_.rows[row]);
    buffer_.emplace(parse_buffer_kind(options_.memory_kind), local_thread_bytes_ * most_threads_,
                    static_cast<int>(options_.rank));
    buffer_->push(0, buffer_->size());
    if (!options_.beside.what.empty())
      product_.emplace(static_cast<int>(buffer_->view().device), options_.beside.cublas, options_.beside.size,
                       options_.beside.asked != 0
                           ? Product::Share{.sms = options_.beside.asked, .how = Product::How::kAsked}
                           : Product::Share{.sms = options_.beside.sms});
    region_.emplace(rank_.agent().register_memory(buffer_->view()));
    peers_.resize(targets_);
    for (const Share& share : shares(options_.rows.front())) join(share.target, addresses[share.target]);
    rank_.report({{"ready", true}});
    for (size_t row = 0; row < options_.rows.size(); ++row) {
      (void)rank_.wait_for_parent("prepare");
      epoch_ = 2 * row + 1;
      prepare(options_.rows[row]);
      rank_.report({{"prepared", row}});
      (void)rank_.wait_for_parent("go");
      rank_.report({{"measured", measure(options_.rows[row])}});
      (void)rank_.wait_for_parent("check");
      rank_.report({{"checked", check(options_.rows[row], epoch_)}});
    }
    (void)rank_.wait_for_parent("close");
    streams_.clear();
    for (const TargetPeer& target : peers_) {
      if (target.peer != nullptr) ask(target, {{"ask", "close"}});
    }
    rank_.report({{"closed", true}});
    while (true) rank_.wait(milliseconds{1000});
  }

 private:
  [[nodiscard]] std::vector<Share> shares(const Row& row) const {
    return shares_of(parse_pattern(options_.pattern), options_.initiators, targets_, options_.rank, row.size);
  }
  // Shares of a tensor parallel block are parts of one local block; other shares have separate blocks.
  [[nodiscard]] bool shares_local_blocks() const {
    return parse_pattern(options_.pattern) == Pattern::kTensorParallel;
  }

  void measure_memory(const Row& row) {
    const uint64_t blocks = area_blocks(row, options_.span_bytes);
    const auto all = shares(row);
    const uint64_t slots = shares_local_blocks() ? 1 : all.size();
    for (const Share& share : all) {
      local_thread_bytes_ = std::max(local_thread_bytes_, blocks * share.local_block * slots);
      remote_thread_bytes_ = std::max(remote_thread_bytes_, blocks * share.remote_block);
    }
  }

  void join(uint32_t target, const std::string& address) {
    TargetPeer& joined = peers_[target];
    joined.peer = std::make_unique<towline::Peer>(rank_.agent().connect(address));
    const json opened = ask(joined, {{"ask", "open"}, {"bytes", remote_thread_bytes_ * most_threads_}});
    joined.base = opened.at("base");
    joined.peer->refresh();
    joined.place = place_of(*joined.peer, joined.base);
  }

  // Asks a target and waits for its answer.
  json ask(const TargetPeer& target, json question) {
    const uint64_t id = ++questions_;
    question["id"] = id;
    question["initiator"] = options_.rank;
    rank_.send(*target.peer, question.dump());
    const auto deadline = steady_clock::now() + kAnswerWithin;
    while (steady_clock::now() < deadline) {
      towline::Notice notice;
      while (rank_.agent().receive(notice) == Status::kOk) {
        const json answer = json::parse(notice.text());
        if (answer.value("id", uint64_t{0}) != id) continue;
        if (answer.contains("failed")) {
          throw Failure{fmt::format("'{}': {}", notice.peer_name(), answer["failed"].get<std::string>())};
        }
        return answer;
      }
      rank_.wait(milliseconds{50});
    }
    throw Failure{fmt::format("'{}' did not answer", target.peer->name())};
  }

  // ---- a row

  void prepare(const Row& row) {
    streams_.clear();
    const uint64_t blocks = area_blocks(row, options_.span_bytes);
    const auto all = shares(row);
    for (uint32_t thread = 0; thread < row.threads; ++thread) {
      for (size_t slot = 0; slot < all.size(); ++slot) {
        const uint64_t start = thread * local_thread_bytes_ +
                               (shares_local_blocks() ? 0 : slot * blocks * all[slot].local_block) +
                               all[slot].local_offset;
        add_stream(row, blocks, all[slot], thread, start);
      }
    }
    fill(row, epoch_);
    for (uint64_t iteration = 0; iteration < options_.warmup; ++iteration) {
      for (uint32_t thread = 0; thread < row.threads; ++thread) fail_if(run_once(thread), row);
    }
    if (options_.warmup > 0) fail_if_wrong(check(row, epoch_));
    fill(row, ++epoch_);
    usage_before_.clear();
    for (const TargetPeer& target : peers_) {
      usage_before_.push_back(
          target.peer == nullptr ? 0 : ask(target, {{"ask", "usage"}}).at("cpu_s").get<double>());
    }
  }

  void add_stream(const Row& row, uint64_t blocks, const Share& share, uint32_t thread,
                  uint64_t local_start) {
    const TargetPeer& target = peers_[share.target];
    const uint64_t identity = mix(options_.rank, thread, share.target);
    const uint64_t remote_offset = thread * remote_thread_bytes_ + share.remote_offset;
    const Area local{.base = reinterpret_cast<uint64_t>(buffer_->data()) + local_start,
                     .stride = share.local_block,
                     .length = share.length,
                     .identity = identity};
    const towline::MemoryView view = buffer_->view();
    const auto here = rank_.agent().block_list(
        towline::Blocks::at(buffer_->address() + local_start, share.length, view.kind, view.device)
            .repeat(blocks, share.local_block));
    const auto there = target.peer->block_list(
        towline::Blocks::at(target.base + remote_offset, share.length, target.place.kind, target.place.device)
            .repeat(blocks, share.remote_block));
    // Shares of one block use the same places.
    Order order{.seed = options_.seed,
                .initiator = options_.rank,
                .thread = thread,
                .sequential = options_.sequential};
    const auto local_picks = pick_blocks(row, options_.span_bytes, order);
    order.remote = true;
    const auto remote_picks = pick_blocks(row, options_.span_bytes, order);
    const bool reads = row.from == "target";
    towline::Plan plan =
        rank_.agent().plan(reads ? there : here, reads ? here : there,
                           {.backend = options_.backend, .usual_bytes = share.length * row.batch});
    if (route_.empty()) route_ = plan.route();
    streams_.push_back({local, share, thread, remote_offset, identity, local_picks, remote_picks, reads,
                        std::move(plan), std::nullopt});
  }

  json ask_blocks(const char* what, const Row& row, const Stream& stream, uint64_t epoch) {
    return ask(peers_[stream.share.target], {{"ask", what},
                                             {"row", row},
                                             {"span", options_.span_bytes},
                                             {"seed", options_.seed},
                                             {"sequential", options_.sequential},
                                             {"thread", stream.thread},
                                             {"offset", stream.remote_offset},
                                             {"stride", stream.share.remote_block},
                                             {"length", stream.share.length},
                                             {"identity", stream.identity},
                                             {"epoch", epoch}});
  }

  // Stamps the source side.
  void fill(const Row& row, uint64_t epoch) {
    if (row.from == "initiator") buffer_->pull(0, buffer_->size());
    for (const Stream& stream : streams_) {
      if (row.from == "initiator") {
        fill_blocks(stream.local, stream.local_picks, epoch);
      } else {
        ask_blocks("fill", row, stream, epoch);
      }
    }
    if (row.from == "initiator") buffer_->push(0, buffer_->size());
  }

  // Checks every byte of the destination side.
  json check(const Row& row, uint64_t epoch) {
    if (!options_.check) return {{"blocks", 0}, {"wrong", 0}};
    uint64_t wrong = 0;
    if (row.from == "target") buffer_->pull(0, buffer_->size());
    for (const Stream& stream : streams_) {
      wrong += row.from == "target" ? count_wrong_blocks(stream.local, stream.local_picks, epoch)
                                    : ask_blocks("check", row, stream, epoch).at("wrong").get<uint64_t>();
    }
    return {{"blocks", streams_.size() * row.batch}, {"wrong", wrong}};
  }

  static void fail_if_wrong(const json& checked) {
    if (checked.at("wrong") == 0) return;
    throw Failure{fmt::format("{} of {} blocks hold wrong bytes", checked.at("wrong").dump(),
                              checked.at("blocks").dump())};
  }

  void fail_if(Status status, const Row& row) const {
    if (!is_error(status)) return;
    throw Failure{fmt::format("{} blocks of {} bytes from the {}: {}. {}", row.batch, row.size, row.from,
                              status_text(status), route_)};
  }

  // One request: this thread's transfers to all its targets, at once.
  [[nodiscard]] Status run_once(uint32_t thread) {
    const size_t each = streams_.size() / (streams_.back().thread + 1);
    const auto mine = std::span{streams_}.subspan(thread * each, each);
    for (Stream& stream : mine) {
      stream.post = stream.plan.post(stream.how());
      while (!stream.post->accepted() && stream.post->poll() == Status::kAgain) {
        rank_.agent().progress();
        stream.post = stream.plan.post(stream.how());
      }
      if (!stream.post->accepted()) return stream.post->poll();
    }
    for (Stream& stream : mine) {
      Status status = Status::kInProgress;
      while (status == Status::kInProgress)
        status = options_.spin ? stream.post->poll() : stream.post->wait();
      if (is_error(status)) return status;
    }
    return Status::kOk;
  }

  void run_thread(uint32_t thread, ThreadTimes& times) {
    const auto start = steady_clock::now();
    auto before = start;
    while (options_.iterations > 0
               ? times.iterations < options_.iterations
               : times.iterations < 3 || seconds_between(start, before) < options_.seconds) {
      times.failure = run_once(thread);
      if (is_error(times.failure)) return;
      const auto now = steady_clock::now();
      if (times.samples.size() < kMostSamples) times.samples.push_back(seconds_between(before, now));
      before = now;
      ++times.iterations;
    }
  }

  // Its speed alone over `options_.seconds`; it goes on to run.
  double start_product() {
    product_->run(true);
    const double begin_s = steady_seconds();
    std::this_thread::sleep_for(std::chrono::duration<double>(std::max(options_.seconds, 0.1)));
    return product_->speed(begin_s, steady_seconds());
  }

  static double steady_seconds() {
    return std::chrono::duration<double>(steady_clock::now().time_since_epoch()).count();
  }

  // All threads at once. Returns how long they took, in seconds.
  double run_threads(const Row& row, std::vector<ThreadTimes>& times) {
    times.assign(row.threads, {});
    for (ThreadTimes& one : times) one.samples.reserve(4096);
    std::barrier begin{static_cast<ptrdiff_t>(row.threads)};
    const auto start = steady_clock::now();
    {
      std::vector<std::jthread> threads;
      for (uint32_t thread = 1; thread < row.threads; ++thread) {
        threads.emplace_back([&, thread] {
          begin.arrive_and_wait();
          run_thread(thread, times[thread]);
        });
      }
      begin.arrive_and_wait();
      run_thread(0, times[0]);
    }
    const double wall_s = seconds_between(start, steady_clock::now());
    for (const ThreadTimes& one : times) fail_if(one.failure, row);
    return wall_s;
  }

  json measure(const Row& row) {
    std::vector<ThreadTimes> times;
    json product;
    if (product_) {
      const double wall_s = run_threads(row, times);
      uint64_t iterations = 0;
      for (const ThreadTimes& one : times) iterations += one.iterations;
      product = {{"copies_per_s_alone", static_cast<double>(iterations) / wall_s},
                 {"tflops_alone", start_product()}};
    }
    const double cpu_before = cpu_seconds();
    const double begin_s = steady_seconds();
    const double wall_s = run_threads(row, times);
    const double cpu_s = cpu_seconds() - cpu_before;
    if (product_) {
      product["tflops_beside"] = product_->speed(begin_s, steady_seconds());
      product_->run(false);
    }
    uint64_t iterations = 0;
    std::vector<double> samples;
    for (ThreadTimes& one : times) {
      iterations += one.iterations;
      samples.insert(samples.end(), one.samples.begin(), one.samples.end());
    }
    json targets = json::array();
    for (size_t target = 0; target < peers_.size(); ++target) {
      if (peers_[target].peer == nullptr) continue;
      const double after = ask(peers_[target], {{"ask", "usage"}}).at("cpu_s");
      targets.push_back({{"target", target}, {"before_s", usage_before_[target]}, {"after_s", after}});
    }
    uint64_t request_bytes = 0;
    for (const Stream& stream : streams_)
      request_bytes += stream.thread == 0 ? stream.share.length * row.batch : 0;
    if (product_)
      product["bytes_per_s_alone"] =
          product["copies_per_s_alone"].get<double>() * static_cast<double>(request_bytes);
    if (!streams_.empty()) route_ = streams_.front().plan.route();  // with the prices as they are now
    return {{"iterations", iterations},
            {"bytes", iterations * request_bytes},
            {"wall_s", wall_s},
            {"cpu_s", cpu_s},
            {"samples_s", thinned(std::move(samples))},
            {"targets", targets},
            {"route", route_},
            {"product", product}};
  }

  InitiatorOptions options_;
  uint32_t most_threads_;
  std::optional<Buffer> buffer_;
  std::optional<Product> product_;
  Rank rank_;
  uint32_t targets_ = 0;
  uint64_t local_thread_bytes_ = 0;
  uint64_t remote_thread_bytes_ = 0;
  std::optional<towline::Region> region_;
  std::vector<TargetPeer> peers_;
  std::vector<Stream> streams_;
  std::vector<double> usage_before_;
  uint64_t questions_ = 0;
  uint64_t epoch_ = 0;
  std::string route_;
};

}  // namespace

void run_initiator(const json& configuration, Channel& parent) {
  try {
    run_rank(Initiator{configuration, parent}, parent);
  } catch (const Stopped&) {
  }
}

}  // namespace tool::bench
