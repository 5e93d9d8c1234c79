// CRC-64/NVME, which Azure Storage checks uploads by: reflected polynomial 0x9a6c9329ac4bc9b5, initial and final
// inversion.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace towline {

// The checksum of `data` after bytes whose checksum is `previous` (0 at the start), by the fastest method of
// this processor: crc64(b, crc64(a)) == crc64(a + b).
uint64_t crc64(std::span<const uint8_t> data, uint64_t previous = 0) noexcept;

// The single methods, for tests and benchmarks.
bool crc64_hardware_available() noexcept;
uint64_t crc64_hardware(std::span<const uint8_t> data, uint64_t previous = 0) noexcept;  // only if available
uint64_t crc64_table(std::span<const uint8_t> data, uint64_t previous = 0) noexcept;

}  // namespace towline
