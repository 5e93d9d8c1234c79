#include "transports/tcp/socket_lane.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <string_view>

#include "base/error.h"
#include "base/os/socket_address.h"

namespace towline::tcp {
namespace {

// After so many empty reads a further lane is looked at once in so many passes.
constexpr uint32_t kPatience = 64;
constexpr uint32_t kSeldom = 16;
// Leaving epoll and coming back costs as much as a few arrivals reported by epoll.
constexpr uint32_t kReadsBeforeRest = 64;

// The system copies what is sent into pages of its own, each call's bytes behind the last one's. Blocks of a
// page that lie there as they lie in memory go through loopback up to a seventh faster than ones that a
// header of 64 bytes has moved on.
constexpr uint32_t kPayloadAlignment = 4096;

// Lent writes refused in a row, each a system call for nothing, until no more are tried.
constexpr uint32_t kMostRefused = 16;

framing::IoResult not_moved(const StreamResult& result) noexcept {
  if (result.blocked()) return framing::IoResult::again();
  const int error = result.error;
  const bool gone = error == ECONNRESET || error == EPIPE || error == ETIMEDOUT || error == EHOSTUNREACH ||
                    error == ENETUNREACH || error == ECONNABORTED;
  return framing::IoResult::error(gone ? Status::kPeerLost : status_from_errno(error), error);
}

}  // namespace

void tune(Stream& stream, const Options& options) noexcept {
  stream.tune({options.socket_buffer, true, std::max<uint64_t>(options.user_timeout_ns, 1)});
}

SocketLane::SocketLane(const plugin::Host& host, uint32_t worker, Stream stream, bool first,
                       uint32_t frame_bytes, const std::string& congestion, towline_ready_fn ready,
                       void* argument, Zerocopy lending)
    : host_(host),
      worker_(worker),
      stream_(std::move(stream)),
      first_(first),
      frame_bytes_(frame_bytes),
      ready_(ready),
      argument_(argument),
      lending_(stream_.session() != nullptr || SocketAddress::peer_of(stream_.fd()).is_unix() ? Zerocopy::kOff
                                                                                              : lending),
      name_(fmt::format("{} -> {}", SocketAddress::local_of(stream_.fd()).text(),
                        SocketAddress::peer_of(stream_.fd()).text())) {
  if (stream_.session() != nullptr) name_ += ", " + stream_.session()->describe();
  if (!congestion.empty()) stream_.set_congestion(congestion);
}

framing::IoResult SocketLane::write(std::span<const iovec> pieces) noexcept {
  if (!open()) return framing::IoResult::closed();
  const StreamResult result = stream_.write(pieces);
  return result.moved() ? framing::IoResult::moved(result.bytes) : not_moved(result);
}

framing::IoResult SocketLane::write_lent(std::span<const iovec> pieces) noexcept {
  if (!open()) return framing::IoResult::closed();
  if (lends() && !allowed_) {
    allowed_ = LentWrites::allow(stream_.fd()) == 0;
    if (!allowed_) stop_lending("the kernel does not have it");
  }
  if (!lends() || (lent_writes_.full() && returned() + LentWrites::kMost == lent())) return write(pieces);
  const StreamResult result = lent_writes_.write(stream_.fd(), pieces);
  if (result.moved()) {
    refused_ = 0;
    return framing::IoResult::moved(result.bytes);
  }
  if (result.kind != StreamResult::Kind::kFailed) return not_moved(result);
  if (result.error != ENOBUFS && result.error != EFAULT) return not_moved(result);
  if (++refused_ == kMostRefused) stop_lending("the kernel's limits on locked memory");
  return write(pieces);
}

uint64_t SocketLane::returned() noexcept {
  if (lent_writes_.all_returned()) return lent_writes_.lent();
  lent_writes_.collect(stream_.fd());
  if (lending_ == Zerocopy::kAuto && lent_writes_.copied()) stop_lending("the kernel copies on this path");
  if (ending_ && lent_writes_.all_returned()) stream_.close();
  return lent_writes_.returned();
}

void SocketLane::stop_lending(const char* why) noexcept {
  lending_ = Zerocopy::kOff;
  why_not_ = why;
}

framing::IoResult SocketLane::read(std::span<const iovec> pieces) noexcept {
  if (!open()) return framing::IoResult::closed();
  if (!first_ && empty_reads_ >= kPatience && ++empty_reads_ % kSeldom != 0) {
    return framing::IoResult::again();
  }
  const StreamResult result = stream_.read(pieces);
  if (result.moved()) {
    empty_reads_ = 0;
    if (++reads_ >= kReadsBeforeRest && watched_ != 0) rest();
    return framing::IoResult::moved(result.bytes);
  }
  if (empty_reads_ < kPatience) ++empty_reads_;
  return result.kind == StreamResult::Kind::kEnded ? framing::IoResult::closed() : not_moved(result);
}

bool SocketLane::arm(bool want_write) noexcept {
  if (!open()) return true;
  empty_reads_ = 0;  // whatever wakes us may have come here
  reads_ = 0;
  if (stream_.unread()) return true;
  const uint32_t wanted = want_write ? EPOLLIN | EPOLLOUT : EPOLLIN;
  if (watched_ == wanted) return false;
  const int32_t status = known_ ? host_.rewatch(worker_, stream_.fd(), wanted, ready_, argument_)
                                : host_.watch(worker_, stream_.fd(), wanted, ready_, argument_);
  if (status != TOWLINE_OK) return true;  // never sleep on a socket that can't wake us
  known_ = true;
  watched_ = wanted;
  return false;
}

void SocketLane::rest() noexcept {
  if (host_.rewatch(worker_, stream_.fd(), 0, ready_, argument_) == TOWLINE_OK) watched_ = 0;
}

void SocketLane::end() noexcept {
  if (known_) host_.unwatch(worker_, stream_.fd());
  known_ = false;
  watched_ = 0;
  ending_ = true;
  if (returned() == lent()) stream_.close();
}

void SocketLane::close() noexcept {
  if (!open()) return;
  if (!lent_writes_.all_returned()) stream_.end_writing();
  end();
}

void SocketLane::abandon() noexcept {
  if (!stream_.valid()) return;
  stream_.reset_at_close();
  if (!lent_writes_.all_returned()) LentWrites::drop(stream_.fd());
  end();
}

std::string SocketLane::describe() const {
  if (lent() != 0 && lends()) return fmt::format("{}, {} writes lent to the kernel", name_, lent());
  if (why_not_ != nullptr) return fmt::format("{}, nothing lent: {}", name_, why_not_);
  return name_;
}

framing::Lane::Traits SocketLane::traits() const noexcept {
  Traits traits;
  traits.frame_bytes = frame_bytes_;
  traits.payload_alignment = kPayloadAlignment;
  return traits;
}

}  // namespace towline::tcp
