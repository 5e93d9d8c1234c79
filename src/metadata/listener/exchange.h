// The client of the built-in exchange of metadata.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "secure/keys.h"

namespace towline::metadata {

// Gives `own` (may be empty) to the agent listening at `address` ("10.0.0.7:7777", "[::1]:7777", "host:port",
// "unix:/path", "unix:@name") and returns its blob, not decoded. Tries every address a host name stands for,
// one after another. Blocks until done or until the deadline, on CLOCK_MONOTONIC. Throws Error:
// kInvalidArgument, kUnreachable, kTimedOut, kProtocol (who answers there is no Towline agent),
// kPermissionDenied (it has other keys), or the status with which the peer refused; the text names the address.
// `stop`: ends it within a tenth of a second with kClosed once it is set; null: never.
std::vector<uint8_t> exchange(std::string_view address, std::span<const uint8_t> own, Deadline deadline,
                              const std::atomic<bool>* stop = nullptr, const secure::MaybeKeys& keys = {});

}  // namespace towline::metadata
