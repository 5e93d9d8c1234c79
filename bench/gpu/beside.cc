// Transfers beside a matrix product, each way of copying forced in turn: both alone, then together.
#include "beside.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <numeric>
#include <random>
#include <vector>

#include "bench/product.h"
#include "gpu.h"
#include "support/statistics.h"
#include "support/table.h"
#include "towline/pace.hpp"
#include "towline/towline.hpp"

namespace bench::gpu {

namespace {

constexpr uint64_t kSpan = uint64_t{4} << 30;
constexpr uint64_t kHostSpan = uint64_t{1} << 30;

struct Case {
  const char* name;
  bool read;
  bool host;  // the far side
  uint64_t page;
  uint64_t pages;
  uint64_t host_piece;  // pages that lie side by side there, as bytes
  bool other_gpu = false;
};

const Case kCases[] = {
    {"GPU to host, in pieces of 1 MiB", false, true, 32768, 4096, 1 << 20},
    {"GPU to host, in pieces of 8 MiB", false, true, 32768, 4096, 8 << 20},
    {"GPU to host, scattered", false, true, 32768, 4096, 32768},
    {"GPU to host, in pieces of 1 MiB", false, true, 4096, 16384, 1 << 20},
    {"host to GPU", true, true, 32768, 4096, 32768},
    {"within the GPU", false, false, 32768, 4096, 32768},
    {"within the GPU", false, false, 4096, 1, 4096},
    {"to another GPU", false, false, 32768, 4096, 32768, true},
    {"from another GPU", true, false, 32768, 4096, 32768, true},
};

struct Way {
  std::string name;
  std::string config;
  tool::bench::Product::Share product;
  uint64_t bytes_per_s = 0;  // that the agent may move; 0: as fast as it can
};

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts(1);
  for (const char one : text) {
    if (one == at)
      parts.emplace_back();
    else
      parts.back() += one;
  }
  return parts;
}

Way parse_way(const std::string& text) {
  std::vector<std::string> parts = split(text, '|');
  parts.resize(4);
  Way way{parts[0], parts[1], {}, 0};
  std::replace(way.config.begin(), way.config.end(), ';', '\n');
  way.config += '\n';
  if (!parts[2].empty()) {
    using How = tool::bench::Product::How;
    way.product.how = parts[2].back() == 'r' ? How::kRest : parts[2].back() == 'a' ? How::kAsked : How::kPart;
    way.product.sms = static_cast<uint32_t>(std::stoul(parts[2]));
  }
  if (!parts[3].empty()) way.bytes_per_s = static_cast<uint64_t>(std::stod(parts[3]));
  return way;
}

// Processor time of this process but the calling thread's, which waits for the copies.
double others_cpu_s() {
  const auto of = [](int whose) {
    rusage used{};
    ::getrusage(whose, &used);
    const auto seconds = [](const timeval& time) {
      return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
    };
    return seconds(used.ru_utime) + seconds(used.ru_stime);
  };
  return of(RUSAGE_SELF) - of(RUSAGE_THREAD);
}

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Pieces in random order, the pages of each in theirs.
std::vector<uint32_t> draw(uint64_t span, uint64_t page, uint64_t pages, uint64_t piece, uint32_t seed) {
  const uint64_t together = piece / page;
  std::vector<uint32_t> pieces(span / piece);
  std::iota(pieces.begin(), pieces.end(), 0u);
  std::shuffle(pieces.begin(), pieces.end(), std::mt19937(seed));
  std::vector<uint32_t> picks;
  for (uint64_t i = 0; picks.size() < pages; ++i)
    for (uint64_t k = 0; k < together && picks.size() < pages; ++k)
      picks.push_back(static_cast<uint32_t>(pieces[i] * together + k));
  return picks;
}

class Copies {
 public:
  Copies(const BesideOptions& options, const Way& way, const Case& one, uint64_t near_gpu, uint64_t far_gpu,
         uint64_t far_device, void* host)
      : near_("near", agent_options(options, way)), far_("far", agent_options(options, way)) {
    if (way.bytes_per_s != 0) towline::set_limit(near_, way.bytes_per_s);
    regions_.push_back(near_.register_memory(vram(near_gpu, 0), {.access = towline::Access::kAll}));
    regions_.push_back(far_.register_memory(
        one.host ? towline::dram(static_cast<std::byte*>(host), kHostSpan) : vram(far_gpu, far_device),
        {.access = towline::Access::kAll}));
    peer_ = std::make_unique<towline::Peer>(near_.add_peer(far_.metadata()));
    const uint64_t far_span = one.host ? kHostSpan : kSpan;
    const auto mine = near_.block_list(
        towline::Blocks::at(near_gpu, one.page, towline::Kind::kVram, 0).repeat(kSpan / one.page, one.page));
    const auto theirs = peer_->block_list(
        towline::Blocks::at(one.host ? reinterpret_cast<uint64_t>(host) : far_gpu, one.page,
                            one.host ? towline::Kind::kDram : towline::Kind::kVram, far_device)
            .repeat(far_span / one.page, one.page));
    const auto here = draw(kSpan, one.page, one.pages, one.page, 1);
    const auto there = draw(far_span, one.page, one.pages, one.host_piece, 2);
    // The host's side says which pages are neighbours in the plan.
    move_.emplace(one.read ? near_.transfer(theirs[there], mine[here])
                           : near_.transfer(mine[here], theirs[there]));
  }

  double copy() {
    const double begun = now_s();
    towline::Status status = move_->post();
    while (status == towline::Status::kInProgress) status = move_->poll();
    if (status != towline::Status::kOk)
      throw std::runtime_error(fmt::format("{} {}", towline::status_name(status), towline::last_error()));
    return now_s() - begun;
  }
  std::vector<double> copy_for(double seconds) {
    std::vector<double> times;
    const double begun = now_s();
    while (now_s() < begun + seconds) times.push_back(copy());
    return times;
  }
  [[nodiscard]] std::string route() const { return move_->route(); }

 private:
  static towline::MemoryView vram(uint64_t address, uint64_t device) {
    return {.address = reinterpret_cast<void*>(address),
            .bytes = kSpan,
            .kind = towline::Kind::kVram,
            .device = device};
  }
  static towline::AgentOptions agent_options(const BesideOptions& options, const Way& way) {
    towline::AgentOptions result;
    result.listen = "none";
    result.backends = "cuda";
    result.config = fmt::format("plugins = [\"{}\"]\n[tuning.cuda]\n{}", options.plugin, way.config);
    return result;
  }

  towline::Agent near_;
  towline::Agent far_;
  std::vector<towline::Region> regions_;
  std::unique_ptr<towline::Peer> peer_;
  std::optional<towline::Transfer> move_;
};

}  // namespace

int measure_beside(const BesideOptions& options) {
  use(0);
  const uint64_t near_gpu = allocate(kSpan);
  const uint64_t far_gpu = allocate(kSpan);
  const int gpus = count();
  const auto last = static_cast<uint64_t>(gpus - 1);
  uint64_t other_gpu = 0;
  if (gpus > 1) {
    use(gpus - 1);
    other_gpu = allocate(kSpan);
    stamp(other_gpu, kSpan, 3);
    use(0);
  }
  void* const host = allocate_pinned(kHostSpan);
  stamp(near_gpu, kSpan, 1);
  stamp(far_gpu, kSpan, 2);
  using How = tool::bench::Product::How;
  std::vector<Way> ways = {
      {"copy first", "beside = \"copy\"\n", {}},
      {"model first", "beside = \"model\"\n", {}},
      {"auto", "beside = \"auto\"\n", {}},
      {"model first, 8 SMs", "beside = \"model\"\nreserved_sms = \"8\"\n", {8, How::kRest}},
      {"model first, 16 SMs", "beside = \"model\"\nreserved_sms = \"16\"\n", {16, How::kRest}},
      {"model first, 8 SMs, 180 GB/s",
       "beside = \"model\"\nreserved_sms = \"8\"\n",
       {8, How::kRest},
       180'000'000'000},
      {"model first, 4 SMs left", "beside = \"model\"\napplication_sms = \"128\"\n", {128, How::kPart}},
      {"auto, 12 SMs left", "beside = \"auto\"\napplication_sms = \"120\"\n", {120, How::kPart}},
      {"8 blocks, product asked to leave 8", "blocks = \"8\"\nread_blocks = \"8\"\n", {124, How::kAsked}},
      {"10 blocks, product asked to leave 10", "blocks = \"10\"\nread_blocks = \"10\"\n", {122, How::kAsked}},
      {"12 blocks, product asked to leave 12", "blocks = \"12\"\nread_blocks = \"12\"\n", {120, How::kAsked}},
  };
  if (!options.ways.empty()) {
    ways.clear();
    for (const std::string& given : options.ways) ways.push_back(parse_way(given));
  }
  double whole = 0;  // the product on the whole GPU, alone
  Rows rows{{"transfer", "pages", "way", "alone GB/s", "beside GB/s", "p50 us", "p99 us", "p99 of p50",
             "product alone", "beside", "loss %", "of the whole GPU %", "threads"}};
  for (const Way& way : ways) {
    tool::bench::Product product(0, options.cublas, options.size, way.product);
    product.run(true);
    const double begun = now_s();
    while (now_s() < begun + options.seconds) std::this_thread::yield();
    const double alone = product.speed(begun, now_s());
    product.run(false);
    if (whole == 0) whole = alone;
    for (const Case& one : kCases) {
      const auto number = static_cast<int>(&one - kCases);
      const bool wanted =
          std::find(options.cases.begin(), options.cases.end(), number) != options.cases.end();
      if ((one.other_gpu && gpus < 2) || !(options.cases.empty() || wanted)) continue;
      Copies copies(options, way, one, near_gpu, one.other_gpu ? other_gpu : far_gpu,
                    one.other_gpu ? last : 0, host);
      for (int i = 0; i < 8; ++i) (void)copies.copy();
      const std::vector<double> alone_s = copies.copy_for(options.seconds / 2);
      product.run(true);
      (void)copies.copy_for(options.seconds / 4);
      const double start = now_s();
      const double cpu = others_cpu_s() - product.cpu_s();
      const std::vector<double> beside_s = copies.copy_for(options.seconds);
      const double threads = (others_cpu_s() - product.cpu_s() - cpu) / (now_s() - start);
      const double beside = product.speed(start, now_s());
      product.run(false);
      const auto bytes = static_cast<double>(one.page * one.pages);
      const double p50 = percentile(beside_s, 0.5);
      const double p99 = percentile(beside_s, 0.99);
      rows.push_back({one.name, fmt::format("{} KiB x {}", one.page >> 10, one.pages), way.name,
                      fmt::format("{:.1f}", bytes / percentile(alone_s, 0.5) / 1e9),
                      fmt::format("{:.1f}", bytes / p50 / 1e9), fmt::format("{:.1f}", p50 * 1e6),
                      fmt::format("{:.1f}", p99 * 1e6), fmt::format("{:.2f}", p99 / p50),
                      fmt::format("{:.0f}", alone), fmt::format("{:.0f}", beside),
                      fmt::format("{:.1f}", (1 - beside / alone) * 100),
                      fmt::format("{:.1f}", (1 - beside / whole) * 100), fmt::format("{:.1f}", threads)});
      const std::vector<std::string>& row = rows.back();
      for (const std::string& cell : row) std::cout << cell << (&cell == &row.back() ? '\n' : '\t');
      std::cout.flush();
      if (options.routes) std::cout << copies.route() << std::endl;
    }
  }
  std::cout << fmt::format("{}, product of {} in bf16, {} s a cell\n\n", name(0), options.size,
                           options.seconds)
            << render(rows) << std::endl;
  return 0;
}

}  // namespace bench::gpu
