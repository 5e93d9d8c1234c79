// One thread's timers, and the commands that other threads leave for it. Servers, timers and other threads
// start actions, and none of them may end the process: an exception is passed to `failed(const char* why)`,
// which does not throw, and the next action runs.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace towline {

template <class Action, class Failed>
void run_action(const Action& action, const Failed& failed) noexcept {
  try {
    action();
  } catch (const std::exception& error) {
    failed(error.what());
  }
}

// Timers, by one thread. A timer may set and cancel others, and itself again.
class Timers {
 public:
  using Id = uint64_t;  // 0: none

  Id at(uint64_t time_ns, std::function<void()> action) {
    const Id id = ++last_;
    times_[id] = time_ns;
    try {
      actions_.emplace(std::pair{time_ns, id}, Timer{std::move(action), 0});
    } catch (...) {
      times_.erase(id);
      throw;
    }
    return id;
  }
  Id after(uint64_t delay_ns, std::function<void()> action) {
    return at(Deadline::after(monotonic_now_ns(), delay_ns).ns(), std::move(action));
  }
  // Again and again, first after `period_ns`. Needs no memory to go on.
  Id every(uint64_t period_ns, std::function<void()> action) {
    const Id id = after(period_ns, std::move(action));
    actions_.find({times_.at(id), id})->second.period_ns = period_ns;
    return id;
  }
  // Sets `id` to none.
  void cancel(Id& id) {
    if (const auto found = times_.find(id); found != times_.end()) {
      actions_.erase({found->second, id});
      times_.erase(found);
    }
    id = 0;
  }
  [[nodiscard]] uint64_t next_ns() const {
    return actions_.empty() ? kNoDeadline : actions_.begin()->first.first;
  }
  // Runs the timers that are due at the time of the call.
  template <class Failed>
  void run(const Failed& failed) {
    const uint64_t now_ns = monotonic_now_ns();
    while (!actions_.empty() && actions_.begin()->first.first <= now_ns) {
      auto node = actions_.extract(actions_.begin());
      const Id id = node.key().second;
      std::function<void()> action = std::move(node.mapped().action);
      if (node.mapped().period_ns == 0) {
        times_.erase(id);
        run_action(action, failed);
        continue;
      }
      node.key().first = times_.at(id) = Deadline::after(now_ns, node.mapped().period_ns).ns();
      const auto next = actions_.insert(std::move(node)).position;
      run_action(action, failed);
      if (times_.contains(id)) next->second.action = std::move(action);
    }
  }

 private:
  struct Timer {
    std::function<void()> action;
    uint64_t period_ns = 0;  // 0: once
  };

  std::map<std::pair<uint64_t, Id>, Timer> actions_;
  std::map<Id, uint64_t> times_;
  Id last_ = 0;
};

// Commands for the thread, from any.
class Commands {
 public:
  // False once closed: the command is dropped.
  bool push(std::function<void()> command) {
    const std::lock_guard lock(mutex_);
    if (closed_) return false;
    commands_.push_back(std::move(command));
    return true;
  }
  template <class Failed>
  void run(const Failed& failed) {
    std::vector<std::function<void()>> taken;
    {
      const std::lock_guard lock(mutex_);
      taken.swap(commands_);
    }
    for (const auto& command : taken) run_action(command, failed);
  }
  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }

 private:
  std::mutex mutex_;
  std::vector<std::function<void()>> commands_;
  bool closed_ = false;
};

}  // namespace towline
