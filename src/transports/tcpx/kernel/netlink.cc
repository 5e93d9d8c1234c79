#include "transports/tcpx/kernel/netlink.h"

#include <linux/genetlink.h>
#include <linux/netlink.h>

#include <algorithm>
#include <cerrno>

namespace towline::tcpx {
namespace {

constexpr std::size_t kAttributeHeader = 4;
constexpr uint16_t kTypeMask = 0x3fff;  // without the flags

constexpr std::size_t aligned(std::size_t bytes) noexcept { return (bytes + 3) & ~std::size_t{3}; }

}  // namespace

NetlinkRequest::NetlinkRequest(std::span<uint8_t> out, uint16_t family, uint16_t flags, uint32_t sequence,
                               uint8_t command, uint8_t version) noexcept
    : writer_(out), out_(out) {
  writer_.u32(0);  // length: finish()
  writer_.u16(family);
  writer_.u16(flags | NLM_F_REQUEST);
  writer_.u32(sequence);
  writer_.u32(0);
  writer_.u8(command);
  writer_.u8(version);
  writer_.u16(0);
}

void NetlinkRequest::header(uint16_t type, std::size_t bytes) noexcept {
  writer_.u16(static_cast<uint16_t>(kAttributeHeader + bytes));
  writer_.u16(type);
}

void NetlinkRequest::pad() noexcept { writer_.zeros(aligned(writer_.size()) - writer_.size()); }

void NetlinkRequest::u32(uint16_t type, uint32_t value) noexcept {
  header(type, sizeof value);
  writer_.u32(value);
}

void NetlinkRequest::u8(uint16_t type, uint8_t value) noexcept {
  header(type, sizeof value);
  writer_.u8(value);
  pad();
}

void NetlinkRequest::text(uint16_t type, std::string_view value) noexcept {
  if (value.size() > 1024) {  // no name that the kernel knows is that long
    constexpr std::size_t kMoreThanAnyRequest = std::size_t{1} << 32;  // fails the writer
    writer_.zeros(kMoreThanAnyRequest);
    return;
  }
  header(type, value.size() + 1);
  writer_.raw({reinterpret_cast<const uint8_t*>(value.data()), value.size()});
  writer_.u8(0);
  pad();
}

std::size_t NetlinkRequest::begin(uint16_t type) noexcept {
  const std::size_t began = writer_.size();
  header(type | NLA_F_NESTED, 0);
  return began;
}

void NetlinkRequest::end(std::size_t began) noexcept {
  if (!writer_.ok()) return;
  const auto bytes = static_cast<uint16_t>(writer_.size() - began);
  std::memcpy(out_.data() + began, &bytes, sizeof bytes);
}

std::span<const uint8_t> NetlinkRequest::finish() noexcept {
  writer_.patch_u32(0, static_cast<uint32_t>(writer_.size()));
  return writer_.ok() ? writer_.written() : std::span<const uint8_t>{};
}

bool next_reply(std::span<const uint8_t>& datagram, NetlinkReply& reply) noexcept {
  WireReader reader(datagram);
  const uint32_t bytes = reader.u32();
  reply.type = reader.u16();
  reply.flags = reader.u16();
  reply.sequence = reader.u32();
  reader.skip(4);
  if (!reader.ok() || bytes < NLMSG_HDRLEN || bytes > datagram.size()) return false;
  reply.payload = datagram.subspan(NLMSG_HDRLEN, bytes - NLMSG_HDRLEN);
  datagram = datagram.subspan(std::min(aligned(bytes), datagram.size()));
  return true;
}

bool next_attribute(std::span<const uint8_t>& attributes, Attribute& attribute) noexcept {
  WireReader reader(attributes);
  const uint16_t bytes = reader.u16();
  attribute.type = reader.u16() & kTypeMask;
  if (!reader.ok() || bytes < kAttributeHeader || bytes > attributes.size()) return false;
  attribute.data = attributes.subspan(kAttributeHeader, bytes - kAttributeHeader);
  attributes = attributes.subspan(std::min(aligned(bytes), attributes.size()));
  return true;
}

uint32_t Attribute::u32() const noexcept { return data.size() == 4 ? WireReader(data).u32() : 0; }
uint16_t Attribute::u16() const noexcept { return data.size() == 2 ? WireReader(data).u16() : 0; }
uint8_t Attribute::u8() const noexcept { return data.size() == 1 ? data[0] : 0; }

std::string_view Attribute::text() const noexcept {
  const std::string_view all(reinterpret_cast<const char*>(data.data()), data.size());
  return all.substr(0, all.find('\0'));
}

std::span<const uint8_t> generic_attributes(const NetlinkReply& reply) noexcept {
  return reply.payload.size() < GENL_HDRLEN ? std::span<const uint8_t>{} : reply.payload.subspan(GENL_HDRLEN);
}

bool decode_end(const NetlinkReply& reply, NetlinkEnd& end) noexcept {
  end = {};
  if (reply.type != NLMSG_ERROR && reply.type != NLMSG_DONE) return false;
  WireReader reader(reply.payload);
  const int32_t error = reader.i32();
  if (!reader.ok()) {
    if (reply.type == NLMSG_ERROR) end.error = EBADMSG;
    return true;  // the end of an older kernel's dump says nothing
  }
  end.error = error > 0 || error == INT32_MIN ? EBADMSG : -error;
  if (reply.type != NLMSG_ERROR || (reply.flags & NLM_F_ACK_TLVS) == 0) return true;
  const uint32_t echoed = reader.u32();  // the request's header, and all of it unless it was left out
  const bool capped = (reply.flags & NLM_F_CAPPED) != 0;
  const std::size_t skipped = sizeof error + (capped ? NLMSG_HDRLEN : aligned(echoed));
  if (!reader.ok() || (!capped && echoed > reply.payload.size()) || skipped > reply.payload.size())
    return true;
  std::span<const uint8_t> attributes = reply.payload.subspan(skipped);
  Attribute attribute;
  while (next_attribute(attributes, attribute))
    if (attribute.type == NLMSGERR_ATTR_MSG) end.text = attribute.text();
  return true;
}

}  // namespace towline::tcpx
