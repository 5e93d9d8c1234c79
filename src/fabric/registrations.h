// The memory that an engine's user has registered. Memory within memory that is registered already, with the same
// rights, is not registered with the rails again: it shares their keys. So an arena of 100,000 tensors costs one
// registration and 100,000 look-ups.
//
// The rails keep an arena until the last piece of it is removed, whichever goes first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>

#include "fabric/engine.h"

namespace towline::fabric {

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
  [[nodiscard]] std::size_t arenas() const noexcept { return arenas_.size(); }

 private:
  struct Arena {
    LocalMemory memory;
    bool device = false;
    std::size_t pieces = 0;
  };
  using Arenas = std::multimap<uint64_t, Arena>;  // by the first address
  struct Piece {
    LocalMemory memory;
    Arenas::iterator arena;
  };

  Arenas::iterator find(const MemoryToRegister& memory);

  Engine& engine_;
  Arenas arenas_;
  std::unordered_map<const LocalMemory*, std::unique_ptr<Piece>> pieces_;
};

}  // namespace towline::fabric
