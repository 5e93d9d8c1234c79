// The ranks of one host: a piece of shared memory, and the operations through it.
//
// Ranks go in lockstep through *phases*. In phase p a rank first fills the half p % 2 of its stage, then
// posts p, waits until every rank has posted p, and reads from the others' halves p % 2 until it posts p + 1.
// So nobody writes a half that somebody may still read: who posts p + 1 has read all of p, and half p % 2 is
// written again only in phase p + 2, which begins when all have posted p + 1. Every operation is a loop of
// phases; large ones cut their data so that a piece fits a half.
//
// The first phase of an operation carries its Header (and up to 24 bytes of data) in the line that is posted;
// every rank compares all of them, so all see the same disagreement. Later phases need no more than the
// number.
//
// Waiting pauses a while (less where that does not help), yields a while and then sleeps on one word for the
// group; who posts looks whether anybody sleeps. A broken group is a word that every wait looks at.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/memfd.h"
#include "base/spin.h"
#include "collectives/breaker.h"
#include "collectives/call.h"
#include "towline/status.h"

namespace towline::collectives {

struct ShmSettings {
  uint64_t stage_bytes = 512 << 10;     // of one half
  uint64_t flat_bytes = 32 << 10;       // up to here who wants the result of a reduction reduces everything
  uint64_t channel_bytes = 256 << 10;   // of the ring from one rank to another
  uint64_t streaming_bytes = 32 << 20;  // from here on results are stored past the caches
  uint64_t leader_bytes = 64 << 10;     // over several hosts: up to here one rank a host speaks for it
  uint64_t chunk_bytes = 8 << 20;       // over several hosts: of large data, what goes at a time
  bool crowded = false;                 // more ranks than processors: yield rather than spin
};

class ShmGroup {
 public:
  // The bytes a group of so many ranks takes.
  static uint64_t bytes(uint32_t ranks, const ShmSettings& settings);

  // `mapping` is zeroed when the first rank sees it. `ranks`: the communicator's numbers of the group's
  // members, for people.
  ShmGroup(Mapping mapping, int index, std::vector<int> ranks, const ShmSettings& settings, Breaker& breaker);

  int index() const noexcept { return index_; }
  int size() const noexcept { return static_cast<int>(ranks_.size()); }
  int rank(int index) const noexcept { return ranks_[static_cast<size_t>(index)]; }
  const ShmSettings& settings() const noexcept { return settings_; }

  // One thread at a time, all ranks in one order. Parts and root are in the group's indices.
  Status barrier(const Call& call);
  Status all_reduce(const Call& call);
  Status reduce(const Call& call);
  Status broadcast(const Call& call);
  Status all_gather(const Call& call);      // also _v
  Status reduce_scatter(const Call& call);  // also _v
  Status gather(const Call& call);
  Status scatter(const Call& call);
  Status all_to_all(const Call& call);
  Status all_to_all_v(const Call& call);
  // Every rank gives `bytes` bytes (at most kMostExchanged) and gets everyone's. For control: windows.
  static constexpr uint64_t kMostExchanged = 4096;
  Status exchange(const Header& header, const void* mine, uint64_t bytes,
                  std::vector<std::vector<uint8_t>>& all, Deadline deadline);

  // ---- Breaking. Any thread.
  // Breaks the group unless it is broken; returns what it is broken by.
  Breakage break_group(const Breakage& reason) noexcept;
  bool broken() const noexcept;
  Breakage breakage() const;
  // Says that this rank goes, so that its end is no loss.
  void leave() noexcept;
  bool has_left(int index) const noexcept;

  // The ranks, by their numbers in the communicator, that have not come to the phase that this one posted
  // last. Any thread; true for the moment.
  std::vector<int> absent() const;

  // ---- Channels: a ring of bytes from each rank to each. One writer and one reader at a time.
  size_t channel_write(int to, const void* data, size_t bytes) noexcept;  // how many went in
  size_t channel_read(int from, void* data, size_t bytes) noexcept;       // how many came out
  bool channel_can_write(int to) const noexcept;
  bool channel_can_read(int from) const noexcept;

  // ---- Sleeping for anything that happens in the group: posts, channels, breaking.
  //   group.announce(); if (nothing to do) group.sleep(until); group.retire();
  uint32_t announce() noexcept;
  void sleep(uint32_t seen, uint64_t until_ns) noexcept;
  void retire() noexcept;
  // After something was made visible to other ranks.
  void notify() noexcept;

 private:
  struct alignas(64) Posted {
    std::atomic<uint64_t> phase;
    Header header;
    uint8_t inlined[24];
  };
  static_assert(sizeof(Posted) == 64);
  struct alignas(128) RankBlock {
    Posted posted[2];
    std::atomic<uint32_t> left;
  };
  struct alignas(128) Ring {
    alignas(128) std::atomic<uint64_t> head;  // bytes written ever
    alignas(128) std::atomic<uint64_t> tail;  // bytes read ever
  };
  struct Front {
    alignas(128) std::atomic<uint32_t> state;  // 0 sound, 1 being broken, 2 broken
    int32_t status;
    char text[1024];
    alignas(128) std::atomic<uint32_t> sleepers;
    alignas(128) std::atomic<uint32_t> epoch;
  };

  Front& front() const noexcept { return *reinterpret_cast<Front*>(mapping_.address()); }
  RankBlock& block(int index) const noexcept { return blocks_[index]; }
  Ring& ring(int from, int to) const noexcept { return rings_[from * size() + to]; }
  uint8_t* ring_data(int from, int to) const noexcept {
    return ring_data_ + static_cast<uint64_t>(from * size() + to) * settings_.channel_bytes;
  }
  // The half that phase `phase` may fill.
  uint8_t* half(int index, uint64_t phase) const noexcept {
    return stages_ + (static_cast<uint64_t>(index) * 2 + (phase & 1)) * settings_.stage_bytes;
  }
  uint64_t next_phase() const noexcept { return phase_ + 1; }

  // First phase of an operation, with up to 24 bytes beside the header; then all headers are compared.
  Status first_phase(const Call& call, const void* inlined = nullptr, uint64_t bytes = 0);
  // A later phase.
  Status phase(Deadline deadline);
  Status post_and_wait(Deadline deadline);
  Status wait_for(int index, uint64_t phase, Deadline deadline);
  Status compare_headers(const Header& mine);
  Status fail_late(int index, uint64_t phase);
  void copy_out(uint8_t* to, const uint8_t* from, uint64_t bytes, bool streaming) const noexcept;

  // With root < 0 everybody gets the result.
  bool wanted_here(int root) const noexcept { return root < 0 || root == index_; }
  Status reduce_to(const Call& call, int root);
  Status reduce_inline(const Call& call, int root);
  Status reduce_flat(const Call& call, int root);
  Status reduce_in_slices(const Call& call, int root);
  Status to_everyone(const Call& call, uint64_t most_bytes, bool headed);

  Mapping mapping_;
  const int index_;
  const std::vector<int> ranks_;
  const ShmSettings settings_;
  Breaker& breaker_;
  RankBlock* blocks_;
  Ring* rings_;
  uint8_t* stages_;
  uint8_t* ring_data_;
  uint64_t phase_ = 0;
  uint32_t pauses_;            // of the next wait
  uint32_t sleepy_waits_ = 0;  // so many sleep rather than yield
  Header current_;
  std::vector<const void*> sources_;
  std::vector<uint64_t> counts_;  // all_to_all_v: what everyone sends to everyone
};

}  // namespace towline::collectives
