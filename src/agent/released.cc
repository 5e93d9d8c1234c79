#include "agent/released.h"

#include <exception>
#include <memory>
#include <string>

#include "agent/agent.h"
#include "agent/errands.h"
#include "agent/post_plan.h"
#include "agent/transfer.h"
#include "base/log.h"

namespace towline {

namespace {

bool end(PostPlan& plan) noexcept try {
  std::string why;
  if (plan.retire(0, why) != Status::kOk) return false;
  delete &plan;
  return true;
} catch (const std::exception&) {
  return false;  // no memory for the reason
}

bool end(Transfer& transfer) noexcept {
  if (transfer.retire(0) != Status::kOk) return false;
  transfer.agent().remove_post(transfer);
  delete &transfer;
  return true;
}

template <class Object>
class Released final : public Errand {
 public:
  explicit Released(Object& object) noexcept : object_(object) {}
  bool step(bool) noexcept override { return end(object_); }

 private:
  Object& object_;
};

template <class Object>
void release_object(const std::shared_ptr<Agent>& agent, Object& object) noexcept {
  if (agent->usable() == Status::kForked || end(object)) return;
  try {
    agent->errands().add(std::make_unique<Released<Object>>(object));
  } catch (const std::exception& error) {
    TOWLINE_LOG(kWarning, "agent '{}' can't free what was released in flight: {}", agent->name(),
                error.what());
  }
}

}  // namespace

// Each may be the last to hold the agent.
void release(PostPlan& plan) noexcept {
  const std::shared_ptr<Agent> agent = plan.route().held_agent();
  release_object(agent, plan);
}
void release(Transfer& transfer) noexcept {
  const std::shared_ptr<Agent> agent = transfer.held_agent();
  release_object(agent, transfer);
}

}  // namespace towline
