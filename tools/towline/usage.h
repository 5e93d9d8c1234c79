// Resource usage of this process.
#pragma once

#include <sys/resource.h>

namespace tool {

// CPU seconds of all its threads, in user and kernel mode.
[[nodiscard]] inline double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace tool
