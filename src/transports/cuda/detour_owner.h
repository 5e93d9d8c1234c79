// The owner's side of detour.h: copies between the asker's host memory and regions of ours, as asked for by
// messages; by the GPU that holds them, host memory by the host.
//
// Nothing that is asked for is trusted: ranges and rights are the core's to check, which keeps the regions
// from being deregistered meanwhile, and the memory is looked up anew. At most kDetourSlots requests are
// held.
//
// One worker, under its lock.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/os/memfd.h"
#include "transports/cuda/detour_wire.h"
#include "transports/cuda/memory_service.h"
#include "transports/cuda/piece_copier.h"

namespace towline::cuda {

class Backend;
class Connection;

// The asker's memory at the owner. One for the life of a connection.
struct AskersPool {
  PoolName name;
  std::unique_ptr<MemoryRequest> request;
  bool started = false;
  Mapping mapping;
  uint64_t skip = 0;               // from the mapping's first byte to the pool's
  std::unique_ptr<Pinned> pinned;  // for GPUs
};

class DetourOwner {
 public:
  DetourOwner(Backend& backend, Connection& connection, const uint64_t incarnation[2]);
  DetourOwner(const DetourOwner&) = delete;
  DetourOwner& operator=(const DetourOwner&) = delete;
  ~DetourOwner();

  void on_move(std::span<const uint8_t> message) noexcept;
  uint32_t progress(uint64_t now_ns) noexcept;
  // True if something here ends without a wake-up.
  [[nodiscard]] bool busy() const noexcept;
  // The connection is down: nothing begins or is answered any more. Copies that were begun run on.
  void call_off() noexcept;
  [[nodiscard]] bool settled() const noexcept;

 private:
  enum class Stage : uint8_t { kFree, kAsked, kMoving, kAnswered };

  struct Request {
    Stage stage = Stage::kFree;
    Move move;
    std::vector<Stretch> stretches;
    std::vector<void*> pins;
    std::shared_ptr<PieceCopier> copier;
    Moved answer;
  };

  uint32_t advance(Request& request, uint32_t slot, uint64_t now_ns) noexcept;
  // kAgain: not yet.
  Status reach_pool(const PoolName& name, std::string& text);
  void begin(Request& request, uint32_t slot);  // throws Error
  void pin(Request& request);                   // throws Error
  void answer(Request& request, Status status, int32_t code, std::string_view text) noexcept;
  void let_go(Request& request) noexcept;
  std::shared_ptr<PieceCopier> copier(std::optional<uint32_t> gpu, bool to_owner);

  Backend& backend_;
  Connection& connection_;
  const uint64_t incarnation_[2];
  std::optional<AskersPool> pool_;
  std::map<std::pair<int64_t, bool>, std::shared_ptr<PieceCopier>> copiers_;  // by GPU, -1 the host
  std::vector<Request> requests_;
  std::vector<uint8_t> message_;
  bool down_ = false;
};

}  // namespace towline::cuda
