// Checksums as S3 writes them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace towline::object {

// The CRC-32C of a and b in a row, from those of a and of b, and b's length.
uint32_t crc32c_join(uint32_t a, uint32_t b, uint64_t b_bytes) noexcept;

// Base64 of its four bytes, the highest first.
std::string crc32c_text(uint32_t crc);
// nullopt: not the checksum of a whole object (those of parts end in -N), or none at all.
std::optional<uint32_t> crc32c_value(std::string_view text);

}  // namespace towline::object
