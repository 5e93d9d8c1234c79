// Plans and transfers that the application has let go of, perhaps in flight. What is fenced already is freed at once; the
// rest is an errand of the agent's. Never block.
#pragma once

namespace towline {

class PostPlan;
class Transfer;

// Each refuses posts from now on, cancels what is in flight, and frees the object once it is fenced and the application
// holds no post of it. What has no fence when the agent ends (a copy that stands still) is left as it is, since something
// may use it.
void release(PostPlan& plan) noexcept;
void release(Transfer& transfer) noexcept;

}  // namespace towline
