#include "framing/ring_lane.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace towline::framing {
namespace {

constexpr const char* kCorruptRing = "the peer stored impossible ring positions";

// The other side is told of so many bytes at a time, so that it copies out what has been copied in while the
// rest follows: with a whole frame of 256 KiB at once the two took turns, at two thirds of the speed.
constexpr std::size_t kPublishBytes = 16u << 10;

// Copies between a run of pieces and the (at most two) regions of a ring, and says so now and then through
// publish(bytes); returns the bytes copied.
template <class Byte, class Copy, class Publish>
std::size_t copy_through(std::span<const iovec> pieces, const RingRegions<Byte>& regions, Copy copy,
                         Publish publish) noexcept {
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
          publish(unpublished);
          return total;
        }
        region = std::exchange(next, {});
      }
      const std::size_t here = std::min({left, region.size(), kPublishBytes - unpublished});
      copy(data, region.data(), here);
      data += here;
      left -= here;
      total += here;
      unpublished += here;
      region = region.subspan(here);
      if (unpublished == kPublishBytes) publish(std::exchange(unpublished, 0));
    }
  }
  publish(unpublished);
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

IoResult RingLane::write(std::span<const iovec> pieces) noexcept {
  if (closed_) return IoResult::closed();
  const std::size_t wanted = std::min(bytes_in(pieces), producer_.capacity());
  const RingRegions<uint8_t> regions = producer_.write_regions(wanted);
  if (producer_.corrupt()) return IoResult::error(Status::kProtocol, 0, kCorruptRing);
  if (regions.empty()) {
    if (outgoing_->consumer_closed.load(std::memory_order_acquire) != 0) return IoResult::closed();
    return IoResult::again();
  }
  const std::size_t bytes = copy_through(
      pieces, regions, [](const uint8_t* data, uint8_t* ring, std::size_t n) { std::memcpy(ring, data, n); },
      [this](std::size_t n) {
        if (n == 0) return;
        producer_.commit(n);
        if (producer_.take_consumer_asleep()) wake_peer();
      });
  return IoResult::moved(bytes);
}

IoResult RingLane::read(std::span<const iovec> pieces) noexcept {
  if (closed_) return IoResult::closed();
  RingRegions<const uint8_t> regions = consumer_.read_regions();
  if (regions.empty() && !consumer_.corrupt()) {
    if (incoming_->producer_closed.load(std::memory_order_acquire) == 0) return IoResult::again();
    regions = consumer_.read_regions();  // what was written before it closed
    if (regions.empty() && !consumer_.corrupt()) return IoResult::closed();
  }
  if (consumer_.corrupt()) return IoResult::error(Status::kProtocol, 0, kCorruptRing);
  const std::size_t bytes = copy_through(
      pieces, regions, [](uint8_t* data, const uint8_t* ring, std::size_t n) { std::memcpy(data, ring, n); },
      [this](std::size_t n) {
        if (n == 0) return;
        consumer_.consume(n);
        if (consumer_.take_producer_asleep()) wake_peer();
      });
  return IoResult::moved(bytes);
}

bool RingLane::arm(bool want_write) noexcept {
  if (closed_) return false;
  bool work = !consumer_.prepare_sleep();
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
  // Little is read ahead, since what is read ahead of a payload is copied twice, and another call costs
  // nothing.
  constexpr uint32_t kReadAhead = 256;
  return {static_cast<uint32_t>(std::clamp<std::size_t>(smaller / 4, 4096, 256 << 10)), kReadAhead, true};
}

}  // namespace towline::framing
