// Which way bytes go between two lists: the backend, or two legs through staging memory; the reasons, and the ways
// not taken. All posts of a plan share one (post.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/block_list.h"
#include "agent/prices.h"
#include "agent/staging.h"

namespace towline {

class Agent;
class Post;
struct Backend;
struct Need;

// A deadline that may be given relative to now and starts when it is first used: most transfers are created
// without a wait and need no clock.
class LateDeadline {
 public:
  static LateDeadline at(uint64_t deadline_ns) noexcept { return {nullptr, deadline_ns}; }
  static LateDeadline in(const Agent& agent, uint64_t timeout_ns) noexcept { return {&agent, timeout_ns}; }
  [[nodiscard]] uint64_t ns() noexcept;

 private:
  LateDeadline(const Agent* agent, uint64_t ns) noexcept : agent_(agent), ns_(ns) {}
  const Agent* agent_;  // null: begun
  uint64_t ns_;
};

class Route {
 public:
  struct Way {
    const Backend* backend;
    bool taken;
    bool possible;       // as far as is known
    std::string reason;  // against it; empty: none, it was taken
    Price price;         // for so many bytes
  };

  Route(std::shared_ptr<Agent> agent, uint32_t op, std::shared_ptr<BlockList> local,
        std::shared_ptr<BlockList> remote) noexcept
      : agent_(std::move(agent)), local_(std::move(local)), remote_(std::move(remote)), op_(op) {}
  Route(const Route&) = delete;
  Route& operator=(const Route&) = delete;

  // Chooses the backend: tries the candidates in order until one has prepared every part of `post`. Throws Error
  // naming each candidate and the reason against it. Control path, may wait until the deadline. A backend whose
  // connection takes longer than tuning.connection.wait is chosen anyway: posts wait for it, and use the next
  // candidates if the connection fails.
  // `within`: this is a leg within the agent, to which the application's order of backends does not apply.
  // `bytes`: for which prices are compared; 0: those of the post.
  void establish(Post& post, std::string_view forced_backend, LateDeadline deadline, bool within = false,
                 uint64_t bytes = 0);
  // The backend for a post to whose parts `failed` refused a connection. Null: no such backend, or one of the
  // route's posts has been established.
  [[nodiscard]] Backend* after(const Backend& failed, std::string reason) noexcept;
  // A post is established: the route stays.
  void stay() noexcept {
    if (may_go_on_.load(std::memory_order_relaxed)) may_go_on_.store(false, std::memory_order_relaxed);
  }
  [[nodiscard]] bool may_go_on() const noexcept { return may_go_on_.load(std::memory_order_relaxed); }

  [[nodiscard]] Agent& agent() const noexcept { return *agent_; }
  [[nodiscard]] const std::shared_ptr<Agent>& held_agent() const noexcept { return agent_; }
  [[nodiscard]] uint32_t op() const noexcept { return op_; }
  [[nodiscard]] const BlockList& local() const noexcept { return *local_; }
  [[nodiscard]] const BlockList& remote() const noexcept { return *remote_; }
  [[nodiscard]] const std::shared_ptr<BlockList>& held_local() const noexcept { return local_; }
  [[nodiscard]] const std::shared_ptr<BlockList>& held_remote() const noexcept { return remote_; }
  [[nodiscard]] Peer& peer() const noexcept { return *remote_->peer(); }
  // Null: by legs, or not established yet.
  [[nodiscard]] Backend* backend() const noexcept { return backend_.load(std::memory_order_acquire); }
  // The staging memory between the legs, if it goes by legs.
  [[nodiscard]] const StagingPlace* legs() const noexcept { return by_legs_ ? &legs_ : nullptr; }
  // The requested backend; "" if none was.
  [[nodiscard]] std::string_view forced() const noexcept { return forced_text(); }

  // Every backend that may be used for so many bytes, and why the taken one was.
  [[nodiscard]] std::vector<Way> ways(uint64_t bytes) const;
  [[nodiscard]] std::string why(const std::vector<Way>& ways) const;

 private:
  static constexpr uint8_t kNobody = 255;

  struct Others {
    std::vector<std::pair<const Backend*, std::string>> rejected;  // failed candidates, with the reason
    std::vector<Backend*> next;  // still to try if the backend fails; the first one last
    std::string forced;          // the requested backend
  };

  [[nodiscard]] Others& others() {
    if (others_ == nullptr) others_ = std::make_unique<Others>();
    return *others_;
  }
  [[nodiscard]] const std::string& forced_text() const noexcept;
  void take_legs(Post& post, const StagingPlace& staging, LateDeadline deadline);
  [[noreturn]] void fail_without_route(uint64_t bytes, const std::string& legs, LateDeadline& deadline,
                                       Status why);

  const std::shared_ptr<Agent> agent_;
  const std::shared_ptr<BlockList> local_;
  const std::shared_ptr<BlockList> remote_;
  // After creation these change only at the end of a post that established nothing, under the agent's mutex for
  // details. Threads outside that post must hold it for them.
  std::unique_ptr<Others> others_;  // null: none of it, as for most
  std::atomic<Backend*> backend_{nullptr};
  StagingPlace legs_;
  const uint32_t op_;
  bool by_legs_ = false;
  std::atomic<bool> may_go_on_{false};  // next_ may be used: nothing was established yet
  uint8_t passed_ = kNobody;  // the number of the backend that backend_ went before, by its measured price
};

// For a class that is a post and has a route of its own: a base before Post.
struct OwnRoute {
  Route its_route;
};

}  // namespace towline
