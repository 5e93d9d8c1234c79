// The passive side of a bench: gives initiators memory, fills and checks it when asked, and otherwise does
// nothing.
#pragma once

#include <nlohmann/json.hpp>

#include "channel.h"
#include "rank.h"

namespace tool::bench {

// What initiators ask of targets, as JSON in notices; every question carries an "id" that comes back with the
// answer.
//
//   {"ask": "open", "initiator", "bytes"}                        -> {"base"}
//   {"ask": "fill"|"check", "initiator", "row", "area", ..}      -> {"wrong"}
//   {"ask": "usage"}                                             -> {"cpu_s"}
//   {"ask": "close", "initiator"}                                -> {}

// The body of a target process. `configuration`: {"rank", "listen", "memory_kind", "workers"}. Tells
// {"address"}, then serves until stopped.
void run_target(const nlohmann::json& configuration, Channel& parent);

}  // namespace tool::bench
