// Regions without access: peers are not told of them and can't reach them, over any transport.
#include <array>
#include <cstring>
#include <vector>

#include "metadata/blob/blob.h"
#include "support/directed.h"
#include "transport_fixture.h"

namespace towline::conformance {
namespace {

void expect_stamped(const std::byte* data, uint64_t bytes, uint64_t seed) {
  std::vector<std::byte> expected(bytes);
  stamp(expected.data(), bytes, seed);
  EXPECT_EQ(std::memcmp(data, expected.data(), bytes), 0) << "the bytes are not those of seed " << seed;
}

TEST_P(TransportTest, ARegionWithoutAccessIsKeptFromPeers) {
  const Buffer memory(kBlock, GetParam().shared_memory);
  const Region own = right_->register_memory(view(memory.data(), memory.size()));
  const Peer peer = left_->add_peer(right_->metadata());
  for (const RegionInfo& region : peer.regions()) EXPECT_NE(region.key, own.key());
  EXPECT_THROW((void)peer.block_list(at(memory.data(), kBlock)), Error);
  try {
    const std::array<const Region*, 1> only = {&own};
    (void)right_->metadata(only);
    FAIL() << "peers were told of a region without access";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Status::kPermissionDenied) << error.what();
  }
}

// A peer that makes up what it was not told: key, address, size and access are right, the token is another region's.
TEST_P(TransportTest, ForgedMetadataDoesNotReachARegionWithoutAccess) {
  const Buffer own_memory(kBlock, GetParam().shared_memory);
  const Buffer open_memory(kBlock, GetParam().shared_memory);
  stamp(own_memory.data(), kBlock, 5);
  const Region own = right_->register_memory(view(own_memory.data(), kBlock));
  const Region open = right_->register_memory(view(open_memory.data(), kBlock), {.access = Access::kAll});
  const std::vector<std::byte> told = right_->metadata();
  metadata::PeerMetadata forged =
      metadata::decode({reinterpret_cast<const uint8_t*>(told.data()), told.size()});
  for (metadata::RegionMetadata& region : forged.regions) {
    if (region.region.key != open.key()) continue;
    region.region.key = own.key();
    region.region.address = reinterpret_cast<uint64_t>(own_memory.data());
  }
  const std::vector<uint8_t> blob = metadata::encode(forged);
  const Peer peer = left_->add_peer(blob);
  const BlockList here = left_->block_list(at(left_memory_->data(), kBlock));
  stamp(left_memory_->data(), kBlock, 9);
  for (const Op op : {Op::read, Op::write}) {
    try {
      const BlockList there = peer.block_list(at(own_memory.data(), kBlock));
      EXPECT_NE(run(directed(*left_, op, here, there)), Status::kOk) << static_cast<uint32_t>(op);
    } catch (const Error& error) {
      EXPECT_NE(error.code(), Status::kInternal) << error.what();
    }
    expect_stamped(left_memory_->data(), kBlock, 9);
    expect_stamped(own_memory.data(), kBlock, 5);
  }
}

// Its own agent may do as it likes with it, also where the bytes go through a backend as to a peer.
TEST_P(TransportTest, AnAgentCopiesBetweenItsRegionsWithoutAccess) {
  if (!kSeesRings && GetParam().framed) GTEST_SKIP() << "ThreadSanitizer does not follow the rings";
  const Buffer from(kBlock, GetParam().shared_memory);
  const Buffer to(kBlock, GetParam().shared_memory);
  stamp(from.data(), kBlock, 7);
  Region source = right_->register_memory(view(from.data(), kBlock));
  Region target = right_->register_memory(view(to.data(), kBlock));
  {
    const BlockList read = right_->block_list(at(from.data(), kBlock));
    const BlockList written = right_->block_list(at(to.data(), kBlock));
    EXPECT_EQ(run(right_->transfer(read, written)), Status::kOk);
  }
  expect_stamped(to.data(), kBlock, 7);
  EXPECT_EQ(source.deregister(30s), Status::kOk);
  EXPECT_EQ(target.deregister(30s), Status::kOk);
}

}  // namespace
}  // namespace towline::conformance
