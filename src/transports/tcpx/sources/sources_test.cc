// Every source that a machine has by itself gives the stream's bytes, in order, in fragments that hold still until they
// are released.
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/random.h"
#include "transports/tcpx/sources/copy.h"
#include "transports/tcpx/sources/emulated.h"
#include "transports/tcpx/sources/fake_zcrx_ring.h"
#include "transports/tcpx/sources/mapped.h"
#include "transports/tcpx/sources/test_support.h"
#include "transports/tcpx/sources/zcrx.h"

namespace towline::tcpx {
namespace {

using testing::connected_sockets;
using testing::pattern;

struct Kind {
  const char* name;
  std::function<std::unique_ptr<Source>(int socket)> make;
};
void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

// With the ring and the thread that it stands on.
class ZcrxAlone final : public Source {
 public:
  explicit ZcrxAlone(int socket)
      : provider_(256u << 10, testing::fake_zcrx_ring(seen_)), source_(provider_.make(socket)) {}
  Polled poll(uint8_t* linear, std::size_t most, std::span<Fragment> out) noexcept override {
    return source_->poll(linear, most, out);
  }
  void release(std::span<const uint32_t> tokens) noexcept override { source_->release(tokens); }
  [[nodiscard]] std::span<const Pool> pools() const noexcept override { return source_->pools(); }
  [[nodiscard]] uint32_t tokens() const noexcept override { return source_->tokens(); }
  [[nodiscard]] const char* name() const noexcept override { return source_->name(); }
  [[nodiscard]] uint64_t bad_releases() const noexcept override { return source_->bad_releases(); }
  [[nodiscard]] int wakes_by() const noexcept override { return source_->wakes_by(); }

 private:
  testing::ZcrxSeen seen_;
  ZcrxProvider provider_;
  std::unique_ptr<Source> source_;
};

const Kind kKinds[] = {
    {"copy", [](int socket) { return std::make_unique<CopySource>(socket); }},
    {"zcrx", [](int socket) { return std::make_unique<ZcrxAlone>(socket); }},
    {"mapped", [](int socket) { return std::make_unique<MappedSource>(socket); }},
    {"emulated",
     [](int socket) {
       return std::make_unique<EmulatedSource>(socket, EmulatedOptions{1u << 20, 7, true});
     }},
    {"emulated_pages",
     [](int socket) {
       return std::make_unique<EmulatedSource>(socket, EmulatedOptions{1u << 20, 7, false});
     }},
    {"emulated_tiny",
     [](int socket) {
       return std::make_unique<EmulatedSource>(socket, EmulatedOptions{16384, 9, true});
     }},
};

class SourceTest : public ::testing::TestWithParam<Kind> {};

// Held fragments are compared when they are released, long after they came.
struct Held {
  Fragment fragment;
  std::size_t at;  // in the stream
};

TEST_P(SourceTest, GivesEveryByteOnceInOrderAndFragmentsHoldStill) {
  constexpr std::size_t kBytes = 3u << 20;
  const std::vector<uint8_t> sent = pattern(kBytes);
  auto [writer, reader] = connected_sockets();
  std::thread sender([&, fd = writer.get()] {
    write_fully(fd, sent);
    ::shutdown(fd, SHUT_WR);
  });
  const std::unique_ptr<Source> source = GetParam().make(reader.get());
  Random random(3);
  std::vector<uint8_t> linear(256u << 10);
  std::vector<Fragment> fragments(64);
  std::deque<Held> held;
  std::size_t got = 0;
  std::size_t wrong = 0;
  const auto same = [&](const uint8_t* data, std::size_t at, std::size_t bytes) {
    wrong += std::equal(data, data + bytes, sent.begin() + static_cast<std::ptrdiff_t>(at)) ? 0 : 1;
  };
  const auto give_back = [&](std::size_t left) {
    while (held.size() > left) {
      const Held oldest = held.front();
      held.pop_front();
      same(source->pools()[oldest.fragment.pool].memory + oldest.fragment.offset, oldest.at,
           oldest.fragment.bytes);
      source->release({&oldest.fragment.token, 1});
    }
  };
  for (bool open = true; open;) {
    const std::size_t most = random.between(1, linear.size());
    const Polled polled = source->poll(linear.data(), most, fragments);
    if (polled.dry) give_back(held.size() / 2);
    if (polled.io.status == Status::kAgain) {
      pollfd wake = {source->wakes_by() >= 0 ? source->wakes_by() : reader.get(), POLLIN, 0};
      if (!polled.dry) {
        ASSERT_EQ(::poll(&wake, 1, 60'000), 1) << "nothing woke the reader";
      }
      continue;
    }
    open = polled.io.status == Status::kOk;
    EXPECT_TRUE(open || polled.io.status == Status::kClosed)
        << status_text(polled.io.status) << " " << polled.io.vendor_code;
    ASSERT_LE(polled.io.bytes, most);
    std::size_t at_linear = 0;
    for (uint32_t i = 0; i < polled.count; ++i) {
      const Fragment& fragment = fragments[i];
      ASSERT_NE(fragment.bytes, 0u);
      ASSERT_LE(got + fragment.bytes, kBytes);
      if (fragment.linear) {
        same(linear.data() + at_linear, got, fragment.bytes);
        at_linear += fragment.bytes;
      } else {
        held.push_back({fragment, got});
      }
      got += fragment.bytes;
    }
  }
  give_back(0);
  sender.join();
  EXPECT_EQ(got, kBytes);
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(source->bad_releases(), 0u);
}

TEST_P(SourceTest, AnEndedSocketIsReported) {
  auto [writer, reader] = connected_sockets();
  const std::unique_ptr<Source> source = GetParam().make(reader.get());
  writer.reset();
  std::vector<uint8_t> linear(8192);
  std::vector<Fragment> fragments(8);
  Polled polled;
  const Deadline deadline = Deadline::after(monotonic_now_ns(), 10 * kSecondNs);
  do {
    polled = source->poll(linear.data(), linear.size(), fragments);
  } while (polled.io.status == Status::kAgain && monotonic_now_ns() < deadline.ns());
  EXPECT_EQ(polled.io.status, Status::kClosed);
}

INSTANTIATE_TEST_SUITE_P(All, SourceTest, ::testing::ValuesIn(kKinds),
                         [](const auto& made) { return std::string(made.param.name); });

TEST(Emulated, APoolThatIsHeldReceivesNothingUntilSomethingIsReleased) {
  auto [writer, reader] = connected_sockets();
  write_fully(writer.get(), pattern(64u << 10));
  EmulatedSource source(reader.get(), {16384, 5, false});
  ASSERT_EQ(source.tokens(), 4u);
  std::vector<uint8_t> linear(64u << 10);
  std::vector<Fragment> fragments(64);
  Polled polled;
  do {
    polled = source.poll(linear.data(), linear.size(), fragments);
  } while (polled.io.status == Status::kAgain && !polled.dry);
  ASSERT_EQ(polled.io.bytes, 16384u);
  EXPECT_TRUE(source.poll(linear.data(), linear.size(), fragments).dry);
  const uint32_t one = fragments[2].token;
  source.release({&one, 1});
  const Polled again = source.poll(linear.data(), linear.size(), fragments);
  EXPECT_EQ(again.io.bytes, 4096u);
  EXPECT_EQ(fragments[0].token, one);
}

TEST(Emulated, ATokenThatIsReturnedTwiceOrWasNeverGivenOutChangesNothing) {
  auto [writer, reader] = connected_sockets();
  write_fully(writer.get(), pattern(4096));
  EmulatedSource source(reader.get(), {16384, 5, false});
  std::vector<uint8_t> linear(4096);
  std::vector<Fragment> fragments(8);
  Polled polled;
  do {
    polled = source.poll(linear.data(), linear.size(), fragments);
  } while (polled.io.status == Status::kAgain);
  const uint32_t tokens[] = {fragments[0].token, fragments[0].token, 77};
  source.release(tokens);
  EXPECT_EQ(source.free_pages(), 4u);
  EXPECT_EQ(source.bad_releases(), 2u);
}

TEST(Emulated, TheSeedDecidesWhatComes) {
  std::string seen[3];
  for (int run = 0; run < 3; ++run) {
    auto [writer, reader] = connected_sockets();
    write_fully(writer.get(), pattern(32u << 10));
    ::shutdown(writer.get(), SHUT_WR);
    EmulatedSource source(reader.get(), {1u << 20, run == 2 ? 12u : 11u, true});
    std::vector<uint8_t> linear(64u << 10);
    std::vector<Fragment> fragments(16);
    const Polled polled = source.poll(linear.data(), linear.size(), fragments);
    for (uint32_t i = 0; i + 1 < polled.count; ++i) seen[run] += std::to_string(fragments[i].offset) + " ";
  }
  EXPECT_EQ(seen[0], seen[1]);
  EXPECT_NE(seen[0], seen[2]);
}

TEST(Mapped, ASocketThatCannotBeMappedIsRefusedWithTheReason) {
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  const UniqueFd a(pair[0]);
  const UniqueFd b(pair[1]);
  try {
    const MappedSource source(a.get());
    FAIL() << "a Unix socket was mapped";
  } catch (const core::Error& error) {
    EXPECT_NE(error.message().find("TCP_ZEROCOPY_RECEIVE"), std::string::npos) << error.message();
  }
}

}  // namespace
}  // namespace towline::tcpx
