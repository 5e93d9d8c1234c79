#include <towline/plugin/v1.h>

#include "base/copy/crc32c.h"
#include "base/error.h"
#include "metadata/blob/blob.h"
#include "metadata/blob/wire.h"

namespace towline::metadata {
namespace {

using wire::put_varint;
using wire::zigzag;

// Writes a section's header, then its length once the payload is there.
template <class Payload>
void put_section(WireWriter& writer, wire::Section id, Payload&& payload) {
  writer.u16(static_cast<uint16_t>(id));
  writer.u16(0);
  const std::size_t length_at = writer.size();
  writer.u32(0);
  payload();
  writer.patch_u32(length_at, static_cast<uint32_t>(writer.size() - length_at - 4));
}

void check_at_most(const char* what, std::size_t value, std::size_t most) {
  if (value > most)
    fail(Status::kLimitExceeded, "metadata with {} {}: at most {} fit in a blob", value, what, most);
}

void check(const PeerMetadata& metadata) {
  const PeerIdentity& identity = metadata.identity;
  if (identity.name.empty() || identity.name.find('\0') != std::string::npos) {
    fail(Status::kInvalidArgument, "metadata of an agent whose name is empty or contains NUL");
  }
  check_at_most("bytes of name", identity.name.size(), kMaxNameBytes);
  if (identity.incarnation.is_none())
    fail(Status::kInvalidArgument, "metadata of an agent without incarnation");
  check_at_most("listening addresses", metadata.listen.size(), kMaxListenAddresses);
  for (const std::string& address : metadata.listen) {
    check_at_most("bytes of one listening address", address.size(), kMaxListenAddressBytes);
  }
  check_at_most("backends", metadata.backends.size(), kMaxBackends);
  for (const BackendMetadata& backend : metadata.backends) {
    if (backend.name.empty()) fail(Status::kInvalidArgument, "metadata of a backend without a name");
    check_at_most("bytes of a backend's name", backend.name.size(), kMaxBackendNameBytes);
    check_at_most("bytes of a backend's version", backend.version.size(), kMaxBackendNameBytes);
    check_at_most("bytes of a backend's address", backend.address.size(), TOWLINE_MAX_ADDRESS_BYTES);
  }
  check_at_most("regions", metadata.regions.size(), kMaxRegions);
  check_at_most("named regions", metadata.names.size(), kMaxNamedRegions);
  for (const NamedRegion& named : metadata.names) {
    if (!is_region_name(named.label.name) || named.region >= metadata.regions.size())
      fail(Status::kInvalidArgument, "metadata with the name '{}' for region {} of {}", named.label.name,
           named.region, metadata.regions.size());
  }
}

void put_identity(WireWriter& writer, const PeerIdentity& identity) {
  writer.u64(identity.incarnation.hi);
  writer.u64(identity.incarnation.lo);
  writer.u64(identity.host.boot_id.hi);
  writer.u64(identity.host.boot_id.lo);
  writer.u32(identity.host.pid);
  put_varint(writer, identity.host.pid_namespace);
  put_varint(writer, identity.host.network_namespace);
  put_varint(writer, identity.host.process_start_time);
  writer.u8(identity.caller_driven ? 1 : 0);
  put_varint(writer, identity.workers);
  writer.string16(identity.name);
}

void put_tokens(WireWriter& writer, const RegionMetadata& region, std::size_t backends) {
  uint32_t count = 0;
  region.tokens.for_each([&](const RegionToken& token) {
    if (token.backend >= backends) {
      fail(Status::kInvalidArgument, "region {:#x} has a token for backend {} of {}", region.region.key,
           token.backend, backends);
    }
    ++count;
  });
  put_varint(writer, count);
  region.tokens.for_each([&](const RegionToken& token) {
    put_varint(writer, token.backend);
    put_varint(writer, token.bytes.size());
    writer.raw(token.bytes);
  });
}

// Addresses mostly follow one another.
void put_regions(WireWriter& writer, const PeerMetadata& metadata) {
  put_varint(writer, metadata.regions.size());
  uint64_t next_low = 0;
  uint64_t next_address = 0;
  for (const RegionMetadata& entry : metadata.regions) {
    const towline_region_ref& region = entry.region;
    const uint64_t low = region.key & UINT32_MAX;
    put_varint(writer, zigzag(low - next_low));
    put_varint(writer, region.key >> 32);
    put_varint(writer, zigzag(region.address - next_address));
    put_varint(writer, region.bytes);
    put_varint(writer, region.device);
    put_varint(writer, region.kind);
    put_varint(writer, region.access);
    put_varint(writer, region.flags);
    put_tokens(writer, entry, metadata.backends.size());
    next_low = low + 1;
    next_address = region.address + region.bytes;
  }
}

void put_layout(WireWriter& writer, const towline_layout_t& layout) {
  writer.u8(wire::kLayoutVersion);
  put_varint(writer, layout.element_bytes);
  put_varint(writer, layout.dimensions);
  for (uint32_t i = 0; i < layout.dimensions; ++i) {
    put_varint(writer, layout.count[i]);
    put_varint(writer, layout.stride[i]);
  }
}

void put_names(WireWriter& writer, const PeerMetadata& metadata) {
  put_varint(writer, metadata.names.size());
  for (const NamedRegion& named : metadata.names) {
    put_varint(writer, named.region);
    writer.string16(named.label.name);
    const std::size_t length_at = writer.size();
    writer.u16(0);
    if (named.label.shaped()) put_layout(writer, named.label.layout);
    writer.patch_u16(length_at, static_cast<uint16_t>(writer.size() - length_at - 2));
  }
}

}  // namespace

std::vector<uint8_t> encode(const PeerMetadata& metadata) {
  check(metadata);
  std::vector<uint8_t> blob;
  WireWriter writer(blob, kMaxBlobBytes);
  writer.u32(wire::kMagic);
  writer.u32(0);
  writer.u8(wire::kMajor);
  writer.u8(wire::kMinor);
  writer.u16(metadata.partial ? wire::kPartial : 0);
  put_section(writer, wire::Section::kIdentity, [&] { put_identity(writer, metadata.identity); });
  put_section(writer, wire::Section::kListen, [&] {
    put_varint(writer, metadata.listen.size());
    for (const std::string& address : metadata.listen) writer.string16(address);
  });
  put_section(writer, wire::Section::kBackends, [&] {
    put_varint(writer, metadata.backends.size());
    for (const BackendMetadata& backend : metadata.backends) {
      writer.string16(backend.name);
      writer.string16(backend.version);
      writer.bytes16(backend.address);
    }
  });
  put_section(writer, wire::Section::kRegions, [&] { put_regions(writer, metadata); });
  if (!metadata.names.empty())
    put_section(writer, wire::Section::kNames, [&] { put_names(writer, metadata); });
  writer.patch_u32(4, static_cast<uint32_t>(writer.size() + wire::kTrailerBytes));
  writer.u32(crc32c(writer.written()));
  if (!writer.ok())
    fail(Status::kLimitExceeded, "metadata does not fit in a blob of {} bytes", kMaxBlobBytes);
  return blob;
}

}  // namespace towline::metadata
