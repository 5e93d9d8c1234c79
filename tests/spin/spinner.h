// One thread of a spin: draws operations and checks what they answer and what they moved.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "spin/listener.h"
#include "spin/planner.h"
#include "spin/storer.h"
#include "spin/world.h"

namespace towline::spin {

class Spinner {
 public:
  Spinner(World& world, uint32_t index);
  Spinner(const Spinner&) = delete;
  Spinner& operator=(const Spinner&) = delete;
  ~Spinner();  // lets go of everything that is held

  void step();

 private:
  struct Known {
    towline_peer_t* peer;
    uint32_t here, there;
    uint64_t generation_here, generation_there;
  };
  // A transfer between one area of two agents' memories, and what it is to bring.
  struct Move {
    towline_transfer_t* transfer = nullptr;
    uint32_t area = 0;
    uint32_t op = 0;
    std::shared_ptr<Memory> local;
    std::shared_ptr<Memory> remote;
    uint64_t block_bytes = 0;
    std::vector<uint32_t> local_picks;
    std::vector<uint32_t> remote_picks;
    Tally* tally = nullptr;
    bool has_notice = false;
    bool in_flight = false;
    uint64_t stamp = 0;
  };
  struct Scratch {
    towline_region_t* region;
    towline_memory_t* memory;
  };

  bool below(double probability) { return random_.chance(probability); }
  int32_t call(int32_t status) { return world_.answered(status); }
  uint32_t any_place() { return static_cast<uint32_t>(random_.below(world_.places())); }
  Move& any_move() { return moves_[random_.below(moves_.size())]; }

  void agent_call();
  void peer_call();
  void region_call();
  void counter_call();
  void bad_call();
  void move_call();
  void plan_call();
  void store_call();
  void listen_call();
  void fork_call();

  Known* know(uint32_t here, uint32_t there);
  towline_peer_t* meet(Place& from, Place& to);
  void forget(std::size_t index);

  void create(Move& move);
  bool make(Move& move, Place& from, Place& to, towline_peer_t* peer);
  void draw_picks(Move& move);
  void post(Move& move);
  void look(Move& move, uint64_t timeout_ns);
  void ended(Move& move, int32_t status);
  void destroy(Move& move);
  void stamp_all(Memory& memory, const Move& move, const std::vector<uint32_t>& picks, uint64_t seed);
  void check(const Move& move);
  void settle_fences(Move& move);

  World& world_;
  Random random_;
  std::vector<Move> moves_;
  Planner planner_;
  Storer storer_;
  Listener listener_;
  std::vector<Known> known_;
  std::vector<Scratch> scratch_;
  std::vector<towline_counter_t*> counters_;
};

}  // namespace towline::spin
