// The resources that this process holds or has made visible to others, for a comparison of before and after.
#pragma once

#include <map>
#include <string>

namespace towline::faults {

// How many there are of each: open descriptors by what they refer to, shared mappings by file, threads, children, and
// names in the abstract namespace of sockets. Towline makes no files.
using Belongings = std::map<std::string, int>;

[[nodiscard]] Belongings belongings();

// The resources that only `after` has, for messages.
[[nodiscard]] std::string added(const Belongings& before, const Belongings& after);

}  // namespace towline::faults
