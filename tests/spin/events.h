// A queue, and what was asked to be told to it: each event has to come once.
#pragma once

#include <towline/queue.h>

#include <cstdint>
#include <functional>

#include "spin/world.h"

namespace towline::spin {

// What was asked for and what was told, of one thing. It is the event's user_data.
struct Asked {
  uint32_t kind = 0;
  bool told = true;
  int32_t status = 0;  // as it was told
};

class Events {
 public:
  // `other` sees events that nobody asks for one by one: notices and peers' health.
  explicit Events(World& world, std::function<void(const towline_event_t&)> other = {})
      : world_(world), other_(std::move(other)) {}
  Events(const Events&) = delete;
  Events& operator=(const Events&) = delete;
  ~Events() { release(); }

  [[nodiscard]] bool open(towline_agent_t* agent, const towline_queue_options_t& options) {
    return world_.answered(towline_queue_create(agent, &options, &queue_)) == TOWLINE_OK;
  }
  [[nodiscard]] towline_queue_t* queue() const { return queue_; }
  // Runs `begin`, which asks for the event unless it fails.
  template <class Begin>
  int32_t ask(Asked& asked, Begin&& begin) {
    asked.told = false;
    const int32_t status = world_.answered(begin());
    if (status != TOWLINE_OK) asked.told = true;
    return status;
  }
  // Up to `most`, at most 8 of them. How many there were.
  int32_t take(uint64_t most);
  void wait_for(const Asked& asked);
  void release() {
    towline_queue_release(queue_);
    queue_ = nullptr;
  }

 private:
  World& world_;
  const std::function<void(const towline_event_t&)> other_;
  towline_queue_t* queue_ = nullptr;
};

}  // namespace towline::spin
