// The registered regions of one agent: found by address when block lists are made, by key when a peer's frame
// arrives.
//
// Life of a region: add (it has a key, nobody finds it) -> publish (found, pinned) -> retire (neither any
// more; pins that are held stay good) -> remove, once pinned() is 0.
//
// A key is the number of the region's slot in its low bits and 44 random bits above, so that no peer can
// guess the key of a region, and an old key finds nothing.
#pragma once

#include <towline/plugin/plan.h>
#include <towline/status.h>
#include <towline/towline.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/sync/read_mostly_lock.h"
#include "memory/region_index.h"
#include "memory/region_label.h"
#include "memory/shared_memory.h"

namespace towline {

// A backend's registration of a region; set by the agent's backend host.
struct RegionRegistration {
  void* registration = nullptr;  // null: the backend does not take this memory
  std::vector<uint8_t> token;    // travels in the metadata
  std::string reason;            // why it does not take it, for people
};

// Files, devices and objects, whose addresses are offsets and not pointers.
[[nodiscard]] constexpr bool is_storage(uint32_t kind) noexcept {
  return kind == TOWLINE_MEMORY_FILE || kind == TOWLINE_MEMORY_BLOCK || kind == TOWLINE_MEMORY_OBJECT;
}

// A registered region. `ref`, `file` and the rest do not change once published, except `registrations`, which
// belong to the agent: it fills them before publishing, adds to them by RegionTable::change when a backend is
// added, and empties them between retiring and removing; and `retired`, which belongs to the table.
struct Region {
  towline_region_ref ref = {};
  SharedRange shared;                             // where peers can map it; file null: they can't
  std::string shared_reason;                      // why they can't, for people
  std::shared_ptr<InPlaceShare> in_place;         // TOWLINE_REGION_SHARE: undone when the last region lets go
  std::vector<RegionRegistration> registrations;  // by the agent's number of the backend
  std::shared_ptr<const RegionLabel> label;       // null: it has no name
  std::shared_ptr<void> storage;                  // what the agent keeps for a file or the like; null: memory
  bool hidden = false;                            // pinned by its key, but in no list of regions
  bool retired = false;                           // its registrations may be gone: nothing new may use them

  // Peers are told of it and may reach it.
  [[nodiscard]] bool for_peers() const noexcept {
    return ref.access != TOWLINE_ACCESS_NONE && !is_storage(ref.kind) && !hidden;
  }
};

// The key of what is not registered, in a list of such memory: no region has it.
inline constexpr uint64_t kNotRegistered = 0;

class RegionTable {
 public:
  static constexpr uint32_t kIndexBits = 20;
  static constexpr uint32_t kMaxRegions = 1u << kIndexBits;

  // Which slot a key names, counted in the order of registration; a slot that is free again is used first.
  static constexpr uint32_t index_of(uint64_t key) noexcept {
    return static_cast<uint32_t>(key) & (kMaxRegions - 1);
  }

  RegionTable();
  ~RegionTable();
  RegionTable(const RegionTable&) = delete;
  RegionTable& operator=(const RegionTable&) = delete;

  // ---- control path: any thread, takes the table's lock, may allocate

  // Takes a region on, with ref.key and access 0 (all) filled in. Throws Error: validate_region's, or
  // kLimitExceeded.
  std::shared_ptr<Region> add(Region region);
  // From now on it is found and pinned. Only once.
  void publish(uint64_t key);
  // Not found any more, and new pins are refused (kStale). False when it was not published, or is retired
  // already.
  bool retire(uint64_t key) noexcept;
  // Frees the slot of a region that is retired or was never published. False while it is pinned, or if it
  // does not exist.
  bool remove(uint64_t key) noexcept;
  // Pins held now; 0 for an unknown key. After retire() it only falls.
  [[nodiscard]] uint64_t pinned(uint64_t key) const noexcept;

  // Found by peers: published, and not retired.
  [[nodiscard]] bool is_published(uint64_t key) const noexcept;
  // Null if it does not exist (any more); also finds unpublished and retired ones.
  [[nodiscard]] std::shared_ptr<Region> find(uint64_t key) const;
  // The same region, which `look` reads under the table's lock. False if it does not exist.
  template <class Look>
  [[nodiscard]] bool look_at(uint64_t key, Look&& look) const {
    const ReadMostlyLock::Reader lock(lock_);
    const Region* region = region_of(key);
    if (region == nullptr) return false;
    look(*region);
    return true;
  }
  // Changes the region while nobody looks at it; for members that may change once it is published. False: no such region.
  template <class Change>
  bool change(uint64_t key, Change&& change) {
    const std::lock_guard lock(lock_);
    auto* const region = const_cast<Region*>(region_of(key));
    if (region == nullptr) return false;
    change(*region);
    return true;
  }
  // All there are, published or not, by ascending slot.
  [[nodiscard]] std::vector<std::shared_ptr<Region>> all() const;
  // Of these, the one of the highest slot below `slot`, which becomes its slot; null: there is none. Allocates nothing.
  [[nodiscard]] std::shared_ptr<Region> last_below(uint32_t& slot) const noexcept;
  // All that are published and not hidden, by ascending slot.
  [[nodiscard]] std::vector<std::shared_ptr<Region>> published() const;
  [[nodiscard]] uint64_t size() const noexcept;  // published

  // Look-ups by address; the table can't change during the Reader's lifetime. Control path; make block lists
  // under it, but do not block.
  class Reader {
   public:
    explicit Reader(const RegionTable& table) : lock_(table.lock_), index_(table.index_) {}
    [[nodiscard]] const RegionIndex& index() const noexcept { return index_; }

   private:
    const ReadMostlyLock::Reader lock_;
    const RegionIndex& index_;
  };

  // ---- data path: any thread, lock-free, no allocation

  // May a peer access (TOWLINE_ACCESS_* bits, at least one) [address, address + bytes) of the region with
  // this key? On kOk the region cannot be removed until unpin(pin). Every value may be hostile. kStale: no
  // such region (any more). kInvalidArgument: no bytes or no access asked. kOutOfRange, kPermissionDenied: as
  // they say; nothing of storage is for peers, so that kPermissionDenied too. kAgain: 2^31 pins.
  [[nodiscard]] Status pin(uint64_t key, uint64_t address, uint64_t bytes, uint32_t access, void** pointer,
                           void** pin) noexcept;
  // Pins without looking at a range, for users that have checked (a posted transfer).
  [[nodiscard]] Status hold(uint64_t key, void** pin) noexcept;
  static void unpin(void* pin) noexcept;

 private:
  struct Slot;
  static constexpr uint32_t kChunkSlots = 256;
  static constexpr uint32_t kChunks = kMaxRegions / kChunkSlots;

  [[nodiscard]] Slot* slot_at(uint32_t index) const noexcept;
  [[nodiscard]] Slot* find_slot(uint64_t key) const noexcept;
  [[nodiscard]] const Region* region_of(uint64_t key) const noexcept;  // under the lock
  uint32_t take_slot();

  ReadMostlyLock lock_;
  RegionIndex index_;           // the published
  std::vector<uint32_t> free_;  // slots
  uint32_t made_ = 0;           // slots ever used
  std::unique_ptr<std::atomic<Slot*>[]> chunks_;
};

}  // namespace towline
