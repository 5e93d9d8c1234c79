// The inside of NIXL that one case of query_mem.cpp calls; that case is left out.
#pragma once

#include <string>
#include <vector>

#include "nixl_types.h"

namespace nixl {
inline nixl_status_t queryFileInfoList(const std::vector<std::string>&, std::vector<nixl_query_resp_t>&) {
  return NIXL_ERR_NOT_SUPPORTED;
}
}  // namespace nixl
