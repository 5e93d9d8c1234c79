// A thread's plan: posts of single blocks, alone and in groups, whose ends and fences are told to a queue. Each event that
// was asked for has to come once, and each block that is said to have moved has to be there.
#pragma once

#include <towline/plan.h>
#include <towline/queue.h>

#include <array>
#include <cstdint>
#include <memory>

#include "spin/events.h"
#include "spin/world.h"

namespace towline::spin {

class Planner {
 public:
  // `area`: which nobody else moves, in whatever memory.
  Planner(World& world, uint32_t area, uint64_t seed) : world_(world), area_(area), random_(seed) {}
  Planner(const Planner&) = delete;
  Planner& operator=(const Planner&) = delete;
  ~Planner() { end(); }

  [[nodiscard]] bool begun() const { return plan_ != nullptr; }
  // Both places are held; the peer is `to`'s.
  void begin(Place& from, Place& to, towline_peer_t* peer);
  void step();

 private:
  static constexpr uint64_t kBlockBytes = 4096;
  static constexpr uint32_t kBlocks = kAreaBytes / kBlockBytes;

  struct Slot {
    towline_post_t* post = nullptr;  // null: the block is free
    uint64_t stamp = 0;
    Asked done{TOWLINE_EVENT_DONE};
    Asked fenced{TOWLINE_EVENT_FENCED};
  };

  int32_t call(int32_t status) { return world_.answered(status); }
  void post(Slot& slot);
  void look(Slot& slot);
  void over(Slot& slot, int32_t status);
  void fence(Slot& slot);
  void end(Slot& slot);
  void end_group();
  void await_counter();
  [[nodiscard]] std::byte* block(const Slot& slot, bool target) const;
  void end();

  World& world_;
  const uint32_t area_;
  Random random_;
  std::shared_ptr<Memory> local_;
  std::shared_ptr<Memory> remote_;
  Events events_{world_};
  towline_plan_t* plan_ = nullptr;
  towline_group_t* group_ = nullptr;
  Asked group_done_{TOWLINE_EVENT_DONE};
  Asked group_fenced_{TOWLINE_EVENT_FENCED};
  towline_counter_t* counter_ = nullptr;  // to which nobody adds
  Asked reached_{TOWLINE_EVENT_SIGNAL};
  Asked connected_{TOWLINE_EVENT_CONNECTED};
  bool reads_ = false;
  bool spoilt_ = false;
  std::array<Slot, kBlocks> slots_;
};

}  // namespace towline::spin
