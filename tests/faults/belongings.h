// What this process holds and what it has put where others see it, to be compared before and after.
#pragma once

#include <map>
#include <string>

namespace towline::faults {

// How many there are of each: open descriptors by what they refer to, shared mappings by file, threads, children, and
// names in the abstract namespace of sockets. Towline makes no files.
using Belongings = std::map<std::string, int>;

[[nodiscard]] Belongings belongings();

// What `after` has more of, for messages.
[[nodiscard]] std::string added(const Belongings& before, const Belongings& after);

}  // namespace towline::faults
