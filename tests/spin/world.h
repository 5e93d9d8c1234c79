// The shared state of a spin's threads: agents that come and go, their memory, and the observed notices and
// completions.
#pragma once

#include <towline/towline.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/random.h"

namespace towline::spin {

inline constexpr uint64_t kAreaBytes = uint64_t{128} << 10;
inline constexpr uint32_t kMovesOfThread = 4;
inline constexpr uint32_t kAreasOfThread =
    kMovesOfThread + 2;                                  // the last two are its planner's and its storer's
inline constexpr uint64_t kPatienceNs = 60'000'000'000;  // beyond which something hangs

inline constexpr const char* kNoDirectory = "etcd://127.0.0.1:1/spin";  // nobody listens there

struct Options {
  uint64_t seed = 1;
  uint64_t seconds = 3;
  uint32_t threads = 6;
  uint32_t agents = 3;
  std::string backends;  // of every agent; empty: drawn for each
  std::string directory = kNoDirectory;
  bool forks = true;
};

// Prints what was found wrong, with the seed, and ends the program.
[[noreturn]] void give_up(const std::string& what);

// One agent's memory, in areas. At most one move at a time has an area, in whatever memory.
class Memory {
 public:
  Memory(uint32_t areas, bool shared);
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory();

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::byte* area(uint32_t index) const { return data_ + index * kAreaBytes; }
  [[nodiscard]] uint64_t bytes() const { return areas_ * kAreaBytes; }

  // Nobody can say any more when the last byte of a move lands there: never to be used again.
  void spoil(uint32_t area) { spoilt_[area].store(true); }
  [[nodiscard]] bool spoilt(uint32_t area) const { return spoilt_[area].load(); }
  [[nodiscard]] bool mostly_spoilt() const;

 private:
  uint32_t areas_;
  towline_memory_t* shared_ = nullptr;
  std::byte* data_ = nullptr;
  std::unique_ptr<std::atomic<bool>[]> spoilt_;
};

// A place where an agent lives. A thread that passes the agent's own handle to a function holds `mutex`
// shared, since closing frees it; objects made from the agent may be used at any time, even while it closes.
struct Place {
  std::shared_mutex mutex;
  std::atomic<bool> closing{false};  // keep out: readers would starve who closes
  towline_agent_t* agent = nullptr;
  std::shared_ptr<Memory> memory;
  std::atomic<towline_region_t*> region{nullptr};  // over all of it; null while it is registered anew
  std::string address;
  uint64_t generation = 0;
};

// Numbers that may be seen once.
class Once {
 public:
  [[nodiscard]] bool first(uint64_t number);

 private:
  struct Shard {
    std::mutex mutex;
    std::unordered_set<uint64_t> seen;
  };
  std::array<Shard, 16> shards_;
};

class World;

// The observed completions of one transfer; lives as long as the world.
struct Tally {
  World* world = nullptr;
  bool called_back = false;
  std::atomic<int64_t> accepted{0};
  std::atomic<int64_t> called{0};
  std::atomic<int64_t> pulled{0};
};

class World {
 public:
  explicit World(const Options& options);
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  ~World();

  [[nodiscard]] const Options& options() const { return options_; }
  [[nodiscard]] Place& place(uint32_t index) { return *places_[index]; }
  [[nodiscard]] uint32_t places() const { return options_.agents; }
  void remake(uint32_t index, Random& random);
  void register_anew(uint32_t index);
  void deregister(towline_region_t* region);
  [[nodiscard]] uint64_t number() { return next_number_.fetch_add(1); }
  [[nodiscard]] const std::string& folder() const { return folder_; }  // of files
  // Counts a call, and passes its answer on. Nothing here asks for what only a bug answers.
  int32_t answered(int32_t status);

  void notice_came(const void* data, std::size_t bytes);  // it begins with a number
  Tally* new_tally(bool called_back);
  // A pass of each agent that nobody is closing: some have no threads of their own.
  void drive();

  // Counted for the last line.
  std::atomic<uint64_t> calls{0};
  std::atomic<uint64_t> moved{0};
  std::atomic<uint64_t> stored{0};
  std::atomic<uint64_t> events{0};
  std::atomic<uint64_t> agents_made{0};

 private:
  void open(Place& place, Random& random);
  void close(Place& place);

  Options options_;
  std::string folder_;
  std::vector<std::unique_ptr<Place>> places_;
  std::atomic<uint64_t> next_number_{1};
  Once notices_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Tally>> tallies_;
  std::vector<std::shared_ptr<Memory>> spoilt_;  // something may still land there
};

// Words that only (seed, position) gives. Not seen by ThreadSanitizer, which does not know that bytes which
// came through a socket or another mapping are ordered.
void stamp(std::byte* data, uint64_t bytes, uint64_t seed, uint64_t at);
[[nodiscard]] bool stamped(const std::byte* data, uint64_t bytes, uint64_t seed, uint64_t at);

}  // namespace towline::spin
