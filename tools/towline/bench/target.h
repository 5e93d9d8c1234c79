// The passive side of a bench: gives initiators memory, fills and checks it when asked, and otherwise does
// nothing.
#pragma once

#include <nlohmann/json.hpp>

#include "channel.h"
#include "rank.h"

namespace tool::bench {

// The questions of initiators to targets, as JSON in notices. Every question carries an "id" that its answer
// repeats.
//
//   {"ask": "open", "initiator", "bytes"}                        -> {"base"}
//   {"ask": "fill"|"check", "initiator", "row", "area", ..}      -> {"wrong"}
//   {"ask": "usage"}                                             -> {"cpu_s"}
//   {"ask": "close", "initiator"}                                -> {}

// The body of a target process. `configuration`: {"rank", "listen", "memory_kind", "workers"}. Reports
// {"address"}, then serves until stopped.
void run_target(const nlohmann::json& configuration, Channel& parent);

}  // namespace tool::bench
