#include "transports/tcpx/bound_sender.h"

#include <array>
#include <cerrno>
#include <climits>

#include "base/error.h"
#include "transports/tcpx/kernel/control_messages.h"
#include "transports/tcpx/sources/copy.h"

namespace towline::tcpx {
namespace {

constexpr std::size_t kMostPieces = IOV_MAX;
constexpr uint64_t kNowhere = uint64_t{1} << 46;  // an address of user space, beyond the end of any dma-buf

using Control = std::array<uint8_t, 24>;

std::span<const uint8_t> control_of(const BoundRange& range, Control& room) noexcept {
  if (range.number == 0) return {};
  return std::span<const uint8_t>(room).first(encode_send(kUpstream, range.number, 0, room));
}

}  // namespace

BoundSender::BoundSender(BoundMemory* memory) : memory_(memory) {
  if (memory == nullptr) return;
  ranges_.reserve(BoundMemory::kMost);
  pieces_.reserve(kMostPieces);
}

void BoundSender::look_again() noexcept {
  if (generation_ == memory_->generation()) return;
  generation_ = memory_->copy_to(ranges_);  // within its capacity
  last_ = 0;
}

const BoundRange* BoundSender::find(uint64_t address, uint64_t bytes) noexcept {
  const auto holds = [&](const BoundRange& range) {
    return address - range.address < range.bytes && bytes <= range.bytes - (address - range.address);
  };
  if (last_ < ranges_.size() && holds(ranges_[last_])) return &ranges_[last_];
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    if (!holds(ranges_[i])) continue;
    last_ = i;
    return &ranges_[i];
  }
  return nullptr;
}

bool BoundSender::takes(int fd, uint64_t device, std::span<const towline_landing_piece> pieces) noexcept {
  if (memory_ == nullptr || able_ == Able::kNo) return false;
  look_again();
  const BoundRange* range = nullptr;
  for (const towline_landing_piece& piece : pieces) {
    range = find(piece.address, piece.bytes);
    if (range == nullptr || range->device != device) return false;
  }
  if (range != nullptr && able_ == Able::kUnknown) try_once(fd, *range);
  return able_ == Able::kYes;
}

// The kernel sends bound memory only over the NIC that it is bound to, and looks at that first. So a byte that is nowhere is
// refused in another way where the socket's route is right.
void BoundSender::try_once(int fd, const BoundRange& range) noexcept {
  int error = LentWrites::allow(fd);
  if (error == 0 && range.number != 0) {
    Control room;
    const iovec piece = {reinterpret_cast<void*>(kNowhere), 1};
    const StreamResult result = lent_.write(fd, {&piece, 1}, control_of(range, room));
    error = result.blocked() || result.error == EFAULT ? 0 : result.error;
  }
  able_ = error == 0 ? Able::kYes : Able::kNo;
  if (error == 0) return;
  try {
    memory_->note_refused("sending from bound memory: " + errno_text(error) +
                          (error == ENODEV ? " (packets to this peer leave by another interface)" : ""));
  } catch (const std::bad_alloc&) {  // without a reason
  }
}

framing::IoResult BoundSender::write(int fd, std::span<const iovec> pieces) noexcept {
  if (lent_.full()) lent_.collect(fd);
  if (lent_.full()) return framing::IoResult::again();
  look_again();
  pieces_.clear();
  const BoundRange* first = nullptr;
  for (const iovec& piece : pieces) {
    const auto address = reinterpret_cast<uint64_t>(piece.iov_base);
    const BoundRange* range = find(address, piece.iov_len);
    if (range == nullptr || (first != nullptr && range->number != first->number) ||
        pieces_.size() == kMostPieces)
      break;
    first = range;
    pieces_.push_back({reinterpret_cast<void*>(range->at + (address - range->address)), piece.iov_len});
  }
  if (first == nullptr)
    return framing::IoResult::error(Status::kInternal, 0, "memory that is being sent is not bound any more");
  Control room;
  const StreamResult result = lent_.write(fd, pieces_, control_of(*first, room));
  if (result.moved()) return framing::IoResult::moved(result.bytes);
  if (result.blocked()) return framing::IoResult::again();
  if (result.error == ENOBUFS && !lent_.all_returned()) return framing::IoResult::again();
  if (result.error == ENOBUFS)
    return framing::IoResult::error(Status::kOutOfMemory, ENOBUFS,
                                    "no room to keep account of a send (net.core.optmem_max)");
  return socket_failure(result.error);
}

uint64_t BoundSender::returned(int fd) noexcept {
  if (!lent_.all_returned()) lent_.collect(fd);
  return lent_.returned();
}

}  // namespace towline::tcpx
