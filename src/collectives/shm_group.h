// The ranks of one host: a piece of shared memory, and the operations through it.
//
// Ranks go through *phases*, numbered alike on all of them; each posts a line for each. In phase p of
// lockstep a rank first fills one half of its stage, then posts p, waits until every rank has posted p, and
// reads from the others' halves until it posts the next phase. So nobody writes a half that somebody may
// still read: the halves take turns, who posts a phase has read all of the one before, and a half is written
// again only after everybody posted a phase in between. Most operations are loops of such phases; large ones
// cut their data so that a piece fits a half.
//
// The first phase of an operation carries its Header (and up to 24 bytes of data) in the line that is posted;
// every rank compares all of them, so all see the same disagreement. Later phases need no more than the
// number.
//
// Rooted operations of few bytes are *loose* phases (shm_loose.cc): who needs nothing of others posts and
// goes on, so ranks may be up to kLines phases apart, which is how many lines a rank has; data that has no
// room in a line lies in a ring beside them. A line is used again when every other rank is *done* with it:
// has read and compared all it needs of that phase. Ranks say up to where they are done at times; who
// completes a phase of lockstep knows besides that all are done with the one of lockstep before.
//
// What a loose phase compares: everybody its header with that of the root it names, the root of a reduce or
// gather with everybody's, and that of a broadcast or scatter with rank 0's. That finds every disagreement:
// if all of those are equal, each rank agrees with a rank that holds itself for the root, and such roots
// agree with everyone or with rank 0. Whatever a rank reads it compares first. What it needs not read it
// compares later: in a following operation, or when watch_behind is called.
//
// Waiting pauses a while (less where that does not help), yields a while and then sleeps on one word for the
// group; who posts looks whether anybody sleeps. A broken group is a word that every wait looks at.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
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
  uint64_t loose_bytes = 512;           // up to here rooted operations are loose, see above
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
  void leave();
  bool has_left(int index) const noexcept;

  // The ranks, by their numbers in the communicator, that have not come to the phase that this one posted
  // last. Any thread; true for the moment.
  std::vector<int> absent() const;

  // Compares what operations that this rank left early have still to be compared by, as far as others have
  // come; breaks the group where they disagree. Any one thread, beside one that performs.
  void watch_behind();

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
  static constexpr uint64_t kLines = 64;          // how many phases ranks may be apart
  static constexpr uint64_t kBatch = kLines / 4;  // of loose phases, what is compared and told at a time
  // What a rank may have given in phases that not all are done with: little enough to stay in the caches.
  static constexpr uint64_t kGivenBytes = 32 << 10;

  static constexpr size_t kHeaderWords = sizeof(Header) / sizeof(uint64_t);

  struct alignas(64) Posted {
    std::atomic<uint64_t> phase;  // 0 while a header is written
    std::atomic<uint64_t> header[kHeaderWords];
    uint8_t inlined[24];
  };
  static_assert(sizeof(Posted) == 64);
  struct alignas(128) RankBlock {
    Posted posted[kLines];
    alignas(128) std::atomic<uint64_t> done;  // with every phase up to this
    std::atomic<uint32_t> left;
  };
  struct alignas(128) Ring {
    alignas(128) std::atomic<uint64_t> head;  // bytes written ever
    alignas(128) std::atomic<uint64_t> tail;  // bytes read ever
  };
  struct Front {
    alignas(128) std::atomic<uint32_t> state;  // 0 sound, 1 being broken, 2 broken
    std::atomic<uint32_t> leavers;
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
  Posted& line(int index, uint64_t phase) const noexcept { return block(index).posted[phase % kLines]; }
  bool has_posted(int index, uint64_t phase) const noexcept {
    return line(index, phase).phase.load(std::memory_order_acquire) == phase;
  }
  // Of a ring, from what its two ranks wrote; more than it holds where they are nonsense, and then the group
  // is broken.
  uint64_t filled(int from, int to, uint64_t head, uint64_t tail) noexcept;
  // What a rank gave in a loose phase: in its line, or where that says among what it gave. Null, and the
  // group broken, where it says a place outside.
  static bool fits_line(uint64_t bytes) noexcept { return bytes <= sizeof(Posted::inlined); }
  const uint8_t* given(int index, uint64_t phase, uint64_t bytes) noexcept {
    const uint8_t* const inlined = line(index, phase).inlined;
    if (fits_line(bytes)) return inlined;
    uint64_t at = 0;
    std::memcpy(&at, inlined, sizeof at);
    return at <= kGivenBytes - bytes ? given_at(index, at) : fail_given(index);
  }
  uint8_t* given_at(int index, uint64_t at) const noexcept {
    return given_ + static_cast<uint64_t>(index) * kGivenBytes + at;
  }
  const uint8_t* fail_given(int index) noexcept;
  // The half that the `stage`th phase of lockstep may fill.
  uint8_t* half(int index, uint64_t stage) const noexcept {
    return stages_ + (static_cast<uint64_t>(index) * 2 + (stage & 1)) * settings_.stage_bytes;
  }
  uint64_t next_stage() const noexcept { return stage_ + 1; }

  // ---- Lockstep
  // First phase of an operation, with up to 24 bytes beside the header; then all headers are compared.
  Status first_phase(const Call& call, const void* inlined = nullptr, uint64_t bytes = 0);
  // A later phase.
  Status phase(Deadline deadline);
  Status post_and_wait(const Header* header, Deadline deadline);

  // ---- Loose phases
  bool is_loose(uint64_t bytes) const noexcept { return bytes <= settings_.loose_bytes; }
  Status reduce_loose(const Call& call);
  Status broadcast_loose(const Call& call);
  Status gather_loose(const Call& call);
  Status scatter_loose(const Call& call);
  template <typename Take>
  Status loose_to_root(const Call& call, const Take& take);
  template <typename Give, typename Take>
  Status loose_from_root(const Call& call, uint64_t bytes, const Give& give, const Take& take);
  // Makes room for the next phase, in which every rank gives so many bytes or none; the place for them.
  Status begin_loose(const Call& call, uint64_t bytes, uint8_t*& place);
  // The phase that was posted last needs no more than to be compared with that rank; < 0: not even that.
  Status end_loose(int compare_with);
  Status catch_up(uint64_t through);  // compares what is there of the phases so far
  void tell_done() noexcept;
  Status check_leavers();

  // ---- Both
  // Waits until the line of the next phase may be written.
  Status make_room(Deadline deadline) {
    return phase_ < all_done_ + kLines ? Status::kOk : wait_for_room(phase_ + 1 - kLines, deadline);
  }
  // Until every other rank is done with that phase.
  Status wait_for_room(uint64_t needed, Deadline deadline);
  void post(const Header* header) noexcept;
  // Until that rank has posted the phase that this one has. Who is late is everyone who has not, or only it.
  enum class Late { kEveryone, kThatOne };
  Status wait_for(int index, Deadline deadline, Late late);
  template <typename Arrived, typename Stuck>
  Status wait(const Arrived& arrived, const Stuck& stuck, Deadline deadline);
  Status fail_late(const std::string& ranks);
  Status fail_closed(int index);
  bool agree(int index, int other, uint64_t phase) const noexcept;
  Header header_of(int index, uint64_t phase) const noexcept;
  Status fail_mismatch(int index, int other, uint64_t phase);
  void copy_out(uint8_t* to, const uint8_t* from, uint64_t bytes, bool streaming) const noexcept;

  // With root < 0 everybody gets the result.
  bool wanted_here(int root) const noexcept { return root < 0 || root == index_; }
  Status reduce_to(const Call& call, int root);
  bool reduce_given(const Call& call);
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
  uint8_t* given_;
  uint64_t phase_ = 0;          // posted last
  uint64_t stage_ = 0;          // phases of lockstep so far
  uint64_t last_lockstep_ = 0;  // the phase of lockstep that was completed last
  uint64_t all_done_ = 0;  // every other rank is done with phases up to this, and was told so of this one
  uint64_t told_done_ = 0;
  // Bytes given ever, counted alike by all ranks whoever gave: now, at the end of each phase by its place in
  // turn, and when this rank told up to where it is done.
  uint64_t given_bytes_ = 0;
  std::array<uint64_t, kLines> given_then_{};
  uint64_t given_told_ = 0;
  // Up to where this rank is done. Beyond: the phases that are to be compared, and with whom, at their place
  // in turn: phase << 16 | index.
  std::atomic<uint64_t> done_{0};
  std::array<std::atomic<uint64_t>, kLines> pending_{};
  uint32_t pauses_;            // of the next wait
  uint32_t sleepy_waits_ = 0;  // so many sleep rather than yield
  Header current_;
  std::vector<const void*> sources_;
  std::vector<uint64_t> counts_;  // all_to_all_v: what everyone sends to everyone
};

}  // namespace towline::collectives
