// Which memory is registered, and with which of the rails' registrations. A registration covers an *arena*; memory within
// it that has the same rights is a *piece* of it and shares its keys, so that an arena of 100,000 tensors costs one
// registration and 100,000 look-ups. It lasts until the last piece of it goes, whichever that is.
//
// An arena takes new memory only within a piece that is still there. The user of that piece has promised that its memory
// has stayed mapped since it was registered. Of the rest nobody knows: it may have been unmapped and mapped anew, and NICs
// would go on with the old pages. So memory that comes again after its piece went is registered again.
//
// Keys: what one registration of an arena is to the user of this.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "fabric/domain.h"

namespace towline::fabric {

// Not for use by several threads at once.
template <class Keys>
class RegisteredRanges {
 public:
  struct Arena {
    MemoryToRegister memory;
    Keys keys{};
    std::size_t pieces = 0;
    bool open = true;  // takes more pieces
  };

  class Piece {
   public:
    [[nodiscard]] const std::shared_ptr<Arena>& arena() const noexcept { return arena_; }
    // It is the arena's first: the arena has no keys yet.
    [[nodiscard]] bool is_first() const noexcept { return first_; }

   private:
    friend class RegisteredRanges;
    using Tops = std::multimap<uint64_t, Piece*>;

    [[nodiscard]] bool holds(const MemoryToRegister& memory) const noexcept {
      const auto at = reinterpret_cast<uint64_t>(memory.address);
      return at >= address_ && at - address_ <= bytes_ && memory.bytes <= bytes_ - (at - address_) &&
             remote_read_ == memory.remote_read && remote_write_ == memory.remote_write;
    }

    std::shared_ptr<Arena> arena_;
    uint64_t address_ = 0;
    uint64_t bytes_ = 0;
    bool remote_read_ = false;
    bool remote_write_ = false;
    bool first_ = false;
    Piece* within_ = nullptr;  // null: a top, which lies in no other piece
    Piece* inner_ = nullptr;   // the first of those that lie in this one
    Piece* next_ = nullptr;    // of the same `within_`
    Piece* previous_ = nullptr;
    typename Tops::node_type node_;  // to become a top with; empty while it is one
    typename Tops::iterator top_;
  };

  RegisteredRanges() = default;
  RegisteredRanges(const RegisteredRanges&) = delete;
  RegisteredRanges& operator=(const RegisteredRanges&) = delete;

  // The piece ends by leave().
  std::unique_ptr<Piece> enter(const MemoryToRegister& memory) {
    auto piece = std::make_unique<Piece>();
    piece->address_ = reinterpret_cast<uint64_t>(memory.address);
    piece->bytes_ = memory.bytes;
    piece->remote_read_ = memory.remote_read;
    piece->remote_write_ = memory.remote_write;
    typename Piece::Tops one;
    one.emplace(piece->address_, piece.get());
    piece->node_ = one.extract(one.begin());
    Piece* const around = memory.dmabuf_fd >= 0 || memory.bytes == 0 ? nullptr : find(memory);
    if (around != nullptr) {
      piece->arena_ = around->arena_;
      put_within(*piece, *around);
    } else {
      piece->arena_ = std::make_shared<Arena>();
      piece->arena_->memory = memory;
      piece->arena_->open = memory.dmabuf_fd < 0;
      piece->first_ = true;
      ++arenas_;
      put_on_top(*piece);
    }
    ++piece->arena_->pieces;
    return piece;
  }

  // True: it was the arena's last.
  bool leave(Piece& piece) noexcept {
    if (piece.within_ == nullptr)
      piece.node_ = tops_.extract(piece.top_);
    else
      take_out(piece);
    while (Piece* const inner = piece.inner_) {
      take_out(*inner);
      if (piece.within_ != nullptr)
        put_within(*inner, *piece.within_);
      else
        put_on_top(*inner);
    }
    if (--piece.arena_->pieces != 0) return false;
    --arenas_;
    return true;
  }

  [[nodiscard]] std::size_t arenas() const noexcept { return arenas_; }

 private:
  // Tops that begin before the memory and do not hold it are passed over, up to so many.
  static constexpr int kMostLookedAt = 8;

  [[nodiscard]] Piece* find(const MemoryToRegister& memory) const noexcept {
    auto next = tops_.upper_bound(reinterpret_cast<uint64_t>(memory.address));
    for (int looked = 0; looked < kMostLookedAt && next != tops_.begin(); ++looked) {
      --next;
      if (next->second->arena_->open && next->second->holds(memory)) return next->second;
    }
    return nullptr;
  }
  void put_on_top(Piece& piece) noexcept {
    piece.within_ = nullptr;
    piece.top_ = tops_.insert(std::move(piece.node_));
  }
  static void put_within(Piece& piece, Piece& around) noexcept {
    piece.within_ = &around;
    piece.previous_ = nullptr;
    piece.next_ = around.inner_;
    if (piece.next_ != nullptr) piece.next_->previous_ = &piece;
    around.inner_ = &piece;
  }
  static void take_out(Piece& piece) noexcept {
    (piece.previous_ != nullptr ? piece.previous_->next_ : piece.within_->inner_) = piece.next_;
    if (piece.next_ != nullptr) piece.next_->previous_ = piece.previous_;
  }

  typename Piece::Tops tops_;  // by the first address
  std::size_t arenas_ = 0;
};

}  // namespace towline::fabric
