// towline_bench_posts KIND COUNT: as many posts, each with fresh picks, in one thread and without any other work, so that
// a simulator can count their instructions (scripts/count-instructions).
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string_view>
#include <towline/towline.hpp>
#include <vector>

namespace {

constexpr uint64_t kPages = 8192;

struct Kind {
  const char* name;
  uint64_t block_bytes;
  uint64_t picks;
};
constexpr Kind kKinds[] = {{"64B", 64, 1}, {"4KiB", 4096, 1}, {"4096x64B", 64, 4096}};

int run(const Kind& kind, int count) {
  const towline::AgentOptions options{
      .progress = towline::Progress::kCaller, .listen = "none", .backends = "memory"};
  const towline::Agent agent{"posts", options};
  const towline::Memory memory{2 * kPages * kind.block_bytes};
  const towline::Region region =
      agent.register_memory(towline::dram(memory), {.access = towline::Access::kAll});
  const towline::Peer itself = agent.add_peer(agent.metadata());
  const auto half = [&](uint64_t which) {
    return towline::Blocks::at(memory.data() + which * kPages * kind.block_bytes, kind.block_bytes)
        .repeat(kPages, kind.block_bytes);
  };
  const towline::BlockList from = agent.block_list(half(0));
  const towline::BlockList to = itself.block_list(half(1));
  const towline::Plan plan = agent.plan(from, to);
  std::vector<uint32_t> sources(kPages);
  std::iota(sources.begin(), sources.end(), 0);
  std::vector<uint32_t> targets = sources;
  std::mt19937 random{1};
  std::shuffle(sources.begin(), sources.end(), random);
  std::shuffle(targets.begin(), targets.end(), random);
  for (int i = 0; i < count; ++i) {
    const uint64_t first = static_cast<uint64_t>(i) * 37 % (kPages - kind.picks);
    const towline::Post post = plan.post({.from = std::span(sources).subspan(first, kind.picks),
                                          .to = std::span(targets).subspan(first, kind.picks)});
    if (post.wait() != towline::Status::kOk) {
      std::fprintf(stderr, "post %d: %s\n", i, post.error().c_str());
      return 1;
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string_view wanted = argc == 3 ? argv[1] : "";
  for (const Kind& kind : kKinds)
    if (wanted == kind.name) return run(kind, std::atoi(argv[2]));
  std::fprintf(stderr, "usage: %s 64B|4KiB|4096x64B COUNT\n", argv[0]);
  return 2;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
