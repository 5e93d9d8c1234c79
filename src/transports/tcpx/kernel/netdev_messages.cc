#include "transports/tcpx/kernel/netdev_messages.h"

#include <linux/ethtool_netlink.h>
#include <linux/genetlink.h>
#include <linux/netlink.h>

#include <utility>

namespace towline::tcpx {
namespace {

// linux/netdev.h, which the headers of older kernels lack.
namespace netdev {
enum Command : uint8_t { kPoolGet = 5, kQueueGet = 10, kBindReceive = 13, kBindSend = 15 };
namespace binding {
enum : uint16_t { kInterface = 1, kQueues = 2, kDescriptor = 3, kNumber = 4 };
}
namespace queue {
enum : uint16_t { kNumber = 1, kInterface = 2, kType = 3, kMemory = 5, kIoUring = 6 };
}
namespace pool {
enum : uint16_t { kNumber = 1, kInterface = 2, kInFlight = 4, kMemory = 7, kIoUring = 8 };
}
constexpr uint8_t kVersion = 1;
}  // namespace netdev

constexpr uint16_t kThreshold = 17;  // ETHTOOL_A_RINGS_HDS_THRESH
constexpr std::size_t kMostQueues = 256;

uint64_t number_of(const Attribute& attribute) noexcept {
  return attribute.data.size() == 8 ? WireReader(attribute.data).u64() : attribute.u32();
}

void name_interface(NetlinkRequest& request, std::string_view interface) noexcept {
  const std::size_t header = request.begin(ETHTOOL_A_RINGS_HEADER);
  request.text(ETHTOOL_A_HEADER_DEV_NAME, interface);
  request.end(header);
}

}  // namespace

std::span<const uint8_t> encode_find_family(std::span<uint8_t> out, uint32_t sequence,
                                            std::string_view name) noexcept {
  NetlinkRequest request(out, GENL_ID_CTRL, NLM_F_ACK, sequence, CTRL_CMD_GETFAMILY, 1);
  request.text(CTRL_ATTR_FAMILY_NAME, name);
  return request.finish();
}

std::span<const uint8_t> encode_bind_receive(std::span<uint8_t> out, uint16_t family, uint32_t sequence,
                                             uint32_t interface, std::span<const uint32_t> queues,
                                             int memory) noexcept {
  if (queues.size() > kMostQueues) return {};
  NetlinkRequest request(out, family, NLM_F_ACK, sequence, netdev::kBindReceive, netdev::kVersion);
  request.u32(netdev::binding::kInterface, interface);
  request.u32(netdev::binding::kDescriptor, static_cast<uint32_t>(memory));
  for (const uint32_t queue : queues) {
    const std::size_t nested = request.begin(netdev::binding::kQueues);
    request.u32(netdev::queue::kNumber, queue);
    request.u32(netdev::queue::kType, 0);  // receives
    request.end(nested);
  }
  return request.finish();
}

std::span<const uint8_t> encode_bind_send(std::span<uint8_t> out, uint16_t family, uint32_t sequence,
                                          uint32_t interface, int memory) noexcept {
  NetlinkRequest request(out, family, NLM_F_ACK, sequence, netdev::kBindSend, netdev::kVersion);
  request.u32(netdev::binding::kInterface, interface);
  request.u32(netdev::binding::kDescriptor, static_cast<uint32_t>(memory));
  return request.finish();
}

std::span<const uint8_t> encode_list_queues(std::span<uint8_t> out, uint16_t family, uint32_t sequence,
                                            uint32_t interface) noexcept {
  NetlinkRequest request(out, family, NLM_F_DUMP, sequence, netdev::kQueueGet, netdev::kVersion);
  request.u32(netdev::queue::kInterface, interface);
  return request.finish();
}

std::span<const uint8_t> encode_list_pools(std::span<uint8_t> out, uint16_t family,
                                           uint32_t sequence) noexcept {
  return NetlinkRequest(out, family, NLM_F_DUMP, sequence, netdev::kPoolGet, netdev::kVersion).finish();
}

std::span<const uint8_t> encode_get_rings(std::span<uint8_t> out, uint16_t family, uint32_t sequence,
                                          std::string_view interface) noexcept {
  NetlinkRequest request(out, family, NLM_F_ACK, sequence, ETHTOOL_MSG_RINGS_GET, ETHTOOL_GENL_VERSION);
  name_interface(request, interface);
  return request.finish();
}

std::span<const uint8_t> encode_set_rings(std::span<uint8_t> out, uint16_t family, uint32_t sequence,
                                          std::string_view interface, const Rings& rings) noexcept {
  NetlinkRequest request(out, family, NLM_F_ACK, sequence, ETHTOOL_MSG_RINGS_SET, ETHTOOL_GENL_VERSION);
  name_interface(request, interface);
  request.u8(ETHTOOL_A_RINGS_TCP_DATA_SPLIT, static_cast<uint8_t>(rings.split));
  if (rings.threshold) request.u32(kThreshold, *rings.threshold);
  return request.finish();
}

std::optional<uint16_t> decode_family(std::span<const uint8_t> attributes) noexcept {
  Attribute attribute;
  while (next_attribute(attributes, attribute))
    if (attribute.type == CTRL_ATTR_FAMILY_ID && attribute.u16() != 0) return attribute.u16();
  return std::nullopt;
}

std::optional<uint32_t> decode_binding(std::span<const uint8_t> attributes) noexcept {
  Attribute attribute;
  while (next_attribute(attributes, attribute))
    if (attribute.type == netdev::binding::kNumber && attribute.data.size() == 4) return attribute.u32();
  return std::nullopt;
}

std::optional<Rings> decode_rings(std::span<const uint8_t> attributes) noexcept {
  Rings rings;
  bool any = false;
  Attribute attribute;
  while (next_attribute(attributes, attribute)) {
    any = true;
    if (attribute.type == ETHTOOL_A_RINGS_TCP_DATA_SPLIT && attribute.u8() <= 2)
      rings.split = static_cast<Split>(attribute.u8());
    if (attribute.type == kThreshold && attribute.data.size() == 4) rings.threshold = attribute.u32();
  }
  return any ? std::optional(rings) : std::nullopt;
}

std::optional<Queue> decode_queue(std::span<const uint8_t> attributes) noexcept {
  Queue queue;
  bool known = false;
  Attribute attribute;
  while (next_attribute(attributes, attribute)) {
    switch (attribute.type) {
      case netdev::queue::kNumber:
        queue.number = attribute.u32();
        known = attribute.data.size() == 4;
        break;
      case netdev::queue::kInterface:
        queue.interface = attribute.u32();
        break;
      case netdev::queue::kType:
        queue.receives = attribute.data.size() == 4 && attribute.u32() == 0;
        break;
      case netdev::queue::kMemory:
        queue.memory = attribute.u32();
        break;
      case netdev::queue::kIoUring:
        queue.io_uring = true;
        break;
    }
  }
  return known ? std::optional(queue) : std::nullopt;
}

std::optional<PagePool> decode_pool(std::span<const uint8_t> attributes) noexcept {
  PagePool pool;
  bool known = false;
  Attribute attribute;
  while (next_attribute(attributes, attribute)) {
    switch (attribute.type) {
      case netdev::pool::kNumber:
        pool.number = static_cast<uint32_t>(number_of(attribute));
        known = true;
        break;
      case netdev::pool::kInterface:
        pool.interface = static_cast<uint32_t>(number_of(attribute));
        break;
      case netdev::pool::kInFlight:
        pool.in_flight = number_of(attribute);
        break;
      case netdev::pool::kMemory:
        pool.memory = attribute.u32();
        break;
      case netdev::pool::kIoUring:
        pool.io_uring = true;
        break;
    }
  }
  return known ? std::optional(pool) : std::nullopt;
}

}  // namespace towline::tcpx
