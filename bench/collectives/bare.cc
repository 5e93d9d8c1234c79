#include "bare.h"

#include <immintrin.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstring>

namespace bench {
namespace {

constexpr size_t kHalf = 512 << 10;
constexpr size_t kFlat = 32 << 10;

struct alignas(128) Flag {
  std::atomic<uint64_t> phase;
};

void add(float* to, const float* from, size_t count) {
  for (size_t i = 0; i < count; ++i) to[i] += from[i];
}

}  // namespace

size_t Bare::bytes(int ranks) { return 4096 * 8 + static_cast<size_t>(ranks) * 2 * kHalf; }

Bare::Bare(void* shared, int rank, int ranks)
    : base_(static_cast<uint8_t*>(shared)), rank_(rank), ranks_(ranks) {}

uint8_t* Bare::half(int rank) const {
  return base_ + 4096 * 8 + (static_cast<size_t>(rank) * 2 + (phase_ & 1)) * kHalf;
}

// The half that may be filled is that of the phase about to begin: phase_ counts up at the start.
void Bare::sync() {
  auto* flags = reinterpret_cast<Flag*>(base_);
  flags[rank_].phase.store(phase_, std::memory_order_release);
  for (int other = 0; other < ranks_; ++other) {
    for (int turn = 0; flags[other].phase.load(std::memory_order_acquire) < phase_; ++turn) {
      if (turn < 200)
        _mm_pause();
      else
        sched_yield();
    }
  }
}

void Bare::barrier() {
  ++phase_;
  sync();
}

void Bare::all_reduce(const float* in, float* out, size_t count) {
  if (count * 4 <= kFlat) {
    ++phase_;
    std::memcpy(half(rank_), in, count * 4);
    sync();
    std::memcpy(out, half(0), count * 4);
    for (int other = 1; other < ranks_; ++other) add(out, reinterpret_cast<float*>(half(other)), count);
    return;
  }
  const size_t most = kHalf / 4 / static_cast<size_t>(ranks_);  // of a slice
  for (size_t begin = 0; begin < count; begin += most * static_cast<size_t>(ranks_)) {
    const size_t whole = std::min(most * static_cast<size_t>(ranks_), count - begin);
    const size_t share = (whole + static_cast<size_t>(ranks_) - 1) / static_cast<size_t>(ranks_);
    const auto at = [&](int rank) { return std::min(static_cast<size_t>(rank) * share, whole); };
    const auto length = [&](int rank) { return std::min(share, whole - at(rank)); };
    ++phase_;
    for (int other = 0; other < ranks_; ++other)
      if (other != rank_) std::memcpy(half(rank_) + at(other) * 4, in + begin + at(other), length(other) * 4);
    sync();
    float* mine = out + begin + at(rank_);
    if (mine != in + begin + at(rank_)) std::memcpy(mine, in + begin + at(rank_), length(rank_) * 4);
    for (int other = 0; other < ranks_; ++other)
      if (other != rank_) add(mine, reinterpret_cast<float*>(half(other)) + at(rank_), length(rank_));
    ++phase_;
    std::memcpy(half(rank_), mine, length(rank_) * 4);
    sync();
    for (int other = 0; other < ranks_; ++other)
      if (other != rank_) std::memcpy(out + begin + at(other), half(other), length(other) * 4);
  }
}

void Bare::reduce_scatter(const float* in, float* out, size_t count) {
  const size_t most = kHalf / 4 / static_cast<size_t>(ranks_);
  for (size_t begin = 0; begin < count; begin += most) {
    const size_t n = std::min(most, count - begin);
    ++phase_;
    for (int other = 0; other < ranks_; ++other)
      if (other != rank_)
        std::memcpy(half(rank_) + static_cast<size_t>(other) * most * 4,
                    in + static_cast<size_t>(other) * count + begin, n * 4);
    sync();
    std::memcpy(out + begin, in + static_cast<size_t>(rank_) * count + begin, n * 4);
    for (int other = 0; other < ranks_; ++other)
      if (other != rank_)
        add(out + begin, reinterpret_cast<float*>(half(other)) + static_cast<size_t>(rank_) * most, n);
  }
}

void Bare::all_gather(const float* in, float* out, size_t count) {
  const size_t most = kHalf / 4;
  for (size_t begin = 0; begin < count; begin += most) {
    const size_t n = std::min(most, count - begin);
    ++phase_;
    std::memcpy(half(rank_), in + begin, n * 4);
    std::memcpy(out + static_cast<size_t>(rank_) * count + begin, in + begin, n * 4);
    sync();
    for (int other = 0; other < ranks_; ++other)
      if (other != rank_) std::memcpy(out + static_cast<size_t>(other) * count + begin, half(other), n * 4);
  }
}

void Bare::all_to_all(const float* in, float* out, size_t count) {
  const size_t most = kHalf / 4 / static_cast<size_t>(ranks_);
  for (size_t begin = 0; begin < count; begin += most) {
    const size_t n = std::min(most, count - begin);
    ++phase_;
    for (int other = 0; other < ranks_; ++other) {
      const size_t at = static_cast<size_t>(other) * count + begin;
      if (other == rank_)
        std::memcpy(out + at, in + at, n * 4);
      else
        std::memcpy(half(rank_) + static_cast<size_t>(other) * most * 4, in + at, n * 4);
    }
    sync();
    for (int other = 0; other < ranks_; ++other)
      if (other != rank_)
        std::memcpy(out + static_cast<size_t>(other) * count + begin,
                    half(other) + static_cast<size_t>(rank_) * most * 4, n * 4);
  }
}

void Bare::broadcast(float* buffer, size_t count, int root) {
  const size_t most = kHalf / 4;
  for (size_t begin = 0; begin < count; begin += most) {
    const size_t n = std::min(most, count - begin);
    ++phase_;
    if (rank_ == root) std::memcpy(half(root), buffer + begin, n * 4);
    sync();
    if (rank_ != root) std::memcpy(buffer + begin, half(root), n * 4);
  }
}

}  // namespace bench
