// Cuts an operation on GPUs of several hosts into steps.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "collectives/calls/call.h"
#include "towline/plugin/collective.h"

namespace towline::collectives {

struct HostsLayout {
  std::vector<std::vector<int>> hosts;  // ranks of each, in rank order
  std::vector<size_t> host_of;          // of each rank
  std::vector<size_t> index_of;         // of each rank on its host
  size_t mine = 0;                      // host
  size_t index = 0;                     // of this rank there
  size_t columns = 1;                   // the smallest number of ranks of a host
  bool even = true;                     // all hosts have as many
  uint8_t* staging = nullptr;           // two halves
  uint64_t half = 0;                    // bytes
  [[nodiscard]] const std::vector<int>& here() const noexcept { return hosts[mine]; }
};

// The kinds of hop; the number is part of a step.
enum class HopKind : uint32_t {
  kCompare = 0,  // headers only
  kBarrier,
  kAllReduce,      // in place
  kAllGather,      // a part of each host, the own one at its place
  kReduceScatter,  // a part of each host, and behind them the result
  kBroadcast,
  kReduce,    // in place, on the root's host
  kGather,    // as kAllGather, on the root's host
  kScatter,   // a part of each host on the root's host; on all, the result is behind the place for them
  kAllToAll,  // a part for each host, and behind them one of each host
  // With entries, each of which is a message to or from one rank:
  kSizes,     // of how many bytes only, which are compared
  kExchange,  // in slots, `stride` bytes apart
  kExchangeReduce,  // and then one slot of every host is reduced: the own one is slot 0, the others begin at `first`
};
// A message of a hop, in one word: bytes or, in kSizes, bytes of all messages together; rank; slot; direction.
inline constexpr int kMostExchangeRanks = 1 << 13;
inline constexpr uint64_t kMostExchangeSlots = 1 << 10;
inline constexpr uint64_t kMostExchangeBytes = uint64_t{1} << 40;
struct HopEntry {
  int peer;
  bool sends;
  uint32_t slot;
  uint64_t bytes;
  [[nodiscard]] uint64_t packed() const noexcept {
    return bytes << 24 | static_cast<uint64_t>(peer) << 11 | static_cast<uint64_t>(slot) << 1 |
           (sends ? 1 : 0);
  }
  static HopEntry unpack(uint64_t word) noexcept {
    return {static_cast<int>(word >> 11 & 0x1fff), (word & 1) != 0, static_cast<uint32_t>(word >> 1 & 0x3ff),
            word >> 24};
  }
};
constexpr uint32_t kMostHopEntries = 48;
struct Hop {
  HopKind kind;
  uint32_t step;  // of the operation
  Header header;
  uint64_t offset;  // in staging
  uint64_t bytes;   // of a part
  uint64_t stride;  // from one part to the next
  uint64_t timeout_ns;
  uint32_t datatype;
  uint32_t reduction;
  uint32_t root;  // host
  uint32_t divisor;
  uint32_t entries;
  uint32_t first;
  uint64_t entry[kMostHopEntries];
};
static_assert(sizeof(Hop) <= TOWLINE_STEP_WORDS * 8);

constexpr uint64_t kStagingLine = 256;  // parts in staging begin at multiples of it

class HostsSteps {
 public:
  // Throws Error: kUnsupported. The steps are valid until the next call.
  const std::vector<towline_collective_step_t>& cut(const HostsLayout& layout,
                                                    const towline_collective_t& call, uint64_t number,
                                                    uint64_t timeout_ns);
  // all_reduce, and then the rest on every rank for itself. `norm` must be valid as long as the steps.
  const std::vector<towline_collective_step_t>& cut_norm(const HostsLayout& layout,
                                                         const towline_collective_norm_t& norm,
                                                         uint64_t number, uint64_t timeout_ns);

 private:
  // A chunk of an operation.
  struct Chunk {
    uint64_t begin;  // bytes, of a part
    uint64_t bytes;
    uint8_t* stage;
    uint32_t number;
  };
  void begin(const HostsLayout& layout, const towline_collective_t& call, uint64_t number,
             uint64_t timeout_ns);
  void all_reduce();
  void all_gather();
  void reduce_scatter();
  void broadcast();
  void barrier();
  void reduce();
  void gather();
  void scatter();
  void all_to_all();
  // In hosts_parts.cc: parts of any size, on hosts with any numbers of ranks.
  void gather_parts();
  void reduce_parts();
  void exchange_parts();
  void move_with_root();
  void broadcast_beyond_columns();
  bool post_entries(HopKind kind, const Chunk& chunk, uint64_t stride, uint64_t step);
  [[nodiscard]] uint64_t rounds(size_t host, size_t among) const noexcept {
    return (layout_->hosts[host].size() + among - 1) / among;
  }
  [[nodiscard]] uint64_t most_rounds() const noexcept;
  [[nodiscard]] uint64_t slot_bytes(uint64_t slots) const;
  towline_collective_t& add_parts(uint32_t op, size_t host, uint64_t round, const Parts& parts,
                                  const Chunk& chunk);
  [[nodiscard]] bool on_root_host() const noexcept {
    return layout_->host_of[static_cast<size_t>(call_->root)] == layout_->mine;
  }
  [[nodiscard]] bool is_root() const noexcept { return layout_->here()[layout_->index] == call_->root; }
  [[nodiscard]] int32_t root_index() const noexcept {
    return static_cast<int32_t>(layout_->index_of[static_cast<size_t>(call_->root)]);
  }
  // before(chunk) and hop(chunk), then after(chunk) while the next one crosses. hop may be without (false).
  template <class Before, class HopOf, class After>
  void pipeline(uint64_t bytes, uint64_t chunk, Before&& before, HopOf&& hop, After&& after);
  towline_collective_t& add_call(uint32_t op, uint64_t count);
  void add_move(void* to, const void* from, uint64_t bytes);
  Hop hop_of(HopKind kind, const Chunk& chunk, uint64_t bytes, uint64_t stride) const;
  void add_post(const Hop& hop);
  bool post(HopKind kind, const Chunk& chunk, uint64_t bytes, uint64_t stride);
  [[nodiscard]] uint64_t part_bytes(uint64_t parts) const noexcept;
  std::vector<uint64_t>& shares(uint64_t bytes);
  void reduce_shares(const Chunk& chunk);
  bool post_share(HopKind kind, const Chunk& chunk);
  void gather_shares(const Chunk& chunk, void* output);
  void** of_host(const Parts& parts, size_t host, uint64_t begin);
  [[nodiscard]] void* output_at(uint64_t begin) const noexcept {
    return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(call_->output) + begin);
  }

  const HostsLayout* layout_ = nullptr;
  const towline_collective_t* call_ = nullptr;
  towline_collective_t norm_call_ = {};
  uint64_t timeout_ns_ = 0;
  Call parts_;
  std::vector<towline_collective_step_t> steps_;
  std::deque<towline_collective_t> calls_;
  std::deque<std::vector<uint64_t>> counts_;
  std::deque<std::vector<void*>> lists_;
  std::vector<HopEntry> entries_;
};

}  // namespace towline::collectives
