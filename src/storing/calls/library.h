// A storage vendor's library, as the backend that calls it sees it: files, and callers, by which a thread
// has it move pieces. The rest (cutting plans, threads, outcomes) is the same for all such libraries: see backend.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>

#include "storing/calls/plain_file.h"
#include "towline/plugin/v1.h"

namespace towline::calls {

// One call's worth.
struct Piece {
  const PlainFile* file = nullptr;
  void* handle = nullptr;  // what the library keeps of the file
  uint64_t memory = 0;
  uint64_t offset = 0;  // in the file
  uint64_t bytes = 0;
  uint64_t position = 0;  // in the plan
  uint32_t kind = 0;      // towline_kind_t of the memory, and its device
  uint32_t device = 0;
  int64_t result = 0;  // bytes that were moved, or -errno
  int32_t code = 0;    // the library's own, if it has one for a failure
  bool fenced = true;  // false, after a failure: the library may still touch the memory or the file
};

// Belongs to one thread.
class Caller {
 public:
  virtual ~Caller() = default;
  // Moves every piece and sets its result; may move a part of one. Returns when the library touches none of the memory
  // any more, but for pieces that it says are not fenced.
  virtual void move(bool write, std::span<Piece> pieces) noexcept = 0;
};

// Any thread may call any function. They throw plugin::Failure.
class Library {
 public:
  virtual ~Library() = default;
  [[nodiscard]] virtual const char* name() const noexcept = 0;
  // Bits (1 << towline_kind_t) of the memory that it moves.
  [[nodiscard]] virtual uint32_t kinds() const noexcept = 0;
  [[nodiscard]] virtual std::unique_ptr<Caller> make_caller() = 0;
  // A file is opened, and closed. The result is kept for the library.
  virtual void* attach(const PlainFile& file) = 0;
  virtual void detach(const PlainFile& file, void* handle) noexcept = 0;
  // Memory is registered: the host's too if the library wants so. remove_memory() is called once for each add_memory() that
  // returned true; false: the library keeps nothing of this memory.
  [[nodiscard]] virtual bool registers_host_memory() const noexcept { return false; }
  [[nodiscard]] virtual bool add_memory(const towline_region_ref&) { return false; }
  virtual void remove_memory(const towline_region_ref&) noexcept {}
};

struct PoolSettings {
  uint32_t threads = 0;
  uint32_t batch = 0;        // pieces that a caller gets at once
  uint64_t piece_bytes = 0;  // at most, of one piece

  // What a thread takes at once of a job of so many bytes: little enough that all threads have some, and no less than what is
  // worth waking one for.
  [[nodiscard]] uint64_t turn_bytes(uint64_t bytes) const noexcept {
    constexpr uint64_t kLeast = uint64_t{1} << 20;  // and cuts stay aligned
    const uint64_t even = (bytes / threads + kLeast - 1) / kLeast * kLeast;
    return std::min(std::max(even, kLeast), piece_bytes * batch);
  }
};

}  // namespace towline::calls
