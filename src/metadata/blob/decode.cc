#include <towline/plugin/v1.h>

#include <algorithm>
#include <unordered_set>

#include "base/copy/crc32c.h"
#include "base/error.h"
#include "metadata/blob/blob.h"
#include "metadata/blob/wire.h"

namespace towline::metadata {
namespace {

using wire::get_varint;
using wire::unzigzag;

constexpr std::size_t kTokenHeaderBytes = 3;

struct Header {
  uint8_t minor = 0;
  uint16_t flags = 0;
};

// Magic, length and checksum, then the version: so a flipped bit is never taken for another version.
Header read_header(std::span<const uint8_t> blob) {
  if (blob.size() > kMaxBlobBytes) {
    fail(Status::kLimitExceeded, "metadata blob of {} bytes: at most {} are taken", blob.size(),
         kMaxBlobBytes);
  }
  WireReader reader(blob);
  const uint32_t magic = reader.u32();
  const uint32_t bytes = reader.u32();
  const uint8_t major = reader.u8();
  Header header;
  header.minor = reader.u8();
  header.flags = reader.u16();
  if (blob.size() >= 4 && magic != wire::kMagic)
    fail(Status::kProtocol, "not a Towline metadata blob: it starts otherwise");
  if (!reader.ok() || bytes > blob.size()) {
    fail(Status::kShort, "metadata blob cut off: {} bytes of {}", blob.size(),
         reader.ok() ? bytes : wire::kHeaderBytes);
  }
  if (bytes < blob.size() || bytes < wire::kHeaderBytes + wire::kTrailerBytes) {
    fail(Status::kProtocol, "metadata blob of {} bytes says that it has {}", blob.size(), bytes);
  }
  const auto body = blob.first(blob.size() - wire::kTrailerBytes);
  WireReader trailer(blob.subspan(body.size()));
  const uint32_t expected = trailer.u32();
  const uint32_t actual = crc32c(body);
  if (actual != expected) {
    fail(Status::kCorrupt, "metadata blob of {} bytes: checksum {:08x}, and {:08x} was written", blob.size(),
         actual, expected);
  }
  if (major != wire::kMajor) {
    fail(Status::kUnsupported, "metadata blob of version {}.{}: this Towline reads version {}", major,
         header.minor, wire::kMajor);
  }
  return header;
}

[[noreturn]] void malformed(const char* what) {
  fail(Status::kProtocol, "metadata blob: {} can't be read", what);
}

std::size_t get_count(WireReader& reader, const char* what, std::size_t most, std::size_t item_bytes) {
  const uint64_t count = get_varint(reader);
  if (!reader.ok()) malformed(what);
  if (count > most)
    fail(Status::kLimitExceeded, "metadata blob with {} {}: at most {} are taken", count, what, most);
  if (count > reader.remaining() / item_bytes) malformed(what);
  return static_cast<std::size_t>(count);
}

void read_identity(WireReader& reader, PeerIdentity& identity) {
  identity.incarnation = {reader.u64(), reader.u64()};
  identity.host.boot_id = {reader.u64(), reader.u64()};
  identity.host.pid = reader.u32();
  identity.host.pid_namespace = get_varint(reader);
  identity.host.network_namespace = get_varint(reader);
  identity.host.process_start_time = get_varint(reader);
  const uint8_t caller_driven = reader.u8();
  identity.caller_driven = caller_driven != 0;
  identity.workers = static_cast<uint32_t>(get_varint(reader, UINT32_MAX));
  identity.name = reader.string16(kMaxNameBytes);
  if (!reader.ok() || caller_driven > 1 || identity.workers == 0) malformed("the agent's identity");
  if (identity.name.empty() || identity.name.find('\0') != std::string::npos) malformed("the agent's name");
  if (identity.incarnation.is_none()) malformed("the agent's incarnation");
}

void read_listen(WireReader& reader, std::vector<std::string>& listen) {
  const std::size_t count = get_count(reader, "listening addresses", kMaxListenAddresses, 2);
  for (std::size_t i = 0; i < count; ++i) listen.emplace_back(reader.string16(kMaxListenAddressBytes));
  if (!reader.ok()) malformed("a listening address");
}

void read_backends(WireReader& reader, std::vector<BackendMetadata>& backends) {
  const std::size_t count = get_count(reader, "backends", kMaxBackends, 6);
  for (std::size_t i = 0; i < count; ++i) {
    BackendMetadata backend;
    backend.name = reader.string16(kMaxBackendNameBytes);
    backend.version = reader.string16(kMaxBackendNameBytes);
    const auto address = reader.bytes16(TOWLINE_MAX_ADDRESS_BYTES);
    backend.address.assign(address.begin(), address.end());
    if (!reader.ok() || backend.name.empty()) malformed("a backend");
    const auto same_name = [&](const BackendMetadata& other) { return other.name == backend.name; };
    if (std::any_of(backends.begin(), backends.end(), same_name)) malformed("a backend named twice");
    backends.push_back(std::move(backend));
  }
}

void read_tokens(WireReader& reader, RegionMetadata& entry, std::size_t backends) {
  const std::size_t count = get_count(reader, "tokens of a region", backends, 3);
  uint64_t next_backend = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const uint64_t backend = get_varint(reader);
    const uint64_t bytes = get_varint(reader, TOWLINE_MAX_TOKEN_BYTES);
    const auto token = reader.raw(bytes);
    if (!reader.ok() || bytes == 0 || backend >= backends || backend < next_backend)
      malformed("a region's token");
    next_backend = backend + 1;
    entry.tokens.add(static_cast<uint32_t>(backend), token);
  }
}

std::size_t read_region_count(WireReader& reader) {
  return get_count(reader, "regions", kMaxRegions, wire::kLeastRegionBytes);
}

void read_regions(WireReader& reader, PeerMetadata& metadata) {
  const std::size_t count = read_region_count(reader);
  metadata.regions.reserve(count);
  uint64_t next_low = 0;
  uint64_t next_address = 0;
  for (std::size_t i = 0; i < count; ++i) {
    RegionMetadata& entry = metadata.regions.emplace_back();
    towline_region_ref& region = entry.region;
    const uint64_t low = next_low + unzigzag(get_varint(reader));
    const uint64_t high = get_varint(reader, UINT32_MAX);
    region.address = next_address + unzigzag(get_varint(reader));
    region.bytes = get_varint(reader);
    region.device = get_varint(reader);
    region.kind = static_cast<uint32_t>(get_varint(reader, UINT32_MAX));
    region.access = static_cast<uint32_t>(get_varint(reader, UINT32_MAX));
    region.flags = static_cast<uint32_t>(get_varint(reader, UINT32_MAX));
    if (!reader.ok() || low > UINT32_MAX) malformed("a region");
    region.key = high << 32 | low;
    read_tokens(reader, entry, metadata.backends.size());
    next_low = low + 1;
    next_address = region.address + region.bytes;
  }
}

// A layout of another version is left out, and so is one that is longer than this one knows.
void read_layout(std::span<const uint8_t> bytes, towline_layout_t& layout) {
  if (bytes.empty() || bytes[0] != wire::kLayoutVersion) return;
  WireReader reader(bytes.subspan(1));
  towline_layout_t read = {};
  read.struct_size = sizeof read;
  read.element_bytes = get_varint(reader);
  read.dimensions = static_cast<uint32_t>(get_varint(reader, TOWLINE_MAX_DIMENSIONS));
  for (uint32_t i = 0; i < read.dimensions; ++i) {
    read.count[i] = get_varint(reader);
    read.stride[i] = get_varint(reader);
  }
  if (!reader.ok() || read.dimensions == 0 || reader.remaining() != 0) malformed("a region's layout");
  layout = read;
}

std::size_t read_name_count(WireReader& reader) {
  return get_count(reader, "named regions", kMaxNamedRegions, wire::kLeastNameBytes);
}

void read_names(WireReader& reader, PeerMetadata& metadata, std::size_t regions) {
  const std::size_t count = read_name_count(reader);
  std::unordered_set<std::string_view> seen;
  metadata.names.reserve(count);
  uint64_t next_region = 0;
  for (std::size_t i = 0; i < count; ++i) {
    NamedRegion& named = metadata.names.emplace_back();
    const uint64_t region = get_varint(reader, UINT32_MAX);
    named.label.name = reader.string16(TOWLINE_MAX_REGION_NAME_BYTES);
    const auto layout = reader.bytes16(wire::kMaxLayoutBytes);
    if (!reader.ok() || region < next_region || region >= regions || !is_region_name(named.label.name))
      malformed("the name of a region");
    named.region = static_cast<uint32_t>(region);
    next_region = region + 1;
    read_layout(layout, named.label.layout);
  }
  for (const NamedRegion& named : metadata.names) {
    if (!seen.insert(named.label.name).second)
      fail(Status::kProtocol, "metadata blob: two regions are named '{}'", named.label.name);
  }
}

// True when the section is one we know.
bool read_section(wire::Section id, WireReader& reader, PeerMetadata& metadata) {
  switch (id) {
    case wire::Section::kIdentity:
      read_identity(reader, metadata.identity);
      return true;
    case wire::Section::kListen:
      read_listen(reader, metadata.listen);
      return true;
    case wire::Section::kBackends:
      read_backends(reader, metadata.backends);
      return true;
    case wire::Section::kRegions:
      read_regions(reader, metadata);
      return true;
    case wire::Section::kNames:
      read_names(reader, metadata, metadata.regions.size());
      return true;
  }
  return false;
}

// `counts`: null, or where to put the numbers of regions and names instead of reading them.
PeerMetadata read(std::span<const uint8_t> blob, PeerSummary* counts) {
  const Header header = read_header(blob);
  PeerMetadata metadata;
  metadata.partial = (header.flags & wire::kPartial) != 0;
  WireReader reader(blob.first(blob.size() - wire::kTrailerBytes));
  reader.skip(wire::kHeaderBytes);
  uint32_t next_id = 0;
  while (reader.remaining() != 0) {
    const uint16_t id = reader.u16();
    const uint16_t flags = reader.u16();
    const auto payload = reader.bytes32(kMaxBlobBytes);
    if (!reader.ok() || id < next_id) malformed("the order of its sections");
    next_id = uint32_t{id} + 1;
    WireReader section(payload);
    if (counts != nullptr && static_cast<wire::Section>(id) == wire::Section::kRegions) {
      counts->regions = read_region_count(section);
    } else if (counts != nullptr && static_cast<wire::Section>(id) == wire::Section::kNames) {
      counts->names = read_name_count(section);
    } else if (read_section(static_cast<wire::Section>(id), section, metadata)) {
      if (header.minor <= wire::kMinor && section.remaining() != 0) malformed("the end of a section");
    } else if ((flags & wire::kMustUnderstand) != 0) {
      fail(Status::kUnsupported,
           "metadata blob of version {}.{}: section {} must be understood, and is not known here",
           wire::kMajor, header.minor, id);
    }
  }
  if (metadata.identity.name.empty()) malformed("an identity, which is missing, so the blob");
  return metadata;
}

}  // namespace

PeerMetadata decode(std::span<const uint8_t> blob) { return read(blob, nullptr); }

PeerSummary summarize(std::span<const uint8_t> blob) {
  PeerSummary summary;
  summary.metadata = read(blob, &summary);
  return summary;
}

void RegionTokens::add(uint32_t backend, std::span<const uint8_t> bytes) {
  if (backend >= kMaxBackends || bytes.empty() || bytes.size() > TOWLINE_MAX_TOKEN_BYTES) {
    fail(Status::kInvalidArgument,
         "a token of {} bytes for backend {}: tokens have 1 to {}, backends are below {}", bytes.size(),
         backend, TOWLINE_MAX_TOKEN_BYTES, kMaxBackends);
  }
  packed_.reserve(packed_.size() + kTokenHeaderBytes + bytes.size());  // to the byte: there may be a million
  packed_.push_back(static_cast<uint8_t>(backend));
  packed_.push_back(static_cast<uint8_t>(bytes.size()));
  packed_.push_back(static_cast<uint8_t>(bytes.size() >> 8));
  packed_.insert(packed_.end(), bytes.begin(), bytes.end());
}

RegionToken RegionTokens::next(std::size_t& at) const noexcept {
  const std::size_t bytes = packed_[at + 1] | std::size_t{packed_[at + 2]} << 8;
  const RegionToken token = {packed_[at], std::span(packed_).subspan(at + kTokenHeaderBytes, bytes)};
  at += kTokenHeaderBytes + bytes;
  return token;
}

std::span<const uint8_t> RegionTokens::find(uint32_t backend) const noexcept {
  for (std::size_t at = 0; at < packed_.size();) {
    const RegionToken token = next(at);
    if (token.backend == backend) return token.bytes;
  }
  return {};
}

bool operator==(const RegionMetadata& a, const RegionMetadata& b) noexcept {
  const towline_region_ref& x = a.region;
  const towline_region_ref& y = b.region;
  return x.key == y.key && x.address == y.address && x.bytes == y.bytes && x.device == y.device &&
         x.kind == y.kind && x.access == y.access && x.flags == y.flags && a.tokens == b.tokens;
}

}  // namespace towline::metadata
