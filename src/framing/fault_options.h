// The options of a fault injector, as text: "seed=7,short=0.3,delay=0.01:2ms,cut=1e-5". Shared by faulty
// lanes and the `faulty` transport.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace towline::framing {

struct FaultOptions {
  uint64_t seed = 1;
  double shorten = 0;     // "short=P": a read or write moves only part of what it could
  double delay = 0;       // "delay=P:TIME": a call starts a pause of the lane, or a message or part waits,
  uint64_t delay_ns = 0;  //   for up to this long
  double cut = 0;         // "cut=P": a call breaks the connection
  double reorder =
      0;  // "reorder=P": a part or message is passed by later ones; lanes ignore it, streams keep order
  uint64_t cut_after_bytes = 0;  // "cut_after=N": breaks once, after N bytes; 0: never

  [[nodiscard]] bool any() const noexcept {
    return shorten > 0 || delay > 0 || cut > 0 || reorder > 0 || cut_after_bytes != 0;
  }
};

// Comma-separated key=value; probabilities from 0 to 1, times with ns, us, ms or s. Throws Error
// (kInvalidArgument) that names what it does not understand. Empty text: no faults.
FaultOptions parse_fault_options(std::string_view text);

// The text that parses to the same.
std::string to_text(const FaultOptions& options);

}  // namespace towline::framing
