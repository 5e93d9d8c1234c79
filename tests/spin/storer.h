// A thread's file: posts of single blocks between it and memory of its own agent or a peer's, while it is committed,
// asked for and given back. Each block that is said to have moved has to be there, and in the file at its end.
#pragma once

#include <towline/plan.h>
#include <towline/queue.h>
#include <towline/storage.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "spin/events.h"
#include "spin/world.h"

namespace towline::spin {

class Storer {
 public:
  // `area`: which nobody else moves, in whatever memory.
  Storer(World& world, uint32_t area, uint64_t seed) : world_(world), area_(area), random_(seed) {}
  Storer(const Storer&) = delete;
  Storer& operator=(const Storer&) = delete;
  ~Storer() { end(); }

  [[nodiscard]] bool begun() const { return region_ != nullptr; }
  // Both places are held. `peer` is `memory`'s, or null if both are the same.
  void begin(Place& place, Place& memory, towline_peer_t* peer);
  void step();

 private:
  static constexpr uint64_t kBlockBytes = 4096;
  static constexpr uint32_t kBlocks = kAreaBytes / kBlockBytes;

  struct Slot {
    towline_post_t* post = nullptr;  // null: the block is free
    bool reads = false;              // the file
    uint64_t stamp = 0;
    uint64_t in_file = 0;  // 0: not known
  };

  int32_t call(int32_t status) { return world_.answered(status); }
  [[nodiscard]] uint32_t index(const Slot& slot) const {
    return static_cast<uint32_t>(&slot - slots_.data());
  }
  [[nodiscard]] std::byte* block(const Slot& slot) const {
    return memory_->area(area_) + index(slot) * kBlockBytes;
  }
  bool make_plans(towline_agent_t* agent, towline_peer_t* peer);
  void post(Slot& slot);
  void look(Slot& slot);
  void over(Slot& slot, int32_t status);
  void commit();
  void look_at_commit();
  void committed(int32_t status);
  void ask();
  void check_file(const Slot& slot);
  void end();

  World& world_;
  const uint32_t area_;
  Random random_;
  std::string path_;
  std::shared_ptr<Memory> memory_;
  towline_region_t* region_ = nullptr;
  towline_plan_t* to_file_ = nullptr;
  towline_plan_t* from_file_ = nullptr;
  Events events_{world_};
  Asked commit_{TOWLINE_EVENT_COMMITTED};
  bool commit_asked_ = false;
  bool remote_ = false;   // the memory is a peer's
  bool replace_ = false;  // nobody sees the file before it is committed
  bool over_ = false;
  std::array<Slot, kBlocks> slots_;
};

}  // namespace towline::spin
