// Calls the whole C API at random from many threads, on agents that are closed and made anew under them, and
// checks every byte that was moved. The seed draws what each thread does; how the threads interleave is the
// machine's.
#include <cstdio>
#include <string>
#include <thread>

#include "base/clock.h"
#include "spin/spinner.h"

namespace towline::spin {
namespace {

Options options_from(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    const std::string value = argv[i + 1];
    if (name == "--seed")
      options.seed = std::stoull(value);
    else if (name == "--seconds")
      options.seconds = std::stoull(value);
    else if (name == "--threads")
      options.threads = static_cast<uint32_t>(std::stoul(value));
    else if (name == "--agents")
      options.agents = static_cast<uint32_t>(std::stoul(value));
    else if (name == "--backends")
      options.backends = value;
    else if (name == "--forks")
      options.forks = value != "no";
    else
      give_up(name + " is not --seed, --seconds, --threads, --agents, --backends or --forks");
  }
  return options;
}

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
  std::printf("seed %llu: %llu calls, %llu MiB moved and checked, %llu agents\n",
              static_cast<unsigned long long>(options.seed),
              static_cast<unsigned long long>(world.calls.load()),
              static_cast<unsigned long long>(world.moved.load() >> 20),
              static_cast<unsigned long long>(world.agents_made.load()));
  if (world.moved == 0) give_up("nothing was moved");
}

}  // namespace
}  // namespace towline::spin

int main(int argc, char** argv) {
  towline::spin::spin(towline::spin::options_from(argc, argv));
  return 0;
}
