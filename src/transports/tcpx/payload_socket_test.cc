// The flow above a source that a test scripts: what it holds, what it copies, what it refuses.
#include "transports/tcpx/payload_socket.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

#include <cstring>
#include <deque>
#include <optional>
#include <set>

#include "base/os/memfd.h"
#include "transports/tcpx/sources/test_support.h"

namespace towline::tcpx {
namespace {

using framing::IoResult;

constexpr std::size_t kPoolBytes = 64u << 10;

// A GPU's memory: no processor reads it where the pool says it is, and this reads it elsewhere.
class GuardedMemory final : public PoolReader {
 public:
  explicit GuardedMemory(std::span<const uint8_t> content)
      : file_(create_memfd("guarded", content.size())),
        mine_(Mapping::map_shared(file_.get(), content.size(), MapAccess::kReadWrite)),
        pools_(Mapping::map_shared(file_.get(), content.size(), MapAccess::kRead)) {
    std::copy(content.begin(), content.end(), mine_.address());
    EXPECT_EQ(::mprotect(pools_.address(), pools_.bytes(), PROT_NONE), 0);
  }
  [[nodiscard]] uint64_t device() const noexcept override { return 0; }
  [[nodiscard]] Status reach(framing::Lander&) noexcept override { return Status::kOk; }
  [[nodiscard]] Status read(std::span<const towline_landing_piece> pieces, uint8_t* to,
                            int32_t& vendor_code) noexcept override {
    ++reads;
    if (fails != 0) {
      vendor_code = fails;
      return Status::kIo;
    }
    for (const auto& [address, bytes] : pieces) {
      std::memcpy(to, mine_.address() + (address - reinterpret_cast<uint64_t>(pools_.address())), bytes);
      to += bytes;
    }
    return Status::kOk;
  }
  [[nodiscard]] Pool pool() noexcept { return {pools_.address(), pools_.bytes(), false, this}; }

  int32_t fails = 0;  // a vendor's code
  uint32_t reads = 0;

 private:
  const UniqueFd file_;
  const Mapping mine_;
  const Mapping pools_;
};

// Hands over what the test lines up, and checks that tokens come back once.
class ScriptedSource final : public Source {
 public:
  explicit ScriptedSource(uint32_t tokens) : limit_(tokens), memory_(testing::pattern(kPoolBytes)) {
    pool_ = {memory_.data(), memory_.size(), true};
  }

  Polled poll(uint8_t* linear, std::size_t most, std::span<Fragment> out) noexcept override {
    asked = most;
    if (held.size() >= limit_) return {IoResult::again(), 0, true};
    Polled polled = {IoResult::again(), 0, false};
    while (!script.empty() && polled.count < out.size() && held.size() < limit_) {
      const Fragment fragment = script.front();
      if (honest && fragment.bytes > most - polled.io.bytes) break;
      script.pop_front();
      out[polled.count++] = fragment;
      if (fragment.linear) {
        std::fill_n(linear, fragment.bytes, uint8_t{0xEE});
        linear += fragment.bytes;
      } else {
        held.insert(fragment.token);
      }
      polled.io.status = Status::kOk;
      polled.io.bytes += fragment.bytes;
    }
    polled.io.bytes += lie;
    most_held = std::max(most_held, held.size());
    return polled;
  }
  void release(std::span<const uint32_t> tokens) noexcept override {
    for (const uint32_t token : tokens) EXPECT_EQ(held.erase(token), 1u) << "token " << token;
    ++releases;
  }
  [[nodiscard]] std::span<const Pool> pools() const noexcept override { return {&pool_, 1}; }
  [[nodiscard]] uint32_t tokens() const noexcept override { return limit_; }
  [[nodiscard]] const char* name() const noexcept override { return "scripted"; }

  void lie_in(GuardedMemory& memory) { pool_ = memory.pool(); }
  [[nodiscard]] const std::vector<uint8_t>& content() const noexcept { return memory_; }

  // Fragments of `bytes` each, a page apart, wrapping around the pool.
  void line_up(uint32_t count, uint32_t bytes) {
    for (uint32_t i = 0; i < count; ++i, ++made_)
      script.push_back({made_ % (kPoolBytes / 4096) * 4096, bytes, made_, 0, false});
  }

  std::deque<Fragment> script;
  std::set<uint32_t> held;
  std::size_t most_held = 0;
  std::size_t asked = 0;
  uint64_t lie = 0;
  uint32_t releases = 0;
  bool honest = true;

 private:
  const uint32_t limit_;
  std::vector<uint8_t> memory_;
  Pool pool_;
  uint32_t made_ = 0;
};

// Takes any pool, or none.
class ReachingLander final : public framing::Lander {
 public:
  explicit ReachingLander(bool reaches) : reaches_(reaches) {}
  [[nodiscard]] uint8_t* slot(framing::Way, uint32_t) const noexcept override { return nullptr; }
  [[nodiscard]] Status ready(uint64_t) noexcept override { return Status::kOk; }
  [[nodiscard]] Status begin(framing::Way, uint32_t, uint64_t, std::span<const framing::LandingPiece>,
                             int32_t&) noexcept override {
    return Status::kOk;
  }
  [[nodiscard]] Status poll(framing::Way, uint32_t, uint64_t, int32_t&) noexcept override {
    return Status::kOk;
  }
  [[nodiscard]] Status reach(void*, uint64_t) noexcept override {
    return reaches_ ? Status::kOk : Status::kUnsupported;
  }

 private:
  const bool reaches_;
};

class PayloadSocketTest : public ::testing::Test {
 protected:
  // `device`: the GPU that frames are for.
  void open_on_gpu(uint32_t tokens, uint64_t device) {
    auto made = std::make_unique<ScriptedSource>(tokens);
    guarded.emplace(made->content());
    made->lie_in(*guarded);
    open(std::move(made), true, device);
  }
  void open(uint32_t tokens, bool reaches = true) {
    open(std::make_unique<ScriptedSource>(tokens), reaches, 0);
  }
  void open(std::unique_ptr<ScriptedSource> made, bool reaches, uint64_t device) {
    source = made.get();
    flow.attach(UniqueFd(eventfd(0, EFD_CLOEXEC)), std::move(made));
    lander = std::make_unique<ReachingLander>(reaches);
    flow.offer(*lander, device);
    staging.assign(1u << 20, 0);
  }
  // As the engine does; false where nothing came.
  bool collect(uint32_t slot, std::size_t frame_bytes) {
    const std::size_t done = collected[slot];
    const IoResult result = flow.collect(slot, staging.data() + done, frame_bytes - done);
    if (result.status == Status::kOk) collected[slot] += result.bytes;
    return result.status == Status::kOk;
  }
  // A frame's bytes as a GPU would find them.
  std::vector<uint8_t> bytes_of(uint32_t slot) {
    std::vector<uint8_t> bytes;
    for (const auto& [address, count] : flow.fragments(slot)) {
      const auto* const from = reinterpret_cast<const uint8_t*>(address);
      bytes.insert(bytes.end(), from, from + count);
    }
    return bytes;
  }

  // The content of fragments that were lined up from page `first` on.
  [[nodiscard]] std::vector<uint8_t> content(uint32_t first, uint32_t count, uint32_t bytes) const {
    std::vector<uint8_t> all;
    for (uint32_t i = first; i < first + count; ++i) {
      const uint8_t* const page = source->content().data() + std::size_t{i} * 4096;
      all.insert(all.end(), page, page + bytes);
    }
    return all;
  }

  std::optional<GuardedMemory> guarded;
  PayloadSocket flow{16384, true, nullptr};
  std::unique_ptr<framing::Lander> lander;
  ScriptedSource* source = nullptr;
  std::vector<uint8_t> staging;
  std::size_t collected[framing::kLandingSlots] = {};
};

TEST_F(PayloadSocketTest, FragmentsAreHeldUntilTheFrameIsReleased) {
  open(64);
  source->line_up(8, 1000);
  ASSERT_TRUE(collect(0, 8000));
  EXPECT_EQ(collected[0], 8000u);
  EXPECT_EQ(flow.fragments(0).size(), 8u);
  EXPECT_EQ(source->held.size(), 8u);
  EXPECT_EQ(flow.statistics().copied_bytes, 0u);
  flow.release(0);
  EXPECT_TRUE(source->held.empty());
  EXPECT_EQ(source->releases, 1u);  // all in one call
  EXPECT_EQ(flow.held(), 0u);
}

TEST_F(PayloadSocketTest, NeighboursInThePoolBecomeOneFragment) {
  open(64);
  source->line_up(4, 4096);
  ASSERT_TRUE(collect(0, 16384));
  EXPECT_EQ(flow.fragments(0).size(), 1u);
  EXPECT_EQ(source->held.size(), 4u);
  flow.release(0);
  EXPECT_TRUE(source->held.empty());
}

TEST_F(PayloadSocketTest, LinearPiecesBetweenFragmentsKeepTheirPlace) {
  open(64);
  source->line_up(1, 100);
  source->script.push_back({0, 50, 0, 0, true});
  source->line_up(1, 100);
  ASSERT_TRUE(collect(0, 250));
  const std::vector<uint8_t> got = bytes_of(0);
  ASSERT_EQ(got.size(), 250u);
  const std::vector<uint8_t> pool = testing::pattern(kPoolBytes);
  EXPECT_TRUE(std::equal(got.begin(), got.begin() + 100, pool.begin()));
  EXPECT_EQ(std::count(got.begin() + 100, got.begin() + 150, 0xEE), 50);
  EXPECT_TRUE(std::equal(got.begin() + 150, got.end(), pool.begin() + 4096));
  flow.release(0);
}

TEST_F(PayloadSocketTest, APoolThatRunsDryMakesProgressByCopyAndRelease) {
  open(6);
  source->line_up(40, 1000);
  for (int i = 0; i < 100 && collected[0] < 40000; ++i) (void)collect(0, 40000);
  ASSERT_EQ(collected[0], 40000u);
  EXPECT_GT(flow.statistics().copied_bytes, 0u);
  EXPECT_LE(source->most_held, 6u);
  const std::vector<uint8_t> pool = testing::pattern(kPoolBytes);
  const std::vector<uint8_t> got = bytes_of(0);
  ASSERT_EQ(got.size(), 40000u);
  for (std::size_t i = 0; i < 40; ++i)
    ASSERT_TRUE(std::equal(got.begin() + static_cast<std::ptrdiff_t>(i * 1000),
                           got.begin() + static_cast<std::ptrdiff_t>(i * 1000 + 1000),
                           pool.begin() + static_cast<std::ptrdiff_t>(i % 16 * 4096)))
        << "fragment " << i;
  flow.release(0);
  EXPECT_TRUE(source->held.empty());
}

TEST_F(PayloadSocketTest, FramesThatAGpuCopiesHoldAtMostHalfOfTheTokensAndTheNextIsCopiedOut) {
  open(16);
  source->line_up(7, 1000);
  ASSERT_TRUE(collect(0, 7000));
  source->line_up(6, 1000);
  ASSERT_TRUE(collect(1, 6000));
  EXPECT_EQ(source->held.size(), 7u);  // slot 0's
  EXPECT_EQ(flow.fragments(1).size(), 1u);
  EXPECT_EQ(bytes_of(1).size(), 6000u);
  flow.release(1);
  flow.release(0);
  EXPECT_TRUE(source->held.empty());
}

TEST_F(PayloadSocketTest, WhatAGpuCannotReachIsCopiedToStagingMemory) {
  open(64, false);
  source->line_up(5, 1000);
  ASSERT_TRUE(collect(0, 5000));
  EXPECT_TRUE(source->held.empty());
  ASSERT_EQ(flow.fragments(0).size(), 1u);
  EXPECT_EQ(flow.fragments(0)[0].address, reinterpret_cast<uint64_t>(staging.data()));
}

TEST_F(PayloadSocketTest, SlotsAreReleasedOutOfOrder) {
  open(64);
  source->line_up(4, 1000);
  ASSERT_TRUE(collect(0, 4000));
  source->line_up(4, 1000);
  ASSERT_TRUE(collect(1, 4000));
  flow.release(1);
  EXPECT_EQ(source->held.size(), 4u);
  source->line_up(2, 1000);
  ASSERT_TRUE((collected[1] = 0, collect(1, 2000)));
  flow.release(0);
  EXPECT_EQ(source->held.size(), 2u);
  flow.release(1);
  EXPECT_TRUE(source->held.empty());
}

TEST_F(PayloadSocketTest, MoreFragmentsThanAListHoldsAreCopiedOut) {
  open(100000);
  for (int i = 0; i < 40; ++i) source->line_up(100, 7);
  for (int i = 0; i < 100 && collected[0] < 28000; ++i) (void)collect(0, 28000);
  ASSERT_EQ(collected[0], 28000u);
  EXPECT_LE(flow.fragments(0).size(), std::size_t{TOWLINE_LANDING_MOST_PIECES});
  EXPECT_EQ(bytes_of(0).size(), 28000u);
  flow.release(0);
  EXPECT_TRUE(source->held.empty());
}

TEST_F(PayloadSocketTest, HostMemoryIsFilledAcrossItsPiecesAndNothingStaysHeld) {
  open(64);
  source->line_up(3, 1000);
  source->script.push_back({0, 10, 0, 0, true});
  std::vector<uint8_t> to(3010);
  const iovec pieces[] = {{to.data(), 1500}, {to.data() + 1500, 1}, {to.data() + 1501, 1509}};
  const IoResult result = flow.read(pieces);
  ASSERT_EQ(result.bytes, 3010u);
  const std::vector<uint8_t> pool = testing::pattern(kPoolBytes);
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_TRUE(std::equal(to.begin() + static_cast<std::ptrdiff_t>(i * 1000),
                           to.begin() + static_cast<std::ptrdiff_t>(i * 1000 + 1000),
                           pool.begin() + static_cast<std::ptrdiff_t>(i * 4096)));
  EXPECT_EQ(to.back(), 0xEE);
  EXPECT_TRUE(source->held.empty());
}

TEST_F(PayloadSocketTest, FragmentsLongerThanAskedAreRefused) {
  open(64);
  source->honest = false;
  source->line_up(2, 3000);
  const IoResult result = flow.collect(0, staging.data(), 5000);
  EXPECT_EQ(result.status, Status::kProtocol);
  EXPECT_TRUE(source->held.empty()) << "what was refused stays held";
}

TEST_F(PayloadSocketTest, FragmentsOfUnknownPoolsOrBeyondTheirEndAreRefused) {
  open(64);
  source->script.push_back({0, 100, 1, 3, false});
  EXPECT_EQ(flow.drop(1000).status, Status::kProtocol);
  source->script.push_back({kPoolBytes - 50, 100, 1, 0, false});
  EXPECT_EQ(flow.drop(1000).status, Status::kProtocol);
  source->script.push_back({UINT64_MAX - 10, 100, 1, 0, false});
  EXPECT_EQ(flow.drop(1000).status, Status::kProtocol);
  source->lie = 1;
  source->line_up(1, 100);
  EXPECT_EQ(flow.drop(1000).status, Status::kProtocol);
  EXPECT_TRUE(source->held.empty());
}

TEST_F(PayloadSocketTest, APeerThatIsGoneLeavesNoTokenHeld) {
  open(64);
  source->line_up(4, 1000);
  ASSERT_TRUE(collect(0, 8000));
  flow.abandon();
  EXPECT_EQ(flow.collect(0, staging.data() + 4000, 4000).status, Status::kClosed);
  EXPECT_EQ(source->held.size(), 4u);  // a GPU may be reading them
  flow.release(0);
  EXPECT_TRUE(source->held.empty());
}

TEST(PayloadSocketAlone, NothingMovesBeforeTheSocketIsThere) {
  PayloadSocket flow(16384, true, nullptr);
  EXPECT_FALSE(flow.open());
  uint8_t byte = 0;
  const iovec piece = {&byte, 1};
  EXPECT_EQ(flow.read({&piece, 1}).status, Status::kAgain);
}

// ---- pools on a GPU: a processor that touches one faults

TEST_F(PayloadSocketTest, FragmentsOnAGpuStayWhereTheyAreForThatGpu) {
  open_on_gpu(64, 0);
  source->line_up(8, 1000);
  ASSERT_TRUE(collect(0, 8000));
  EXPECT_EQ(flow.fragments(0).size(), 8u);
  EXPECT_EQ(source->held.size(), 8u);
  EXPECT_EQ(guarded->reads, 0u);
  flow.release(0);
  EXPECT_EQ(flow.held(), 0u);
}

TEST_F(PayloadSocketTest, FragmentsOnAGpuAreReadByItForHostMemory) {
  open_on_gpu(64, 0);
  source->line_up(2, 1000);
  source->script.push_back({0, 500, 0, 0, true});
  source->line_up(2, 1000);
  std::vector<uint8_t> first(1700);
  std::vector<uint8_t> second(2800);
  const iovec pieces[] = {{first.data(), first.size()}, {second.data(), second.size()}};
  ASSERT_EQ(flow.read(pieces).bytes, 4500u);
  std::vector<uint8_t> got = first;
  got.insert(got.end(), second.begin(), second.end());
  std::vector<uint8_t> expected = content(0, 2, 1000);
  expected.insert(expected.end(), 500, 0xEE);
  const auto rest = content(2, 2, 1000);
  expected.insert(expected.end(), rest.begin(), rest.end());
  EXPECT_EQ(got, expected);
  EXPECT_EQ(guarded->reads, 1u) << "in one go";
  EXPECT_EQ(flow.statistics().fetched_bytes, 4000u);
  EXPECT_TRUE(source->held.empty());
}

TEST_F(PayloadSocketTest, FragmentsOnAGpuAreReadByItForAnotherGpu) {
  open_on_gpu(64, 1);
  source->line_up(8, 1000);
  ASSERT_TRUE(collect(0, 8000));
  EXPECT_EQ(bytes_of(0), content(0, 8, 1000));
  EXPECT_TRUE(source->held.empty());
  EXPECT_EQ(flow.statistics().copied_bytes, 8000u);
}

TEST_F(PayloadSocketTest, APoolOnAGpuThatRunsDryIsReadAndReleased) {
  open_on_gpu(6, 0);
  source->line_up(2, 700);
  source->script.push_back({0, 300, 0, 0, true});
  source->line_up(12, 700);
  while (collected[0] < 14 * 700 + 300)
    ASSERT_TRUE(collect(0, 14 * 700 + 300) || source->held.size() <= 6) << collected[0];
  std::vector<uint8_t> expected = content(0, 2, 700);
  expected.insert(expected.end(), 300, 0xEE);
  const auto rest = content(2, 12, 700);
  expected.insert(expected.end(), rest.begin(), rest.end());
  EXPECT_LE(source->most_held, 6u);
  flow.release(0);
  EXPECT_TRUE(source->held.empty());
  EXPECT_GT(guarded->reads, 0u);
  EXPECT_TRUE(std::equal(expected.begin(), expected.begin() + 700 * 2 + 300, staging.begin()));
}

TEST_F(PayloadSocketTest, AGpuThatCannotReadItsPoolEndsTheFlowAndNoTokenIsLost) {
  open_on_gpu(8, 1);
  guarded->fails = 700;
  source->line_up(4, 1000);
  const IoResult collecting = flow.collect(0, staging.data(), 4000);
  EXPECT_EQ(collecting.status, Status::kIo);
  EXPECT_EQ(collecting.vendor_code, 700);
  flow.release(0);
  EXPECT_TRUE(source->held.empty());
  source->line_up(4, 1000);
  const iovec piece = {staging.data(), 4000};
  EXPECT_EQ(flow.read({&piece, 1}).status, Status::kIo);
  EXPECT_TRUE(source->held.empty());
  EXPECT_EQ(flow.held(), 0u);
}

}  // namespace
}  // namespace towline::tcpx
