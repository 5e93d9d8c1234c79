// A READ or WRITE of chosen blocks; made once, posted often, once at a time: a route and one post.
//
// Plans (post_plan.h) do the same with new picks for each post. This is what remains of the API from before them.
#pragma once

#include "agent/post.h"

namespace towline {

class Transfer final : private OwnRoute, public Post {
 public:
  Transfer(std::shared_ptr<Agent> agent, uint32_t op, std::shared_ptr<BlockList> local,
           std::shared_ptr<BlockList> remote, Plan&& plan, const PostOptions& options, uint32_t threads)
      : OwnRoute{Route(std::move(agent), op, std::move(local), std::move(remote))},
        Post(its_route, std::move(plan), options, threads, reinterpret_cast<towline_transfer_t*>(this)) {}

  // Throws Error; see Route.
  void establish(std::string_view forced_backend, LateDeadline deadline) {
    its_route.establish(*this, forced_backend, deadline);
  }
  [[nodiscard]] const std::shared_ptr<Agent>& held_agent() const noexcept { return its_route.held_agent(); }
};

#if defined(__GLIBC__) && defined(__x86_64__)
static_assert(sizeof(Transfer) <= 1000);  // see Post
#endif

}  // namespace towline
