#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace towline::detail {

void check_failed(const char* file, int line, const char* condition, const std::string& message) noexcept {
  std::fprintf(stderr, "towline: %s:%d: check failed: %s%s%s\n", file, line, condition,
               message.empty() ? "" : ": ", message.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace towline::detail
