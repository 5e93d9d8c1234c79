// io_uring's zero-copy receive as the kernel takes it: numbers and layouts under names of our own, since the headers of a
// build machine may be older. Linux 6.15 has it for NICs that receive into a program's memory; 7.1 also without a NIC.
#pragma once

#include <cstdint>

namespace towline::tcpx::zcrx {

inline constexpr unsigned kRegisterQueue = 32;  // io_uring_register(): a Registration
inline constexpr unsigned kControl = 36;        // io_uring_register(): a Control
inline constexpr uint8_t kReceive = 58;         // an operation; its length bounds nothing where it is 0
inline constexpr uint32_t kOwnMemory = 1;       // flag of a Region: the caller's memory
inline constexpr uint32_t kDmaBuf = 1;          // flag of an Area
inline constexpr uint32_t kWithoutNic =
    2;  // flag of a Registration: the kernel copies every byte into the area
inline constexpr uint32_t kTakeRefills = 0;  // what a Control asks for
inline constexpr unsigned kAreaShift = 48;   // from here on an offset names its area
inline constexpr uint32_t kMostRefills = 32768;

// An entry of the refill ring: it gives a page of the area back.
struct Refill {
  uint64_t offset;  // with the area's token
  uint32_t bytes;
  uint32_t zero;
};
static_assert(sizeof(Refill) == 16);

// Offsets of the refill ring's parts in its region.
struct Offsets {
  uint32_t head;
  uint32_t tail;
  uint32_t entries;
  uint32_t zero;
  uint64_t zeros[2];
};

struct Area {
  uint64_t address;
  uint64_t bytes;
  uint64_t token;  // the kernel's answer
  uint32_t flags;
  uint32_t dma_buf;
  uint64_t zeros[2];
};
static_assert(sizeof(Area) == 48);

struct Region {
  uint64_t address;
  uint64_t bytes;
  uint32_t flags;
  uint32_t id;
  uint64_t mmap_offset;
  uint64_t zeros[4];
};
static_assert(sizeof(Region) == 64);

struct Registration {
  uint32_t interface;
  uint32_t queue;
  uint32_t entries;  // of the refill ring, a power of two
  uint32_t flags;
  uint64_t area;
  uint64_t region;
  Offsets offsets;  // the kernel's answer
  uint32_t id;      // the kernel's answer
  uint32_t buffer_bytes;
  uint64_t zeros[3];
};
static_assert(sizeof(Registration) == 96);

struct Control {
  uint32_t id;
  uint32_t what;
  uint64_t zeros[8];
};
static_assert(sizeof(Control) == 72);

}  // namespace towline::tcpx::zcrx
