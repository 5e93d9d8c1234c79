// Several agents, and everything that may happen to them: whatever it is, every accepted transfer has exactly one
// outcome by its deadline, what is done is there, no notice comes twice, early or to a later life, no byte lands
// in memory that its owner has deregistered, silence is noticed, and once the network is mended everything works
// again. A failure prints its seed; TOWLINE_SIMULATIONS sets how many are run, from TOWLINE_SIMULATION_SEED on.
#include <gtest/gtest.h>

#include "base/config/config.h"
#include "world.h"

namespace towline::simulation {
namespace {

TEST(WorldSimulation, AgentsThatComeAndGoOverANetworkThatIsCutAndMended) {
  const Config config = Config::from_process();
  const uint64_t runs = config.get_u64("simulations", 8);
  const uint64_t first = config.get_u64("simulation_seed", 1);
  Tally all;
  for (uint64_t seed = first; seed < first + runs; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    World world(seed);
    if (HasFailure()) return;
    world.run(300 * kMillisecondNs);
    if (HasFailure()) return;
    const Tally& tally = world.tally();
    all.reads += tally.reads;
    all.writes += tally.writes;
    all.staged += tally.staged;
    all.on_gpu += tally.on_gpu;
    all.failed += tally.failed;
    all.notices += tally.notices;
    all.restarts += tally.restarts;
    all.crashes += tally.crashes;
    all.deregistrations += tally.deregistrations;
    all.cuts += tally.cuts;
  }
  fmt::print(
      "{} seeds: {} READs, {} WRITEs ({} staged, {} on a GPU), {} failed, {} notices, {} restarts, {} "
      "crashes, "
      "{} deregistrations, {} cuts\n",
      runs, all.reads, all.writes, all.staged, all.on_gpu, all.failed, all.notices, all.restarts, all.crashes,
      all.deregistrations, all.cuts);
  // A simulation in which nothing happens holds nothing.
  for (const uint64_t count : {all.reads, all.writes, all.staged, all.on_gpu, all.failed, all.notices,
                               all.cuts, all.deregistrations, all.restarts + all.crashes})
    EXPECT_GT(count, runs / 4);
}

}  // namespace
}  // namespace towline::simulation
