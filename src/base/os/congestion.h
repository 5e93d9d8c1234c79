// Which congestion control a TCP connection gets: one rule for all of them.
#pragma once

#include <string_view>

namespace towline {

// `configured`: a setting's, by the kernel's name. Empty: the kernel's choice stays.
//
// Within a host (over loopback, or between network namespaces) the only queue is the receiver's or a short one of this kernel, and
// bytes are back within microseconds. A congestion control with pacing (bbr) waits for timers there, which costs half of the speed
// and more. Reno is in every kernel and allowed for every process, and recovers within such a round trip where packets are
// dropped.
[[nodiscard]] constexpr std::string_view congestion_for(std::string_view configured,
                                                        bool within_host) noexcept {
  return configured.empty() && within_host ? std::string_view{"reno"} : configured;
}

}  // namespace towline
