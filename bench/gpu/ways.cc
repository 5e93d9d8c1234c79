#include "ways.h"

#include <iostream>
#include <numeric>
#include <random>
#include <vector>

#include "gpu.h"
#include "support/statistics.h"
#include "support/table.h"

namespace bench::gpu {

namespace {

constexpr uint64_t kSpan = uint64_t{8} << 30;
constexpr uint64_t kHostSpan = uint64_t{2} << 30;

struct Place {
  uint64_t address;
  uint64_t span;
};

std::vector<uint64_t> draw(const Place& place, uint64_t page, uint64_t pages, uint32_t seed) {
  std::vector<uint64_t> all(place.span / page);
  std::iota(all.begin(), all.end(), uint64_t{0});
  std::mt19937_64 random(seed);
  for (uint64_t i = 0; i < pages; ++i) std::swap(all[i], all[i + random() % (all.size() - i)]);
  all.resize(pages);
  for (uint64_t& one : all) one = place.address + one * page;
  return all;
}

void add_rows(Rows& rows, const std::string& name, const Place& to, const Place& from, int rounds) {
  const std::pair<uint64_t, uint64_t> sizes[] = {{4096, 1},     {32768, 1},    {1 << 20, 1},
                                                 {32768, 16},   {32768, 128},  {32768, 512},
                                                 {4096, 16384}, {32768, 4096}, {1 << 20, 128}};
  const int last = count() - 1;
  for (const auto& [page, pages] : sizes) {
    const auto there = draw(to, page, pages, 1);
    const auto here = draw(from, page, pages, 2);
    std::vector<Pair> pairs(pages);
    for (uint64_t i = 0; i < pages; ++i) pairs[i] = {there[i], here[i]};
    use(0);
    PageList by_first(pairs, page);
    use(last);
    PageList by_last(pairs, page);
    for (const int blocks : {8, 12, 24, 32}) {
      std::vector<double> first_s;
      std::vector<double> last_s;
      for (int round = -2; round < rounds; ++round) {
        use(0);
        const double a = by_first.copy(blocks);
        use(last);
        const double b = by_last.copy(blocks);
        if (round < 0) continue;
        first_s.push_back(a);
        last_s.push_back(b);
      }
      const auto bytes = static_cast<double>(page * pages);
      const Spread a = spread_of(first_s);
      const Spread b = spread_of(last_s);
      rows.push_back({name, fmt::format("{} KiB x {}", page >> 10, pages), fmt::format("{}", blocks),
                      fmt::format("{:.1f}", a.median * 1e6), fmt::format("{:.1f}", b.median * 1e6),
                      fmt::format("{:.1f}", bytes / a.median / 1e9),
                      fmt::format("{:.1f}", bytes / b.median / 1e9)});
    }
  }
}

}  // namespace

void measure_ways(int rounds) {
  const int last = count() - 1;
  use(last);
  reach(0);
  const Place far{allocate(kSpan), kSpan};
  use(0);
  reach(last);
  const Place near{allocate(kSpan), kSpan};
  const Place host{reinterpret_cast<uint64_t>(allocate_pinned(kHostSpan)), kHostSpan};
  Rows rows{{"from, to", "pages", "blocks", "by GPU 0, us", "by the last GPU, us", "by GPU 0, GB/s",
             "by the last GPU, GB/s"}};
  add_rows(rows, "GPU 0 to the last", far, near, rounds);
  add_rows(rows, "host to the last", far, host, rounds);
  add_rows(rows, "the last to host", host, far, rounds);
  std::cout << render(rows) << std::endl;
}

}  // namespace bench::gpu
