// Windows in memory of GPUs of several hosts. Ranks of one host use the window of the backend inside. For ranks of other hosts
// each rank's memory is a region of an internal agent (agent_window.h).
//
// The agent moves bytes from and to the staging where it lies. Copies of it would have to be pinned and unpinned, and to
// unpin waits for kernels, such as those that wait for another strand's hop (gpu/driver_spares.h).
//
// An operation with a rank of another host is a row of steps of a strand: kernels move bytes between the GPU's memory and the
// strand's staging, and the strand's thread puts them into the other rank's window or gets them from it. Each rank of another
// host has a strand for what moves and for signals to it, which so keep their order, and one for each channel of its signals
// that a stream waits for. They are made when they are needed first.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "collectives/agent_window.h"
#include "collectives/cpu_backend.h"
#include "towline/plugin/collective.h"

namespace towline::collectives {

class HostsBackend;

// The strands of a communicator.
class HostsWindows {
 public:
  static constexpr uint64_t kChannels = 64;  // of signals, as on one host

  // `staging`: bytes of a strand, the same on all ranks.
  HostsWindows(CpuBackend& cpu, const towline_collective_table_v1_t& table, uint64_t staging)
      : cpu_(cpu), table_(table), half_(staging / 2 / 4096 * 4096) {}

  // A window's number is that of the operation that opened it. Streams may have operations of a window that was closed.
  void enter(uint64_t number, std::shared_ptr<AgentWindow> window);
  void leave(uint64_t number);
  // Any thread. Throws Error. `check` throws for a status of the backend `inside`.
  template <class Check>
  std::vector<towline_collective_step_t> cut(towline_collective_backend* inside, uint64_t window,
                                             const towline_window_call_t& call, uint64_t timeout_ns,
                                             Check&& check) {
    const bool waits = call.op == TOWLINE_WINDOW_WAIT_SIGNAL;
    Strand& strand = strand_to(call.rank, waits ? 1 + call.channel : 0);
    {
      const std::lock_guard lock(strand.mutex);
      if (strand.memory == nullptr) {
        check(table_.strand_open(inside, waits ? 4096 : 2 * half_, 0, carry, &strand, &strand.memory,
                                 &strand.number));
        if (!waits) register_staging(strand);
      }
    }
    return cut_for(strand, window, call, timeout_ns);
  }
  // From now on hops that wait for a signal give up soon. Before the backend inside is closed.
  void close() noexcept { closing_ = true; }
  [[nodiscard]] size_t strands() const;

 private:
  struct Strand {
    Strand(HostsWindows& its_owner, int its_peer) : owner(its_owner), peer(its_peer) {}
    HostsWindows& owner;
    const int peer;
    std::mutex mutex;  // guards the others until they are set
    void* memory = nullptr;
    uint32_t number = 0;
    std::shared_ptr<Region>
        region;  // of the memory, which GPUs reach already; null: nothing moves by this strand
  };
  // A piece of an operation, as the words of a hop.
  struct Hop {
    uint64_t window;
    uint64_t op;
    uint64_t there;  // where in the window
    uint64_t here;   // where in the strand's staging
    uint64_t bytes;
    uint64_t channel;
    uint64_t timeout_ns;
  };
  static_assert(sizeof(Hop) <= TOWLINE_STEP_WORDS * 8);

  static int32_t carry(void* strand, const uint64_t* words);
  Strand& strand_to(int peer, uint64_t what);
  void register_staging(Strand& strand);  // throws Error
  std::vector<towline_collective_step_t> cut_for(const Strand& strand, uint64_t window,
                                                 const towline_window_call_t& call,
                                                 uint64_t timeout_ns) const;
  Status run(const Strand& strand, const Hop& hop);
  Status await(AgentWindow& window, const Strand& strand, const Hop& hop);

  CpuBackend& cpu_;
  const towline_collective_table_v1_t& table_;
  const uint64_t half_;
  std::atomic<bool> closing_{false};
  mutable std::mutex mutex_;
  std::map<std::pair<int, uint64_t>, Strand> strands_;
  std::map<uint64_t, std::shared_ptr<AgentWindow>> windows_;
};

class HostsWindow {
 public:
  // Collective. address null: allocates memory. Throws Error; if one rank can't, on every rank.
  HostsWindow(HostsBackend& backend, void* address, uint64_t bytes, uint64_t number, Deadline deadline);
  HostsWindow(const HostsWindow&) = delete;
  HostsWindow& operator=(const HostsWindow&) = delete;
  ~HostsWindow();
  // Collective: when it returns, no rank uses the memory any more. Throws Error.
  void close(uint64_t number, Deadline deadline);

  // Any thread. Null address: the rank is on another host.
  void map(int32_t rank, void*& address, uint64_t& bytes) const noexcept;
  // These wait. They throw Error; kNotYet: no signal came in time.
  void put(int32_t rank, uint64_t offset, const void* from, uint64_t bytes);
  void get(int32_t rank, uint64_t offset, void* to, uint64_t bytes);
  void signal(int32_t rank);
  Status wait_signal(int32_t rank, Deadline deadline);
  // In the order of the stream. Throws Error.
  void issue(const towline_window_call_t& call, uint64_t timeout_ns, void* stream);
  void symmetric(void* symmetric, size_t bytes) const;
  [[nodiscard]] HostsBackend& backend() const noexcept { return backend_; }

 private:
  [[nodiscard]] std::unique_ptr<AgentWindow> make_far();
  void move(uint32_t op, int32_t rank, uint64_t offset, void* address, uint64_t bytes);
  void check_far(Status status) const;
  void close_inside(uint64_t number, Deadline deadline) noexcept;

  HostsBackend& backend_;
  const uint64_t number_;
  towline_collective_window* inside_ = nullptr;
  std::shared_ptr<AgentWindow> far_;
};

}  // namespace towline::collectives
