// For tests: a kernel with one NIC, which takes netlink messages and ethtool calls as the real one does.
#pragma once

#include <linux/ethtool.h>
#include <linux/ethtool_netlink.h>
#include <linux/genetlink.h>
#include <linux/netlink.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "transports/tcpx/kernel/kernel.h"
#include "transports/tcpx/kernel/netdev_messages.h"

namespace towline::tcpx::testing {

class FakeKernel final : public Kernel {
 public:
  static constexpr uint16_t kNetdev = 30;
  static constexpr uint16_t kEthtool = 31;

  std::string interface = "nic0";
  bool has_netdev = true;
  bool sends_from_memory = true;  // as from Linux 6.16 on
  int bind_error = 0;             // of the next ones
  std::string bind_reason;
  int rule_error = 0;
  Rings rings = {Split::kOff, 256};
  int rings_error = 0;
  std::vector<uint32_t> spread = {0, 1, 2, 3, 0, 1, 2, 3};
  std::map<uint32_t, ethtool_rxnfc> rules;
  std::set<uint32_t> bindings;  // alive
  std::vector<uint32_t> bound_queues;
  uint32_t calls = 0;

  std::unique_ptr<Netlink> open_netlink() override { return std::make_unique<Socket>(*this); }
  uint32_t interface_number(const std::string& name) override { return name == interface ? 7 : 0; }

  int ethtool(const std::string& name, std::span<uint8_t> bytes) override {
    ++calls;
    if (name != interface) return ENODEV;
    uint32_t command = 0;
    std::memcpy(&command, bytes.data(), sizeof command);
    if (command == ETHTOOL_GRXFHINDIR || command == ETHTOOL_SRXFHINDIR) return spread_call(command, bytes);
    ethtool_rxnfc call = {};
    std::memcpy(&call, bytes.data(), std::min(sizeof call, bytes.size()));
    const int error = rule_call(call, bytes);
    if (error == 0) std::memcpy(bytes.data(), &call, offsetof(ethtool_rxnfc, rule_locs));
    return error;
  }

 private:
  class Socket final : public Netlink {
   public:
    explicit Socket(FakeKernel& kernel) : kernel_(kernel) {}
    ~Socket() override {
      for (const uint32_t number : bound_) kernel_.bindings.erase(number);
    }
    void send(std::span<const uint8_t> bytes) override {
      NetlinkReply request;
      while (next_reply(bytes, request)) answer(request);
    }
    std::size_t receive(std::span<uint8_t> datagram) override {
      if (answers_.empty()) fail_errno(EAGAIN, "waiting for netlink's answer");
      const std::vector<uint8_t> next = std::move(answers_.front());
      answers_.pop_front();
      std::copy(next.begin(), next.end(), datagram.begin());
      return next.size();
    }

   private:
    template <class Fill>
    void give(const NetlinkReply& request, Fill fill) {
      std::vector<uint8_t> buffer(1024);
      NetlinkRequest reply(buffer, request.type, 0, request.sequence, request.payload[0], 1);
      fill(reply);
      const auto bytes = reply.finish();
      answers_.emplace_back(bytes.begin(), bytes.end());
    }
    void end(const NetlinkReply& request, int error, const std::string& reason = "") {
      std::vector<uint8_t> bytes;
      WireWriter writer(bytes);
      const bool dump = (request.flags & NLM_F_DUMP) == NLM_F_DUMP && error == 0;
      writer.u32(0);
      writer.u16(dump ? NLMSG_DONE : NLMSG_ERROR);
      writer.u16(NLM_F_CAPPED | (reason.empty() ? 0 : NLM_F_ACK_TLVS));
      writer.u32(request.sequence);
      writer.u32(0);
      writer.i32(-error);
      writer.zeros(NLMSG_HDRLEN);
      if (!reason.empty()) {
        writer.u16(static_cast<uint16_t>(4 + reason.size()));
        writer.u16(NLMSGERR_ATTR_MSG);
        writer.raw({reinterpret_cast<const uint8_t*>(reason.data()), reason.size()});
      }
      writer.patch_u32(0, static_cast<uint32_t>(writer.size()));
      answers_.push_back(std::move(bytes));
    }
    void answer(const NetlinkReply& request) {
      const uint8_t command = request.payload[0];
      if (request.type == GENL_ID_CTRL) return find_family(request);
      if (request.type == kNetdev && (command == 13 || (command == 15 && kernel_.sends_from_memory)))
        return bind(request);
      if (request.type == kNetdev && command == 10) {
        for (uint32_t queue = 0; queue < 4; ++queue)
          give(request, [&](NetlinkRequest& reply) {
            reply.u32(1, queue);
            reply.u32(2, 7);
            reply.u32(3, 0);
          });
        return end(request, 0);
      }
      if (request.type == kEthtool && command == ETHTOOL_MSG_RINGS_GET) {
        give(request, [&](NetlinkRequest& reply) {
          reply.u8(ETHTOOL_A_RINGS_TCP_DATA_SPLIT, static_cast<uint8_t>(kernel_.rings.split));
          if (kernel_.rings.threshold) reply.u32(17, *kernel_.rings.threshold);
        });
        return end(request, 0);
      }
      if (request.type == kEthtool && command == ETHTOOL_MSG_RINGS_SET) {
        if (kernel_.rings_error != 0) return end(request, kernel_.rings_error);
        kernel_.rings = decode_rings(generic_attributes(request)).value_or(Rings{});
        return end(request, 0);
      }
      end(request, EOPNOTSUPP);
    }
    void find_family(const NetlinkReply& request) {
      std::span<const uint8_t> attributes = generic_attributes(request);
      Attribute attribute;
      while (next_attribute(attributes, attribute)) {
        if (attribute.type != CTRL_ATTR_FAMILY_NAME) continue;
        const bool netdev = attribute.text() == "netdev" && kernel_.has_netdev;
        if (!netdev && attribute.text() != "ethtool") return end(request, ENOENT);
        // A number of 16 bits, which the writer of requests has no need of.
        std::vector<uint8_t> bytes;
        WireWriter writer(bytes);
        writer.u32(NLMSG_HDRLEN + GENL_HDRLEN + 8);
        writer.u16(request.type);
        writer.u16(0);
        writer.u32(request.sequence);
        writer.u32(0);
        writer.zeros(GENL_HDRLEN);
        writer.u16(6);
        writer.u16(CTRL_ATTR_FAMILY_ID);
        writer.u16(netdev ? kNetdev : kEthtool);
        writer.u16(0);
        answers_.push_back(std::move(bytes));
        return end(request, 0);
      }
      end(request, EINVAL);
    }
    void bind(const NetlinkReply& request) {
      if (kernel_.bind_error != 0) return end(request, kernel_.bind_error, kernel_.bind_reason);
      std::span<const uint8_t> attributes = generic_attributes(request);
      Attribute attribute;
      kernel_.bound_queues.clear();
      while (next_attribute(attributes, attribute)) {
        Attribute inner;
        std::span<const uint8_t> nested = attribute.data;
        if (attribute.type == 2 && next_attribute(nested, inner)) kernel_.bound_queues.push_back(inner.u32());
      }
      bound_.push_back(++kernel_.last_binding_);
      kernel_.bindings.insert(bound_.back());
      give(request, [&](NetlinkRequest& reply) { reply.u32(4, bound_.back()); });
      end(request, 0);
    }

    FakeKernel& kernel_;
    std::vector<uint32_t> bound_;
    std::deque<std::vector<uint8_t>> answers_;
  };

  int spread_call(uint32_t command, std::span<uint8_t> bytes) {
    uint32_t size = 0;
    std::memcpy(&size, bytes.data() + 4, sizeof size);
    const auto own = static_cast<uint32_t>(spread.size());
    if (command == ETHTOOL_SRXFHINDIR) {
      if (size != own) return EINVAL;
      std::memcpy(spread.data(), bytes.data() + 8, own * sizeof(uint32_t));
      return 0;
    }
    std::memcpy(bytes.data() + 4, &own, sizeof own);
    if (size >= own && size != 0) std::memcpy(bytes.data() + 8, spread.data(), own * sizeof(uint32_t));
    return 0;
  }

  int rule_call(ethtool_rxnfc& call, std::span<uint8_t> bytes) {
    switch (call.cmd) {
      case ETHTOOL_SRXCLSRLINS:
        if (rule_error != 0) return rule_error;
        call.fs.location = next_place_++;
        rules[call.fs.location] = call;
        return 0;
      case ETHTOOL_SRXCLSRLDEL:
        return rules.erase(call.fs.location) == 1 ? 0 : ENOENT;
      case ETHTOOL_GRXCLSRLCNT:
        call.rule_cnt = static_cast<uint32_t>(rules.size());
        return 0;
      case ETHTOOL_GRXCLSRULE:
        if (rules.count(call.fs.location) == 0) return ENOENT;
        call.fs = rules[call.fs.location].fs;
        return 0;
      case ETHTOOL_GRXCLSRLALL: {
        uint32_t count = 0;
        for (const auto& [place, rule] : rules) {
          if (count == call.rule_cnt) break;
          std::memcpy(bytes.data() + offsetof(ethtool_rxnfc, rule_locs) + count * sizeof place, &place,
                      sizeof place);
          ++count;
        }
        call.rule_cnt = count;
        return 0;
      }
    }
    return EOPNOTSUPP;
  }

  uint32_t last_binding_ = 40;
  uint32_t next_place_ = 100;
};

}  // namespace towline::tcpx::testing
