#include "idle_machine.h"

#include <chrono>
#include <fstream>
#include <string>
#include <thread>

#include "process.h"

namespace bench {
namespace {

constexpr double kQuietShare = 0.95;  // of all cores, idle
constexpr auto kLook = std::chrono::milliseconds(100);

struct Ticks {
  double idle = 0;
  double all = 0;
};

Ticks read_ticks() {
  std::ifstream file("/proc/stat");
  std::string label;
  file >> label;
  Ticks ticks;
  double value = 0;
  for (int field = 0; field < 8 && file >> value; ++field) {
    ticks.all += value;
    if (field == 3 || field == 4) ticks.idle += value;
  }
  return ticks;
}

}  // namespace

double wait_until_quiet(double limit_s) {
  const double start = now_s();
  while (now_s() - start < limit_s) {
    const Ticks before = read_ticks();
    std::this_thread::sleep_for(kLook);
    const Ticks after = read_ticks();
    if (after.all > before.all && (after.idle - before.idle) / (after.all - before.all) >= kQuietShare) break;
  }
  return now_s() - start;
}

}  // namespace bench
