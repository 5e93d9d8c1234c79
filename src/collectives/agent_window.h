// A window's memory for the ranks of other hosts: a region of an internal agent, which they read and write
// through transfers, and a counter for each rank that signals.
//
// The caller's memory is not registered: bytes pass through staging memory of the window, a piece at a time,
// the next one being copied while the last one is sent. So after a failed call has returned, nothing can land
// in the caller's memory or be read from it.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "agent/agent.h"
#include "base/clock.h"
#include "collectives/breaker.h"
#include "memory/shared_memory.h"

namespace towline::collectives {

// An agent that serves windows without the application's help. `backends` empty: all. `gpus`: applications order what they do
// with memory of GPUs by signals and streams themselves. `setting` returns those of the communicator, whose keys it has; the
// others are the process's. Throws Error.
std::shared_ptr<Agent> make_window_agent(const std::string& name, const std::string& backends,
                                         const std::string& listen, uint64_t timeout_ns, bool gpus,
                                         const std::function<std::string(const char* key)>& setting);

class AgentWindow {
 public:
  struct Memory {
    void* address = nullptr;  // null: this rank has no memory to reach
    uint64_t bytes = 0;
    uint32_t kind = TOWLINE_MEMORY_DRAM;
    uint64_t device = 0;
  };
  // The window of rank `me` of `ranks`. Signals have so many channels, which do not meet. Throws Error.
  AgentWindow(std::shared_ptr<Agent> agent, Breaker& breaker, size_t me, size_t ranks, const Memory& memory,
              size_t channels = 1);
  ~AgentWindow();
  AgentWindow(const AgentWindow&) = delete;
  AgentWindow& operator=(const AgentWindow&) = delete;

  // The description that this rank sends to the others, and the call that reads one of theirs. Throws Error.
  std::vector<uint8_t> offer();
  void open(size_t rank, std::span<const uint8_t> offer);

  using Make = std::function<std::unique_ptr<AgentWindow>()>;
  // Gives every rank what each of them has. Rounds count from 0.
  using Exchange = std::function<std::vector<std::vector<uint8_t>>(int round, std::span<const uint8_t> mine)>;
  // Collective: makes the window and opens it for the ranks of other hosts. Throws Error, on every rank, if one rank can't, or
  // has a `problem` already.
  static std::unique_ptr<AgentWindow> open_all(std::string problem, const Make& make,
                                               const std::function<bool(size_t rank)>& elsewhere,
                                               const Exchange& exchange);

  // Any thread. For opened ranks; [offset, offset + bytes) lies in the rank's memory. A failure breaks the
  // communicator, except a signal that does not arrive in time.
  uint64_t bytes(size_t rank) const noexcept { return ranks_[rank].bytes; }
  Status put(size_t rank, uint64_t offset, const void* from, uint64_t bytes);
  Status get(size_t rank, uint64_t offset, void* to, uint64_t bytes);
  // The same with memory that the agent knows, as add_private() gave it: at once, and not by way of staging.
  struct Here {
    const Region& region;
    uint64_t offset;
  };
  Status put(size_t rank, uint64_t offset, Here from, uint64_t bytes);
  Status get(size_t rank, uint64_t offset, Here to, uint64_t bytes);
  Status signal(size_t rank, size_t channel = 0);
  Status wait_signal(size_t rank, Deadline deadline, size_t channel = 0) noexcept;

  // Waits until no other rank can reach the memory. kTimedOut: one still may; `why` says which.
  Status close(Deadline deadline, std::string& why);

 private:
  class Move;
  struct Signals {
    uint64_t counter_there = 0;  // its counter of signals from this rank
    uint64_t counter_here = 0;   // this rank's counter of its signals
    std::atomic<uint64_t> taken{0};
  };
  struct Rank {
    Peer* peer = nullptr;
    std::shared_ptr<RemoteRegion> region;  // null: the rank has no memory
    uint64_t bytes = 0;
    std::unique_ptr<Signals[]> signals;  // of each channel
  };

  void make_counters();
  void drop_counters() noexcept;
  Status move(uint32_t op, size_t rank, uint64_t offset, uint8_t* mine, uint64_t bytes);
  Status move_directly(uint32_t op, size_t rank, uint64_t offset, Here mine, uint64_t bytes);
  std::unique_ptr<Move> begin(uint32_t op, Rank& rank, uint64_t offset, Here mine, uint64_t bytes);
  uint8_t* staged(size_t slot) const noexcept;
  Status finish(Move& move, const char* what, size_t rank);

  const std::shared_ptr<Agent> agent_;
  Breaker& breaker_;
  const size_t me_;
  const size_t channels_;
  std::vector<Rank> ranks_;
  std::shared_ptr<Region> region_;  // of this rank's memory; null: none
  std::mutex staging_mutex_;        // guards the members below
  std::unique_ptr<SharedMemory> staging_;
  std::shared_ptr<Region> staging_region_;
  std::vector<std::unique_ptr<Move>> left_over_;  // failed, and possibly still running
};

}  // namespace towline::collectives
