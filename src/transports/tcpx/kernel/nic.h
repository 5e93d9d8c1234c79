// A NIC: its queues, their memory, how it splits packets, and which packets go to which queue. Control path, one thread
// at a time; methods throw Error with the interface's name and the kernel's own words.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "transports/tcpx/kernel/flow_rules.h"
#include "transports/tcpx/kernel/kernel.h"
#include "transports/tcpx/kernel/netdev_messages.h"

namespace towline::tcpx {

// Memory that is bound to queues, or for sending, until this goes.
struct Binding {
  std::unique_ptr<Netlink> held_by;
  uint32_t number = 0;
};

class Nic {
 public:
  // `kernel` outlives it.
  Nic(Kernel& kernel, std::string interface);

  [[nodiscard]] const std::string& interface() const noexcept { return interface_; }

  [[nodiscard]] Binding bind_receive(std::span<const uint32_t> queues, int dma_buf);
  [[nodiscard]] Binding bind_send(int dma_buf);
  [[nodiscard]] std::vector<Queue> queues();
  [[nodiscard]] std::vector<PagePool> pools();

  [[nodiscard]] Rings rings();
  void set_rings(const Rings& rings);

  void insert_rule(const FlowRule& rule);
  // Rules for one connection each, as ours are, with their places.
  [[nodiscard]] std::vector<std::pair<uint32_t, FlowRule>> rules();
  void delete_rule(uint32_t place);

  // Which queue each share of all other packets goes to.
  [[nodiscard]] std::vector<uint32_t> spread();
  void set_spread(std::span<const uint32_t> queues);

 private:
  using Each = std::function<void(std::span<const uint8_t> attributes)>;

  void ask(Netlink& netlink, std::span<const uint8_t> request, const std::string& what, const Each& each);
  [[nodiscard]] uint16_t family(Netlink& netlink, const char* name, const char* since);
  [[nodiscard]] Binding bound(std::unique_ptr<Netlink> netlink, std::span<const uint8_t> request,
                              const std::string& what);
  void call(std::span<uint8_t> bytes, const std::string& what);

  Kernel& kernel_;
  const std::string interface_;
  uint32_t number_ = 0;
  uint32_t sequence_ = 0;
};

}  // namespace towline::tcpx
