// The wire form of metadata: Towline's blob, which is opaque here, and the additions for NIXL's interface.
//
// Little-endian; every length is checked. The part outside the blob has its own checksum.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nixl_types.h>

namespace towline::nixl {

// Memory described by partial metadata.
struct FrameRange {
  uint32_t type = DRAM_SEG;
  uint64_t device = 0;
  uint64_t address = 0;
  uint64_t bytes = 0;

  friend bool operator==(const FrameRange&, const FrameRange&) = default;
};

// Memory that an engine of a plugin knows, and what it tells peers of it.
struct FrameMemory {
  FrameRange range;
  std::string public_data;

  friend bool operator==(const FrameMemory&, const FrameMemory&) = default;
};

struct FrameEngine {
  std::string name;        // the backend's
  bool addresses = false;  // conn_info is there
  std::string conn_info;
  std::vector<FrameMemory> memories;

  friend bool operator==(const FrameEngine&, const FrameEngine&) = default;
};

struct Frame {
  std::string name;                   // the agent's name
  bool addresses = false;             // contains the agent's addresses
  bool partial = false;               // covers the ranges only
  std::vector<std::string> backends;  // by NIXL's names; those that reach other agents
  std::vector<FrameRange> ranges;
  std::vector<FrameEngine> engines;
  std::string blob;  // Towline's

  friend bool operator==(const Frame&, const Frame&) = default;
};

inline constexpr size_t kMaxFrameName = 255;
inline constexpr size_t kMaxFrameBackends = 64;

[[nodiscard]] std::string encode(const Frame& frame);
// Sets the checksum of an encoded frame whose parts were changed.
void seal(std::string& bytes) noexcept;
// "" when it could be read; else why not.
[[nodiscard]] std::string decode(std::string_view bytes, Frame& frame);

}  // namespace towline::nixl
