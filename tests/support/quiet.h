// For tests that promise that what is idle takes no processor.
#pragma once

#include <poll.h>
#include <sys/resource.h>

#include <algorithm>

namespace towline::testing {

inline double processor_ms() {
  rusage used{};
  (void)getrusage(RUSAGE_SELF, &used);
  const auto ms = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_usec) / 1e3;
  };
  return ms(used.ru_utime) + ms(used.ru_stime);
}

// What this process takes of 300 ms in which the test does nothing: of two such spans the lesser, since what came
// before may still be going to sleep in the first.
inline double processor_ms_while_quiet() {
  const auto span = [] {
    const double before = processor_ms();
    (void)poll(nullptr, 0, 300);
    return processor_ms() - before;
  };
  const double first = span();
  return std::min(first, span());
}

}  // namespace towline::testing
