// Moves a transfer that no backend can do in one step, such as between a peer's memory and a file of this
// agent, or GPU memory and a path that takes host memory only: in chunks through a set of chunks of staging memory, two
// steps each.
//
//   idle --fill--> filling --> full --drain--> draining --> idle
//
// Each slot of the set goes through these states independently, so that one chunk is filled while another is
// drained; chunks start in order. A step is a *leg* (leg.h) between staging memory and one side, with its own backend, posted a range at a time. READ fills from the far side (the peer) and drains to
// the near side (this agent's storage or GPU memory), WRITE the other way round.
//
// A leg moves the chunks of its slot. Chunks that are written to objects are *collected*: the backend copies
// each out of its slot, uploads parts of several chunks, and completes the last chunk of an object when the
// whole object has been written. So an object arrives with its last chunk, or not at all. The legs that write
// have the whole plan (stage_objects). The backend holds one chunk until the next one arrives; so after a
// failure the legs are stopped, for it would never complete.
//
// Cached parts of a file are read directly (*straight*, without staging memory) into a peer's memory that is
// mapped here: a third leg reads a stretch of chunks at a time, while no other chunk starts. It never waits
// for a device (TOWLINE_SUBMIT_CACHED), so that the owner gets its memory back as soon as from any copy, and
// nothing lands there after this process has ended. Meanwhile a far leg, whose plan holds the mapping, is
// *borrowed*: neither posted nor released. A stretch that could not be read directly is staged, and so are
// some chunks after it.
//
// The transfer as a whole is one part of its worker: it has the deadline, the outcome, the notice. It ends
// when no leg has anything in flight, so its fence covers theirs. After a failure no step starts, and steps
// in flight complete; after a cancel, deadline or loss they are stopped.
//
// Everything is under the worker's lock except functions marked as control path.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "agent/hand_over_choice.h"
#include "agent/intrusive_list.h"
#include "agent/prices.h"
#include "agent/staging.h"
#include "plan/staged_plan.h"
#include "towline/plugin/v1.h"
#include "towline/status.h"

namespace towline {

class BlockList;
class Leg;
class Post;
struct Part;

class StagedTransfer {
 public:
  // Control path, like the destructor and establish. The lists belong to `whole`; both outlive
  // this. Throws Error.
  StagedTransfer(Post& whole, const Plan& plan, uint32_t op, const std::shared_ptr<BlockList>& local,
                 const std::shared_ptr<BlockList>& remote, const StagingPlace& place);
  StagedTransfer(const StagedTransfer&) = delete;
  StagedTransfer& operator=(const StagedTransfer&) = delete;
  ~StagedTransfer();

  // Finds a backend for every leg. `forced`: a backend that one of them must use; empty: any. Throws Error.
  void establish(const std::string& forced, uint64_t deadline_ns);
  // The link over which messages reach the far side. Control path, or under the worker's lock.
  [[nodiscard]] class Link* far_link() const noexcept;

  // The whole transfer was posted: `part` ends through Post::part_ended, not before this has returned and
  // the worker steps.
  void begin(Part& part) noexcept;
  // Makes progress; called once in each pass of the worker from begin until the end. Returns the number of
  // things done.
  uint32_t step(uint64_t now_ns) noexcept;
  // If in flight, it ends soon, and all steps are stopped.
  void stop() noexcept;

  // No byte can land on the far side any more. Any thread, nothing in flight.
  [[nodiscard]] Status far_fence() const noexcept;
  void seek_far_fence() const noexcept;

  // For route().
  struct Description {
    const Post* fill;
    const Post* drain;
    std::string staging;  // its name
    uint64_t bytes;       // of it
    uint64_t chunk_bytes;
    uint64_t slots;
    bool has_straight;
    uint64_t straight_bytes;  // bytes of the last post that were read directly
    uint64_t plan_bytes;
    uint64_t plan_blocks;
    uint64_t plan_runs;
    const Post* failed;  // the leg that failed first in the last post; null: neither
  };
  [[nodiscard]] Description describe() const;
  // The price of such a transfer, from the prices of its legs.
  [[nodiscard]] Price price() const;

  IntrusiveHook<StagedTransfer> hook;

 private:
  enum class Stage : uint8_t { kIdle, kFilling, kFull, kDraining };

  struct Legs {
    std::unique_ptr<Leg> near;
    std::unique_ptr<Leg> far;
  };

  struct Slot {
    Stage stage = Stage::kIdle;
    uint64_t chunk = 0;
  };

  struct Object : StagedObject {
    bool there = false;  // this and the rest: of the current post
    int32_t status = TOWLINE_OK;
    int32_t vendor_code = 0;
  };

  // Bytes of the whole plan that did not arrive.
  struct Range {
    uint64_t begin;
    uint64_t end;
    int32_t status;
    int32_t vendor_code;
  };

  [[nodiscard]] std::unique_ptr<Leg> make_leg(StagedLeg plans, uint32_t op,
                                              const std::shared_ptr<BlockList>& target);
  void establish_straight(uint64_t deadline_ns);
  [[nodiscard]] std::vector<towline_region_ref> find_straight_way();
  [[nodiscard]] Leg& leg_of(const Slot& slot, bool filling) const noexcept {
    const Legs& legs = legs_[slot.chunk % legs_.size()];
    return filling == read_ ? *legs.far : *legs.near;
  }
  // The offset of the slot's chunk in its leg's plan.
  [[nodiscard]] uint64_t begin_in_leg(const Slot& slot, bool filling) const noexcept {
    return (collects_ && !filling ? slot.chunk : slot.chunk / legs_.size()) * chunk_bytes_;
  }
  [[nodiscard]] uint64_t bytes_of(uint64_t chunk) const noexcept;
  [[nodiscard]] uint32_t advance(Slot& slot, uint64_t now_ns) noexcept;
  [[nodiscard]] uint32_t advance_straight(uint64_t now_ns) noexcept;
  [[nodiscard]] uint32_t start(Slot& slot, bool filling) noexcept;
  [[nodiscard]] bool start_straight() noexcept;
  void chunk_failed(Slot& slot, bool filling, const towline_part_result& result) noexcept;
  // For objects that are collected: this chunk completed those that end in it; those with bytes in [begin,
  // end) failed; names every object that was not written.
  [[nodiscard]] std::vector<Object>::iterator first_object_ending_behind(uint64_t position) noexcept {
    return std::upper_bound(objects_.begin(), objects_.end(), position,
                            [](uint64_t at, const Object& object) { return at < object.end; });
  }
  void objects_arrived(const Slot& slot) noexcept;
  void objects_failed(uint64_t begin, uint64_t end, int32_t status, int32_t vendor_code) noexcept;
  void name_objects() noexcept;
  void not_moved(uint64_t begin, uint64_t end, int32_t status, int32_t vendor_code) noexcept;
  void abandon_legs() noexcept;
  void finish() noexcept;
  void take_set() noexcept;

  Post& whole_;
  const bool read_;
  const uint64_t bytes_;
  const uint64_t blocks_;  // of the plan, which the next post of a whole plan compiles anew
  const uint64_t runs_;
  const uint64_t chunk_bytes_;
  const uint64_t chunks_;
  const bool far_is_own_;                     // the far side is storage of this agent
  const bool collects_;                       // objects are written, in more than one chunk
  const std::shared_ptr<towline_post> post_;  // of the legs
  Staging& staging_;
  Staging::ChunkSet& set_;
  std::vector<Legs> legs_;  // as many as slots
  std::vector<Slot> slots_;
  std::vector<Object> objects_;       // that are collected, in the order of the chunks
  std::shared_ptr<BlockList> near_;   // this agent's storage, as a target
  std::unique_ptr<Leg> straight_;     // null: direct reads are not possible
  uint32_t straight_generation_ = 0;  // generation of the far link whose mappings that leg uses
  uint64_t next_stretch_ = 1;         // number of chunks to try next
  HandOverChoice choice_;

  // State of the current post.
  Part* part_ = nullptr;  // null: not in flight
  bool has_set_ = false;
  bool reached_ = false;                         // the far side was reached
  bool failed_ = false;                          // no chunk starts any more
  std::atomic<const Leg*> failed_leg_{nullptr};  // the first
  bool stop_asked_ = false;                      // and chunks in flight are stopped
  bool stopped_ = false;
  bool timed_ = false;         // the choice knows when this post began
  uint64_t next_chunk_ = 0;    // the next to start
  uint64_t stretch_ = 0;       // chunks being read directly, the last ones started
  uint32_t not_straight_ = 0;  // so many chunks are staged, since the last ones tried were not cached
  std::atomic<uint64_t> straight_bytes_{0};
  uint32_t fences_ = 0;
  std::vector<Range> ranges_;  // has room for the maximum
};

}  // namespace towline
