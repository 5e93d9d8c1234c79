// Payload is received without an allocation: lists, tokens and pieces have their room from the beginning. Counts those of
// the whole program.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <thread>

#include "support/failing_allocations.h"
#include "transports/tcpx/payload_socket.h"
#include "transports/tcpx/sources/emulated.h"
#include "transports/tcpx/sources/fake_zcrx_ring.h"
#include "transports/tcpx/sources/mapped.h"
#include "transports/tcpx/sources/test_support.h"
#include "transports/tcpx/sources/zcrx.h"

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

namespace {

thread_local uint64_t allocations = 0;  // of this thread

}  // namespace

void* operator new(std::size_t bytes) {
  ++allocations;
  void* const memory = towline::support::allocation_fails() ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new[](std::size_t bytes) { return operator new(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace towline::tcpx {
namespace {

// Every pool is within reach.
class Reaching final : public framing::Lander {
 public:
  [[nodiscard]] uint8_t* slot(framing::Way, uint32_t) const noexcept override { return nullptr; }
  [[nodiscard]] Status ready(uint64_t) noexcept override { return Status::kOk; }
  [[nodiscard]] Status begin(framing::Way, uint32_t, uint64_t, std::span<const framing::LandingPiece>,
                             int32_t&) noexcept override {
    return Status::kOk;
  }
  [[nodiscard]] Status poll(framing::Way, uint32_t, uint64_t, int32_t&) noexcept override {
    return Status::kOk;
  }
  [[nodiscard]] Status reach(void*, uint64_t) noexcept override { return Status::kOk; }
};

class TcpxAllocations : public ::testing::Test {
 protected:
  void receive(Provider& provider) {
    auto [writer, reader] = testing::connected_sockets();
    PayloadSocket flow(1, true, nullptr);
    auto source = provider.make(reader.get());
    flow.attach(std::move(reader), std::move(source));
    Reaching lander;
    flow.offer(lander, 0);
    constexpr std::size_t kFrame = 64u << 10;
    const auto sent = testing::pattern(kFrame);
    std::vector<uint8_t> staging(kFrame);
    std::vector<uint8_t> host(kFrame);
    uint64_t before = 0;
    for (int frame = 0; frame < 40; ++frame) {
      if (frame == 8) before = allocations;
      write_fully(writer.get(), sent);
      iovec into = {host.data(), kFrame};
      for (std::size_t got = 0; got < kFrame;) {
        const framing::IoResult result =
            frame % 2 == 0 ? flow.collect(0, staging.data(), kFrame - got) : flow.read({&into, 1});
        ASSERT_TRUE(result.status == Status::kOk || result.status == Status::kAgain);
        got += result.bytes;
        into = {host.data() + got, kFrame - got};
      }
      flow.release(0);
    }
    EXPECT_EQ(allocations - before, 0u);
  }
};

TEST_F(TcpxAllocations, NoneForAFrameOfFragmentsOfAPool) {
  EmulatedProvider provider({1u << 20, 3, true});
  receive(provider);
}
TEST_F(TcpxAllocations, NoneForAFrameThatIsMapped) {
  MappedProvider provider;
  receive(provider);
}
TEST_F(TcpxAllocations, NoneForAFrameOfIoUring) {
  testing::ZcrxSeen seen;
  ZcrxProvider provider(1u << 20, testing::fake_zcrx_ring(seen));
  receive(provider);
}
TEST_F(TcpxAllocations, NoneForTheEndOfASourceOfIoUring) {
  testing::ZcrxSeen seen;
  ZcrxProvider provider(1u << 20, testing::fake_zcrx_ring(seen));
  auto [writer, reader] = testing::connected_sockets();
  auto source = provider.make(reader.get());
  support::fail_allocations();
  source.reset();
  EXPECT_TRUE(support::stop_failing());
}

}  // namespace
}  // namespace towline::tcpx

#endif
