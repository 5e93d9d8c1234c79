#include "framing/ring_lane.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/copy/copy.h"
#include "base/sync/wake_path.h"

namespace towline::framing {
namespace {

constexpr const char* kCorruptRing = "the peer stored impossible ring positions";

// Bytes are published in steps of this size, so that the other side copies out while the rest is copied in.
// With a whole frame of 256 KiB at once the two sides took turns, at two thirds of the speed.
constexpr std::size_t kPublishBytes = 16u << 10;
// A write of at least this size is published early for the first time: the owner checks the header, looks the
// region up and begins to copy out while the rest is copied in. A page is published only at its end, because
// each store of the position costs the cache line that the reader polls.
constexpr std::size_t kWorthTellingEarly = 8u << 10;
constexpr std::size_t kFirstPublishBytes = 4u << 10;
// Incoming data is mostly an answer, and the next write is as long as the last. Up to this many bytes are
// then prefetched.
constexpr std::size_t kMostExpected = 8u << 10;
constexpr std::size_t kPublishesPerRing = 8;  // by the reader, of freed space
constexpr uint32_t kLooksLonger = 160;        // polls of look_longer(), a tenth of a microsecond

// Copies between a run of pieces and the (at most two) regions of a ring, and says so through publish(bytes)
// after `step` bytes, then at longer and longer steps; returns the bytes copied. Ends early where publish answers true.
template <class Byte, class Copy, class Publish, class Finish>
std::size_t copy_through(std::span<const iovec> pieces, const RingRegions<Byte>& regions, std::size_t step,
                         Copy copy, Publish publish, Finish finish) noexcept {
  std::span<Byte> region = regions.first;
  std::span<Byte> next = regions.second;
  std::size_t total = 0;
  std::size_t unpublished = 0;
  for (const iovec& piece : pieces) {
    auto* data = static_cast<uint8_t*>(piece.iov_base);
    std::size_t left = piece.iov_len;
    while (left != 0) {
      if (region.empty()) {
        if (next.empty()) {
          finish(unpublished);
          return total;
        }
        region = std::exchange(next, {});
      }
      const std::size_t here = std::min({left, region.size(), step - unpublished});
      copy(data, region.data(), here);
      data += here;
      left -= here;
      total += here;
      unpublished += here;
      region = region.subspan(here);
      if (unpublished == step) {
        step = kPublishBytes;
        if (publish(std::exchange(unpublished, 0))) return total;
      }
    }
  }
  finish(unpublished);
  return total;
}

std::size_t bytes_in(std::span<const iovec> pieces) noexcept {
  std::size_t bytes = 0;
  for (const iovec& piece : pieces) bytes += piece.iov_len;
  return bytes;
}

}  // namespace

RingLane::RingLane(RingView outgoing, RingView incoming, WakeHook wake_peer, std::string description)
    : outgoing_(outgoing.header),
      incoming_(incoming.header),
      producer_(outgoing.header->positions, outgoing.data),
      consumer_(incoming.header->positions, incoming.data),
      wake_peer_(wake_peer),
      description_(std::move(description)) {}

RingLane::~RingLane() { close(); }

TOWLINE_WAKE_PATH IoResult RingLane::write(std::span<const iovec> pieces) noexcept {
  if (closed_) return IoResult::closed();
  const std::size_t wanted = std::min(bytes_in(pieces), producer_.capacity());
  const RingRegions<uint8_t> regions = producer_.write_regions(wanted);
  if (producer_.corrupt()) return IoResult::error(Status::kProtocol, 0, kCorruptRing);
  if (regions.empty()) {
    if (outgoing_->consumer_closed.load(std::memory_order_acquire) != 0) return IoResult::closed();
    return IoResult::again();
  }
  const std::size_t first_step = wanted >= kWorthTellingEarly ? kFirstPublishBytes : kPublishBytes;
  const std::size_t bytes = copy_through(
      pieces, regions, first_step,
      [](const uint8_t* data, uint8_t* ring, std::size_t n) { copy_bytes(ring, data, n); },
      [this](std::size_t n) {
        // Without a fence, which waits for the copy: a reader that falls asleep just now is woken at the end.
        producer_.commit(n);
        if (producer_.consumer_looks_asleep() && producer_.take_consumer_asleep()) wake_peer();
        if (!must_stop()) return false;
        if (producer_.take_consumer_asleep()) wake_peer();
        return true;
      },
      [this](std::size_t n) {
        if (n != 0) producer_.commit(n);
        if (producer_.take_consumer_asleep()) wake_peer();
      });
  last_written_ = bytes;
  return IoResult::moved(bytes);
}

TOWLINE_WAKE_PATH IoResult RingLane::read(std::span<const iovec> pieces) noexcept {
  if (closed_) return IoResult::closed();
  RingRegions<const uint8_t> regions = consumer_.read_regions();
  if (regions.empty() && !consumer_.corrupt()) {
    if (incoming_->producer_closed.load(std::memory_order_acquire) == 0) return IoResult::again();
    regions = consumer_.read_regions();  // what was written before it closed
    if (regions.empty() && !consumer_.corrupt()) return IoResult::closed();
  }
  if (consumer_.corrupt()) return IoResult::error(Status::kProtocol, 0, kCorruptRing);
  // Freed space is published late: for every few KiB, a store that the producer polls and a fence cost more
  // than they gain. The producer never waits for less than this, so neither side waits for ever.
  const auto give_back = [this](std::size_t n) {
    consumer_.consume_quietly(n);
    if (consumer_.unpublished() < consumer_.capacity() / kPublishesPerRing) return;
    consumer_.publish();
    if (consumer_.take_producer_asleep()) wake_peer();
  };
  const std::size_t bytes = copy_through(
      pieces, regions, kPublishBytes,
      [](uint8_t* data, const uint8_t* ring, std::size_t n) { copy_bytes(data, ring, n); },
      [&](std::size_t n) {
        give_back(n);
        return must_stop();
      },
      give_back);
  // Prefetches the bytes after the requested ones: they arrive while those are handled.
  consumer_.expect_read(kMostExpected);
  expect_next_write();
  return IoResult::moved(bytes);
}

TOWLINE_WAKE_PATH bool RingLane::looks_empty() const noexcept {
  return !closed_ && consumer_.looks_empty() &&
         incoming_->producer_closed.load(std::memory_order_relaxed) == 0;
}

void RingLane::look_longer() const noexcept {
  for (uint32_t looks = kLooksLonger; looks != 0; --looks)
    if (!consumer_.looks_empty() || consumer_.told() != last_told_) return;
}

TOWLINE_WAKE_PATH void RingLane::expect_next_write() const noexcept {
  if (last_written_ <= kMostExpected) producer_.expect_write(last_written_);
}

// After everything that was written, as told_count() promises, since one release follows the other.
TOWLINE_WAKE_PATH bool RingLane::tell_count(uint32_t count) noexcept {
  if (closed_ || outgoing_->consumer_looks_for_counts.load(std::memory_order_relaxed) == 0) return false;
  producer_.tell(count);
  if (producer_.take_consumer_asleep()) wake_peer();
  return true;
}

TOWLINE_WAKE_PATH std::optional<uint32_t> RingLane::told_count() noexcept {
  const uint32_t told = consumer_.told();
  if (closed_ || told == last_told_ || !consumer_.looks_empty()) return std::nullopt;
  last_told_ = told;
  expect_next_write();
  return told;
}

void RingLane::look_for_counts() noexcept {
  looks_for_counts_ = true;
  incoming_->consumer_looks_for_counts.store(1, std::memory_order_relaxed);
}

bool RingLane::arm(bool want_write) noexcept {
  if (closed_) return false;
  WakePages& pages = wake_pages();
  pages.add_object(*this);
  pages.add_object(*incoming_);
  pages.add_object(*outgoing_);
  bool work = !consumer_.prepare_sleep() || (looks_for_counts_ && consumer_.told() != last_told_);
  if (want_write && !work) work = !producer_.prepare_sleep();
  if (!work) {
    work = incoming_->producer_closed.load(std::memory_order_acquire) != 0 ||
           (want_write && outgoing_->consumer_closed.load(std::memory_order_acquire) != 0);
  }
  if (work) disarm();
  return work;
}

void RingLane::disarm() noexcept {
  incoming_->positions.consumer_asleep.store(0, std::memory_order_relaxed);
  outgoing_->positions.producer_asleep.store(0, std::memory_order_relaxed);
}

void RingLane::close() noexcept {
  if (closed_) return;
  closed_ = true;
  outgoing_->producer_closed.store(1, std::memory_order_release);
  incoming_->consumer_closed.store(1, std::memory_order_release);
  // Each call fences, so that a peer about to sleep either sees the flags above or is seen asleep here.
  const bool reader_asleep = producer_.take_consumer_asleep();
  const bool writer_asleep = consumer_.take_producer_asleep();
  if (reader_asleep || writer_asleep) wake_peer();
}

Lane::Traits RingLane::traits() const noexcept {
  const std::size_t smaller = std::min(producer_.capacity(), consumer_.capacity());
  // Little is read ahead, since bytes read ahead of a payload are copied twice, and another call costs
  // nothing.
  constexpr uint32_t kReadAhead = 256;
  Traits traits;
  traits.frame_bytes = static_cast<uint32_t>(std::clamp<std::size_t>(smaller / 4, 4096, 256 << 10));
  traits.read_ahead_bytes = kReadAhead;
  traits.calls_are_cheap = true;
  return traits;
}

}  // namespace towline::framing
