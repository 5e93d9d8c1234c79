// A byte ring between one producer and one consumer, over memory that the caller provides: a vector between
// threads, a shared mapping between processes.
//
// The memory may be shared with a hostile or broken peer, so nothing read from it is trusted:
//  - each side keeps its own position, the capacity and the addresses in private memory and never reads them
//  back;
//  - the other side's position is read exactly once per refresh into a local and used only if it lies between
//  the
//    last one seen and what the ring allows. Otherwise the end becomes `corrupt`: for good, with nothing to
//    read or write. No value a peer can store makes this side touch a byte outside the ring.
// The bytes themselves can change under the reader at any time: copy first, then check, then use.
//
// Positions count all bytes ever written or read and never wrap in practice (2^64). Each side publishes its
// own position with a release store on its own cache line and keeps a copy of the other side's, refreshed
// only when that copy says the ring is full or empty: in steady flow a line crosses between cores once per
// ringful.
//
// Sleeping is optional: a side that wants to sleep calls prepare_sleep(), and if that says so, sleeps on
// whatever the caller uses (futex, eventfd); the other side calls take_*_asleep() after commit() or consume()
// and wakes it.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/check.h"
#include "base/copy/copy.h"
#include "base/sync/prefetch.h"
#include "base/sync/spin.h"

namespace towline {

// Lives in the shared memory, aligned to kNoSharingBytes; a fresh ring is all zero bytes. The layout is wire
// format.
struct SpscHeader {
  alignas(kNoSharingBytes) std::atomic<uint64_t> written{0};   // stored by the producer only
  std::atomic<uint32_t> note{0};                               // likewise: see tell()
  alignas(kNoSharingBytes) std::atomic<uint64_t> consumed{0};  // stored by the consumer only
  // Rarely written, so looking at them after each commit() or consume() is cheap.
  alignas(kNoSharingBytes) std::atomic<uint32_t> producer_asleep{0};
  std::atomic<uint32_t> consumer_asleep{0};
};
static_assert(sizeof(SpscHeader) == 3 * kNoSharingBytes);
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

// Up to two pieces of the ring in order; second is empty unless the ring's end lies between.
template <class Byte>
struct RingRegions {
  std::span<Byte> first;
  std::span<Byte> second;

  std::size_t size() const noexcept { return first.size() + second.size(); }
  bool empty() const noexcept { return first.empty(); }
};

namespace detail {

template <class Byte>
RingRegions<Byte> ring_regions(std::span<Byte> ring, uint64_t position, std::size_t bytes) noexcept {
  const auto start = static_cast<std::size_t>(position & (ring.size() - 1));
  const std::size_t until_end = ring.size() - start;
  if (bytes <= until_end) return {ring.subspan(start, bytes), {}};
  return {ring.subspan(start, until_end), ring.first(bytes - until_end)};
}

}  // namespace detail

// The producer's end: one thread at a time. Data is a power of two long and outlives this. A new end starts
// at position zero, so both ends attach to a fresh ring.
class SpscProducer {
 public:
  SpscProducer(SpscHeader& header, std::span<uint8_t> data) noexcept : header_(&header), data_(data) {
    TOWLINE_CHECK(std::has_single_bit(data.size()), "ring of {} bytes: not a power of two", data.size());
  }

  // The free space. With `wanted`, the consumer's cache line is not read while that much is known to be free.
  RingRegions<uint8_t> write_regions(std::size_t wanted = 1) noexcept {
    if (free_known() < wanted && !refresh()) return {};
    return detail::ring_regions(data_, written_, free_known());
  }

  // The next `bytes` of the ring, as far as they are known to be free, were last read by the consumer: has
  // their cache lines come back while there is something else to do. A hint.
  void expect_write(std::size_t bytes) const noexcept {
    const auto regions = detail::ring_regions(data_, written_, bytes < free_known() ? bytes : free_known());
    for (const std::span<uint8_t>& region : {regions.first, regions.second})
      for (const uint8_t *at = region.data(), *end = at + region.size(); at < end; at += kCacheLineBytes)
        prefetch_for_write(at);
  }

  // Publishes the first `bytes` of what write_regions() gave.
  void commit(std::size_t bytes) noexcept {
    TOWLINE_DCHECK(bytes <= free_known(), "commit of {} bytes, {} free", bytes, free_known());
    written_ += bytes;
    header_->written.store(written_, std::memory_order_release);
  }

  // Copies all of `bytes` in and commits, or does nothing and returns false: full or corrupt.
  [[nodiscard]] bool write_all(std::span<const uint8_t> bytes) noexcept {
    const RingRegions<uint8_t> regions = write_regions(bytes.size());
    if (regions.size() < bytes.size()) return false;
    if (bytes.empty()) return true;
    const std::size_t first = bytes.size() < regions.first.size() ? bytes.size() : regions.first.size();
    copy_bytes(regions.first.data(), bytes.data(), first);
    if (first < bytes.size()) copy_bytes(regions.second.data(), bytes.data() + first, bytes.size() - first);
    commit(bytes.size());
    return true;
  }

  // Leaves a number for the consumer, which replaces the last one. It lies in the cache line that the
  // consumer looks at anyway, so that a short answer takes no bytes of the ring.
  void tell(uint32_t note) noexcept { header_->note.store(note, std::memory_order_release); }

  // True: fewer than `wanted` bytes (at most the capacity) are free, the consumer will see that we sleep; go
  // to sleep. False: there is space or the ring is corrupt; don't.
  [[nodiscard]] bool prepare_sleep(std::size_t wanted = 1) noexcept {
    header_->producer_asleep.store(1, std::memory_order_relaxed);
    full_fence();
    if (!corrupt_ && refresh() && free_known() < wanted) return true;
    header_->producer_asleep.store(0, std::memory_order_relaxed);
    return false;
  }

  // May miss one that is just falling asleep: take_consumer_asleep() after the last commit() does not.
  [[nodiscard]] bool consumer_looks_asleep() const noexcept {
    return header_->consumer_asleep.load(std::memory_order_relaxed) != 0;
  }

  // After commit(): true when the consumer went to sleep and this call is the one to wake it.
  [[nodiscard]] bool take_consumer_asleep() noexcept {
    full_fence();
    return header_->consumer_asleep.load(std::memory_order_relaxed) != 0 &&
           header_->consumer_asleep.exchange(0, std::memory_order_relaxed) != 0;
  }

  bool corrupt() const noexcept { return corrupt_; }
  std::size_t capacity() const noexcept { return data_.size(); }
  uint64_t position() const noexcept { return written_; }  // bytes ever committed

 private:
  std::size_t free_known() const noexcept {
    return corrupt_ ? 0 : data_.size() - static_cast<std::size_t>(written_ - consumed_seen_);
  }

  bool refresh() noexcept {
    if (corrupt_) return false;
    const uint64_t consumed = header_->consumed.load(std::memory_order_acquire);
    if (consumed - consumed_seen_ > written_ - consumed_seen_) {  // went back, or beyond what was written
      corrupt_ = true;
      return false;
    }
    consumed_seen_ = consumed;
    return true;
  }

  SpscHeader* header_;
  std::span<uint8_t> data_;
  uint64_t written_ = 0;
  uint64_t consumed_seen_ = 0;  // consumed_seen_ <= written_ <= consumed_seen_ + capacity
  bool corrupt_ = false;
};

// The consumer's end: one thread at a time. As for the producer; the data may be mapped read-only, the header
// may not.
class SpscConsumer {
 public:
  SpscConsumer(SpscHeader& header, std::span<const uint8_t> data) noexcept : header_(&header), data_(data) {
    TOWLINE_CHECK(std::has_single_bit(data.size()), "ring of {} bytes: not a power of two", data.size());
  }

  // The readable bytes. With `wanted`, the producer's cache line is not read while that much is known to be
  // there.
  RingRegions<const uint8_t> read_regions(std::size_t wanted = 1) noexcept {
    if (used_known() < wanted && !refresh()) return {};
    return detail::ring_regions(data_, consumed_, used_known());
  }

  // Known bytes are in the cache of the producer's processor: prefetches up to `bytes` of them while the
  // caller does other work. A hint.
  void expect_read(std::size_t bytes) const noexcept {
    const auto regions = detail::ring_regions(data_, consumed_, bytes < used_known() ? bytes : used_known());
    for (const std::span<const uint8_t>& region : {regions.first, regions.second})
      for (const uint8_t *at = region.data(), *end = at + region.size(); at < end; at += kCacheLineBytes)
        __builtin_prefetch(at);
  }

  // Nothing new since all that was seen has been consumed.
  [[nodiscard]] bool looks_empty() const noexcept {
    return header_->written.load(std::memory_order_relaxed) == consumed_;
  }

  // The last number that the producer sent; unchecked, a hostile one may send any. Bytes that it committed
  // before are visible after this call.
  [[nodiscard]] uint32_t told() const noexcept { return header_->note.load(std::memory_order_acquire); }

  // Gives back the first `bytes` of what read_regions() gave.
  void consume(std::size_t bytes) noexcept {
    consume_quietly(bytes);
    publish();
  }
  // The same, but the producer learns of it at the next publish() or consume().
  void consume_quietly(std::size_t bytes) noexcept {
    TOWLINE_DCHECK(bytes <= used_known(), "consume of {} bytes, {} there", bytes, used_known());
    consumed_ += bytes;
  }
  void publish() noexcept {
    published_ = consumed_;
    header_->consumed.store(consumed_, std::memory_order_release);
  }
  [[nodiscard]] std::size_t unpublished() const noexcept {
    return static_cast<std::size_t>(consumed_ - published_);
  }

  // Copies exactly out.size() bytes without consuming them; false when there are fewer or the ring is
  // corrupt.
  [[nodiscard]] bool peek_all(std::span<uint8_t> out) noexcept {
    const RingRegions<const uint8_t> regions = read_regions(out.size());
    if (regions.size() < out.size()) return false;
    if (out.empty()) return true;
    const std::size_t first = out.size() < regions.first.size() ? out.size() : regions.first.size();
    copy_bytes(out.data(), regions.first.data(), first);
    if (first < out.size()) copy_bytes(out.data() + first, regions.second.data(), out.size() - first);
    return true;
  }

  [[nodiscard]] bool read_all(std::span<uint8_t> out) noexcept {
    if (!peek_all(out)) return false;
    consume(out.size());
    return true;
  }

  // True: fewer than `wanted` bytes are there and the producer will see that we sleep; go to sleep.
  // False: there are, or the ring is corrupt; don't.
  [[nodiscard]] bool prepare_sleep(std::size_t wanted = 1) noexcept {
    header_->consumer_asleep.store(1, std::memory_order_relaxed);
    full_fence();
    if (!corrupt_ && refresh() && used_known() < wanted) return true;
    header_->consumer_asleep.store(0, std::memory_order_relaxed);
    return false;
  }

  // After consume(): true when the producer went to sleep and this call is the one to wake it.
  [[nodiscard]] bool take_producer_asleep() noexcept {
    full_fence();
    return header_->producer_asleep.load(std::memory_order_relaxed) != 0 &&
           header_->producer_asleep.exchange(0, std::memory_order_relaxed) != 0;
  }

  bool corrupt() const noexcept { return corrupt_; }
  std::size_t capacity() const noexcept { return data_.size(); }
  uint64_t position() const noexcept { return consumed_; }  // bytes ever consumed

 private:
  std::size_t used_known() const noexcept {
    return corrupt_ ? 0 : static_cast<std::size_t>(written_seen_ - consumed_);
  }

  bool refresh() noexcept {
    if (corrupt_) return false;
    const uint64_t written = header_->written.load(std::memory_order_acquire);
    if (written - written_seen_ >
        consumed_ + data_.size() - written_seen_) {  // went back, or beyond the ring
      corrupt_ = true;
      return false;
    }
    written_seen_ = written;
    return true;
  }

  SpscHeader* header_;
  std::span<const uint8_t> data_;
  uint64_t consumed_ = 0;
  uint64_t published_ = 0;
  uint64_t written_seen_ = 0;  // consumed_ <= written_seen_ <= consumed_ + capacity
  bool corrupt_ = false;
};

}  // namespace towline
