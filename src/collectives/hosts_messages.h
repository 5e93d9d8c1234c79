// Messages between GPUs of different hosts. Each rank of another host has a strand of hops for each direction, made with the
// communicator if there are few, else when it is first used: messages wait only for those before them of the same pair and
// direction.
//
// A message is a row of steps: its chunks go through two halves of the strand's staging memory, and the strand's thread gives them
// to the CPU backend's message engine, which nothing else uses. What was sent is announced before the first chunk, and
// the receiver compares it. A send ends when its last chunk is in staging.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "collectives/cpu_backend.h"
#include "towline/plugin/collective.h"

namespace towline::collectives {

class HostsMessages {
 public:
  // `staging`: bytes of a strand, the same on all ranks.
  HostsMessages(CpuBackend& cpu, const towline_collective_table_v1_t& table, uint64_t staging)
      : cpu_(cpu), table_(table), half_(staging / 2 / 4096 * 4096) {}

  [[nodiscard]] bool possible() const noexcept {
    return table_.strand_open != nullptr && table_.start_steps != nullptr;
  }
  // Any thread. Throws Error. `check` throws for a status of the backend `inside`.
  template <class Check>
  std::vector<towline_collective_step_t> cut(towline_collective_backend* inside,
                                             const towline_collective_t& call, uint64_t timeout_ns,
                                             Check&& check) {
    return cut_for(open_strand(inside, call.root, call.op == TOWLINE_COLLECTIVE_SEND, check), call,
                   timeout_ns);
  }
  // Makes the strands to these ranks and from them now, while no kernel waits: the driver may let a thread that asks for pinned
  // memory wait for kernels that run, and those may wait for a message that the thread has yet to issue.
  template <class Check>
  void open(towline_collective_backend* inside, std::span<const int> peers, Check&& check) {
    for (const int peer : peers)
      for (const bool sends : {true, false}) (void)open_strand(inside, peer, sends, check);
  }
  // From now on hops that wait for the other rank give up soon. Before the backend inside is closed.
  void close() noexcept { closing_ns_ = monotonic_now_ns(); }
  [[nodiscard]] size_t strands() const;

 private:
  struct Strand {
    Strand(HostsMessages& its_owner, int its_peer, bool it_sends)
        : owner(its_owner), peer(its_peer), sends(it_sends) {}
    HostsMessages& owner;
    const int peer;
    const bool sends;
    std::mutex mutex;  // guards the two until they are set
    void* memory = nullptr;
    uint32_t number = 0;
  };
  struct Announced {
    uint64_t tag;
    uint64_t count;
    uint64_t datatype;
    bool operator==(const Announced&) const = default;
  };
  // A chunk, as the words of a hop.
  struct Hop {
    Announced message;
    uint64_t first;   // the message begins
    uint64_t offset;  // in the strand's staging
    uint64_t bytes;
    uint64_t timeout_ns;
  };
  static_assert(sizeof(Hop) <= TOWLINE_STEP_WORDS * 8);

  template <class Check>
  Strand& open_strand(towline_collective_backend* inside, int peer, bool sends, Check&& check) {
    Strand& strand = strand_to(peer, sends);
    const std::lock_guard lock(strand.mutex);
    if (strand.memory == nullptr)
      check(table_.strand_open(inside, 2 * half_, sends ? 1 : 0, carry, &strand, &strand.memory,
                               &strand.number));
    return strand;
  }
  static int32_t carry(void* strand, const uint64_t* words);
  Strand& strand_to(int peer, bool sends);
  std::vector<towline_collective_step_t> cut_for(const Strand& strand, const towline_collective_t& call,
                                                 uint64_t timeout_ns) const;
  Status run(const Strand& strand, const Hop& hop);
  Status move(const Strand& strand, const Hop& hop, void* data, uint64_t bytes, Deadline deadline);
  [[nodiscard]] std::string describe(bool sends, const Announced& message, int peer) const;

  CpuBackend& cpu_;
  const towline_collective_table_v1_t& table_;
  const uint64_t half_;
  std::atomic<uint64_t> closing_ns_{0};
  mutable std::mutex mutex_;
  std::map<std::pair<int, bool>, Strand> strands_;
};

}  // namespace towline::collectives
