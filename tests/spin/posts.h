// The ends of posts, plans and regions. Each gives up if one hangs.
#pragma once

#include <towline/plan.h>

#include "spin/world.h"

namespace towline::spin {

inline constexpr uint64_t kPauseNs = 2'000'000;

// Cancels it and returns its outcome.
int32_t cancelled(World& world, towline_post_t* post);
// After an outcome that is not ok. Waits for this side's fence; false: the other side's does not come.
[[nodiscard]] bool fenced(World& world, towline_post_t* post);
// All of its posts were released.
void destroy(World& world, towline_plan_t*& plan);

}  // namespace towline::spin
