// The ranks of one host: their shared memory, and the operations through it.
//
// Ranks go through *phases*, which have the same numbers on all ranks; each rank posts one line for each
// phase. In phase p of lockstep a rank first fills one half of its stage, then posts p, waits until every
// rank has posted p, and reads from the others' halves until it posts the next phase. So no rank writes a
// half that another may still read: the halves alternate, a rank that posts a phase has finished reading the
// phase before, and a half is written again only after every rank has posted a phase in between. Most
// operations are loops of such phases; large ones cut their data so that a piece fits a half.
//
// The first phase of an operation carries its Header (and up to 24 bytes of data) in the line that is posted;
// every rank compares all of them, so all see the same disagreement. Later phases need only the number.
//
// Rooted operations of few bytes are *loose* phases (shm_loose.cc): a rank that needs no data from others
// posts and continues. So ranks may be up to kLines phases apart, which is the number of lines of a rank;
// data that does not fit in a line is in a ring beside the lines. A line is reused when every other rank is
// *done* with it: it has read and compared everything it needs from that phase. From time to time a rank
// publishes the phase up to which it is done. A rank that completes a phase of lockstep also knows that all
// are done with the previous phase of lockstep.
//
// In a loose phase every rank compares its header with that of the root it names. The root of a reduce or
// gather also compares with all ranks, and the root of a broadcast or scatter with rank 0. This finds every
// disagreement: if all these headers are equal, each rank agrees with a rank that acts as the root, and all
// such roots agree with every rank or with rank 0. A rank compares before it reads data. For data that it
// does not read, it compares later: in a following operation, or when watch_behind is called.
//
// A wait first pauses (less if that does not help), then yields, and then sleeps on one word for the group. A
// rank that posts checks whether any rank sleeps. Every wait checks the word that says whether the group is
// broken.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/os/memfd.h"
#include "base/sync/prefetch.h"
#include "base/sync/spin.h"
#include "collectives/breaker.h"
#include "collectives/calls/call.h"
#include "collectives/direct_choice.h"
#include "towline/status.h"

namespace towline::collectives {

struct ShmSettings {
  uint64_t stage_bytes = 512 << 10;     // size of one half
  uint64_t flat_bytes = 32 << 10;       // up to here a rank that wants a reduction reduces all
  uint64_t loose_bytes = 512;           // up to this size rooted operations are loose, see above
  uint64_t channel_bytes = 256 << 10;   // size of the ring from one rank to another
  uint64_t streaming_bytes = 32 << 20;  // from this size on, results are stored past the caches
  uint64_t leader_bytes = 64 << 10;     // over several hosts: up to here one rank acts for its host
  uint64_t chunk_bytes = 8 << 20;       // over several hosts: one chunk of large data
  SingleCopy single_copy = SingleCopy::kAuto;
  bool crowded = false;  // more ranks than processors: yield rather than spin
};

class ShmGroup {
 public:
  // The size of the shared memory of a group of `ranks` ranks.
  static uint64_t bytes(uint32_t ranks, const ShmSettings& settings);

  // `mapping` must be zero before the first rank uses it. `ranks`: the communicator's numbers of the group's
  // members, for messages.
  ShmGroup(Mapping mapping, int index, std::vector<int> ranks, const ShmSettings& settings, Breaker& breaker);

  int index() const noexcept { return index_; }
  int size() const noexcept { return size_; }
  int rank(int index) const noexcept { return ranks_[static_cast<size_t>(index)]; }
  const ShmSettings& settings() const noexcept { return settings_; }
  // "never", "always", "auto", or why it can't be: of this host.
  const char* describe_choice() const noexcept;

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
  // Every rank gives `bytes` bytes (at most kMostExchanged) and receives those of all ranks. For control data
  // of windows.
  static constexpr uint64_t kMostExchanged = 4096;
  Status exchange(const Header& header, const void* mine, uint64_t bytes,
                  std::vector<std::vector<uint8_t>>& all, Deadline deadline);

  // ---- Breaking. Any thread. Breaks the group unless it is broken; returns the recorded reason.
  Breakage break_group(const Breakage& reason) noexcept;
  bool broken() const noexcept;
  Breakage breakage() const;
  // Announces that this rank leaves, so that its end does not count as a loss.
  void leave();
  bool has_left(int index) const noexcept;

  // The ranks, by their numbers in the communicator, that have not reached the phase that this one posted
  // last. Any thread; the answer may be out of date at once.
  std::vector<int> absent() const;

  // Makes the pending comparisons of operations that this rank has already left, as far as other ranks have
  // posted; breaks the group if they disagree. One thread at a time, beside the one that performs.
  void watch_behind();

  // ---- Channels: a ring of bytes from each rank to each. One writer and one reader at a time.
  size_t channel_write(int to, const void* data, size_t bytes) noexcept;  // returns how many were written
  size_t channel_read(int from, void* data, size_t bytes) noexcept;       // returns how many were read
  bool channel_can_write(int to) const noexcept;
  bool channel_can_read(int from) const noexcept;

  // ---- Sleeping until anything happens in the group: posts, channels, breaking. group.announce(); if
  // (nothing to do) group.sleep(until); group.retire();
  uint32_t announce() noexcept;
  void sleep(uint32_t seen, uint64_t until_ns) noexcept;
  void retire() noexcept;
  // Call after making something visible to other ranks.
  void notify() noexcept {
    full_fence();
    if (front().sleepers.load(std::memory_order_relaxed) != 0) [[unlikely]]
      wake_sleepers();
  }

  // Called before an operation. In small ones a wait looks some times before it pauses. A rank that came earlier has
  // looked at the line that this one is about to write, and so has it.
  void begin(bool small) noexcept {
    quick_turns_ = small ? kQuickTurns : 0;
    arrived_ticks_ = kNoWait;
    prefetch_for_write(&line(index_, phase_ + 1));
  }
  // ticks() shortly before the last wait of a small operation ended; 0: the wait was longer, or ticks() tells nothing;
  // kNoWait: there was none.
  static constexpr uint64_t kNoWait = 1;
  uint64_t arrived_ticks() const noexcept { return arrived_ticks_; }

 private:
  [[gnu::cold]] void wake_sleepers() noexcept;
  // Before its first pause, since a pause of 30 ns is a third of a small operation.
  static constexpr uint32_t kQuickTurns = 8;
  static constexpr uint64_t kLines = 64;          // how many phases ranks may be apart
  static constexpr uint64_t kBatch = kLines / 4;  // loose phases that are compared and published together
  // Limit for a rank's data in phases with which not all ranks are done: small enough to stay in the caches.
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
    alignas(128) std::atomic<uint64_t> done;  // done with every phase up to this
    std::atomic<uint32_t> left;
  };
  static constexpr size_t kBesideWords = 6;
  struct alignas(128) Ring {
    alignas(128) std::atomic<uint64_t> head;  // total bytes written
    // The bytes of the last write if they fit, also: a small message reaches its reader in the line that tells of it.
    // Valid while `beside_from` is the position where that write began, plus one; 0 while they change.
    std::atomic<uint64_t> beside_from;
    std::atomic<uint64_t> beside[kBesideWords];
    alignas(128) std::atomic<uint64_t> tail;  // total bytes read
  };
  static_assert(sizeof(Ring) == 256);
  struct Front {
    alignas(128) std::atomic<uint32_t> state;  // 0 intact, 1 being broken, 2 broken
    std::atomic<uint32_t> leavers;
    int32_t status;
    char text[1024];
    alignas(128) std::atomic<uint32_t> sleepers;
    alignas(128) std::atomic<uint32_t> epoch;
  };

  Front& front() const noexcept { return *reinterpret_cast<Front*>(mapping_.address()); }
  RankBlock& block(int index) const noexcept { return blocks_[index]; }
  Ring& ring(int from, int to) const noexcept { return rings_[from * size() + to]; }
  static void put_beside(Ring& ring, uint64_t from, const void* data, size_t bytes) noexcept;
  // False: they are not there; `to` may have been written to.
  static bool take_beside(const Ring& ring, uint64_t from, void* to, size_t bytes) noexcept;
  uint8_t* ring_data(int from, int to) const noexcept {
    return ring_data_ + static_cast<uint64_t>(from * size() + to) * settings_.channel_bytes;
  }
  Posted& line(int index, uint64_t phase) const noexcept { return block(index).posted[phase % kLines]; }
  bool has_posted(int index, uint64_t phase) const noexcept {
    return line(index, phase).phase.load(std::memory_order_acquire) == phase;
  }
  // The bytes in a ring, from the positions that its two ranks wrote. If the positions are invalid, the
  // result is larger than the ring, and the group is broken.
  uint64_t filled(int from, int to, uint64_t head, uint64_t tail) noexcept;
  // The data that a rank gave in a loose phase: in its line, or in its ring where the line says. Null, and
  // the group is broken, if the line names a place outside the ring.
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
  // Asks for lines of the half that the next phase fills, where this operation filled `bytes` from `from` on. `has_read`: this
  // rank has read other ranks' data in the operation.
  void prefetch_half(uint64_t from, uint64_t bytes, bool has_read) const noexcept;
  // The rank that many behind another one, in a circle.
  int after(int index, int offset) const noexcept {
    const int other = index + offset;
    return other < size() ? other : other - size();
  }

  // ---- Lockstep
  // First phase of an operation, with up to 24 bytes beside the header; then all headers are compared.
  Status first_phase(const Call& call, const void* inlined = nullptr, uint64_t bytes = 0);
  // A later phase.
  Status phase(Deadline deadline);
  // `ends_by` gives the deadline, and is called only if this rank has to wait.
  template <typename EndsBy>
  Status post_and_wait(const Header* header, const EndsBy& ends_by);

  // ---- Direct copies (shm_choice.h, shm_direct.cc)
  // What this rank gives every other, and what it takes of them; `bytes` of one part, the same on all ranks. Either by
  // `staged`, which calls its argument for its first phase, or directly.
  struct Taken {
    uint8_t* to;
    uint64_t bytes;
  };
  template <typename Give, typename Take, typename Staged>
  Status copy_by_choice(const Call& call, DirectChoice::Operation operation, uint64_t bytes, const Give& give,
                        const Take& take, const Staged& staged);
  template <typename Give, typename Take>
  Status copy_directly(const Call& call, const Give& give, const Take& take, bool& good);
  // `directly` says in its argument whether every rank could be read.
  template <typename Directly, typename Staged>
  Status by_choice(const Call& call, DirectChoice::Operation operation, uint64_t bytes,
                   const Directly& directly, const Staged& staged);
  // The first phase of an operation that has the choice.
  Status choice_phase(const Call& call);
  bool read_from(int other, void* to, uint64_t from, uint64_t bytes) noexcept;
  // A phase after which `good` is true where it was for every rank.
  Status everyone(Deadline deadline, bool& good);
  // Finds out whether every rank can read every other's memory.
  Status prove_direct(Deadline deadline);

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
  // Makes room for the next phase, in which every rank gives `bytes` bytes or none; `place` is where they go.
  Status begin_loose(const Call& call, uint64_t bytes, uint8_t*& place);
  // Ends the phase that was posted last: it only has to be compared with that rank; < 0: with none.
  Status end_loose(int compare_with);
  Status catch_up(uint64_t through);  // compares the phases that are complete so far
  void tell_done() noexcept;
  Status check_leavers();

  // ---- Both
  // Waits until the line of the next phase may be written.
  template <typename EndsBy>
  Status make_room(const EndsBy& ends_by) {
    return phase_ < all_done_ + kLines ? Status::kOk : wait_for_room(phase_ + 1 - kLines, ends_by());
  }
  // Waits until every other rank is done with that phase.
  Status wait_for_room(uint64_t needed, Deadline deadline);
  void post(const Header* header) noexcept;
  // Waits until that rank has posted the same phase as this one. A timeout names all late ranks, or only that
  // one.
  enum class Late { kEveryone, kThatOne };
  Status wait_for(int index, Deadline deadline, Late late);
  template <typename Arrived, typename Stuck>
  Status wait(const Arrived& arrived, const Stuck& stuck, Deadline deadline);
  Status fail_late(std::vector<int> ranks);
  Status fail_closed(int index);
  bool agree(int index, int other, uint64_t phase) const noexcept;
  // The same for this rank's operation and the phase that was posted last. A line that a rank has written goes to the rank
  // that reads it, on Intel's processors for good, so this does not look at the own one.
  bool agrees_with(int other) const noexcept;
  Header header_of(int index, uint64_t phase) const noexcept;
  Status fail_mismatch(int index, int other, uint64_t phase);
  void copy_out(uint8_t* to, const uint8_t* from, uint64_t bytes, bool streaming) const noexcept;

  // With root < 0 every rank gets the result.
  bool wanted_here(int root) const noexcept { return root < 0 || root == index_; }
  template <typename First>
  Status reduce_staged(const Call& call, int root, const First& first);
  bool reduce_given(const Call& call);
  // What the others' lines of the phase that was posted last have from `from` on, and this rank's part, into the output.
  void reduce_lines(const Call& call, const uint8_t* mine, uint64_t from, uint64_t bytes);
  // This rank's parts for all ranks, if they fit its line together. False on every rank or on none, if counts agree.
  struct Lined {
    uint8_t bytes[sizeof(Posted::inlined)];
    uint64_t size = 0;
    uint64_t mine = 0;  // where the part for this rank begins in every rank's line
  };
  bool put_in_line(const Parts& parts, Lined& lined) const noexcept;
  template <typename First>
  Status reduce_flat(const Call& call, int root, const First& first);
  template <typename First>
  Status reduce_in_slices(const Call& call, int root, const First& first);
  Status reduce_directly(const Call& call, bool& good, uint64_t& reduced);
  template <typename First>
  Status to_everyone(const Call& call, uint64_t most_bytes, const First& first);

  Mapping mapping_;
  const int index_;
  const std::vector<int> ranks_;
  const int size_;
  const ShmSettings settings_;
  const uint64_t share_bytes_;  // one rank's share of a half, in whole lines
  Breaker& breaker_;
  RankBlock* blocks_;
  Ring* rings_;
  uint8_t* stages_;
  uint8_t* ring_data_;
  uint8_t* given_;
  uint64_t phase_ = 0;          // posted last
  uint64_t stage_ = 0;          // phases of lockstep so far
  uint64_t last_lockstep_ = 0;  // the phase of lockstep that was completed last
  uint64_t all_done_ = 0;       // every other rank is done with phases up to this, and knows it of this rank
  uint64_t told_done_ = 0;
  // Of the rings to the others: the bytes written, and those read when this rank looked last. Under the lock of who writes.
  std::vector<uint64_t> heads_;
  std::vector<uint64_t> tails_seen_;
  // Total bytes given by any rank, the same count on all ranks: now, at the end of each phase (by phase
  // number modulo kLines), and when this rank last published what it is done with.
  uint64_t given_bytes_ = 0;
  std::array<uint64_t, kLines> given_then_{};
  uint64_t given_told_ = 0;
  // The phase up to which this rank is done. Later phases still to be compared, each at its number modulo
  // kLines: phase << 16 | index of the rank to compare with.
  std::atomic<uint64_t> done_{0};
  std::array<std::atomic<uint64_t>, kLines> pending_{};
  uint64_t arrived_ticks_ = kNoWait;
  uint32_t quick_turns_ = 0;
  uint32_t pauses_;            // for the next wait
  uint32_t sleepy_waits_ = 0;  // number of next waits that sleep instead of yielding
  Header current_;
  DirectChoice choice_;
  std::vector<pid_t> processes_;  // of the ranks, where direct copies work
  const uint64_t token_;          // by which others know this process's memory
  std::vector<const void*> sources_;
  std::vector<uint64_t> counts_;  // all_to_all_v: counts between all pairs of ranks
};

}  // namespace towline::collectives
