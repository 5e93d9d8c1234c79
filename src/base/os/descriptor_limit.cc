#include "base/os/descriptor_limit.h"

#include <sys/resource.h>

namespace towline {

size_t descriptor_limit() noexcept {
  rlimit descriptors = {};
  return getrlimit(RLIMIT_NOFILE, &descriptors) == 0 ? descriptors.rlim_cur : 1024;
}

}  // namespace towline
