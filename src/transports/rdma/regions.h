// The regions of one agent as its rails have them registered.
//
// Memory within registered memory shares its registration (fabric/registered_ranges.h). A registration of many bytes is
// made by a thread of the host, since pinning can take seconds: add() returns, and what needs
// the region waits, answered kAgain by find(). Its failure is then told by find(), with the vendor's reason.
//
// Threads. add() and remove() are called one at a time, and block; find() by any worker.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/os/unique_fd.h"
#include "fabric/engine.h"
#include "fabric/registered_ranges.h"
#include "towline/plugin/v1.h"

namespace towline::rdma {

// The rails of all workers, and the host's threads.
class RegionsOwner {
 public:
  virtual ~RegionsOwner() = default;
  // By worker. Throws core::Error. Any thread.
  virtual std::vector<fabric::LocalMemory> register_memory(const fabric::MemoryToRegister& memory) = 0;
  virtual void deregister_memory(const std::vector<fabric::LocalMemory>& memory) noexcept = 0;
  // Calls work(argument) soon, on another thread. False: it won't.
  virtual bool run(void (*work)(void* argument), void* argument) noexcept = 0;
  // A registration has been made in the background, or has failed: find() may say more than kAgain now. Any thread.
  virtual void settled() noexcept = 0;
};

// What the regions of one registration share.
struct RegionKeys {
  enum class State : uint8_t { kWaiting, kUnderWay, kDone, kFailed, kUnwanted };
  State state = State::kWaiting;
  Status status = Status::kOk;  // of kFailed
  std::string reason;
  std::vector<fabric::LocalMemory> memory;  // by worker
};
using RegionRanges = fabric::RegisteredRanges<RegionKeys>;

// Memory of ours.
struct Registered {
  towline_region_ref region = {};
  uint32_t rails = UINT32_MAX;              // nearest to it: a bit each
  std::vector<fabric::LocalMemory> memory;  // by worker; empty until somebody needs it
  std::unique_ptr<RegionRanges::Piece> piece;
};

struct RegionsCounters {
  uint64_t regions = 0;
  uint64_t registrations = 0;  // of the rails, that the regions share
  uint64_t under_way = 0;      // in the background
  uint64_t made = 0;           // so far
};

class Regions {
 public:
  // Registrations of at least background_bytes are made in the background; 0: none.
  Regions(RegionsOwner& owner, uint64_t background_bytes);
  Regions(const Regions&) = delete;
  Regions& operator=(const Regions&) = delete;
  // No registration is under way. Regions that are left go with the rails.
  ~Regions() = default;

  // rails: nearest to it. dma_buf: memory.dmabuf_fd, kept until the rails have it. Throws core::Error.
  Registered* add(const towline_region_ref& region, const fabric::MemoryToRegister& memory, uint32_t rails,
                  UniqueFd dma_buf);
  // Waits for a registration of its memory that is under way. Nobody uses the region any more.
  void remove(Registered* registered) noexcept;
  // Keeps why a region is not taken, until another one has its index in its key.
  void refuse(uint64_t key, std::string reason);

  struct State {
    Status status = Status::kOk;  // kNotFound: no such region; kAgain: under way; other: it is not registered
    std::string reason;
  };
  // Of a region that is not being removed. memory: of kOk, until it is removed.
  [[nodiscard]] State look(Registered& registered, uint32_t worker, const fabric::LocalMemory*& memory);
  // The same by its key, and what peers need.
  [[nodiscard]] State find(uint64_t key, uint32_t worker, towline_region_ref& region,
                           fabric::RemoteMemory& remote);

  [[nodiscard]] RegionsCounters counters() const;

 private:
  struct Job;

  void carry_out(RegionRanges::Arena& arena) noexcept;
  [[nodiscard]] State look_locked(Registered& registered);
  static uint32_t index_of(uint64_t key) noexcept { return static_cast<uint32_t>(key); }

  RegionsOwner& owner_;
  const uint64_t background_bytes_;
  mutable std::mutex mutex_;
  std::condition_variable settled_;
  RegionRanges ranges_;
  std::unordered_map<uint64_t, std::unique_ptr<Registered>> regions_;  // by key
  // Regions that were not taken, by the index in their keys: nobody says when they go, and their successors use it again.
  struct Refusal {
    uint64_t key = 0;
    std::string reason;
  };
  std::unordered_map<uint32_t, Refusal> refusals_;
  uint64_t under_way_ = 0;
  uint64_t made_ = 0;
};

}  // namespace towline::rdma
