// Requests to the kernel's netlink families "netdev" (queues, pools, bindings of memory to queues) and "ethtool" (how a
// NIC splits packets), and their replies. Pure functions over bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "transports/tcpx/kernel/netlink.h"

namespace towline::tcpx {

// Each writes one request into `out` and returns it; empty where it does not fit. All are acknowledged: an end follows
// the data of a reply.
[[nodiscard]] std::span<const uint8_t> encode_find_family(std::span<uint8_t> out, uint32_t sequence,
                                                          std::string_view name) noexcept;
// Memory, a dma-buf, for what arrives at these receive queues.
[[nodiscard]] std::span<const uint8_t> encode_bind_receive(std::span<uint8_t> out, uint16_t family,
                                                           uint32_t sequence, uint32_t interface,
                                                           std::span<const uint32_t> queues,
                                                           int memory) noexcept;
// Memory to send from by this interface.
[[nodiscard]] std::span<const uint8_t> encode_bind_send(std::span<uint8_t> out, uint16_t family,
                                                        uint32_t sequence, uint32_t interface,
                                                        int memory) noexcept;
[[nodiscard]] std::span<const uint8_t> encode_list_queues(std::span<uint8_t> out, uint16_t family,
                                                          uint32_t sequence, uint32_t interface) noexcept;
[[nodiscard]] std::span<const uint8_t> encode_list_pools(std::span<uint8_t> out, uint16_t family,
                                                         uint32_t sequence) noexcept;
[[nodiscard]] std::span<const uint8_t> encode_get_rings(std::span<uint8_t> out, uint16_t family,
                                                        uint32_t sequence,
                                                        std::string_view interface) noexcept;

// Does a NIC put headers and payload of TCP packets into different memory?
enum class Split : uint8_t { kUnknown, kOff, kOn };
struct Rings {
  Split split = Split::kUnknown;
  std::optional<uint32_t> threshold;  // packets up to so many bytes are not split; absent in older kernels
};
[[nodiscard]] std::span<const uint8_t> encode_set_rings(std::span<uint8_t> out, uint16_t family,
                                                        uint32_t sequence, std::string_view interface,
                                                        const Rings& rings) noexcept;

// Decodes the attributes of a reply (generic_attributes); empty if they belong to another kind.
[[nodiscard]] std::optional<uint16_t> decode_family(std::span<const uint8_t> attributes) noexcept;
[[nodiscard]] std::optional<uint32_t> decode_binding(std::span<const uint8_t> attributes) noexcept;
[[nodiscard]] std::optional<Rings> decode_rings(std::span<const uint8_t> attributes) noexcept;

struct Queue {
  uint32_t number = 0;
  uint32_t interface = 0;
  bool receives = false;
  std::optional<uint32_t> memory;  // the binding whose memory it fills
  bool io_uring = false;           // an io_uring's memory
};
[[nodiscard]] std::optional<Queue> decode_queue(std::span<const uint8_t> attributes) noexcept;

struct PagePool {
  uint32_t number = 0;
  uint32_t interface = 0;
  uint64_t in_flight = 0;  // pages
  std::optional<uint32_t> memory;
  bool io_uring = false;
};
[[nodiscard]] std::optional<PagePool> decode_pool(std::span<const uint8_t> attributes) noexcept;

}  // namespace towline::tcpx
