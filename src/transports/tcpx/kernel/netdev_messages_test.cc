#include "transports/tcpx/kernel/netdev_messages.h"

#include <gtest/gtest.h>
#include <linux/ethtool_netlink.h>
#include <linux/genetlink.h>
#include <linux/netlink.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

namespace towline::tcpx {
namespace {

// A reply with attributes, from the encoder of requests: the two have one shape.
class Reply {
 public:
  explicit Reply(uint16_t type = 30) : request_(buffer_, type, 0, 1, 0, 1) {}
  NetlinkRequest& operator*() { return request_; }
  std::span<const uint8_t> attributes() {
    datagram_ = request_.finish();
    EXPECT_TRUE(next_reply(datagram_, reply_));
    return generic_attributes(reply_);
  }

 private:
  std::array<uint8_t, 512> buffer_;
  NetlinkRequest request_;
  std::span<const uint8_t> datagram_;
  NetlinkReply reply_;
};

TEST(NetdevMessages, ABindingNamesInterfaceMemoryAndQueues) {
  std::array<uint8_t, 256> buffer;
  const uint32_t queues[] = {14, 15};
  std::span<const uint8_t> bytes = encode_bind_receive(buffer, 33, 9, 4, queues, 17);
  const auto* header = reinterpret_cast<const nlmsghdr*>(bytes.data());
  EXPECT_EQ(header->nlmsg_len, bytes.size());
  EXPECT_EQ(header->nlmsg_type, 33);
  EXPECT_EQ(header->nlmsg_flags, NLM_F_REQUEST | NLM_F_ACK);
  NetlinkReply message;
  ASSERT_TRUE(next_reply(bytes, message));
  EXPECT_EQ(message.payload[0], 13);  // bind-rx
  std::span<const uint8_t> attributes = generic_attributes(message);
  Attribute attribute;
  std::vector<uint32_t> seen;
  while (next_attribute(attributes, attribute)) {
    EXPECT_TRUE(attribute.type != 1 || attribute.u32() == 4u);
    EXPECT_TRUE(attribute.type != 3 || attribute.u32() == 17u);
    if (attribute.type != 2) continue;
    Attribute inner;
    std::span<const uint8_t> nested = attribute.data;
    ASSERT_TRUE(next_attribute(nested, inner));
    seen.push_back(inner.u32());
  }
  EXPECT_EQ(seen, (std::vector<uint32_t>{14, 15}));
}

TEST(NetdevMessages, WhatDoesNotFitIsEmpty) {
  std::array<uint8_t, 40> little;
  const uint32_t queues[] = {14, 15};
  EXPECT_TRUE(encode_bind_receive(little, 33, 9, 4, queues, 17).empty());
  std::array<uint8_t, 4096> large;
  EXPECT_TRUE(encode_find_family(large, 1, std::string(2000, 'x')).empty());
  const std::vector<uint32_t> many(257);
  EXPECT_TRUE(encode_bind_receive(large, 33, 9, 4, many, 17).empty());
}

TEST(NetdevMessages, QueuesPoolsAndRingsAreRead) {
  Reply queue;
  (*queue).u32(1, 3);
  (*queue).u32(2, 4);
  (*queue).u32(3, 0);
  (*queue).u32(5, 99);
  const auto read = decode_queue(queue.attributes());
  ASSERT_TRUE(read);
  EXPECT_EQ(read->number, 3u);
  EXPECT_EQ(read->interface, 4u);
  EXPECT_TRUE(read->receives);
  EXPECT_EQ(read->memory, 99u);
  EXPECT_FALSE(read->io_uring);

  Reply pool;
  (*pool).u32(1, 8);
  (*pool).u32(2, 4);
  (*pool).u32(4, 1000);
  const auto pool_read = decode_pool(pool.attributes());
  ASSERT_TRUE(pool_read);
  EXPECT_EQ(pool_read->in_flight, 1000u);
  EXPECT_FALSE(pool_read->memory);

  Reply rings;
  (*rings).u8(ETHTOOL_A_RINGS_TCP_DATA_SPLIT, 2);
  (*rings).u32(17, 0);
  const auto rings_read = decode_rings(rings.attributes());
  ASSERT_TRUE(rings_read);
  EXPECT_EQ(rings_read->split, Split::kOn);
  EXPECT_EQ(rings_read->threshold, 0u);

  Reply nothing;
  EXPECT_FALSE(decode_queue(nothing.attributes()));
  EXPECT_FALSE(decode_rings(nothing.attributes()));
}

TEST(NetdevMessages, TheKernelsReasonIsRead) {
  const std::string reason = "tcp-data-split is disabled";
  std::vector<uint8_t> bytes;
  WireWriter writer(bytes);
  writer.u32(0);
  writer.u16(NLMSG_ERROR);
  writer.u16(NLM_F_CAPPED | NLM_F_ACK_TLVS);
  writer.u32(1);
  writer.u32(0);
  writer.i32(-EINVAL);
  writer.zeros(NLMSG_HDRLEN);
  writer.u16(static_cast<uint16_t>(4 + reason.size() + 1));
  writer.u16(NLMSGERR_ATTR_MSG);
  writer.raw({reinterpret_cast<const uint8_t*>(reason.data()), reason.size() + 1});
  writer.patch_u32(0, static_cast<uint32_t>(writer.size()));
  std::span<const uint8_t> datagram = bytes;
  NetlinkReply reply;
  NetlinkEnd end;
  ASSERT_TRUE(next_reply(datagram, reply));
  ASSERT_TRUE(decode_end(reply, end));
  EXPECT_EQ(end.error, EINVAL);
  EXPECT_EQ(end.text, reason);
}

TEST(NetdevMessages, LengthsThatCannotBeRightEndTheList) {
  std::vector<uint8_t> bytes(16);
  for (const uint32_t length : {0u, 15u, 17u, UINT32_MAX}) {
    std::memcpy(bytes.data(), &length, sizeof length);
    std::span<const uint8_t> datagram = bytes;
    NetlinkReply reply;
    EXPECT_FALSE(next_reply(datagram, reply)) << length;
  }
  for (const uint16_t length : {uint16_t{0}, uint16_t{3}, uint16_t{17}}) {
    std::memcpy(bytes.data(), &length, sizeof length);
    std::span<const uint8_t> attributes = bytes;
    Attribute attribute;
    EXPECT_FALSE(next_attribute(attributes, attribute)) << length;
  }
}

}  // namespace
}  // namespace towline::tcpx
