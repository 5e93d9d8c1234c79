#include "gpu/gpu_fixture.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

namespace towline::gpu_test {

// Half of the pages, in disorder, to another process and back: with whatever options, between memory of one
// sort. The last route.
std::string Gpu::move_pages(const AgentOptions& options, Sort sort) const {
  Target target(other_, kBytes, sort);
  GpuMemory memory(*cuda_, 0, kBytes, sort);
  const Agent agent("initiator", options);
  const Region region = agent.register_memory(view(memory), {.access = Access::kAll});
  const Peer peer = agent.add_peer(std::as_bytes(std::span(target.metadata())));
  std::mt19937 random(1);
  std::string route;
  for (const uint64_t page : {65536, 32768, 4096, 1000, 512}) {
    const auto count = static_cast<uint32_t>(kBytes / page);
    std::vector<uint32_t> from(count);
    std::iota(from.begin(), from.end(), 0u);
    std::vector<uint32_t> to = from;
    std::shuffle(from.begin(), from.end(), random);
    std::shuffle(to.begin(), to.end(), random);
    const auto half = count / 2;
    const BlockList mine = agent.block_list(at(memory.address(), page, 0).repeat(count, page));
    const BlockList theirs = peer.block_list(at(target.address(), page, target.gpu()).repeat(count, page));
    memory.put(stamped(kBytes, page));
    target.stamp(page + 1);
    const Transfer write =
        agent.transfer(mine[std::span(from).first(half)], theirs[std::span(to).first(half)]);
    EXPECT_EQ(run(write), Status::kOk) << last_error();
    std::vector<uint8_t> expected = stamped(kBytes, page + 1);
    const std::vector<uint8_t> sent = stamped(kBytes, page);
    for (uint32_t i = 0; i < half; ++i)
      std::memcpy(expected.data() + to[i] * page, sent.data() + from[i] * page, page);
    EXPECT_TRUE(target.get() == expected) << "written, pages of " << page;
    const Transfer read = agent.transfer(theirs[std::span(to).last(half)], mine[std::span(from).first(half)]);
    EXPECT_EQ(run(read), Status::kOk) << last_error();
    std::vector<uint8_t> here = sent;
    for (uint32_t i = 0; i < half; ++i)
      std::memcpy(here.data() + from[i] * page, expected.data() + to[count - half + i] * page, page);
    EXPECT_TRUE(memory.get() == here) << "read, pages of " << page;
    route = read.route();
  }
  return route;
}

}  // namespace towline::gpu_test
