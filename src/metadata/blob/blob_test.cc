#include "metadata/blob/blob.h"

#include <gtest/gtest.h>
#include <malloc.h>
#include <towline/plugin/v1.h>

#include <cstring>
#include <functional>

#include "base/copy/crc32c.h"
#include "base/error.h"
#include "metadata/blob/wire.h"

namespace towline::metadata {
namespace {

PeerMetadata example() {
  PeerMetadata metadata;
  metadata.identity.name = std::string("prefill \xff\n\"0\"", 13);
  metadata.identity.incarnation = {0x1122334455667788, 0x99aabbccddeeff00};
  metadata.identity.host.boot_id = {1, 2};
  metadata.identity.host.pid = 4711;
  metadata.identity.host.pid_namespace = 4026531836;
  metadata.identity.host.network_namespace = 4026531840;
  metadata.identity.host.process_start_time = 123456789;
  metadata.identity.caller_driven = true;
  metadata.identity.workers = 3;
  metadata.listen = {"10.0.0.7:7777", "[::1]:7777"};
  metadata.backends = {{"shm", "0.1.0", {}}, {"tcp", "0.1.0", {1, 2, 3}}};
  for (uint32_t i = 0; i < 5; ++i) {
    RegionMetadata& entry = metadata.regions.emplace_back();
    entry.region.key = uint64_t{i + 1} << 32 | i;
    entry.region.address = 0x7f0000000000 + uint64_t{i} * (1u << 30);
    entry.region.bytes = 1u << 30;
    entry.region.access = TOWLINE_PART_FENCED_LOCAL | TOWLINE_PART_FENCED_REMOTE;
    if (i % 2 == 0) {
      entry.tokens.add(0, std::vector<uint8_t>{9, 8, 7});
      entry.tokens.add(1, std::vector<uint8_t>{6});
    }
  }
  metadata.names = {{1, {"kv", {sizeof(towline_layout_t), 4096, 2, 0, {32, 1024}, {1024 * 4096, 4096}}}},
                    {4, {std::string(TOWLINE_MAX_REGION_NAME_BYTES, 'w'), {}}}};
  return metadata;
}

Status decode_status(std::span<const uint8_t> blob) {
  try {
    decode(blob);
  } catch (const Error& error) {
    EXPECT_FALSE(error.message().empty());
    return error.code();
  }
  return Status::kOk;
}

Status encode_status(const std::function<void(PeerMetadata&)>& change) {
  PeerMetadata metadata = example();
  change(metadata);
  try {
    encode(metadata);
  } catch (const Error& error) {
    return error.code();
  }
  return Status::kOk;
}

// Changes bytes of a good blob, then puts length and checksum right.
std::vector<uint8_t> changed(const std::function<void(std::vector<uint8_t>&)>& change) {
  std::vector<uint8_t> blob = encode(example());
  blob.resize(blob.size() - wire::kTrailerBytes);
  change(blob);
  const auto bytes = static_cast<uint32_t>(blob.size() + wire::kTrailerBytes);
  std::memcpy(blob.data() + 4, &bytes, sizeof bytes);
  const uint32_t checksum = crc32c(blob);
  WireWriter(blob).u32(checksum);
  return blob;
}

void append_section(std::vector<uint8_t>& blob, uint16_t id, uint16_t flags, std::size_t bytes) {
  WireWriter writer(blob);
  writer.u16(id);
  writer.u16(flags);
  writer.u32(static_cast<uint32_t>(bytes));
  writer.zeros(bytes);
}

TEST(Blob, GivesBackWhatWasEncoded) {
  PeerMetadata metadata = example();
  EXPECT_EQ(decode(encode(metadata)), metadata);
  metadata.partial = true;
  metadata.regions.resize(1);
  metadata.names.clear();
  EXPECT_EQ(decode(encode(metadata)), metadata);
  metadata.regions.clear();
  metadata.backends.clear();
  metadata.listen.clear();
  EXPECT_EQ(decode(encode(metadata)), metadata);
}

TEST(Blob, KeepsExtremeRegions) {
  PeerMetadata metadata = example();
  const uint64_t most = UINT64_MAX;
  metadata.regions.clear();
  metadata.names.clear();
  for (const auto& [key, address, bytes] :
       {std::tuple{most, uint64_t{0}, most}, std::tuple{uint64_t{0}, most, uint64_t{0}},
        std::tuple{uint64_t{UINT32_MAX}, most / 2, most / 2}}) {
    RegionMetadata& entry = metadata.regions.emplace_back();
    entry.region = {key, address, bytes, most, UINT32_MAX, UINT32_MAX, UINT32_MAX, 0};
  }
  EXPECT_EQ(decode(encode(metadata)), metadata);
}

TEST(Blob, TakesAtMostSixtyBytesARegion) {
  PeerMetadata metadata = example();
  metadata.regions.clear();
  metadata.names.clear();
  const std::size_t empty = encode(metadata).size();
  for (uint64_t i = 0; i < 1000; ++i) {
    metadata.regions.emplace_back().region = {
        (i * 7919) % 1000 | (i << 36), 0x7f0000000000 + ((i * 7919) % 1000 << 24), 1u << 23, 7, 1, 3, 1, 0};
  }
  EXPECT_LE(encode(metadata).size(), empty + 60 * metadata.regions.size());
  EXPECT_LE(empty, 256u);
}

TEST(Blob, GivesTokensByBackend) {
  RegionTokens tokens;
  EXPECT_TRUE(tokens.empty());
  const std::vector<uint8_t> most(TOWLINE_MAX_TOKEN_BYTES, 7);
  tokens.add(1, std::vector<uint8_t>{6});
  tokens.add(kMaxBackends - 1, most);
  EXPECT_TRUE(tokens.find(0).empty());
  EXPECT_EQ(tokens.find(1).size(), 1u);
  EXPECT_TRUE(std::equal(most.begin(), most.end(), tokens.find(kMaxBackends - 1).begin(),
                         tokens.find(kMaxBackends - 1).end()));
  EXPECT_THROW(tokens.add(kMaxBackends, most), Error);
  EXPECT_THROW(tokens.add(2, {}), Error);
  EXPECT_THROW(tokens.add(2, std::vector<uint8_t>(TOWLINE_MAX_TOKEN_BYTES + 1)), Error);
}

TEST(Blob, TakesRegionsThatMakeNoSenseHere) {
  PeerMetadata metadata = example();
  metadata.regions[1].region.kind = 4711;
  metadata.regions[2].region.bytes = UINT64_MAX;
  metadata.regions[3].region.access = 0;
  EXPECT_EQ(decode(encode(metadata)), metadata);
}

// The most expensive input: the shortest regions, with the shortest tokens.
TEST(Blob, TakesMemoryInProportionToItsBytes) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "allocations are counted by glibc's own functions";
#else
  PeerMetadata metadata = example();
  metadata.regions.clear();
  metadata.names.clear();
  for (uint64_t i = 0; i < 20'000; ++i) {
    RegionMetadata& entry = metadata.regions.emplace_back();
    entry.region.key = i;
    for (uint32_t backend = 0; backend < i % 3; ++backend) entry.tokens.add(backend, std::vector<uint8_t>{1});
  }
  const std::vector<uint8_t> blob = encode(metadata);
  const auto held = [] {
    const struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
  };
  const std::size_t before = held();
  const PeerMetadata decoded = decode(blob);
  EXPECT_LT(held() - before, 16 * blob.size());
  EXPECT_EQ(decoded.regions.size(), metadata.regions.size());
#endif
}

TEST(Blob, SummarizesWithoutReadingTheRegions) {
  PeerMetadata metadata = example();
  const PeerSummary summary = summarize(encode(metadata));
  EXPECT_EQ(summary.regions, metadata.regions.size());
  EXPECT_EQ(summary.names, metadata.names.size());
  metadata.regions.clear();
  metadata.names.clear();
  EXPECT_EQ(summary.metadata, metadata);
  const std::vector<uint8_t> whole = encode(example());
  EXPECT_THROW((void)summarize(std::span(whole).first(100)), Error);
}

// Bytes of the names' section, in a blob that is right otherwise.
std::vector<uint8_t> with_names(const std::function<void(WireWriter&)>& write) {
  return changed([&](std::vector<uint8_t>& blob) {
    PeerMetadata plain = example();
    plain.names.clear();
    blob = encode(plain);
    blob.resize(blob.size() - wire::kTrailerBytes);
    std::vector<uint8_t> payload;
    WireWriter writer(payload);
    write(writer);
    append_section(blob, static_cast<uint16_t>(wire::Section::kNames), 0, 0);
    const auto bytes = static_cast<uint32_t>(payload.size());
    std::memcpy(blob.data() + blob.size() - 4, &bytes, sizeof bytes);
    blob.insert(blob.end(), payload.begin(), payload.end());
  });
}

void put_name(WireWriter& writer, uint64_t region, std::string_view name, std::span<const uint8_t> layout) {
  wire::put_varint(writer, region);
  writer.string16(name);
  writer.bytes16(layout);
}

TEST(Blob, TakesNamesWhoseLayoutIsOfAnotherVersionWithoutIt) {
  const std::vector<uint8_t> strange = {wire::kLayoutVersion + 1, 9, 9, 9};
  const PeerMetadata metadata = decode(with_names([&](WireWriter& writer) {
    wire::put_varint(writer, 1);
    put_name(writer, 2, "kv", strange);
  }));
  ASSERT_EQ(metadata.names.size(), 1u);
  EXPECT_EQ(metadata.names[0].region, 2u);
  EXPECT_EQ(metadata.names[0].label.name, "kv");
  EXPECT_FALSE(metadata.names[0].label.shaped());
}

TEST(Blob, RefusesNamesThatCanNotBe) {
  const auto status = [](const std::function<void(WireWriter&)>& write) {
    return decode_status(with_names(write));
  };
  const std::vector<uint8_t> none;
  const auto one = [&](uint64_t region, std::string_view name, std::span<const uint8_t> layout) {
    return status([&](WireWriter& writer) {
      wire::put_varint(writer, 1);
      put_name(writer, region, name, layout);
    });
  };
  EXPECT_EQ(one(0, "kv", none), Status::kOk);
  EXPECT_EQ(one(5, "kv", none), Status::kProtocol);  // no such region
  EXPECT_EQ(one(0, "", none), Status::kProtocol);
  EXPECT_EQ(one(0, std::string_view("k\0v", 3), none), Status::kProtocol);
  EXPECT_EQ(one(0, std::string(256, 'x'), none), Status::kProtocol);
  const std::vector<std::vector<uint8_t>> wrong = {{wire::kLayoutVersion},
                                                   {wire::kLayoutVersion, 1, 0},
                                                   {wire::kLayoutVersion, 1, 5, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1},
                                                   {wire::kLayoutVersion, 1, 1, 1},
                                                   {wire::kLayoutVersion, 1, 1, 1, 1, 0}};
  for (const auto& layout : wrong) EXPECT_EQ(one(0, "kv", layout), Status::kProtocol) << layout.size();
  EXPECT_EQ(one(0, "kv", std::vector<uint8_t>(wire::kMaxLayoutBytes + 1, 2)), Status::kProtocol);
  const auto two = [&](uint64_t first, uint64_t second, std::string_view name) {
    return status([&](WireWriter& writer) {
      wire::put_varint(writer, 2);
      put_name(writer, first, "kv", none);
      put_name(writer, second, name, none);
    });
  };
  EXPECT_EQ(two(0, 1, "vk"), Status::kOk);
  EXPECT_EQ(two(1, 1, "vk"), Status::kProtocol);
  EXPECT_EQ(two(2, 1, "vk"), Status::kProtocol);
  EXPECT_EQ(two(0, 1, "kv"), Status::kProtocol);  // one name for two regions
  EXPECT_EQ(status([](WireWriter& writer) { wire::put_varint(writer, kMaxNamedRegions + 1); }),
            Status::kLimitExceeded);
}

TEST(Blob, RefusesTruncationAtEveryByte) {
  const std::vector<uint8_t> blob = encode(example());
  for (std::size_t bytes = 0; bytes < blob.size(); ++bytes) {
    EXPECT_EQ(decode_status(std::span(blob).first(bytes)), Status::kShort) << bytes;
  }
  std::vector<uint8_t> longer = blob;
  longer.push_back(0);
  EXPECT_EQ(decode_status(longer), Status::kProtocol);
}

TEST(Blob, DetectsEverySingleFlippedBit) {
  std::vector<uint8_t> blob = encode(example());
  for (std::size_t bit = 0; bit < blob.size() * 8; ++bit) {
    blob[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
    EXPECT_NE(decode_status(blob), Status::kOk) << "bit " << bit;
    if (bit >= 8 * 8) {
      EXPECT_EQ(decode_status(blob), Status::kCorrupt) << "bit " << bit;
    }
    blob[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
  }
  EXPECT_EQ(decode_status(blob), Status::kOk);
}

TEST(Blob, NamesAnotherMajorVersion) {
  const auto blob = changed([](auto& bytes) { bytes[8] = 2; });
  EXPECT_EQ(decode_status(blob), Status::kUnsupported);
}

TEST(Blob, TakesANewerMinorVersionLeavingOutWhatItDoesNotKnow) {
  const auto newer = changed([](auto& bytes) {
    bytes[9] = 7;
    append_section(bytes, 99, 0, 33);
  });
  EXPECT_EQ(decode(newer), example());
  const auto must = changed([](auto& bytes) { append_section(bytes, 99, wire::kMustUnderstand, 33); });
  EXPECT_EQ(decode_status(must), Status::kUnsupported);
}

TEST(Blob, TakesFieldsAddedToASectionByANewerMinorVersion) {
  // The identity comes first: its length lies after the blob's header and the section's id and flags.
  const auto lengthened = [](std::vector<uint8_t>& bytes) {
    uint32_t length = 0;
    std::memcpy(&length, bytes.data() + wire::kHeaderBytes + 4, sizeof length);
    bytes.insert(bytes.begin() + wire::kHeaderBytes + wire::kSectionHeaderBytes + length, {1, 2, 3});
    length += 3;
    std::memcpy(bytes.data() + wire::kHeaderBytes + 4, &length, sizeof length);
  };
  EXPECT_EQ(decode_status(changed(lengthened)), Status::kProtocol);
  const auto newer = changed([&](auto& bytes) {
    bytes[9] = wire::kMinor + 1;
    lengthened(bytes);
  });
  EXPECT_EQ(decode(newer), example());
}

TEST(Blob, RefusesSectionsTwiceOrMissing) {
  EXPECT_EQ(decode_status(changed([](auto& bytes) { append_section(bytes, 4, 0, 1); })), Status::kProtocol);
  EXPECT_EQ(decode_status(changed([](auto& bytes) { bytes.resize(wire::kHeaderBytes); })), Status::kProtocol);
}

TEST(Blob, RefusesCountsThatCanNotBe) {
  const auto with_count = [](uint64_t count) {
    return changed([&](auto& bytes) {
      bytes.resize(wire::kHeaderBytes);
      std::vector<uint8_t> whole = encode(example());
      uint32_t identity_bytes = 0;
      std::memcpy(&identity_bytes, whole.data() + wire::kHeaderBytes + 4, sizeof identity_bytes);
      const auto identity =
          std::span(whole).subspan(wire::kHeaderBytes, wire::kSectionHeaderBytes + identity_bytes);
      bytes.insert(bytes.end(), identity.begin(), identity.end());
      std::vector<uint8_t> payload;
      WireWriter payload_writer(payload);
      wire::put_varint(payload_writer, count);
      WireWriter writer(bytes);
      writer.u16(4);
      writer.u16(0);
      writer.bytes32(payload);
    });
  };
  EXPECT_EQ(decode_status(with_count(0)), Status::kOk);
  EXPECT_EQ(decode_status(with_count(1)), Status::kProtocol);
  EXPECT_EQ(decode_status(with_count(kMaxRegions)), Status::kProtocol);
  EXPECT_EQ(decode_status(with_count(kMaxRegions + 1)), Status::kLimitExceeded);
  EXPECT_EQ(decode_status(with_count(UINT64_MAX)), Status::kLimitExceeded);
}

TEST(Blob, RefusesWhatIsNoBlob) {
  const std::string text = "GET / HTTP/1.1\r\nHost: 10.0.0.7:7777\r\n\r\n";
  EXPECT_EQ(decode_status({reinterpret_cast<const uint8_t*>(text.data()), text.size()}), Status::kProtocol);
  EXPECT_EQ(decode_status({}), Status::kShort);
}

TEST(Blob, RefusesToEncodeWhatItCouldNotDecode) {
  EXPECT_EQ(encode_status([](PeerMetadata& m) { m.identity.name.clear(); }), Status::kInvalidArgument);
  EXPECT_EQ(encode_status([](PeerMetadata& m) { m.identity.name = std::string(256, 'x'); }),
            Status::kLimitExceeded);
  EXPECT_EQ(encode_status([](PeerMetadata& m) { m.identity.name = std::string("a\0b", 3); }),
            Status::kInvalidArgument);
  EXPECT_EQ(encode_status([](PeerMetadata& m) { m.identity.incarnation = {}; }), Status::kInvalidArgument);
  EXPECT_EQ(encode_status([](PeerMetadata& m) {
              m.backends.resize(kMaxBackends + 1, {"x", "", {}});
            }),
            Status::kLimitExceeded);
  EXPECT_EQ(
      encode_status([](PeerMetadata& m) { m.backends[1].address.resize(TOWLINE_MAX_ADDRESS_BYTES + 1); }),
      Status::kLimitExceeded);
  EXPECT_EQ(encode_status([](PeerMetadata& m) { m.listen.assign(kMaxListenAddresses + 1, "x:1"); }),
            Status::kLimitExceeded);
  EXPECT_EQ(encode_status([](PeerMetadata& m) { m.regions[0].tokens.add(2, std::vector<uint8_t>{1}); }),
            Status::kInvalidArgument);
}

}  // namespace
}  // namespace towline::metadata
