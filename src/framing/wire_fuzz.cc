// Feeds arbitrary bytes to a connection that has reads and writes under way. They arrive in pieces of all
// sizes, and frames are repaired on the way (magic, sequence, checksums, keys) unless they ask not to be, so
// that the fuzzer gets past the first checks. Nothing outside the region may be touched, and every part ends
// exactly once.
#include <algorithm>
#include <cstdlib>

#include "framing/test_support.h"
#include "framing/wire.h"
#include "support/fuzz_accepted.h"

namespace towline::framing {
namespace {

using testing::FakePlan;
using testing::Side;

// Reads return the fuzzer's input; writes of the connection are dropped.
class ScriptLane final : public Lane {
 public:
  explicit ScriptLane(std::vector<uint8_t> script) : script_(std::move(script)) {}
  IoResult write(std::span<const iovec> pieces) noexcept override {
    std::size_t bytes = 0;
    for (const iovec& piece : pieces) bytes += piece.iov_len;
    return IoResult::moved(bytes);
  }
  IoResult read(std::span<const iovec> pieces) noexcept override {
    if (position_ == script_.size()) return IoResult::closed();
    if (++calls_ % 5 == 0) return IoResult::again();
    std::size_t left = std::min<std::size_t>(script_.size() - position_, 1 + calls_ * 97 % 4096);
    std::size_t moved = 0;
    for (const iovec& piece : pieces) {
      const std::size_t here = std::min(left, piece.iov_len);
      std::memcpy(piece.iov_base, script_.data() + position_, here);
      position_ += here;
      moved += here;
      left -= here;
    }
    return IoResult::moved(moved);
  }
  bool arm(bool) noexcept override { return true; }
  void disarm() noexcept override {}
  void close() noexcept override { position_ = script_.size(); }
  std::string describe() const override { return "script"; }

 private:
  std::vector<uint8_t> script_;
  std::size_t position_ = 0;
  std::size_t calls_ = 0;
};

constexpr std::size_t kRegionBytes = 4096;

// Steers the fuzzer's bytes towards frames that mean something: keys that exist, addresses in the region,
// parts that are under way. Every other frame is left as it is.
std::vector<uint8_t> repair(const uint8_t* data, std::size_t size, uint8_t* region) {
  std::vector<uint8_t> script{data, data + size};
  uint32_t sequence = 0;
  std::size_t payloads = 0;  // of frames whose payload follows the next header
  for (std::size_t at = 0; script.size() - at >= kHeaderBytes;) {
    FrameHeader header;
    std::memcpy(&header, script.data() + at, kHeaderBytes);
    if ((header.padding_bytes & 1) != 0) break;
    header.magic = kMagic;
    header.version = kWireVersion;
    header.type = static_cast<FrameType>(1 + static_cast<uint8_t>(header.type) % 7);
    header.sequence = sequence++;
    header.segment_count %= 5;
    header.payload_bytes %= 9000;
    header.message_bytes %= 1000;
    header.padding_bytes = header.payload_bytes == 0 ? 0 : header.padding_bytes % 200;
    const bool together = header.type == FrameType::kWrite && (header.flags & kFlagTogether) != 0;
    if (together) header.message_bytes = header.padding_bytes = 0;
    header.ack %= 8;
    header.part = uint64_t{1} << 32 | header.part % 4;
    if (header.type == FrameType::kAck || header.type == FrameType::kMessage ||
        header.type == FrameType::kBye)
      header.part = header.offset = 0;
    const std::size_t preamble = preamble_bytes(header);
    if (script.size() - at < preamble) break;
    uint64_t sum = 0;
    for (std::size_t i = 0; i < header.segment_count; ++i) {
      WireSegment segment = segment_at(script.data() + at, i);
      segment.key %= 3;
      segment.address = reinterpret_cast<uint64_t>(region) + segment.address % (kRegionBytes + 64);
      segment.length %= kRegionBytes;
      sum += segment.length;
      std::memcpy(script.data() + at + kHeaderBytes + i * sizeof segment, &segment, sizeof segment);
    }
    if (header.type == FrameType::kWrite) header.payload_bytes = static_cast<uint32_t>(sum);
    if (header.type == FrameType::kRead) header.extent = sum;
    encode_header(header, script.data() + at);
    at += preamble;
    payloads += header.payload_bytes;
    if (together) continue;
    at += std::min<std::size_t>(script.size() - at, payloads + header.message_bytes);
    payloads = 0;
  }
  return script;
}

void check(bool good) {
  if (!good) std::abort();
}

bool begins_with_a_frame(const std::vector<uint8_t>& script) {
  FrameHeader header;
  if (script.size() < kHeaderBytes || decode_header(script.data(), header) != nullptr) return false;
  return script.size() >= preamble_bytes(header) && check_preamble(script.data(), header) == nullptr;
}

void run(const uint8_t* data, std::size_t size) {
  std::vector<uint8_t> region(kRegionBytes);
  std::vector<uint8_t> local(3 * kRegionBytes);
  ConnectionOptions options;
  options.max_frame_bytes = 2048;
  options.most_uncounted_frames = 4;
  Side side{options};
  std::vector<uint8_t> script = repair(data, size, region.data());
  if (begins_with_a_frame(script)) fuzz::accepted();
  side.connection.add_lane(std::make_unique<ScriptLane>(std::move(script)));
  side.host.add(region.data(), region.size());
  side.host.add(region.data(), region.size(), TOWLINE_ACCESS_READ);
  FakePlan plan{1};
  plan.add(local.data(), region.data(), kRegionBytes);
  plan.add(local.data() + 2 * kRegionBytes, region.data(), kRegionBytes);
  uint64_t accepted = 0;
  for (const uint32_t op : {TOWLINE_WRITE, TOWLINE_READ, TOWLINE_WRITE, TOWLINE_READ}) {
    towline_prepared* prepared = side.prepare(plan.plan(), op);
    accepted += side.submit(prepared, accepted, 0, plan.bytes(), "note") == Status::kInProgress;
  }
  for (int i = 0; i < 100000 && !side.connection.down(); ++i) {
    side.progress();
    if (i == 3) side.connection.cancel(1);
  }
  check(side.connection.down());
  check(side.host.completions == accepted && side.host.twice == 0);
  check(side.host.pins_held() == 0);
  check(side.host.events.size() == 1);
}

}  // namespace
}  // namespace towline::framing

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  towline::framing::run(data, size);
  return 0;
}
