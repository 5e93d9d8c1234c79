// The live instances of this backend by incarnation: so two agents of one process find each other.
//
// It is a global, against the rule of this code, because the set of agents in an address space has no smaller
// owner. An agent does not know the others of its process, and the plugin's open() gives an instance nothing
// that two agents share. It holds no memory of an agent, only a mailbox, and forgets an instance when it
// closes. Its mutex, like a mailbox's, is taken on the control path only.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "towline/plugin/backend.hpp"
#include "towline/status.h"

namespace towline::memory {

class Ends;

// The request that a connector leaves with the agent it wants to reach.
struct Call {
  std::shared_ptr<Ends> ends;
  towline_identity identity = plugin::sized<towline_identity>();
  std::string name;

  [[nodiscard]] towline_identity as_identity() const noexcept {
    towline_identity result = identity;
    result.name = name.c_str();
    return result;
  }
};

// One agent's instance, as others see it. May outlive the instance, held by agents that looked it up.
class Mailbox {
 public:
  explicit Mailbox(const plugin::Host& host);

  // Any thread. kUnreachable: the instance has closed.
  Status post(uint32_t worker, Call call);
  // The worker `worker`, under its lock.
  [[nodiscard]] bool has_calls(uint32_t worker) const noexcept {
    return slots_[worker].full.load(std::memory_order_acquire);
  }
  std::vector<Call> take(uint32_t worker);
  // Returns requests that were not taken; no request can be posted any more.
  std::vector<Call> close();
  [[nodiscard]] uint32_t workers() const noexcept { return workers_; }

 private:
  struct Slot {
    std::vector<Call> calls;
    std::atomic<bool> full{false};
  };

  const plugin::Host host_;
  const uint32_t workers_;
  std::mutex mutex_;
  bool open_ = true;
  std::unique_ptr<Slot[]> slots_;
};

// Any thread.
void enter_directory(const uint64_t incarnation[2], std::shared_ptr<Mailbox> mailbox);
void leave_directory(const uint64_t incarnation[2]);
std::shared_ptr<Mailbox> find_in_directory(const uint64_t incarnation[2]);  // null: not in this process

}  // namespace towline::memory
