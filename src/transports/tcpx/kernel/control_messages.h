// The kernel's control messages about payload in device memory, as pure functions over bytes: which fragments arrived,
// which tokens go back, and which memory is sent from.
//
// Two dialects are spoken: Linux's own from 6.12 on, and the one of Google's kernels for GPUDirect-TCPX.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "transports/tcpx/sources/source.h"

namespace towline::tcpx {

struct Dialect {
  int linear;       // control message: bytes in the caller's buffer
  int in_pool;      // control message: bytes in device memory; with it sends name their memory, too
  int give_back;    // socket option: returns tokens
  bool names_pool;  // messages say which pool
};
inline constexpr Dialect kUpstream = {78, 79, 80, true};
inline constexpr Dialect kLegacy = {98, 99, 97, false};

inline constexpr int kReceiveDeviceMemory = 0x2000000;  // MSG_SOCK_DEVMEM, a flag of recvmsg()

// Room in a control buffer for one fragment of either dialect.
inline constexpr std::size_t kControlBytesPerFragment = 40;

struct Arrived {
  uint32_t count = 0;           // of fragments; also with `wrong`, so that their tokens can go back
  uint64_t bytes = 0;           // of all of them
  const char* wrong = nullptr;  // what the kernel can't have meant
};

// The fragments that one recvmsg() of `returned` bytes handed over. Bytes that no message speaks of are linear if there is
// no message at all: packets that missed the pool's queue are received so. `pool`: the number that the kernel gave the memory;
// its fragments are of pool 0. `flags`: msg_flags after the call.
[[nodiscard]] Arrived decode_fragments(const Dialect& dialect, std::span<const uint8_t> control, int flags,
                                       std::size_t returned, uint32_t pool, std::span<Fragment> out) noexcept;

// As the kernel takes tokens back.
struct TokenRange {
  uint32_t first = 0;
  uint32_t count = 0;
  friend bool operator==(const TokenRange&, const TokenRange&) = default;
};
inline constexpr std::size_t kMostRanges = 128;           // a call
inline constexpr std::size_t kMostTokensReturned = 1024;  // a call

struct TokenBatch {
  std::array<TokenRange, kMostRanges> ranges;
  uint32_t count = 0;   // of ranges
  uint32_t tokens = 0;  // in them
};

// Takes as many tokens off the front of a sorted list as one call can return, each once.
[[nodiscard]] TokenBatch next_batch(std::span<const uint32_t>& sorted) noexcept;

// The control message of a send from device memory, into 24 bytes of `out`: upstream the memory's number, legacy its
// descriptor and an offset.
std::size_t encode_send(const Dialect& dialect, uint32_t memory, uint32_t offset,
                        std::span<uint8_t> out) noexcept;

}  // namespace towline::tcpx
