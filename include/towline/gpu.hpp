// Transfers in the order of a GPU's streams, for C++20: gpu.h for towline::Transfer.
//
//   kernel<<<grid, block, 0, stream>>>(pages);
//   (void)towline::post_on(move, stream);  // after the kernel
//   ...
//   (void)towline::wait_on(fetch, stream); // what comes next in the stream comes after fetch
#pragma once

#include <towline/gpu.h>
#include <towline/towline.hpp>

namespace towline {
inline namespace v0 {

using Replays = towline_replays_t;

// kInProgress: posted. kOk: captured in the graph that the stream is recording.
[[nodiscard]] inline Status post_on(const Transfer& transfer, void* stream) noexcept {
  return static_cast<Status>(towline_transfer_post_on(transfer.native(), stream));
}
[[nodiscard]] inline Status wait_on(const Transfer& transfer, void* stream) noexcept {
  return static_cast<Status>(towline_transfer_wait_on(transfer.native(), stream));
}
// Throws Error.
[[nodiscard]] inline Replays replays(const Transfer& transfer) {
  auto result = detail::defaults<towline_replays_t>();
  detail::check(towline_transfer_replays(transfer.native(), &result));
  return result;
}

}  // namespace v0
}  // namespace towline
