#include "fabric/registrations.h"

namespace towline::fabric {
namespace {

// Arenas that begin before a piece and do not hold it are passed over, up to so many.
constexpr int kMostLookedAt = 8;

}  // namespace

Registrations::~Registrations() {
  for (const auto& [address, arena] : arenas_) engine_.deregister_memory(arena.memory);
}

// The end if nothing holds all of it with the same rights.
Registrations::Arenas::iterator Registrations::find(const MemoryToRegister& memory) {
  if (memory.dmabuf_fd >= 0) return arenas_.end();
  const auto address = reinterpret_cast<uint64_t>(memory.address);
  auto next = arenas_.upper_bound(address);
  for (int looked = 0; looked < kMostLookedAt && next != arenas_.begin(); ++looked) {
    --next;
    const Arena& arena = next->second;
    if (!arena.device && arena.memory.contains(address, memory.bytes) &&
        arena.memory.remote_read == memory.remote_read && arena.memory.remote_write == memory.remote_write)
      return next;
  }
  return arenas_.end();
}

const LocalMemory* Registrations::add(const MemoryToRegister& memory) {
  auto piece = std::make_unique<Piece>();
  piece->arena = memory.bytes == 0 ? arenas_.end() : find(memory);
  const bool shares = piece->arena != arenas_.end();
  if (!shares) {
    piece->arena = arenas_.emplace(reinterpret_cast<uint64_t>(memory.address), Arena{});
    try {
      piece->arena->second.memory = engine_.register_memory(memory);
    } catch (...) {
      arenas_.erase(piece->arena);
      throw;
    }
    piece->arena->second.device = memory.dmabuf_fd >= 0;
  }
  const auto place = piece->arena;
  Arena& arena = place->second;
  piece->memory = arena.memory;
  piece->memory.bytes = memory.bytes;
  piece->memory.address = reinterpret_cast<uint64_t>(memory.address);
  for (Registration& key : piece->memory.keys) key.base += piece->memory.address - arena.memory.address;
  const LocalMemory* const added = &piece->memory;
  ++arena.pieces;
  try {
    pieces_.emplace(added, std::move(piece));
  } catch (...) {
    if (--arena.pieces == 0) {
      engine_.deregister_memory(arena.memory);
      arenas_.erase(place);
    }
    throw;
  }
  return added;
}

bool Registrations::remove(const LocalMemory* memory) noexcept {
  const auto found = pieces_.find(memory);
  if (found == pieces_.end()) return false;
  const auto arena = found->second->arena;
  pieces_.erase(found);
  if (--arena->second.pieces != 0) return true;
  engine_.deregister_memory(arena->second.memory);
  arenas_.erase(arena);
  return true;
}

bool Registrations::is_host(const LocalMemory& memory) const noexcept {
  const auto found = pieces_.find(&memory);
  return found == pieces_.end() || !found->second->arena->second.device;
}

}  // namespace towline::fabric
