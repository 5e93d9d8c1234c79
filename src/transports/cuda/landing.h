// Copies GPU memory for other backends (towline/plugin/landing.h): pieces on the GPUs of this process to and from
// pinned staging memory of one connection of theirs, one kernel for each chunk; and fragments that arrived elsewhere, one
// kernel for all that have (unpacker.h).
//
// One thread at a time.
#pragma once

#include <towline/plugin/landing.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gpu/device.h"
#include "gpu/pinned_memory.h"
#include "towline/plugin/backend.hpp"
#include "transports/cuda/landing_pool.h"
#include "transports/cuda/piece_copier.h"
#include "transports/cuda/settings.h"
#include "transports/cuda/unpacker.h"

namespace towline::cuda {

// The bytes that all connections of an agent together may pin.
class LandingBudget {
 public:
  explicit LandingBudget(uint64_t bytes) noexcept : left_(bytes) {}

  class Share {
   public:
    // Throws Error(kAgain): other connections hold all of it.
    Share(LandingBudget& budget, uint64_t bytes);
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;
    ~Share() { budget_.left_.fetch_add(bytes_, std::memory_order_relaxed); }

   private:
    LandingBudget& budget_;
    const uint64_t bytes_;
  };

 private:
  std::atomic<uint64_t> left_;
};

class Landing {
 public:
  // Takes and pins the memory, on the NUMA node of that GPU where it is known. Throws Error. All that it is given
  // outlives it.
  Landing(const plugin::Host& host, Device& device, const Settings& settings, LandingBudget& budget,
          Unpackers& unpackers, uint64_t gpu, uint32_t slots, uint32_t slot_bytes);
  Landing(const Landing&) = delete;
  Landing& operator=(const Landing&) = delete;
  ~Landing();  // waits for what is under way

  [[nodiscard]] void* memory(uint32_t way) const noexcept;
  void ready(uint64_t gpu);  // throws Error
  // Throws Error, and then nothing was started. 0: begun.
  Code begin(uint32_t way, uint32_t slot, uint64_t gpu, const towline_landing_piece* pieces, uint32_t count);
  // As landing.h; throw Error.
  void reach(void* address, uint64_t bytes);
  void reach(const LandingPool& pool);
  Code unpack(uint32_t slot, uint64_t gpu, std::span<const towline_landing_piece> fragments,
              std::span<const towline_landing_piece> pieces);
  [[nodiscard]] Code poll(uint32_t way, uint32_t slot, uint64_t now_ns) noexcept;
  int32_t refuse(Status status, const std::string& text) const { return host_.refuse(status, text); }

 private:
  // Memory in which fragments may lie.
  struct Pool {
    uint64_t address = 0;
    uint64_t bytes = 0;
    uint64_t delta = 0;
    std::shared_ptr<const Pinned> pinned;  // null: memory of a GPU
    std::optional<uint64_t> gpu;           // that alone reaches it; empty: all
  };

  // What copies for a slot.
  struct UnderWay {
    PieceCopier* copier = nullptr;
    Unpacker* unpacker = nullptr;  // null: the copier does
    uint32_t batch = 0;
  };

  PieceCopier& copier(uint64_t gpu, uint32_t way);
  // Null: nothing that arrives elsewhere was made reachable.
  [[nodiscard]] Unpacker* unpacker(uint64_t gpu) const noexcept;
  void make_unpackers();
  std::unique_ptr<PieceCopier> make_copier(uint32_t gpu, uint32_t way);
  void check_piece(uint64_t gpu, const towline_landing_piece& piece, Allocation& found) const;
  // Memory in which fragments may lie, and what to add to their addresses.
  struct Reach {
    uint64_t address = 0;
    uint64_t bytes = 0;
    uint64_t delta = 0;
    bool in_host_memory = false;

    [[nodiscard]] bool holds(const towline_landing_piece& fragment) const noexcept {
      const uint64_t at = fragment.address - address;
      return at < bytes && fragment.bytes <= bytes - at;
    }
  };
  [[nodiscard]] Reach reach_of(uint64_t gpu, const towline_landing_piece& fragment) const;
  template <class Add>
  bool join(uint64_t gpu, std::span<const towline_landing_piece> fragments,
            std::span<const towline_landing_piece> pieces, Allocation& found, Add add) const;

  const plugin::Host host_;
  Device& device_;
  const Settings& settings_;
  Unpackers& unpackers_;
  const bool after_default_stream_;
  const uint32_t blocks_;
  const ReserveWish reserve_;
  const bool model_first_;  // kernels store nothing to host memory, unless there is no room to gather
  const uint32_t slots_;
  const uint32_t slot_bytes_;
  const LandingBudget::Share share_;
  const PinnedMemory memory_;
  std::vector<Pool> pools_;
  std::map<std::pair<uint64_t, uint32_t>, std::unique_ptr<PieceCopier>> copiers_;  // by GPU and way
  std::map<uint64_t, std::shared_ptr<Unpacker>> shared_unpackers_;                 // by GPU
  std::array<std::array<UnderWay, TOWLINE_LANDING_MOST_SLOTS>, 2> under_way_ = {};
};

// The slots that need no backend.
void landing_close(towline_landing* landing) noexcept;
int32_t landing_ready(towline_landing* landing, uint64_t device) noexcept;
int32_t landing_begin(towline_landing* landing, uint32_t way, uint32_t slot, uint64_t device,
                      const towline_landing_piece* pieces, uint32_t count, int32_t* vendor_code) noexcept;
int32_t landing_reach(towline_landing* landing, void* address, uint64_t bytes) noexcept;
int32_t landing_reach_pool(towline_landing* landing, towline_landing_pool* pool) noexcept;
void landing_close_pool(towline_landing_pool* pool) noexcept;
int32_t landing_read_pool(towline_landing_pool* pool, const towline_landing_piece* pieces, uint32_t count,
                          void* to, int32_t* vendor_code) noexcept;
int32_t landing_unpack(towline_landing* landing, uint32_t slot, uint64_t device,
                       const towline_landing_piece* fragments, uint32_t fragment_count,
                       const towline_landing_piece* pieces, uint32_t piece_count,
                       int32_t* vendor_code) noexcept;
int32_t landing_poll(towline_landing* landing, uint32_t way, uint32_t slot, uint64_t now_ns,
                     int32_t* vendor_code) noexcept;

// The table for backends of class B, which derives from Backend (backend.h).
template <class B>
struct LandingTable {
  static int32_t check(towline_backend* backend, const towline_region_ref* region) noexcept {
    return reinterpret_cast<B*>(backend)->landing_check(*region);
  }
  static int32_t open(towline_backend* backend, uint64_t device, uint32_t slots, uint32_t slot_bytes,
                      towline_landing** landing, void** gather, void** scatter) noexcept {
    Landing* made = nullptr;
    const int32_t status = reinterpret_cast<B*>(backend)->landing_open(device, slots, slot_bytes, made);
    if (status != TOWLINE_OK) return status;
    *gather = made->memory(TOWLINE_LANDING_GATHER);
    *scatter = made->memory(TOWLINE_LANDING_SCATTER);
    *landing = reinterpret_cast<towline_landing*>(made);
    return TOWLINE_OK;
  }
  static int32_t open_pool(towline_backend* backend, const char* gpu, uint64_t bytes, int32_t given,
                           towline_landing_pool** pool, towline_landing_pool_info* info, char* reason,
                           size_t reason_bytes) noexcept {
    LandingPool* made = nullptr;
    const int32_t status =
        reinterpret_cast<B*>(backend)->landing_open_pool(gpu, bytes, given, made, {reason, reason_bytes});
    if (status != TOWLINE_OK) return status;
    *info = made->info();
    *pool = reinterpret_cast<towline_landing_pool*>(made);
    return TOWLINE_OK;
  }
  static int32_t export_memory(towline_backend* backend, const towline_region_ref* region,
                               towline_landing_export* memory, char* reason, size_t reason_bytes) noexcept {
    return reinterpret_cast<B*>(backend)->landing_export(*region, *memory, {reason, reason_bytes});
  }
  static constexpr towline_landing_table_v1 kTable = {sizeof(towline_landing_table_v1),
                                                      check,
                                                      open,
                                                      landing_close,
                                                      landing_ready,
                                                      landing_begin,
                                                      landing_poll,
                                                      landing_reach,
                                                      landing_unpack,
                                                      open_pool,
                                                      landing_close_pool,
                                                      landing_reach_pool,
                                                      landing_read_pool,
                                                      export_memory};
};

}  // namespace towline::cuda
