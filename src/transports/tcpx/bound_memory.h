// GPU memory of this agent that is sent as it lies. Each region is bound to the NIC, as a dma-buf, when it is registered: then
// the NIC reads it, and neither a GPU gathers nor a processor copies what goes out. Regions that can't be bound are
// gathered to staging memory and sent from there; why_not() says what was missing.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/os/memfd.h"
#include "towline/plugin/backend.hpp"
#include "transports/tcpx/kernel/nic.h"

namespace towline::tcpx {

// How GPU memory is sent.
enum class SendWay : uint8_t {
  kAuto = 0,      // bound to the NIC where that can be had
  kGather = 1,    // always gathered
  kEmulated = 2,  // for tests: this process maps the dma-buf, and the kernel reads it there
};

// Where a send finds bound memory.
struct BoundRange {
  uint64_t device = 0;   // the GPU
  uint64_t address = 0;  // there
  uint64_t bytes = 0;
  uint64_t at =
      0;  // its first byte, as a send names it: an offset in the dma-buf, or an address of this process
  uint32_t number = 0;  // by which the kernel knows the dma-buf; 0: this process has mapped it
};

class BoundMemory {
 public:
  static constexpr std::size_t kMost = 256;  // regions, each with a socket of netlink that holds it

  struct Bound {
    BoundRange range;
    uint32_t uses = 1;
    Binding binding;
    Mapping mapping;  // emulated
  };

  // `interface`: the NIC; empty: none. `kernel` and `host` outlive it.
  BoundMemory(Kernel& kernel, const plugin::Host& host, SendWay way, std::string interface);

  // Control path, any thread. Null: the region is gathered. Memory within a region that is bound shares its binding.
  Bound* add(const towline_region_ref& region);
  void remove(Bound* bound) noexcept;

  // Changes with every add and remove. Any thread.
  [[nodiscard]] uint64_t generation() const noexcept { return generation_.load(std::memory_order_acquire); }
  // What is bound now, at most kMost. Returns the generation.
  uint64_t copy_to(std::vector<BoundRange>& ranges) const;

  // A socket can't send from it: its packets leave by another NIC, or the kernel refuses.
  void note_refused(const std::string& why) noexcept;
  [[nodiscard]] std::string why_not() const;  // empty: nothing was refused
  [[nodiscard]] std::size_t regions() const;

 private:
  [[nodiscard]] std::unique_ptr<Bound> bind(const towline_region_ref& region);

  Kernel& kernel_;
  const plugin::Host& host_;
  const SendWay way_;
  const std::string interface_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Bound>> bound_;
  std::string why_not_;
  bool refused_ = false;  // by the kernel or the NIC, whatever the region
  std::atomic<uint64_t> generation_{1};
};

}  // namespace towline::tcpx
