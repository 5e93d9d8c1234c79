// One of the two steps of a post that no backend does in one: a post between staging memory and one side, with a
// route and a backend of its own, run over a range of its plan at a time. It has one part, and neither notice nor
// completion.
//
// Everything under its worker's lock, except where said.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "agent/post.h"

namespace towline {

class Leg final : private OwnRoute, public Post {
 public:
  // `whole`: the whole post's part, whose worker's lock covers the legs, whichever thread makes them. `post`: the whole
  // post's, whose number changes with each run; the leg's submits belong to it.
  Leg(std::shared_ptr<Agent> agent, const Part& whole, uint32_t op, std::shared_ptr<BlockList> local,
      std::shared_ptr<BlockList> remote, Plan&& plan, std::shared_ptr<towline_post> post)
      : OwnRoute{Route(std::move(agent), op, std::move(local), std::move(remote))},
        Post(its_route, std::move(plan), {}, 1, kNoHandle),
        whole_(whole) {
    parts_[0].worker = whole.worker;
    post_ = std::move(post);
  }

  // Control path; throws Error. `within`: see Route.
  void establish(std::string_view forced_backend, LateDeadline deadline, bool within = false) {
    its_route.establish(*this, forced_backend, deadline, within);
  }
  // Bytes [begin, end) of its plan. kOk: done already. kInProgress, kAgain: as post. An error: not accepted.
  [[nodiscard]] Status start(uint64_t begin, uint64_t end, uint64_t deadline_ns,
                             uint32_t submit_flags) noexcept;
  [[nodiscard]] bool is_leg() const noexcept override { return true; }
  // Ends the range soon.
  void abandon() noexcept;
  // True if it has its outcome and nothing is in flight.
  [[nodiscard]] bool settled() const noexcept { return ready() && outcome() != Status::kInProgress; }
  // The result of its part, once settled; and how long that took.
  [[nodiscard]] const towline_part_result& last_result() const noexcept { return last_result_; }
  [[nodiscard]] uint64_t took_ns() const noexcept {
    return ended_at_ns_.load(std::memory_order_relaxed) - posted_at_ns_.load(std::memory_order_relaxed);
  }
  // Another leg writes its regions: until it is given back it is neither posted nor released. False: it is not
  // prepared on that generation of its link. The moved bytes are counted as its own.
  [[nodiscard]] bool borrow(uint32_t link_generation) noexcept;
  void give_back(uint64_t moved_bytes, uint64_t took_ns) noexcept;
  // Cancels, waits for the fence, and leaves the agent. Control path.
  void end_for_good() noexcept;

 private:
  static constexpr towline_transfer_t* kNoHandle = nullptr;

  // Nothing else is in flight over its connection, which its whole post counts on, too.
  [[nodiscard]] bool has_link_to_itself() const noexcept;

  const Part& whole_;
};

}  // namespace towline
