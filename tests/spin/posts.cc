#include "spin/posts.h"

#include <string>

namespace towline::spin {
namespace {

// Asks again while the answer is not there yet, and drives agents without threads.
template <class Ask>
int32_t patiently(World& world, Ask&& ask) {
  int32_t status = TOWLINE_NOT_YET;
  for (uint64_t waited = 0; status == TOWLINE_NOT_YET && waited < kPatienceNs; waited += kPauseNs) {
    status = world.answered(ask());
    world.drive();
  }
  return status;
}

}  // namespace

int32_t cancelled(World& world, towline_post_t* post) {
  world.answered(towline_post_cancel(post));
  const int32_t status = patiently(world, [&] { return towline_post_wait(post, kPauseNs); });
  if (status == TOWLINE_NOT_YET) give_up("a cancelled post does not end");
  return status;
}

bool fenced(World& world, towline_post_t* post) {
  const int32_t local =
      patiently(world, [&] { return towline_post_wait_fenced(post, TOWLINE_FENCE_LOCAL, kPauseNs); });
  if (local == TOWLINE_NOT_YET) give_up("a post's local fence does not come");
  return world.answered(towline_post_wait_fenced(post, TOWLINE_FENCE_REMOTE, kPauseNs)) == TOWLINE_OK;
}

void destroy(World& world, towline_plan_t*& plan) {
  if (plan == nullptr) return;
  const int32_t status = patiently(world, [&] { return towline_plan_destroy(plan, kPauseNs); });
  if (status != TOWLINE_OK) give_up(std::string("a plan stays: ") + towline_last_error());
  plan = nullptr;
}

}  // namespace towline::spin
