#include "transports/tcpx/sources/zcrx.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "transports/tcpx/kernel/refill_ring.h"
#include "transports/tcpx/sources/fake_zcrx_ring.h"
#include "transports/tcpx/sources/scripted_zcrx_ring.h"
#include "transports/tcpx/sources/test_support.h"

namespace towline::tcpx {
namespace {

using testing::connected_sockets;
using testing::fake_zcrx_ring;
using testing::pattern;

// ---- the refill ring

class RefillRingTest : public ::testing::Test {
 protected:
  uint32_t& word(std::size_t at) { return *reinterpret_cast<uint32_t*>(region.data() + at); }
  const zcrx::Refill& entry(std::size_t i) const {
    return *reinterpret_cast<const zcrx::Refill*>(region.data() + 64 + i * sizeof(zcrx::Refill));
  }
  alignas(64) std::array<uint8_t, 64 + 4 * sizeof(zcrx::Refill)> region = {};
  zcrx::Offsets offsets = {0, 4, 64, 0, {}};
};

TEST_F(RefillRingTest, EntriesAreWrittenBeforeTheTailAndNoneIsOverwritten) {
  RefillRing ring(region, offsets, 4, uint64_t{3} << 48);
  for (uint32_t i = 0; i < 4; ++i) ASSERT_TRUE(ring.push(uint64_t{i} * 4096, 100 + i));
  EXPECT_FALSE(ring.push(0, 1));
  EXPECT_EQ(word(4), 4u);
  EXPECT_EQ(entry(2).offset, (uint64_t{3} << 48) + 8192);
  EXPECT_EQ(entry(2).bytes, 102u);
  word(0) = 1;  // the kernel took one
  EXPECT_EQ(ring.queued(), 3u);
  EXPECT_TRUE(ring.push(4096 * 9, 7));
  EXPECT_EQ(entry(0).bytes, 7u);
  EXPECT_FALSE(ring.push(0, 1));
}

TEST_F(RefillRingTest, AHeadThatCannotBeIsAFullRing) {
  RefillRing ring(region, offsets, 4, 0);
  word(0) = 1;  // beyond the tail
  EXPECT_EQ(ring.queued(), 4u);
  EXPECT_FALSE(ring.push(0, 1));
  word(0) = UINT32_MAX - 4;
  EXPECT_FALSE(ring.push(0, 1));
  word(0) = 0;
  EXPECT_TRUE(ring.push(0, 1));
}

TEST_F(RefillRingTest, PartsOutsideOfTheRegionAreRefused) {
  for (const zcrx::Offsets& wrong :
       {zcrx::Offsets{128, 4, 64, 0, {}}, zcrx::Offsets{0, UINT32_MAX, 64, 0, {}},
        zcrx::Offsets{2, 4, 64, 0, {}}, zcrx::Offsets{0, 4, 80, 0, {}},
        zcrx::Offsets{0, 4, UINT32_MAX - 7, 0, {}}})
    EXPECT_THROW(RefillRing(region, wrong, 4, 0), core::Error);
  EXPECT_THROW(RefillRing(region, offsets, 3, 0), core::Error);
  EXPECT_THROW(RefillRing(region, offsets, 1u << 31, 0), core::Error);
}

TEST(PlaceInArea, NothingOutsideOfTheAreaIsBelieved) {
  constexpr uint64_t kArea = 1u << 20;
  EXPECT_EQ(place_in_area({0, 4096, true, kArea - 4096}, kArea), kArea - 4096);
  EXPECT_FALSE(place_in_area({0, 4097, true, kArea - 4096}, kArea));
  EXPECT_FALSE(place_in_area({0, 1, true, kArea}, kArea));
  EXPECT_FALSE(place_in_area({0, 0, true, 0}, kArea));
  EXPECT_FALSE(place_in_area({0, -ENOMEM, true, 0}, kArea));
  EXPECT_FALSE(place_in_area({0, 1, true, uint64_t{1} << 48}, kArea));  // of another area
  EXPECT_FALSE(place_in_area({0, INT32_MAX, true, UINT64_MAX - 5}, kArea));
}

// ---- sources over a fake ring

class ZcrxTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kPool = 64u << 10;  // 16 pages

  Polled poll(Source& source, std::size_t most = 1u << 20) {
    const uint64_t until = monotonic_now_ns() + 60 * kSecondNs;
    Polled polled;
    do {
      polled = source.poll(nullptr, most, fragments);
      if (polled.io.status != Status::kAgain || polled.dry) return polled;
      pollfd wake = {source.wakes_by(), POLLIN, 0};
      (void)::poll(&wake, 1, 1000);
    } while (monotonic_now_ns() < until);
    return polled;
  }
  void wait_until_pages_are_back() {
    const uint64_t until = monotonic_now_ns() + 60 * kSecondNs;
    while (seen.pages_out != 0 && monotonic_now_ns() < until) std::this_thread::yield();
    EXPECT_EQ(seen.pages_out, 0u);
    EXPECT_EQ(seen.bad_refills, 0u);
  }

  testing::ZcrxSeen seen;
  std::vector<Fragment> fragments{64};
};

TEST_F(ZcrxTest, APoolThatIsHeldIsDryAndGoesOnWhenPagesComeBack) {
  ZcrxProvider provider(kPool, fake_zcrx_ring(seen));
  auto [writer, reader] = connected_sockets();
  const auto source = provider.make(reader.get());
  const auto sent = pattern(1u << 20);
  std::thread sender([&, fd = writer.get()] { write_fully(fd, sent); });
  std::vector<uint32_t> held;
  std::size_t got = 0;
  std::size_t wrong = 0;
  while (got < sent.size()) {
    const Polled polled = poll(*source);
    if (polled.dry) {
      source->release(held);
      held.clear();
      continue;
    }
    if (polled.io.status != Status::kOk) break;
    for (uint32_t i = 0; i < polled.count; ++i) {
      const uint8_t* const at = source->pools()[0].memory + fragments[i].offset;
      wrong +=
          std::equal(at, at + fragments[i].bytes, sent.begin() + static_cast<std::ptrdiff_t>(got)) ? 0 : 1;
      got += fragments[i].bytes;
      held.push_back(fragments[i].token);
    }
  }
  sender.join();
  EXPECT_EQ(got, sent.size());
  EXPECT_EQ(wrong, 0u);
  EXPECT_GT(seen.refused, 0u);
  source->release(held);
  wait_until_pages_are_back();
  EXPECT_EQ(source->bad_releases(), 0u);
}

TEST_F(ZcrxTest, APageGoesBackWhenEveryPieceOfItWasReleased) {
  ZcrxProvider provider(kPool, fake_zcrx_ring(seen));
  auto [writer, reader] = connected_sockets();
  const auto source = provider.make(reader.get());
  const auto sent = pattern(3);
  write_fully(writer.get(), sent);
  std::vector<Fragment> pieces;
  for (std::size_t got = 0; got < sent.size();) {
    const Polled polled = poll(*source, 1);
    ASSERT_EQ(polled.io.bytes, 1u);
    ASSERT_EQ(source->pools()[0].memory[fragments[0].offset], sent[got++]);
    pieces.push_back(fragments[0]);
  }
  const uint32_t out = seen.pages_out;
  EXPECT_GE(out, 1u);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    EXPECT_EQ(source->pools()[0].memory[pieces[i].offset], sent[i]);
    source->release({&pieces[i].token, 1});
  }
  wait_until_pages_are_back();
}

TEST_F(ZcrxTest, APageOfWhichAPartIsLeftStaysOutWhenItsPiecesAreReleased) {
  ZcrxProvider provider(kPool, fake_zcrx_ring(seen));
  auto [writer, reader] = connected_sockets();
  const auto source = provider.make(reader.get());
  const auto sent = pattern(200);
  write_fully(writer.get(), sent);
  for (const uint8_t byte : sent) {
    ASSERT_EQ(poll(*source, 1).io.bytes, 1u);
    ASSERT_EQ(source->pools()[0].memory[fragments[0].offset], byte);
    source->release({&fragments[0].token, 1});
  }
  wait_until_pages_are_back();
}

TEST_F(ZcrxTest, ATokenThatIsReturnedTwiceOrWasNeverGivenOutChangesNothing) {
  ZcrxProvider provider(kPool, fake_zcrx_ring(seen));
  auto [writer, reader] = connected_sockets();
  const auto source = provider.make(reader.get());
  write_fully(writer.get(), pattern(1));
  ASSERT_EQ(poll(*source).count, 1u);
  const uint32_t tokens[] = {fragments[0].token, fragments[0].token, 31, UINT32_MAX};
  source->release(tokens);
  EXPECT_EQ(source->bad_releases(), 3u);
  wait_until_pages_are_back();
}

// Held, half handed out, arrived and under way: all of it goes back, and another source gets it.
TEST_F(ZcrxTest, ASourceThatEndsGivesItsPagesBack) {
  ZcrxProvider provider(kPool, fake_zcrx_ring(seen));
  for (int round = 0; round < 20; ++round) {
    auto [writer, reader] = connected_sockets();
    auto source = provider.make(reader.get());
    write_fully(writer.get(), pattern(32u << 10));
    ASSERT_EQ(poll(*source, 1).io.bytes, 1u);
    ASSERT_EQ(poll(*source, 5000).io.status, Status::kOk);
    source.reset();
    wait_until_pages_are_back();
  }
}

TEST_F(ZcrxTest, ACompletionOutsideOfTheAreaEndsTheConnection) {
  ZcrxProvider provider(kPool,
                        fake_zcrx_ring(seen, [](ZcrxCompletion& completion) { completion.offset += kPool; }));
  auto [writer, reader] = connected_sockets();
  const auto source = provider.make(reader.get());
  write_fully(writer.get(), pattern(100));
  const Polled polled = poll(*source);
  EXPECT_EQ(polled.count, 0u);
  EXPECT_EQ(polled.io.status, status_from_errno(EPROTO));
}

TEST_F(ZcrxTest, ALastRefusalThatNamesNobodyIsIgnored) {
  ZcrxProvider provider(kPool, fake_zcrx_ring(seen, [](ZcrxCompletion& completion) {
                          if (completion.result == 1) completion.user = 77;
                        }));
  auto [writer, reader] = connected_sockets();
  const auto source = provider.make(reader.get());
  write_fully(writer.get(), pattern(1));
  ::shutdown(writer.get(), SHUT_WR);
  EXPECT_EQ(poll(*source).io.status, Status::kClosed);
}

// Every slot lies with a source that takes none: its end makes room for the others' completions, and for its own last one.
TEST_F(ZcrxTest, ASourceThatEndsWithEverySlotGivesThemToTheOthers) {
  testing::ZcrxScript script;
  ZcrxProvider provider(16u << 10, [&](std::span<uint8_t> area, uint32_t) {
    return std::make_unique<testing::ScriptedZcrxRing>(script, area.size());
  });
  auto [writer, reader] = connected_sockets();
  auto idle = provider.make(reader.get());
  const auto other = provider.make(reader.get());
  const uint64_t until = monotonic_now_ns() + 60 * kSecondNs;
  while (script.received < 2 && monotonic_now_ns() < until) std::this_thread::yield();
  for (uint64_t piece = 0; piece < 12; ++piece)
    script.add({{piece < 10 ? 0u : 1u, 512, true, piece * 512}, false});
  script.wake();
  while (script.pieces_out() < 8 && monotonic_now_ns() < until) std::this_thread::yield();
  EXPECT_EQ(script.pieces_out(), 8u);  // as many as there are slots
  idle.reset();
  std::size_t got = 0;
  while (got < 1024 && monotonic_now_ns() < until) {
    const Polled polled = poll(*other);
    if (polled.io.status != Status::kOk) continue;
    got += polled.io.bytes;
    for (uint32_t i = 0; i < polled.count; ++i) other->release({&fragments[i].token, 1});
  }
  EXPECT_EQ(got, 1024u);
  while (script.pieces_out() != 0 && monotonic_now_ns() < until) std::this_thread::yield();
  EXPECT_EQ(script.pieces_out(), 0u);
  EXPECT_EQ(script.bad_refills, 0u);
}

TEST_F(ZcrxTest, ARingThatBreaksEndsEveryConnectionOfIt) {
  testing::ZcrxScript script;
  ZcrxProvider provider(kPool, [&](std::span<uint8_t> area, uint32_t) {
    return std::make_unique<testing::ScriptedZcrxRing>(script, area.size());
  });
  auto [writer, reader] = connected_sockets();
  const auto one = provider.make(reader.get());
  const auto other = provider.make(reader.get());
  script.add({{}, true});
  script.wake();
  EXPECT_EQ(poll(*one).io.status, status_from_errno(EIO));
  EXPECT_EQ(poll(*other).io.status, status_from_errno(EIO));
}

TEST_F(ZcrxTest, AKernelThatRefusesIsNamedWithItsReason) {
  try {
    const ZcrxProvider provider(kPool, [](std::span<uint8_t>, uint32_t) -> std::unique_ptr<ZcrxRing> {
      fail(Status::kUnsupported, "no such ring");
    });
    FAIL() << "a ring that can't be opened was used";
  } catch (const core::Error& error) {
    EXPECT_NE(error.message().find("no such ring"), std::string::npos) << error.message();
  }
}

// On kernels that have it this is a real ring; on others the test checks the reason given.
TEST_F(ZcrxTest, TheKernelsOwnRingMovesBytesOrSaysWhyNot) {
  std::optional<ZcrxProvider> provider;
  try {
    provider.emplace(kPool, [](std::span<uint8_t> area, uint32_t refills) {
      return open_zcrx_ring(area, {0, 0, refills});
    });
  } catch (const core::Error& error) {
    const std::string& why = error.message();
    EXPECT_TRUE(why.find("needs Linux") != std::string::npos || why.find("liburing") != std::string::npos)
        << why;
    return;
  }
  auto [writer, reader] = connected_sockets();
  const auto source = provider->make(reader.get());
  write_fully(writer.get(), pattern(10000));
  std::size_t got = 0;
  while (got < 10000) {
    const Polled polled = poll(*source);
    ASSERT_EQ(polled.io.status, Status::kOk);
    got += polled.io.bytes;
  }
}

}  // namespace
}  // namespace towline::tcpx
