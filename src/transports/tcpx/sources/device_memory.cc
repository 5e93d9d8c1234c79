#include "transports/tcpx/sources/device_memory.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "transports/tcpx/sources/copy.h"

namespace towline::tcpx {
namespace {

constexpr std::size_t kMostReturned = 4096;  // sorted at once
constexpr int kTooSmall = 525;               // ETOOSMALL, which user space has no name for

}  // namespace

DeviceMemorySource::DeviceMemorySource(int socket, const Dialect& dialect, SharedPool& shared,
                                       const char* name)
    : socket_(duplicate_fd(socket)), dialect_(dialect), shared_(shared), name_(name) {
  returned_.reserve(kMostReturned);
  shared_.sources.fetch_add(1, std::memory_order_relaxed);
}

DeviceMemorySource::~DeviceMemorySource() { shared_.sources.fetch_sub(1, std::memory_order_relaxed); }

Polled DeviceMemorySource::poll(uint8_t* linear, std::size_t most, std::span<Fragment> out) noexcept {
  const std::size_t room = std::min(out.size(), kMostFragments);
  iovec piece = {linear, most};
  msghdr message = {};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control_.data();
  message.msg_controllen = room * kControlBytesPerFragment;
  const ssize_t n = ::recvmsg(socket_.get(), &message, kReceiveDeviceMemory | MSG_DONTWAIT);
  if (n == 0) return {framing::IoResult::closed(), 0, false};
  if (n < 0 && errno == kTooSmall)
    return {framing::IoResult::error(Status::kProtocol, kTooSmall, "a control buffer that is too short"), 0,
            false};
  if (n < 0) return {socket_failure(errno), 0, false};
  const auto received = static_cast<std::size_t>(n);
  Arrived arrived = decode_fragments(dialect_, {control_.data(), message.msg_controllen}, message.msg_flags,
                                     received, shared_.number, out.first(room));
  for (uint32_t i = 0; i < arrived.count; ++i) {
    if (out[i].linear) continue;
    if (out[i].token >= kMostTokens)
      arrived.wrong = "a token that no kernel gives";
    else
      held_.hold(out[i].token);
  }
  if (arrived.wrong == nullptr) return {framing::IoResult::moved(received), arrived.count, false};
  returned_.clear();
  for (uint32_t i = 0; i < arrived.count; ++i)
    if (!out[i].linear && out[i].token < kMostTokens && held_.release(out[i].token))
      returned_.push_back(out[i].token);  // within its capacity
  give_back();
  return {framing::IoResult::error(Status::kProtocol, 0, arrived.wrong), 0, false};
}

void DeviceMemorySource::release(std::span<const uint32_t> tokens) noexcept {
  returned_.clear();
  for (const uint32_t token : tokens) {
    if (!held_.release(token)) continue;
    if (returned_.size() == kMostReturned) give_back();
    returned_.push_back(token);
  }
  give_back();
}

// In as few calls and ranges as can be.
void DeviceMemorySource::give_back() noexcept {
  std::sort(returned_.begin(), returned_.end());
  for (std::span<const uint32_t> left = returned_; !left.empty();) {
    const TokenBatch batch = next_batch(left);
    returned_count_ += batch.tokens;
    // It gives how many tokens were freed.
    const int freed = ::setsockopt(socket_.get(), SOL_SOCKET, dialect_.give_back, batch.ranges.data(),
                                   static_cast<socklen_t>(batch.count * sizeof(TokenRange)));
    freed_count_ += static_cast<uint64_t>(std::max(freed, 0));
  }
  returned_.clear();
}

}  // namespace towline::tcpx
