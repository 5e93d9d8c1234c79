// Transfers that no GPU of this process can do in one step: in chunks through a piece of host memory, the
// pool, that is pinned. Where our GPUs do not reach the peer's memory, both processes have it, and each side
// copies by its own GPU; this is the side that starts them, detour_owner.h is the other. Where it is only
// that this side's host memory is not pinned, its threads copy between it and the pool, and its GPU between
// the pool and the peer's memory: the owner takes no part.
//
//   WRITE   idle -> filling (our side) -> asked (the owner empties it), or far (our GPU does) -> idle
//   READ    idle -> asked (the owner fills it), or far (our GPU does) -> emptying (our side) -> idle
//
// The memory is kDetourSlots slots, one chunk each, taken with the first such plan of a connection. The owner
// checks every range it is asked for, so guarded regions may go this way. A part that failed or was cancelled
// begins no chunk any more and ends when those under way have: what the owner has answered for, it does not
// touch any more, and that is the fence. Where the connection breaks first, only what was asked for and not
// answered can still be on its way, at the owner alone.
//
// A free slot goes to the oldest urgent part, and one in eight to the oldest other part. Chunks are copied in the order
// in which they began, so for a second after the last urgent chunk, other parts have at most kBulkSlots.
//
// One worker, under its lock.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <towline/plugin/cursor.hpp>
#include <vector>

#include "base/sync/urgent_first.h"
#include "gpu/device.h"
#include "memory/shared_memory.h"
#include "towline/plugin/backend.hpp"
#include "transports/cuda/detour_wire.h"
#include "transports/cuda/piece_copier.h"

namespace towline::cuda {

class Backend;
class Connection;

// The state of a prepared plan.
struct DetourPlan {
  struct Target {
    uint64_t key = 0;
    uint64_t place = 0;  // regions of one place are copied together by the owner
  };
  const towline_plan* plan = nullptr;
  bool read = false;
  bool given_up = false;  // a copy of it still runs, and is not waited for
  std::shared_ptr<PieceCopier> copier;
  std::vector<uint64_t> local_deltas;  // for each local region what to add to its addresses
  uint64_t pool = 0;                   // where the copier finds it
  uint32_t under_way = 0;              // parts

  // The other side's step: done by the owner,
  std::vector<Target> targets;  // for each remote region
  // or, where `far` is set, by our GPU.
  std::shared_ptr<PieceCopier> far;
  std::vector<uint64_t> far_deltas;  // for each remote region what to add to its addresses
  uint64_t far_pool = 0;             // where `far` finds the pool
};

class Detour {
 public:
  // Takes the memory, of that NUMA node if it can be had there. Throws Error.
  Detour(Backend& backend, Connection& connection, std::optional<uint32_t> node);
  Detour(const Detour&) = delete;
  Detour& operator=(const Detour&) = delete;
  ~Detour();

  // The copier for `gpu`, or for host memory if there is no GPU. Throws Error.
  [[nodiscard]] std::shared_ptr<PieceCopier> copier(std::optional<uint32_t> gpu, bool read);
  // The memory as that copier finds it. Throws Error.
  [[nodiscard]] uint64_t address_for(std::optional<uint32_t> gpu);

  // As data.submit. The plan outlives the part.
  int32_t begin(DetourPlan& plan, const towline_submit_args& args) noexcept;
  void on_moved(const Moved& moved) noexcept;
  void cancel(uint64_t cookie) noexcept;
  uint32_t progress(uint64_t now_ns) noexcept;
  // True if something here ends without a wake-up.
  [[nodiscard]] bool busy() const noexcept;
  // The connection is down: no chunk begins or goes on. Parts end when the copies under way have.
  void call_off(Status status) noexcept;
  [[nodiscard]] bool settled() const noexcept { return jobs_.empty(); }
  // Ends every part, without a fence where copies still run. This is not to be destroyed afterwards, since a
  // GPU may still reach what it holds.
  void give_up(Status status) noexcept;
  // JSON, for people.
  [[nodiscard]] std::string describe(const std::string& why) const;

 private:
  enum class Stage : uint8_t { kIdle, kFilling, kFilled, kAsked, kFar, kAnswered, kEmptying };

  struct Job {
    uint64_t cookie = 0;
    DetourPlan* plan = nullptr;
    std::optional<plugin::Cursor> cursor;
    uint64_t begin = 0;
    uint64_t end = 0;
    uint64_t failed_begin = UINT64_MAX;
    uint32_t under_way = 0;  // chunks
    bool urgent = false;
    bool unanswered = false;  // the owner was asked for a chunk, and can't answer any more
    Status status = Status::kOk;
    int32_t code = 0;
    std::vector<uint8_t> message;
    [[nodiscard]] bool over() const noexcept {
      return under_way == 0 && (status != Status::kOk || cursor->done());
    }
    [[nodiscard]] bool has_chunks() const noexcept { return status == Status::kOk && !cursor->done(); }
  };
  struct Slot {
    Stage stage = Stage::kIdle;
    Job* job = nullptr;
    uint64_t begin = 0;   // in the plan
    uint64_t number = 0;  // of the request
    std::vector<uint8_t> request;
  };

  Job* next_job(uint64_t now_ns) noexcept;
  bool begin_chunk(uint32_t slot, uint64_t now_ns) noexcept;
  void cut(Job& job, uint32_t slot) noexcept;
  uint32_t advance(uint32_t slot, uint64_t now_ns) noexcept;
  bool other_side(uint32_t slot) noexcept;
  bool ask(Slot& slot) noexcept;
  void start(uint32_t slot, Stage stage) noexcept;
  void chunk_over(Slot& slot) noexcept;
  void chunk_failed(Slot& slot, Status status, int32_t code) noexcept;
  void never_answered(Slot& slot, Status status) noexcept;
  [[nodiscard]] static uint32_t fences_of(const Job& job) noexcept;
  uint32_t finish_jobs() noexcept;
  void complete(std::unique_ptr<Job> job, uint32_t fences) noexcept;

  Backend& backend_;
  Connection& connection_;
  const std::unique_ptr<SharedMemory> memory_;
  PoolName pool_;
  std::unique_ptr<Pinned> pinned_;                                            // for GPUs
  std::map<std::pair<int64_t, bool>, std::shared_ptr<PieceCopier>> copiers_;  // by GPU, -1 the host
  std::vector<Slot> slots_;
  std::vector<std::unique_ptr<Job>> jobs_;  // oldest first
  std::vector<std::unique_ptr<Job>> free_;
  std::vector<Stretch> stretches_;  // of the chunk that is being cut
  UrgentFirst turns_;
  uint64_t last_urgent_ns_ = 0;
  uint64_t last_number_ = 0;
  uint64_t chunks_ = 0;
  uint64_t last_refusal_logged_ns_ = 0;
  Status down_ = Status::kOk;  // why no chunk begins any more
};

}  // namespace towline::cuda
