// An acceptor that runs out of memory once the core has taken the connection. Replaces the program's
// operator new, to fail when a test says so.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "transports/tcp/plugin.h"
#include "transports/tcp/test_support.h"

namespace {

thread_local bool out_of_memory = false;

}  // namespace

void* operator new(std::size_t bytes) {
  void* const memory = out_of_memory ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
  if (memory != nullptr) return memory;
  out_of_memory = false;  // once
  throw std::bad_alloc();
}
// A sanitizer's own would give memory that must not come to this free.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  try {
    return operator new(bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace towline::tcp {
namespace {

using towline::testing::FakeAgent;
using towline::testing::FakeLink;
using towline::testing::turn_until;

TEST(TcpAccept, AConnectionThatTheCoreHasTakenLivesUntilItDisconnects) {
  FakeAgent a(towline_tcp_plugin(), "a", {{"tcp.listen", "127.0.0.1:0"}});
  FakeAgent b(towline_tcp_plugin(), "b", {{"tcp.listen", "127.0.0.1:0"}});
  b.on_accepted = [] { out_of_memory = true; };
  const FakeLink& link = a.connect(b);
  const auto told = [&] { return b.accepted_link() != nullptr && b.accepted_link()->downs == 1; };
  ASSERT_TRUE(turn_until({&a, &b}, told));
  EXPECT_EQ(b.accepted_link()->status, Status::kOutOfMemory);
  b.on_accepted = nullptr;
  ASSERT_TRUE(turn_until({&a, &b}, [&] { return link.downs == 1; }));
  b.disconnect(*b.accepted_link());
  const FakeLink& next = a.connect(b);
  EXPECT_TRUE(turn_until({&a, &b}, [&] { return next.ups == 1; })) << next.text;
}

}  // namespace
}  // namespace towline::tcp
