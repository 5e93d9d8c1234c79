#include "transports/tcpx/sources/mapped.h"

#include <linux/tcp.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "base/error.h"
#include "transports/tcpx/sources/copy.h"

namespace towline::tcpx {
namespace {

constexpr std::size_t kPage = 4096;
constexpr int kTcpLevel = 6;  // IPPROTO_TCP; its header does not go with linux/tcp.h

}  // namespace

MappedProvider::MappedProvider() {
  const UniqueFd probe(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!probe.valid()) fail_errno(errno, "opening a TCP socket");
  const MappedSource source(probe.get());
}

MappedSource::MappedSource(int socket) : socket_(socket) {
  constexpr std::size_t kBytes = std::size_t{kWindows} * kWindowBytes;
  void* const memory = ::mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, socket, 0);
  if (memory == MAP_FAILED)
    fail_errno(errno, "mapping a socket for TCP_ZEROCOPY_RECEIVE (needs a TCP socket and Linux 4.18)");
  pool_ = {static_cast<uint8_t*>(memory), kBytes, false};
  free_.reserve(kWindows);
  for (uint32_t window = 0; window < kWindows; ++window) free_.push_back(window);
}

MappedSource::~MappedSource() { ::munmap(pool_.memory, pool_.bytes); }

Polled MappedSource::copy(uint8_t* linear, std::size_t most, std::span<Fragment> out) noexcept {
  if (copy_first_ != 0) most = std::min<std::size_t>(most, copy_first_);
  const Polled polled = receive_linear(socket_, linear, most, out);
  if (polled.io.status == Status::kOk)
    copy_first_ -= std::min<uint32_t>(copy_first_, static_cast<uint32_t>(polled.io.bytes));
  return polled;
}

Polled MappedSource::poll(uint8_t* linear, std::size_t most, std::span<Fragment> out) noexcept {
  if (copy_first_ != 0 || most < kPage) return copy(linear, most, out);
  if (free_.empty()) return {framing::IoResult::again(), 0, true};
  const uint32_t window = free_.back();
  tcp_zerocopy_receive ask = {};
  ask.address = reinterpret_cast<uint64_t>(pool_.memory + uint64_t{window} * kWindowBytes);
  ask.length = static_cast<uint32_t>(std::min<std::size_t>(most, kWindowBytes) & ~(kPage - 1));
  socklen_t bytes = sizeof ask;
  if (::getsockopt(socket_, kTcpLevel, TCP_ZEROCOPY_RECEIVE, &ask, &bytes) != 0)
    return copy(linear, most, out);  // at the end of the stream it fails with EIO; recv() tells the truth
  copy_first_ = ask.recv_skip_hint;
  if (ask.length == 0) return copy(linear, most, out);
  free_.pop_back();
  held_.hold(window);
  mapped_bytes_ += ask.length;
  out[0] = {uint64_t{window} * kWindowBytes, ask.length, window, 0, false};
  return {framing::IoResult::moved(ask.length), 1, false};
}

// The mapped pages go back to the kernel at once, not when the window is used next.
void MappedSource::release(std::span<const uint32_t> tokens) noexcept {
  for (const uint32_t token : tokens) {
    if (!held_.release(token)) continue;
    ::madvise(pool_.memory + uint64_t{token} * kWindowBytes, kWindowBytes, MADV_DONTNEED);
    free_.push_back(token);
  }
}

}  // namespace towline::tcpx
