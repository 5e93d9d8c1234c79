// For fuzzers: the input was taken by a decoder, or had an effect, beyond the first checks. Where a fuzzer replays its
// corpus (cmake/fuzz_replay.cc), every file there must do so, unless its name begins with "refused".
#pragma once

extern "C" __attribute__((weak)) void towline_fuzz_accepted();

namespace towline::fuzz {

inline void accepted() {
  if (towline_fuzz_accepted != nullptr) towline_fuzz_accepted();
}

}  // namespace towline::fuzz
