// Source-compatible with NIXL's header of this name: what is known of files.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <nixl_types.h>

namespace nixl {

// "size", "mode" and "mtime"; empty if there is no such file.
[[nodiscard]] TOWLINE_NIXL_API nixl_query_resp_t queryFileInfo(std::string_view filename);
TOWLINE_NIXL_API nixl_status_t queryFileInfoList(const std::vector<std::string>& filenames,
                                                 std::vector<nixl_query_resp_t>& resp);

}  // namespace nixl
