// An operation of a host's ranks goes by its stages, or directly out of the other ranks' memory (direct_choice.h says
// when); and how large data is cut into pieces that fit a stage.
#pragma once

#include <algorithm>
#include <cstring>

#include "collectives/copy.h"
#include "collectives/shm_group.h"

namespace towline::collectives {

inline constexpr uint64_t kLine = 64;

inline uint64_t pieces(uint64_t bytes, uint64_t piece) {
  return bytes <= piece ? 1 : (bytes + piece - 1) / piece;
}

// The rest of `bytes` from `begin` on, at most `piece`.
inline uint64_t piece_at(uint64_t bytes, uint64_t begin, uint64_t piece) {
  return begin >= bytes ? 0 : std::min(piece, bytes - begin);
}

// Operations of less than kLeastBytes have no choice.
template <typename Directly, typename Staged>
Status ShmGroup::by_choice(const Call& call, DirectChoice::Operation operation, uint64_t bytes,
                           const Directly& directly, const Staged& staged) {
  if (bytes < DirectChoice::kLeastBytes || size() == 1) return staged([&] { return first_phase(call); });
  const uint64_t began_ns = monotonic_now_ns();
  const uint32_t of_class = DirectChoice::class_of(operation, bytes);
  const bool direct = choice_.direct(of_class);
  bool good = direct;
  if (direct) {
    if (const Status status = directly(good); is_error(status)) return status;
    if (!good) choice_.prove(false, settings_.single_copy);  // memory without ordinary pages behind it, say
  }
  if (!good) {
    const Status status = staged([&] { return direct ? phase(call.ends_by()) : choice_phase(call); });
    if (is_error(status)) return status;
  }
  choice_.ended(of_class, good, bytes, monotonic_now_ns() - began_ns);
  return choice_.is_proved() ? Status::kOk : prove_direct(call.ends_by());
}

template <typename Give, typename Take, typename Staged>
Status ShmGroup::copy_by_choice(const Call& call, DirectChoice::Operation operation, uint64_t bytes,
                                const Give& give, const Take& take, const Staged& staged) {
  const auto directly = [&](bool& good) { return copy_directly(call, give, take, good); };
  return by_choice(call, operation, bytes, directly, staged);
}

// The stages carry where the parts for the others are.
template <typename Give, typename Take>
Status ShmGroup::copy_directly(const Call& call, const Give& give, const Take& take, bool& good) {
  const auto n = static_cast<uint64_t>(size());
  const auto me = static_cast<uint64_t>(index_);
  const uint64_t at = next_stage();
  for (uint64_t rank = 0; rank < n; ++rank) {
    const auto address = reinterpret_cast<uint64_t>(give(rank));
    std::memcpy(half(index_, at) + rank * sizeof address, &address, sizeof address);
  }
  if (const Status status = choice_phase(call); is_error(status)) return status;
  for (uint64_t offset = 1; offset < n && good; ++offset) {
    const uint64_t rank = (me + offset) % n;
    const Taken part = take(rank);
    if (part.bytes == 0) continue;
    uint64_t address = 0;
    std::memcpy(&address, half(static_cast<int>(rank), at) + me * sizeof address, sizeof address);
    good = read_from(static_cast<int>(rank), part.to, address, part.bytes);
  }
  const Taken own = take(me);
  const uint8_t* const from = give(me);
  if (own.bytes != 0 && own.to != from)
    copy_out(own.to, from, own.bytes, own.bytes * n >= settings_.streaming_bytes);
  return everyone(call.ends_by(), good);
}

}  // namespace towline::collectives
