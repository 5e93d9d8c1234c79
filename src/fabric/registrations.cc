#include "fabric/registrations.h"

namespace towline::fabric {

LocalMemory piece_of(const LocalMemory& arena, const void* address, uint64_t bytes) noexcept {
  LocalMemory piece = arena;
  piece.address = reinterpret_cast<uint64_t>(address);
  piece.bytes = bytes;
  for (Registration& key : piece.keys) key.base += piece.address - arena.address;
  return piece;
}

Registrations::~Registrations() {
  for (const auto& [memory, piece] : pieces_) leave(*piece->range);
}

const LocalMemory* Registrations::add(const MemoryToRegister& memory) {
  auto piece = std::make_unique<Piece>();
  piece->range = ranges_.enter(memory);
  Ranges::Arena& arena = *piece->range->arena();
  if (piece->range->is_first()) {
    try {
      arena.keys = engine_.register_memory(memory);
    } catch (...) {
      (void)ranges_.leave(*piece->range);
      throw;
    }
  }
  piece->memory = piece_of(arena.keys, memory.address, memory.bytes);
  const LocalMemory* const added = &piece->memory;
  std::unique_ptr<Piece>* kept = nullptr;
  try {
    kept = &pieces_[added];
  } catch (...) {
    leave(*piece->range);
    throw;
  }
  *kept = std::move(piece);
  return added;
}

void Registrations::leave(Ranges::Piece& range) noexcept {
  if (ranges_.leave(range)) engine_.deregister_memory(range.arena()->keys);
}

bool Registrations::remove(const LocalMemory* memory) noexcept {
  const auto found = pieces_.find(memory);
  if (found == pieces_.end()) return false;
  leave(*found->second->range);
  pieces_.erase(found);
  return true;
}

bool Registrations::is_host(const LocalMemory& memory) const noexcept {
  const auto found = pieces_.find(&memory);
  return found == pieces_.end() || found->second->range->arena()->memory.dmabuf_fd < 0;
}

}  // namespace towline::fabric
