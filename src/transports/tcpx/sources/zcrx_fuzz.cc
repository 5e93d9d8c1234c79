// Input from a ring of io_uring's zero-copy receive: completions of any user, length and place, in any order, rings
// that break, and a refill ring placed anywhere. The first byte chooses. No fragment lies outside of the area, no piece goes back that was
// not given out or went back before, and every source can be ended.
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <thread>
#include <vector>

#include "base/error.h"
#include "support/fuzz_accepted.h"
#include "transports/tcpx/kernel/refill_ring.h"
#include "transports/tcpx/sources/scripted_zcrx_ring.h"
#include "transports/tcpx/sources/zcrx.h"

namespace towline::tcpx {
namespace {

constexpr std::size_t kArea = 16u << 10;
constexpr std::size_t kStepBytes = 8;
constexpr std::size_t kMostSteps = 64;

void check(bool good) {
  if (!good) std::abort();
}

// User, flags, two bytes of a length or an errno, four of an offset.
testing::ZcrxScript::Step step_from(std::span<const uint8_t> bytes) {
  uint16_t amount = 0;
  uint32_t offset = 0;
  std::memcpy(&amount, bytes.data() + 2, sizeof amount);
  std::memcpy(&offset, bytes.data() + 4, sizeof offset);
  const uint8_t flags = bytes[1];
  ZcrxCompletion completion;
  completion.user = bytes[0];
  completion.more = (flags & 1) != 0;
  completion.result = (flags & 2) != 0 ? -static_cast<int32_t>(amount) : static_cast<int32_t>(amount);
  completion.offset = uint64_t{offset} << ((flags & 4) != 0 ? 24 : 0);
  return {completion, (flags & 0xF8) == 0x80};
}

class Reader {
 public:
  Reader(ZcrxProvider& provider, int socket) : source_(provider.make(socket)) {}

  // True: something came.
  bool turn(std::size_t most, std::size_t fragments) {
    const Polled polled =
        source_->poll(nullptr, most, std::span(fragments_).first(std::min(fragments, fragments_.size())));
    if (polled.io.status != Status::kOk) return false;
    std::size_t total = 0;
    for (uint32_t i = 0; i < polled.count; ++i) {
      const Fragment& fragment = fragments_[i];
      check(!fragment.linear && fragment.bytes != 0 && fragment.bytes <= kArea &&
            fragment.offset <= kArea - fragment.bytes);
      total += fragment.bytes;
      held_.push_back(fragment.token);
      fuzz::accepted();
    }
    check(total == polled.io.bytes && total <= most);
    return true;
  }
  void release() {
    source_->release(held_);
    check(source_->bad_releases() == bad_);
    if (!held_.empty() && std::count(held_.begin(), held_.end(), held_.back()) == 1) {
      // Twice, or never given out.
      const uint32_t wrong[] = {UINT32_MAX};
      source_->release(wrong);
      ++bad_;
    }
    held_.clear();
  }

 private:
  std::unique_ptr<Source> source_;
  std::array<Fragment, 8> fragments_;
  std::vector<uint32_t> held_;
  uint64_t bad_ = 0;
};

void completions(std::span<const uint8_t> bytes) {
  if (bytes.size() < 2) return;
  const std::size_t most = std::size_t{bytes[0]} * 64 + 1;
  const uint8_t how = bytes[1];
  testing::ZcrxScript script;
  ZcrxProvider provider(kArea, [&](std::span<uint8_t> area, uint32_t) {
    return std::make_unique<testing::ScriptedZcrxRing>(script, area.size());
  });
  const UniqueFd socket(::eventfd(0, EFD_CLOEXEC));
  std::optional<Reader> first(std::in_place, provider, socket.get());
  Reader second(provider, socket.get());
  while (script.received < 2) std::this_thread::yield();
  for (std::size_t i = 0; i < kMostSteps && bytes.size() >= 2 + (i + 1) * kStepBytes; ++i)
    script.add(step_from(bytes.subspan(2 + i * kStepBytes)));
  script.wake();
  // Once more after all was said.
  for (int quiet = 0; quiet < 2;) {
    const bool over = script.over();
    bool more = first && first->turn(most, 1u + how % 8);
    more = second.turn(most, 8) || more;
    quiet = over && !more ? quiet + 1 : 0;
    if (first && (how & 8) != 0) first.reset();  // with all that it holds
    if (first) first->release();
    second.release();
    std::this_thread::yield();
  }
  check(script.bad_refills == 0);
}

// The input gives the offsets of the parts, then heads that the kernel writes.
void refills(std::span<const uint8_t> bytes) {
  zcrx::Offsets offsets = {};
  constexpr std::size_t kRegion = 1024;
  if (bytes.size() < 12 + 1) return;
  std::memcpy(&offsets, bytes.data(), 12);
  const auto region = std::make_unique<std::array<uint64_t, kRegion / 8>>();
  const std::span<uint8_t> span(reinterpret_cast<uint8_t*>(region->data()), kRegion);
  try {
    RefillRing ring(span, offsets, bytes[12], uint64_t{1} << 48);
    fuzz::accepted();
    for (const uint8_t head : bytes.subspan(13)) {
      for (int i = 0; i < 3; ++i) (void)ring.push(4096, 100);
      check(ring.queued() <= bytes[12]);
      span[offsets.head] = head;
    }
  } catch (const core::Error&) {
    return;
  }
}

}  // namespace
}  // namespace towline::tcpx

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::span<const uint8_t> bytes{data + 1, size - 1};
  if (data[0] % 4 == 0)
    towline::tcpx::refills(bytes);
  else
    towline::tcpx::completions(bytes);
  return 0;
}
