// How many descriptors the process may have, which bounds what others may make it open.
#pragma once

#include <cstddef>

namespace towline {

// The soft limit (RLIMIT_NOFILE) as it is now.
[[nodiscard]] size_t descriptor_limit() noexcept;

}  // namespace towline
