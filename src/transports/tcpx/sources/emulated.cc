#include "transports/tcpx/sources/emulated.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "base/error.h"
#include "transports/tcpx/sources/copy.h"

namespace towline::tcpx {
namespace {

constexpr uint64_t kOneInLinear = 8;    // fragments
constexpr uint64_t kOneInShort = 16;    // polls have room for a few fragments only
constexpr uint64_t kOneInNothing = 64;  // polls find nothing although something is there
constexpr std::size_t kLongestLinear = 512;

uint32_t pages_of(uint64_t bytes) noexcept {
  return static_cast<uint32_t>(std::clamp<uint64_t>(bytes / EmulatedSource::kPageBytes, 4, 1u << 20));
}

Mapping host_memory(uint64_t bytes) {
  return Mapping::map_shared(create_memfd("towline-tcpx-pool", bytes, {.reserve = false}).get(), bytes,
                             MapAccess::kReadWrite);
}

}  // namespace

EmulatedProvider::EmulatedProvider(const EmulatedOptions& options, MakePoolMemory make_gpu)
    : options_(options), make_gpu_(std::move(make_gpu)) {
  if (!make_gpu_) return;
  const PoolMemory probe = make_gpu_(EmulatedSource::kPageBytes);
  if (probe.gpu->info().host == nullptr)
    fail(Status::kUnsupported, "the processor, which plays the NIC, does not reach {}", probe.where());
  where_ = probe.where();
}

EmulatedSource::EmulatedSource(int socket, const EmulatedOptions& options, std::unique_ptr<GpuPool> gpu)
    : socket_(socket),
      options_(options),
      pages_(gpu ? static_cast<uint32_t>(gpu->info().bytes / kPageBytes) : pages_of(options.pool_bytes)),
      gpu_(std::move(gpu)),
      memory_(gpu_ ? Mapping{} : host_memory(uint64_t{pages_} * kPageBytes)),
      pool_(gpu_ ? gpu_->pool() : Pool{memory_.address(), uint64_t{pages_} * kPageBytes, true, nullptr}),
      host_(gpu_ ? static_cast<uint8_t*>(gpu_->info().host) : memory_.address()),
      random_(options.seed),
      held_(pages_) {
  free_.reserve(pages_);
  for (uint32_t page = 0; page < pages_; ++page) free_.push_back(page);
}

// Takes a random free page, if any.
Fragment EmulatedSource::next_fragment(std::size_t most) noexcept {
  if (options_.odd && random_.below(kOneInLinear) == 0) {
    const uint64_t bytes = std::min<uint64_t>(most, random_.between(1, kLongestLinear));
    return {0, static_cast<uint32_t>(bytes), 0, 0, true};
  }
  if (free_.empty()) return {};
  std::swap(free_[random_.below(free_.size())], free_.back());
  const uint32_t page = free_.back();
  free_.pop_back();
  uint64_t begin = 0;
  uint64_t bytes = kPageBytes;
  if (options_.odd) {
    begin = random_.below(kPageBytes);
    bytes = random_.between(1, kPageBytes - begin);
  }
  bytes = std::min<uint64_t>(bytes, most);
  return {uint64_t{page} * kPageBytes + begin, static_cast<uint32_t>(bytes), page, 0, false};
}

void EmulatedSource::take_back(const Fragment& fragment) noexcept {
  if (!fragment.linear) free_.push_back(fragment.token);
}

Polled EmulatedSource::poll(uint8_t* linear, std::size_t most, std::span<Fragment> out) noexcept {
  if (free_.empty()) return {framing::IoResult::again(), 0, true};
  if (options_.odd && random_.below(kOneInNothing) == 0) return {framing::IoResult::again(), 0, false};
  std::size_t room = std::min(out.size(), kMostPieces);
  if (options_.odd && random_.below(kOneInShort) == 0)
    room = std::min<std::size_t>(room, random_.between(1, 3));
  iovec pieces[kMostPieces];
  std::size_t count = 0;
  std::size_t asked = 0;
  uint8_t* next_linear = linear;
  while (count < room && asked < most) {
    const Fragment fragment = next_fragment(most - asked);
    if (fragment.bytes == 0) break;
    void* const at = fragment.linear ? next_linear : host_ + fragment.offset;
    if (fragment.linear) next_linear += fragment.bytes;
    pieces[count] = {at, fragment.bytes};
    out[count++] = fragment;
    asked += fragment.bytes;
  }
  msghdr message = {};
  message.msg_iov = pieces;
  message.msg_iovlen = count;
  const ssize_t n = ::recvmsg(socket_, &message, MSG_DONTWAIT);
  const int error = errno;
  std::size_t left = n > 0 ? static_cast<std::size_t>(n) : 0;
  uint32_t kept = 0;
  for (std::size_t i = 0; i < count; ++i) {
    Fragment& fragment = out[i];
    if (left == 0) {
      take_back(fragment);
      continue;
    }
    fragment.bytes = static_cast<uint32_t>(std::min<std::size_t>(fragment.bytes, left));
    left -= fragment.bytes;
    if (!fragment.linear) held_.hold(fragment.token);
    ++kept;
  }
  if (n == 0) return {framing::IoResult::closed(), 0, false};
  if (n < 0) return {socket_failure(error), 0, false};
  return {framing::IoResult::moved(static_cast<std::size_t>(n)), kept, false};
}

void EmulatedSource::release(std::span<const uint32_t> tokens) noexcept {
  for (const uint32_t token : tokens)
    if (held_.release(token)) free_.push_back(token);
}

}  // namespace towline::tcpx
