// The memory that an engine's user has registered. Memory within memory that is registered already, with the same
// rights, is not registered with the rails again: it shares their keys (registered_ranges.h).
#pragma once

#include <cstddef>
#include <memory>
#include <unordered_map>

#include "fabric/engine.h"
#include "fabric/registered_ranges.h"

namespace towline::fabric {

// The keys of an arena, as those of a piece of it.
LocalMemory piece_of(const LocalMemory& arena, const void* address, uint64_t bytes) noexcept;

// Not for use by several threads at once. The engine outlives it.
class Registrations {
 public:
  explicit Registrations(Engine& engine) noexcept : engine_(engine) {}
  Registrations(const Registrations&) = delete;
  Registrations& operator=(const Registrations&) = delete;
  ~Registrations();

  // It stays where it is until it is removed. Throws Error.
  const LocalMemory* add(const MemoryToRegister& memory);
  // False: it is not known here.
  bool remove(const LocalMemory* memory) noexcept;
  [[nodiscard]] bool contains(const LocalMemory* memory) const noexcept { return pieces_.contains(memory); }
  // False: memory of a device, which this process can't read and write by itself.
  [[nodiscard]] bool is_host(const LocalMemory& memory) const noexcept;
  // The rails' registrations.
  [[nodiscard]] std::size_t arenas() const noexcept { return ranges_.arenas(); }

 private:
  using Ranges = RegisteredRanges<LocalMemory>;
  struct Piece {
    LocalMemory memory;
    std::unique_ptr<Ranges::Piece> range;
  };

  void leave(Ranges::Piece& range) noexcept;

  Engine& engine_;
  Ranges ranges_;
  std::unordered_map<const LocalMemory*, std::unique_ptr<Piece>> pieces_;
};

}  // namespace towline::fabric
