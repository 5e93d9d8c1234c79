// The thread of a zero-copy receive ring. The kernel lets one thread alone use such a ring, while any thread may make a
// worker's progress: so this one takes completions to the sources of their sockets, and pages back to the kernel.
//
// A piece of the area that has arrived is a slot, whose number is its token. A slot goes from the pump to a source, and back
// when the source is done with it. While no slot is free the pump takes no completion: the kernel's ring fills up, and
// then the connections' windows.
#pragma once

#include <atomic>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/os/memfd.h"
#include "base/os/unique_fd.h"
#include "transports/tcpx/kernel/zcrx_ring.h"
#include "transports/tcpx/sources/number_queue.h"

namespace towline::tcpx {

struct ZcrxSlot {
  uint64_t offset = 0;  // in the area
  uint32_t bytes = 0;
};

// State shared by the pump and one source.
struct ZcrxChannel {
  ZcrxChannel(UniqueFd from, UniqueFd event, uint32_t slots)
      : wake(std::move(event)), arrived(slots), returned(slots), socket(std::move(from)) {}

  static constexpr int32_t kOpen = 0;
  static constexpr int32_t kClosed = 1;

  const UniqueFd wake;               // an eventfd; set when something was said here
  NumberQueue arrived;               // slots; the pump pushes
  NumberQueue returned;              // slots; the source pushes
  std::atomic<int32_t> end{kOpen};   // a negated errno, or kClosed; after the last slot that arrived
  std::atomic<bool> starved{false};  // the kernel has no page for what arrived

  // The pump's alone.
  UniqueFd socket;
  bool armed = false;
  bool wants_arm = true;
  bool waits_for_pages = false;
  bool leaving = false;
  bool said = false;

  ZcrxChannel* next_closed = nullptr;  // the pump's mutex guards it
};

class ZcrxPump {
 public:
  static constexpr uint32_t kPageBytes = 4096;

  // Opens the ring, over an area that outlives it. Throws Error that says why not.
  ZcrxPump(std::span<uint8_t> area, const OpenZcrxRing& open);
  // No channel is open any more.
  ~ZcrxPump();
  ZcrxPump(const ZcrxPump&) = delete;
  ZcrxPump& operator=(const ZcrxPump&) = delete;

  // Any thread; control path. Throws Error. The channel lives until it is closed.
  [[nodiscard]] ZcrxChannel* open(int socket);
  // The source pops and pushes nothing any more, and holds no slot.
  void close(ZcrxChannel* channel) noexcept;
  // After slots were returned. Any thread.
  void poke() noexcept;

  [[nodiscard]] uint32_t slots() const noexcept { return static_cast<uint32_t>(slots_.size()); }
  // The fragment of a number that was popped and not returned.
  [[nodiscard]] ZcrxSlot slot(uint32_t number) const noexcept { return slots_[number]; }

 private:
  void run() noexcept;
  void give_up() noexcept;
  void obey() noexcept;
  void take(const ZcrxCompletion& completion) noexcept;
  void take_end(ZcrxChannel& channel, int32_t result) noexcept;
  bool take_returned() noexcept;
  void arm(bool pages_came) noexcept;
  void say() noexcept;
  void end(ZcrxChannel& channel, int32_t how) noexcept;

  const uint64_t area_bytes_;
  std::vector<ZcrxSlot> slots_;
  std::vector<uint32_t> free_;
  std::vector<uint32_t> owed_;                          // slots whose pages the kernel has yet to take
  std::vector<std::unique_ptr<ZcrxChannel>> channels_;  // becomes larger under the mutex only
  std::unique_ptr<ZcrxRing> ring_;
  bool broken_ = false;
  uint32_t fruitless_ = 0;  // refusals in a row although the kernel has every page
  std::mutex mutex_;
  std::vector<std::unique_ptr<ZcrxChannel>> opened_;  // to be served
  std::vector<std::unique_ptr<ZcrxChannel>> room_;    // empty: the next memory of channels_
  ZcrxChannel* closed_ = nullptr;                     // to be left, and those after it
  bool stopping_ = false;
  std::atomic<bool> poked_{false};
  std::thread thread_;
};

}  // namespace towline::tcpx
