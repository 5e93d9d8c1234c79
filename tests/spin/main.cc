// Calls the whole C API at random from many threads, on agents that are closed and made anew under them, and
// checks every byte that was moved. The seed draws what each thread does; how the threads interleave is the
// machine's.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "spin/spinner.h"

namespace towline::spin {
namespace {

void spin(const Options& options) {
  World world(options);
  {
    const uint64_t until_ns = monotonic_now_ns() + options.seconds * kSecondNs;
    std::vector<std::thread> threads;
    for (uint32_t i = 0; i < options.threads; ++i) {
      threads.emplace_back([&world, i, until_ns] {
        Spinner spinner(world, i);
        while (monotonic_now_ns() < until_ns) spinner.step();
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  std::printf(
      "seed %llu: %llu calls, %llu MiB moved and checked, %llu MiB of files, %llu events, %llu agents\n",
      static_cast<unsigned long long>(options.seed), static_cast<unsigned long long>(world.calls.load()),
      static_cast<unsigned long long>(world.moved.load() >> 20),
      static_cast<unsigned long long>(world.stored.load() >> 20),
      static_cast<unsigned long long>(world.events.load()),
      static_cast<unsigned long long>(world.agents_made.load()));
  if (world.moved == 0 || world.events == 0) give_up("nothing was moved, or told");
}

}  // namespace
}  // namespace towline::spin

int main(int argc, char** argv) {
  towline::spin::Options options;
  CLI::App app{"Calls the C API at random from many threads and checks what was moved"};
  app.option_defaults()->always_capture_default();
  app.add_option("--seed", options.seed, "Of what the threads draw");
  app.add_option("--seconds", options.seconds, "How long");
  app.add_option("--threads", options.threads)->check(CLI::Range(1, 64));
  app.add_option("--agents", options.agents, "There at a time")->check(CLI::Range(1, 16));
  app.add_option("--backends", options.backends,
                 "Of every agent, such as shm,tcp; by default drawn for each");
  app.add_option("--directory", options.directory, "Of every agent; by default no server is there");
  app.add_flag("--forks,!--no-forks", options.forks, "Fork now and then");
  CLI11_PARSE(app, argc, argv);
  towline::spin::spin(options);
  return 0;
}
