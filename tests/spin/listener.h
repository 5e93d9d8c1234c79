// A thread's queue of notices with tags, of peers' credit and health, and its directory. Each
// event that was asked for has to come once, and a notice only where its tag was subscribed to.
#pragma once

#include <towline/directory.h>
#include <towline/queue.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "spin/events.h"
#include "spin/world.h"

namespace towline::spin {

class Listener {
 public:
  Listener(World& world, uint64_t seed)
      : world_(world),
        random_(seed),
        events_(world, [this](const towline_event_t& event) { other(event); }) {}
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  ~Listener() { end(); }

  [[nodiscard]] bool begun() const { return events_.queue() != nullptr; }
  // The place is held.
  void begin(Place& place);
  void step();
  // A peer of whichever agent, which may be closing: what is sent to it, and asked of it.
  void talk_to(towline_peer_t* peer);

 private:
  static constexpr std::size_t kCalls = 4;
  struct Subscription {
    uint64_t tag;
    uint64_t mask;
    bool over = false;  // notices that were in the queue still come
  };
  struct Call {
    towline_directory_call_t* call = nullptr;
    bool unpublishes = false;  // which needs no server if nothing was published
    Asked ended{TOWLINE_EVENT_DIRECTORY};
  };

  int32_t call(int32_t status) { return world_.answered(status); }
  [[nodiscard]] uint64_t any_tag() { return random_.below(8); }
  void other(const towline_event_t& event);
  void subscribe();
  void directory_call();
  void start(Call& slot);
  void look(Call& slot);
  void check(const towline_directory_call_t& of);
  static void check_entry(const towline_directory_entry_t& entry);
  void watch_call();
  void close_directory();
  void end();

  World& world_;
  Random random_;
  Events events_;
  std::string agent_name_;
  bool health_ = false;
  std::vector<Subscription> subscriptions_;
  Asked credit_{TOWLINE_EVENT_CREDIT};
  Asked refreshed_{TOWLINE_EVENT_CONNECTED};
  towline_directory_t* directory_ = nullptr;
  std::array<Call, kCalls> calls_;
  towline_watch_t* watch_ = nullptr;
  Asked watched_{TOWLINE_EVENT_DIRECTORY};
};

}  // namespace towline::spin
