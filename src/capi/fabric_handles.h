// Shared by the files of the C API's fabric.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "agent/fork_generation.h"
#include "base/error.h"
#include "capi/handles.h"
#include "fabric/transfer_engine.h"
#include "fabric/watchers.h"
#include "towline/fabric.h"

// What belongs to the process that made it. A child of fork has neither its threads nor, perhaps, its locks.
struct towline_of_process {
  towline_of_process() noexcept {
    towline::count_forks();
    forks = towline::fork_generation();
  }
  [[nodiscard]] bool inherited() const noexcept { return forks != towline::fork_generation(); }
  uint64_t forks;
};

struct towline_fabric : towline_of_process {
  // Callbacks of the watchers may use the engine, and those of the engine its memories and words, in which it mirrors counters:
  // the watchers' thread ends first, then the members go from the last to the first.
  ~towline_fabric() {
    {
      const std::lock_guard held{mutex};
      closing = true;
    }
    if (watchers != nullptr) watchers->end();
  }
  std::mutex mutex;  // of memories, watchers and closing
  bool closing = false;
  int watcher_cpu = -1;
  std::unordered_map<const towline_fabric_memory*, std::unique_ptr<towline_fabric_memory>> memories;
  std::unique_ptr<towline::fabric::Watchers> watchers;  // once one was asked for
  std::unique_ptr<towline::fabric::TransferEngine> engine;
};
struct towline_fabric_memory {
  const towline::fabric::LocalMemory* memory;
  const towline_fabric* engine;  // that it is registered with
};
struct towline_fabric_remote {
  towline::fabric::RemoteMemory memory;
};

namespace towline::capi {

inline fabric::TransferEngine& fabric_of(towline_fabric_t* engine) {
  need(engine, "engine");
  if (engine->inherited()) fail(Status::kForked, "the engine belongs to the parent of this forked process");
  return *engine->engine;
}

// Throws Error for memory of another engine, whose rails do not know it, and which may be deregistered there meanwhile.
inline const fabric::LocalMemory& local_of(const towline_fabric_t* engine,
                                           const towline_fabric_memory_t* memory) {
  need(engine, "engine");
  need(memory, "local");
  if (memory->engine != engine) fail(Status::kInvalidArgument, "local is memory of another engine");
  return *memory->memory;
}

fabric::TransferOptions fabric_options(const towline_fabric_transfer_options_t* given);

// The number for the caller, or the reason for towline_last_error: why(status).
template <class Start, class Why>
int32_t start_on_fabric(const char* function, towline_fabric_transfer_t* transfer, Start&& begin, Why&& why) {
  Handle number;
  const Status status = begin(transfer == nullptr ? nullptr : &number);
  if (transfer != nullptr) *transfer = is_error(status) ? 0 : number.to_u64();
  return is_error(status) ? answer_error(function, status, why(status)) : static_cast<int32_t>(status);
}

}  // namespace towline::capi
