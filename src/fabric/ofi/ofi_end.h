// What the ends of a connection over libfabric tell each other.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace towline::fabric {

struct OfiEnd {
  // Goes with each record to this end, where the endpoint serves other connections, too. Random, so that only
  // the end to which it was told can send records of this connection. 0: none is needed.
  uint64_t token = 0;
  std::vector<uint8_t> name;  // of the endpoint, as its provider writes it
};

std::vector<uint8_t> encode(const OfiEnd& end);
std::optional<OfiEnd> decode_ofi_end(std::span<const uint8_t> bytes);

}  // namespace towline::fabric
