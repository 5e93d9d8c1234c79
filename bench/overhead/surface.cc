// towline_bench_surface [BACKEND [ROUNDS]]: what a post of a plan costs beside a transfer, whose picks are fixed when it is
// made; each of them used once; a group of layers beside one post of the same pages. Two agents of one process; the ways
// of a comparison take turns, and each ratio is of neighbours.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <towline/towline.hpp>
#include <vector>

#include "support/statistics.h"

namespace bench {
namespace {

using std::chrono::steady_clock;
using towline::Status;

constexpr uint64_t kPage = 4096;
constexpr uint64_t kPages = 8192;
constexpr uint64_t kSmall = 64;  // bytes of a block where the picks count, not the bytes
constexpr uint64_t kPicked = 4096;
constexpr uint64_t kWarm = 8;  // pages that stay in the processor's caches
constexpr uint64_t kLayers = 80;
constexpr uint64_t kLayerPages = 64;

void must(Status status) {
  if (status != Status::kOk) throw std::runtime_error(towline::status_text(status));
}

struct Way {
  const char* what;
  uint64_t times;  // a round
  std::function<void(uint64_t)> run;
};

double time_ns(const Way& way) {
  const auto start = steady_clock::now();
  for (uint64_t i = 0; i < way.times; ++i) way.run(i);
  return std::chrono::duration<double, std::nano>(steady_clock::now() - start).count() /
         static_cast<double>(way.times);
}

// Nanoseconds of each, divided by `per`, and how they compare with the first.
void compare(const char* title, const char* unit, double per, int rounds, const std::vector<Way>& ways) {
  std::vector<std::vector<double>> took(ways.size());
  std::vector<std::vector<double>> ratios(ways.size());
  for (const Way& way : ways) (void)time_ns(way);
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < ways.size(); ++i) took[i].push_back(time_ns(ways[i]) / per);
    for (size_t i = 0; i < ways.size(); ++i) ratios[i].push_back(took[i].back() / took[0].back());
  }
  std::printf("\n%s (%s)\n", title, unit);
  for (size_t i = 0; i < ways.size(); ++i) {
    const Spread value = spread_of(took[i]);
    const Spread ratio = spread_of(ratios[i]);
    std::printf("| %s | %.1f [%.1f %.1f] | %.2f [%.2f %.2f] |\n", ways[i].what, value.median, value.min,
                value.max, ratio.median, ratio.min, ratio.max);
  }
}

std::vector<uint32_t> shuffled(uint32_t seed) {
  std::vector<uint32_t> all(kPages);
  std::iota(all.begin(), all.end(), 0);
  std::shuffle(all.begin(), all.end(), std::mt19937{seed});
  return all;
}

class Sides {
 public:
  explicit Sides(const std::string& backend)
      : left("left", {.progress = towline::Progress::kCaller, .listen = "127.0.0.1:0", .backends = backend}),
        right("right", {.listen = "127.0.0.1:0", .backends = backend}),
        here(left.register_memory(towline::dram(mine))),
        there(right.register_memory(towline::dram(theirs), {.access = towline::Access::kAll})),
        peer(left.connect(right.address())) {
    std::memset(mine.data(), 1, mine.size());
    std::memset(theirs.data(), 2, theirs.size());
  }

  [[nodiscard]] towline::BlockList from(uint64_t bytes) const {
    return left.block_list(towline::Blocks::at(mine.data(), bytes).repeat(kPages, bytes));
  }
  [[nodiscard]] towline::BlockList to(uint64_t bytes) const {
    return peer.block_list(towline::Blocks::at(theirs.data(), bytes).repeat(kPages, bytes));
  }

  towline::Memory mine{kPages * kPage};
  towline::Memory theirs{kPages * kPage};
  towline::Agent left;
  towline::Agent right;
  towline::Region here;
  towline::Region there;
  towline::Peer peer;
};

void run(const std::string& backend, int rounds) {
  const Sides sides{backend};
  const auto sources = shuffled(1);
  const auto targets = shuffled(2);
  const auto one = [&](const auto& picks, uint64_t i) { return std::span(picks).subspan(i % kWarm, 1); };
  const auto many = [&](const auto& picks, uint64_t i) {
    return std::span(picks).subspan(i * 37 % (kPages - kPicked), kPicked);
  };
  const towline::BlockList from = sides.from(kPage);
  const towline::BlockList to = sides.to(kPage);
  const towline::Plan plan = sides.left.plan(from, to);
  const auto post_of = [](const towline::Plan& of, const auto& my, const auto& their) {
    must(of.post({.from = my, .to = their}).wait());
  };
  const auto once = [&](const towline::BlockList& a, const auto& my, const towline::BlockList& b,
                        const auto& their) {
    const towline::Transfer transfer = sides.left.transfer(a[my], b[their]);
    const Status status = transfer.post();
    must(status == Status::kInProgress ? transfer.wait() : status);
  };
  std::printf("%s: %s\n", backend.c_str(), plan.backend().c_str());

  const uint64_t few = backend == "tcp" ? 200 : 20'000;
  const towline::Transfer fixed = sides.left.transfer(from[one(sources, 5)], to[one(targets, 5)]);
  compare("one page of 4 KiB", "ns", 1, rounds,
          {{"a transfer made before, posted again", few,
            [&](uint64_t) {
              const Status status = fixed.post();
              must(status == Status::kInProgress ? fixed.wait() : status);
            }},
           {"a plan's post, fresh picks", few,
            [&](uint64_t i) { post_of(plan, one(sources, i), one(targets, i)); }},
           {"a transfer, made, posted and freed", few / 10,
            [&](uint64_t i) { once(from, one(sources, i), to, one(targets, i)); }},
           {"copy(): a plan made, posted and freed", few / 10,
            [&](uint64_t i) { must(sides.left.copy(from[one(sources, i)], to[one(targets, i)]).wait()); }}});

  const towline::BlockList from_small = sides.from(kSmall);
  const towline::BlockList to_small = sides.to(kSmall);
  const towline::Plan small = sides.left.plan(from_small, to_small);
  const auto* const source = reinterpret_cast<const std::byte*>(sides.mine.data());
  auto* const target = reinterpret_cast<std::byte*>(sides.theirs.data());
  compare("4,096 irregular picks of 64 B", "ns a pick", kPicked, rounds,
          {{"a bare loop of memcpy in this process", 50,
            [&](uint64_t i) {
              const auto my = many(sources, i);
              const auto their = many(targets, i);
              for (size_t n = 0; n < kPicked; ++n)
                std::memcpy(target + uint64_t{their[n]} * kSmall, source + uint64_t{my[n]} * kSmall, kSmall);
            }},
           {"a plan's post, fresh picks", 50,
            [&](uint64_t i) { post_of(small, many(sources, i), many(targets, i)); }},
           {"a transfer, made, posted and freed", 50,
            [&](uint64_t i) { once(from_small, many(sources, i), to_small, many(targets, i)); }}});

  constexpr uint64_t kAll = kLayers * kLayerPages;
  const auto layer = [&](const auto& picks, uint64_t n) {
    return std::span(picks).subspan(n * kLayerPages, kLayerPages);
  };
  compare("80 layers of 64 pages of 4 KiB", "us", 1000, rounds,
          {{"one post of all pages", 5,
            [&](uint64_t) { post_of(plan, std::span(sources).first(kAll), std::span(targets).first(kAll)); }},
           {"a group of 80 posts", 5, [&](uint64_t) {
              const towline::Group group = sides.left.group();
              for (uint64_t n = 0; n < kLayers; ++n) {
                const Status status = group.add(plan, {.from = layer(sources, n), .to = layer(targets, n)});
                if (towline::is_error(status)) must(status);
              }
              (void)group.close();
              must(group.wait());
            }}});
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) try {
  bench::run(argc > 1 ? argv[1] : "shm", argc > 2 ? std::atoi(argv[2]) : 15);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
