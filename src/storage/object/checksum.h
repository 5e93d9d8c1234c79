// Checksums as the servers write them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace towline::object {

// The CRC-32C of a and b in a row, from those of a and of b, and b's length.
uint32_t crc32c_join(uint32_t a, uint32_t b, uint64_t b_bytes) noexcept;

// As S3 writes it: base64 of its four bytes, the highest first.
std::string crc32c_text(uint32_t crc);
// nullopt: not the checksum of a whole object (those of parts end in -N), or none at all.
std::optional<uint32_t> crc32c_value(std::string_view text);
// As Azure writes it: base64 of its eight bytes, the lowest first.
std::string crc64_text(uint64_t crc);

}  // namespace towline::object
