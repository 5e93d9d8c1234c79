// Four whole agents in one thread, on a clock that moves by being looked at, over a network that is cut and
// mended. Each agent moves blocks between its own memory and the memory that each of the others shares: one
// READ and one WRITE with each. The own memory of agent 2 is a file, that of agent 3 is on a GPU, so that their
// moves are staged. Agents restart, deregister what they share and register it again.
//
// Everything is drawn from the seed, GPU work included. (Pinning memory for a GPU has a thread of its own.)
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/random.h"
#include "capi/handles.h"
#include "simulated_agent.h"
#include "transports/memory/network.h"

namespace towline::simulation {

inline constexpr uint32_t kAgents = 4;
inline constexpr uint64_t kBlock = 500;  // no divisor of a staged chunk
inline constexpr uint64_t kBlocksEach = 24;
inline constexpr uint64_t kBytesEach = kBlock * kBlocksEach;
inline constexpr uint32_t kShares = 2 * kAgents;
inline constexpr uint64_t kBytes = kShares * kBytesEach;
inline constexpr uint8_t kPrivate =
    0xff;  // what an owner writes into memory that it does not share; no stamp

enum class Own : uint8_t { kDram, kFile, kVram };

// Cuts and mends by number of agent; a crashed life of an agent is cut off for ever.
class CutNetwork final : public memory::Network {
 public:
  [[nodiscard]] bool passes(const uint64_t from[2], const uint64_t to[2]) const noexcept override;
  void enter(uint32_t agent, Id incarnation) { lives_.push_back({incarnation, agent, false}); }
  void crash(Id incarnation);
  void cut(uint32_t a, uint32_t b, bool is_cut) { cut_[a][b] = cut_[b][a] = is_cut; }
  [[nodiscard]] bool is_cut(uint32_t a, uint32_t b) const { return cut_[a][b]; }
  void mend_all() { cut_ = {}; }

 private:
  struct Life {
    Id incarnation;
    uint32_t agent;
    bool crashed;
  };
  [[nodiscard]] const Life* find(const uint64_t incarnation[2]) const noexcept;
  std::vector<Life> lives_;
  std::array<std::array<bool, kAgents>, kAgents> cut_{};
};

// The objects that an agent has of another one. Made anew when that one restarts or registers again.
struct Acquaintance {
  towline_peer_t* peer = nullptr;
  towline_block_list_t* theirs = nullptr;
  uint64_t registration = 0;  // of the other's shared memory; 0: none
};

struct SimulatedAgent {
  std::shared_ptr<Agent> agent;
  towline_agent_t handle;
  Own own_kind = Own::kDram;
  std::vector<uint8_t> own;  // dram or vram
  int file = -1;
  towline_region_t* own_region = nullptr;
  towline_block_list_t* mine = nullptr;
  std::vector<uint8_t> shared;
  towline_region_t* shared_region = nullptr;
  uint64_t registration =
      0;  // a number of its own for each time that `shared` was registered; 0: not registered
  bool deregistering = false;
  uint64_t private_until_ns = 0;  // `shared` holds kPrivate until then
  std::array<Acquaintance, kAgents> others;
};

struct SimulatedMove {
  enum class State : uint8_t { kIdle, kInFlight };
  uint32_t from = 0;  // the agent that posts
  uint32_t to = 0;
  uint32_t op = 0;
  towline_transfer_t* transfer = nullptr;
  uint64_t made_for = 0;  // the registration that the transfer is about
  State state = State::kIdle;
  uint64_t posts = 0;
  uint64_t posted_at_ns = 0;
  uint64_t registration = 0;  // when it was posted
  uint8_t stamp = 0;
  uint64_t done_since_mended = 0;

  [[nodiscard]] uint64_t own_offset() const { return (to * 2 + op) * kBytesEach; }
  [[nodiscard]] uint64_t shared_offset() const { return (from * 2 + op) * kBytesEach; }
  [[nodiscard]] uint64_t own_block() const { return own_offset() / kBlock; }
  [[nodiscard]] uint64_t shared_block() const { return shared_offset() / kBlock; }
};

// How often the things happened that the simulation is for.
struct Tally {
  uint64_t reads = 0, writes = 0, staged = 0, on_gpu = 0, failed = 0, notices = 0;
  uint64_t restarts = 0, crashes = 0, deregistrations = 0, cuts = 0;
};

class World {
 public:
  explicit World(uint64_t seed);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // Whatever happens, for that long; then the network is mended, and every move must succeed once more.
  void run(uint64_t virtual_ns);
  [[nodiscard]] const Tally& tally() const { return tally_; }

 private:
  // world_agents.cc: agents come and go.
  void start(uint32_t index);
  void share(uint32_t index);
  void introduce(uint32_t who, uint32_t to);
  void forget(Acquaintance& other);
  void stop(uint32_t index, bool crash);
  void restart(uint32_t index);
  void begin_deregistering(uint32_t index);
  void look_after(uint32_t index);  // goes on with what takes several turns
  [[nodiscard]] towline_block_list_t* list(uint32_t index, towline_peer_t* peer, uint64_t address,
                                           uint32_t kind, uint64_t device);
  void cut_or_mend();

  // world_moves.cc: moves.
  [[nodiscard]] bool make(SimulatedMove& move);
  [[nodiscard]] bool drop(SimulatedMove& move);  // false: it has no fence yet
  void touch(SimulatedMove& move);
  void post(SimulatedMove& move);
  void settle(SimulatedMove& move);
  void check_done(const SimulatedMove& move);
  void receive(uint32_t index, const std::string& text, const std::string& sender);
  void write_own(const SimulatedMove& move, uint8_t value);
  [[nodiscard]] std::vector<uint8_t> read_own(const SimulatedMove& move) const;
  [[nodiscard]] uint8_t* shared_of(const SimulatedMove& move) {
    return agents_[move.to].shared.data() + move.shared_offset();
  }

  void drive();
  void wreak_havoc();
  void check_private(uint32_t index) const;
  void check_health() const;

  testing::SteppingClock clock_;
  Random random_;
  const uint64_t seed_;
  CutNetwork network_;
  std::array<SimulatedAgent, kAgents> agents_;
  std::array<std::array<uint64_t, kAgents>, kAgents> cut_since_ns_{};
  std::vector<SimulatedMove> moves_;
  std::set<std::string> sent_;
  std::set<std::string> received_;
  uint64_t registrations_ = 0;
  uint64_t pass_began_ns_ = 0;  // the last whole pass of every agent
  bool havoc_ = true;
  Tally tally_;
};

// One command to the fake GPUs; see src/transports/cuda/fake/plugin.cc.
bool command_gpus(const char* command, uint64_t a = 0);

}  // namespace towline::simulation
