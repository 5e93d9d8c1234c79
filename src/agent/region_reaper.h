// Regions that the application has released while peers, transfers or backends still use them. A thread deregisters
// them and then tells the application that the memory is its own again. It starts when the first one comes, and ends
// with the agent.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

namespace towline {

class Agent;
class OwnRegions;
struct Region;

class RegionReaper {
 public:
  using Released = void (*)(void* owner);

  // `agent`: whose thread it is.
  RegionReaper(OwnRegions& regions, bool in_real_time, const Agent* agent) noexcept
      : regions_(regions), in_real_time_(in_real_time), agent_(agent) {}
  RegionReaper(const RegionReaper&) = delete;
  RegionReaper& operator=(const RegionReaper&) = delete;
  ~RegionReaper() { finish(); }

  // Deregisters the region, and calls released(owner) once when nothing uses its memory any more: here and now if that
  // is so already. Waits for no peer. Throws std::bad_alloc, having done nothing.
  void add(std::shared_ptr<Region> region, Released released, void* owner);
  // Begins the agent's end: joins the thread.
  void stop() noexcept;
  // After the agent's end, under no lock: whatever is left is released, and later ones at once.
  void finish() noexcept;

 private:
  struct Entry {
    std::shared_ptr<Region> region;
    Released released;
    void* owner;
  };
  enum class State : uint8_t { kOpen, kStopping, kFinished };

  void run() noexcept;
  // False: something still uses it.
  [[nodiscard]] bool reap(const Entry& entry, uint64_t timeout_ns) noexcept;

  OwnRegions& regions_;
  const bool in_real_time_;
  const Agent* const agent_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Entry> waiting_;  // spliced, so that a turn of one allocates nothing
  State state_ = State::kOpen;
  std::thread thread_;
};

}  // namespace towline
