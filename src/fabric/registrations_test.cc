#include "fabric/registrations.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "base/os/memfd.h"
#include "fabric/test_support.h"

namespace towline::fabric {
namespace {

using testing::TestHost;
using testing::World;

constexpr uint64_t kPiece = 4096;
constexpr uint64_t kPieces = 64;

class RegistrationsTest : public ::testing::Test {
 protected:
  RegistrationsTest()
      : one(world.add_host(2)), two(world.add_host(2)), mine(*one.engine), theirs(*two.engine) {
    source = mine.add(memory(from, 0, from.size()));
  }
  static MemoryToRegister memory(std::vector<uint8_t>& bytes, uint64_t at, uint64_t count,
                                 bool writable = true) {
    return {.address = bytes.data() + at, .bytes = count, .remote_read = true, .remote_write = writable};
  }
  // Writes the first bytes of the source over all of `target`.
  Status write_to(const LocalMemory& target, bool keep = false) {
    if (!keep) remote = Engine::describe(target);
    segment = {source->address, target.address, target.bytes, 0, 0};
    const RemoteMemory* remotes = &remote;
    TransferRequest request;
    request.peer = one.peers[1];
    request.op = TransferOp::kWrite;
    request.segments = {[](void* context, towline_segment* out, std::size_t) -> std::size_t {
                          auto& self = *static_cast<RegistrationsTest*>(context);
                          if (self.given) return 0;
                          self.given = true;
                          out[0] = self.segment;
                          return 1;
                        },
                        this};
    request.local = &source;
    request.remote = &remotes;
    request.bytes = target.bytes;
    request.cookie = ++cookie;
    given = false;
    EXPECT_EQ(one.engine->submit(request), Status::kInProgress);
    EXPECT_TRUE(world.until([&] { return one.outcomes[cookie].fences != 0; }));
    return one.outcomes[cookie].result.status;
  }

  World world;
  TestHost& one;
  TestHost& two;
  std::vector<uint8_t> from = std::vector<uint8_t>(kPiece * kPieces, uint8_t{0x5a});
  std::vector<uint8_t> to = std::vector<uint8_t>(kPiece * kPieces);
  Registrations mine;
  Registrations theirs;
  const LocalMemory* source = nullptr;
  RemoteMemory remote;
  towline_segment segment{};
  bool given = false;
  uint64_t cookie = 0;
};

TEST_F(RegistrationsTest, PiecesOfAnArenaShareItsKeysAndReachTheirOwnBytes) {
  const LocalMemory* arena = theirs.add(memory(to, 0, to.size()));
  std::vector<const LocalMemory*> pieces;
  for (uint64_t i = 0; i < kPieces; ++i) pieces.push_back(theirs.add(memory(to, i * kPiece, kPiece)));
  EXPECT_EQ(theirs.arenas(), 1u);
  EXPECT_EQ(write_to(*pieces[37]), Status::kOk);
  for (std::size_t i = 0; i < to.size(); ++i) ASSERT_EQ(to[i], i / kPiece == 37 ? 0x5a : 0) << "byte " << i;
  // The arena may go first: its pieces are still reached.
  EXPECT_TRUE(theirs.remove(arena));
  EXPECT_FALSE(theirs.remove(arena));
  EXPECT_EQ(write_to(*pieces[0]), Status::kOk);
  EXPECT_EQ(to[0], 0x5a);
  for (std::size_t i = 1; i < pieces.size(); ++i) EXPECT_TRUE(theirs.remove(pieces[i]));
  EXPECT_EQ(theirs.arenas(), 1u);
  const LocalMemory last = *pieces[0];
  EXPECT_TRUE(theirs.remove(pieces[0]));
  EXPECT_EQ(theirs.arenas(), 0u);
  to[0] = 0;
  EXPECT_NE(write_to(last, true), Status::kOk);
  EXPECT_EQ(to[0], 0);
}

// The rest of an arena that is kept by a piece may have been unmapped and mapped anew: NICs would write to old pages.
TEST_F(RegistrationsTest, MemoryThatComesAgainIsRegisteredAgain) {
  const LocalMemory* arena = theirs.add(memory(to, 0, to.size()));
  (void)theirs.add(memory(to, 8 * kPiece, kPiece));
  EXPECT_TRUE(theirs.remove(arena));
  (void)theirs.add(memory(to, 8 * kPiece, 64));
  EXPECT_EQ(theirs.arenas(), 1u);
  (void)theirs.add(memory(to, 9 * kPiece, kPiece));
  EXPECT_EQ(theirs.arenas(), 2u);
}

TEST_F(RegistrationsTest, OtherRightsAndWhatReachesBeyondAreRegisteredApart) {
  (void)theirs.add(memory(to, 0, to.size() / 2));
  const LocalMemory* read_only = theirs.add(memory(to, kPiece, kPiece, false));
  EXPECT_EQ(theirs.arenas(), 2u);
  (void)theirs.add(memory(to, to.size() / 2 - 1, 2));
  EXPECT_EQ(theirs.arenas(), 3u);
  (void)theirs.add(memory(to, 3 * kPiece, kPiece));  // behind the one with other rights
  EXPECT_EQ(theirs.arenas(), 3u);
  EXPECT_EQ(write_to(*read_only), Status::kPermissionDenied);
  EXPECT_TRUE(std::all_of(to.begin(), to.end(), [](uint8_t byte) { return byte == 0; }));
}

// Its address is nothing to the processor: bytes go by the descriptor, which is closed meanwhile.
TEST_F(RegistrationsTest, ADmaBufIsReachedByItsDescriptorAlone) {
  constexpr uint64_t kOffset = 3 * 4096 + 64;
  UniqueFd file = create_memfd("device", 8 * 4096);
  const Mapping device = Mapping::map_shared(file.get(), 8 * 4096, MapAccess::kReadWrite);
  const MemoryToRegister whole = {.address = reinterpret_cast<void*>(0x700000000040),
                                  .bytes = 2 * kPiece,
                                  .remote_read = true,
                                  .remote_write = true,
                                  .dmabuf_fd = file.get(),
                                  .dmabuf_offset = kOffset};
  const LocalMemory* target = theirs.add(whole);
  EXPECT_FALSE(theirs.is_host(*target));
  file.reset();
  EXPECT_EQ(write_to(*target), Status::kOk);
  for (uint64_t i = 0; i < device.bytes(); ++i)
    ASSERT_EQ(device.address()[i], i >= kOffset && i < kOffset + 2 * kPiece ? 0x5a : 0) << "byte " << i;
  EXPECT_TRUE(theirs.remove(target));
}

TEST_F(RegistrationsTest, ADmaBufThatIsTooShortIsRefused) {
  const UniqueFd file = create_memfd("device", 4096);
  EXPECT_THROW((void)theirs.add({.address = reinterpret_cast<void*>(0x700000000000),
                                 .bytes = 4096,
                                 .dmabuf_fd = file.get(),
                                 .dmabuf_offset = 1}),
               core::Error);
  EXPECT_EQ(theirs.arenas(), 0u);
}

TEST_F(RegistrationsTest, WhatTheRailsRefuseLeavesNothing) {
  EXPECT_THROW((void)theirs.add({.address = nullptr, .bytes = 0, .remote_read = true}), core::Error);
  EXPECT_EQ(theirs.arenas(), 0u);
}

}  // namespace
}  // namespace towline::fabric
