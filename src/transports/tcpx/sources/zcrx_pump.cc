#include "transports/tcpx/sources/zcrx_pump.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <utility>

#include "base/error.h"
#include "transports/tcpx/kernel/zcrx_abi.h"

namespace towline::tcpx {
namespace {

// A NIC may put several packets into a page: more pieces than pages.
uint32_t slots_for(uint64_t area_bytes) {
  return static_cast<uint32_t>(std::min<uint64_t>(area_bytes / ZcrxPump::kPageBytes * 2, zcrx::kMostRefills));
}

constexpr uint32_t kMostFruitless = 16;

}  // namespace

ZcrxPump::ZcrxPump(std::span<uint8_t> area, const OpenZcrxRing& open)
    : area_bytes_(area.size()), slots_(slots_for(area.size())) {
  for (uint32_t slot = slots(); slot != 0; --slot) free_.push_back(slot - 1);
  owed_.reserve(slots_.size());
  std::promise<void> opened;
  std::future<void> result = opened.get_future();
  // The thread that opens the ring is the one that the kernel lets in.
  thread_ = std::thread([this, area, &open, opened = std::move(opened)]() mutable {
    try {
      ring_ = open(area, std::bit_ceil(slots()));
    } catch (...) {
      opened.set_exception(std::current_exception());
      return;
    }
    opened.set_value();
    run();
    ring_.reset();
  });
  try {
    result.get();
  } catch (...) {
    thread_.join();
    throw;
  }
}

ZcrxPump::~ZcrxPump() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
    ring_->poke();  // the ring lives as long as stopping_ was not seen
  }
  thread_.join();
}

ZcrxChannel* ZcrxPump::open(int socket) {
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) fail_errno(errno, "making an eventfd");
  auto channel = std::make_unique<ZcrxChannel>(duplicate_fd(socket), std::move(wake), slots());
  ZcrxChannel* const opened = channel.get();
  {
    const std::scoped_lock lock(mutex_);
    // The pump's thread finds the memory that it needs for the channel.
    const std::size_t most = channels_.size() + opened_.size() + 1;
    if (most > channels_.capacity() && most > room_.capacity()) room_.reserve(2 * most);
    opened_.push_back(std::move(channel));
  }
  poke();
  return opened;
}

void ZcrxPump::close(ZcrxChannel* channel) noexcept {
  {
    const std::scoped_lock lock(mutex_);
    channel->next_closed = std::exchange(closed_, channel);
  }
  poke();
}

void ZcrxPump::poke() noexcept {
  if (!poked_.exchange(true, std::memory_order_acq_rel)) ring_->poke();
}

void ZcrxPump::run() noexcept {
  for (;;) {
    arm(take_returned());
    const int error = ring_->wait(!broken_ && !free_.empty());
    poked_.exchange(false, std::memory_order_acq_rel);  // before anything that a poke announces is looked at
    {
      const std::scoped_lock lock(mutex_);
      if (stopping_) return;
    }
    broken_ = broken_ || error != 0;
    obey();
    ZcrxCompletion completion;
    while (!free_.empty() && ring_->next(completion)) take(completion);
    if (broken_) give_up();
    say();
  }
}

// The kernel refused the ring itself: every connection of it ends.
void ZcrxPump::give_up() noexcept {
  for (const auto& channel : channels_) {
    if (channel == nullptr) continue;
    channel->armed = channel->wants_arm = channel->waits_for_pages = false;
    if (channel->end.load(std::memory_order_relaxed) == ZcrxChannel::kOpen) end(*channel, -EIO);
  }
}

void ZcrxPump::obey() noexcept {
  const std::scoped_lock lock(mutex_);
  if (room_.capacity() > channels_.capacity()) {
    for (auto& channel : channels_) room_.push_back(std::move(channel));
    channels_ = std::exchange(room_, {});
  }
  for (auto& opened : opened_) {
    const auto place = std::find(channels_.begin(), channels_.end(), nullptr);
    if (place == channels_.end())
      channels_.push_back(std::move(opened));
    else
      *place = std::move(opened);
  }
  opened_.clear();
  while (closed_ != nullptr) {
    ZcrxChannel* const closed = std::exchange(closed_, closed_->next_closed);
    closed->leaving = true;
    closed->wants_arm = closed->waits_for_pages = false;
    for (std::size_t i = 0; i < channels_.size(); ++i)
      if (channels_[i].get() == closed && closed->armed) ring_->cancel(static_cast<uint32_t>(i));
  }
}

void ZcrxPump::end(ZcrxChannel& channel, int32_t how) noexcept {
  channel.end.store(how, std::memory_order_release);
  channel.said = true;
}

// Has a free slot.
void ZcrxPump::take(const ZcrxCompletion& completion) noexcept {
  if (completion.user >= channels_.size() || channels_[completion.user] == nullptr) return;
  ZcrxChannel& channel = *channels_[completion.user];
  if (!completion.more) {
    take_end(channel, completion.result);
    return;
  }
  const auto place = place_in_area(completion, area_bytes_);
  if (!place) {
    end(channel, -EPROTO);  // what can't be placed can't be given back: the ring's end returns it
    return;
  }
  fruitless_ = 0;
  const uint32_t slot = free_.back();
  free_.pop_back();
  slots_[slot] = {*place, static_cast<uint32_t>(completion.result)};
  if (channel.end.load(std::memory_order_relaxed) != ZcrxChannel::kOpen) {
    owed_.push_back(slot);
    return;
  }
  channel.arrived.push(slot);
  channel.said = true;
}

void ZcrxPump::take_end(ZcrxChannel& channel, int32_t result) noexcept {
  channel.armed = false;
  if (channel.leaving) return;
  const bool all_here = free_.size() == slots_.size();
  if (result == -ENOSPC || result == -EAGAIN || result == -EINTR) {
    channel.wants_arm = true;
  } else if (result == -ENOMEM && (!all_here || ++fruitless_ < kMostFruitless)) {
    channel.waits_for_pages = !all_here;
    channel.wants_arm = all_here;
    channel.starved.store(!all_here, std::memory_order_release);
    channel.said = true;
  } else {
    end(channel, result == 0 ? ZcrxChannel::kClosed : std::min(result, -1));
  }
}

// True: pages went back to the kernel.
bool ZcrxPump::take_returned() noexcept {
  for (auto& channel : channels_) {
    if (channel == nullptr) continue;
    uint32_t slot = 0;
    while (channel->returned.pop(slot)) owed_.push_back(slot);  // within its capacity
    if (!channel->leaving) continue;
    // At once: its last completion is only taken if there is a free slot.
    while (channel->arrived.pop(slot)) owed_.push_back(slot);
    if (!channel->armed) channel.reset();
  }
  if (owed_.empty()) return false;
  const std::size_t before = owed_.size();
  while (!owed_.empty()) {
    const ZcrxSlot& slot = slots_[owed_.back()];
    if (!ring_->refill(slot.offset, slot.bytes)) {
      ring_->flush(true);
      if (!ring_->refill(slot.offset, slot.bytes)) break;
    }
    free_.push_back(owed_.back());
    owed_.pop_back();
  }
  ring_->flush(false);
  return owed_.size() != before;
}

void ZcrxPump::arm(bool pages_came) noexcept {
  for (std::size_t i = 0; i < channels_.size(); ++i) {
    ZcrxChannel* const channel = channels_[i].get();
    if (channel == nullptr || channel->armed || channel->leaving) continue;
    if (!channel->wants_arm && !(channel->waits_for_pages && pages_came)) continue;
    channel->wants_arm = channel->waits_for_pages = false;
    channel->starved.store(false, std::memory_order_release);
    channel->armed = true;
    ring_->receive(channel->socket.get(), static_cast<uint32_t>(i));
  }
}

void ZcrxPump::say() noexcept {
  for (const auto& channel : channels_) {
    if (channel == nullptr || !channel->said) continue;
    channel->said = false;
    const uint64_t one = 1;
    (void)!::write(channel->wake.get(), &one, sizeof one);
  }
}

}  // namespace towline::tcpx
