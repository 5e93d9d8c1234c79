// CRC-32C (Castagnoli), as in iSCSI and SSE4.2: reflected polynomial 0x82f63b78, initial and final inversion.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace towline {

// The checksum of `data` after bytes whose checksum is `previous` (0 at the start), by the fastest method of
// this processor: crc32c(b, crc32c(a)) == crc32c(a + b).
uint32_t crc32c(std::span<const uint8_t> data, uint32_t previous = 0) noexcept;

// The single methods, for tests and benchmarks.
bool crc32c_hardware_available() noexcept;
uint32_t crc32c_hardware(std::span<const uint8_t> data, uint32_t previous = 0) noexcept;  // only if available
uint32_t crc32c_table(std::span<const uint8_t> data, uint32_t previous = 0) noexcept;

}  // namespace towline
