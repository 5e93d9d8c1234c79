// An engine with a thread and a carrier of its own, for programs that move memory without an agent: registered
// memory, pages by index, counters, messages, deadlines, cancel.
//
// Any thread may call anything. One lock guards an engine; programs that post from many cores make one each.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/os/unique_fd.h"
#include "fabric/carrier.h"

namespace towline::fabric {

struct TransferEngineOptions {
  EngineOptions engine;
  CarrierOptions carrier;
  std::size_t max_counters = 65'536;
  uint64_t spin_ns = 50 * kMicrosecondNs;  // after the last event, before the thread sleeps
  // Called on the engine's thread without its lock; the bytes are valid during the call. Must not block.
  std::function<void(Handle peer, std::span<const uint8_t> message)> on_message;
  std::function<void(Handle peer, const std::string& why)> on_lost;
};

// Pages of equal size: page i lies at offset + indices[i] * stride.
struct PageList {
  const LocalMemory* local = nullptr;
  const RemoteMemory* remote = nullptr;
  std::span<const uint32_t> local_pages;
  std::span<const uint32_t> remote_pages;  // as many
  uint64_t page_bytes = 0;
  uint64_t local_stride = 0;  // 0: page_bytes
  uint64_t remote_stride = 0;
  uint64_t local_offset = 0;
  uint64_t remote_offset = 0;
};

struct TransferOptions {
  uint32_t immediate = 0;
  uint32_t count = 0;                // added to the peer's counter `immediate` after every byte; 0: none
  std::span<const uint8_t> message;  // copied
  bool has_message = false;
  uint64_t timeout_ns = kNoDeadline;
  std::function<void(Status)> done;  // on the engine's thread, without its lock, once
};

// A value that names a transfer until it is released, and afterwards nothing.
class TransferEngine final : private EngineHost {
 public:
  TransferEngine(std::vector<std::unique_ptr<Domain>> domains, TransferEngineOptions options);
  ~TransferEngine() override;  // ends what is under way with kClosed
  TransferEngine(const TransferEngine&) = delete;
  TransferEngine& operator=(const TransferEngine&) = delete;

  // To hand over to those who may connect, write and read.
  std::vector<uint8_t> address() const;
  Handle connect(std::span<const uint8_t> address);  // throws Error
  void disconnect(Handle peer);

  // The pointer stays valid until it is deregistered, which throws Error(kBusy) while a transfer uses it.
  const LocalMemory* register_memory(const MemoryToRegister& memory);
  void deregister_memory(const LocalMemory* memory);
  // What a peer needs to use it, and back. Throws Error(kProtocol).
  static std::vector<uint8_t> descriptor(const LocalMemory& memory);
  static RemoteMemory import(std::span<const uint8_t> descriptor);

  // Start a transfer and set its number. Indices and ranges are checked; the index arrays and the remote memory
  // stay valid until the transfer is fenced. kInProgress, or why it is not accepted.
  Status paged(TransferOp op, Handle peer, const PageList& pages, const TransferOptions& options,
               Handle* number);
  Status single(TransferOp op, Handle peer, const LocalMemory& local, uint64_t local_offset,
                const RemoteMemory& remote, uint64_t remote_offset, uint64_t bytes,
                const TransferOptions& options, Handle* number);
  // Counts or a message without bytes.
  Status signal(Handle peer, const TransferOptions& options, Handle* number);

  // kInProgress, the outcome, or kStale for a number that names nothing.
  Status poll(Handle number) const;
  // The outcome, or kInProgress when the time is over.
  Status wait(Handle number, uint64_t timeout_ns);
  // Until nothing of it is read or placed any more: kOk; kPeerLost when only this side's fence is known.
  Status wait_fenced(Handle number, uint64_t timeout_ns);
  void cancel(Handle number);
  // Its slot is free once it is fenced. A transfer under way goes on.
  void release(Handle number);

  uint64_t counter(uint32_t immediate) const;
  // kOk once the counter is at least `value`, kTimedOut.
  Status wait_counter(uint32_t immediate, uint64_t value, uint64_t timeout_ns);

  std::string describe() const;

 private:
  struct Slot;
  struct Event;

  void complete(uint64_t cookie, const TransferResult& result) noexcept override;
  void fenced(uint64_t cookie, uint32_t fences) noexcept override;
  void counted(Handle peer, uint32_t immediate, uint32_t count) noexcept override;
  void received(Handle peer, std::span<const uint8_t> message) noexcept override;
  void lost(Handle peer, Status status, const std::string& why) noexcept override;
  void send_control(Handle peer, std::span<const uint8_t> message) noexcept override;

  std::unique_lock<std::mutex> lock() const;
  void run() noexcept;
  std::size_t turn() noexcept;
  void deliver(std::unique_lock<std::mutex>& held) noexcept;
  void sleep(uint64_t timer_ns) noexcept;
  void wake() noexcept;
  Status start(Slot& slot, TransferRequest& request, const TransferOptions& options, Handle* number);
  Slot* take_slot();
  Slot* find(Handle number) const;
  void free_if_over(Slot& slot) noexcept;

  TransferEngineOptions options_;
  mutable std::mutex mutex_;
  mutable std::atomic<uint32_t> waiting_{0};
  std::condition_variable changed_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Carrier> carrier_;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<uint32_t> free_slots_;
  std::vector<std::unique_ptr<LocalMemory>> memories_;
  std::unordered_map<uint32_t, uint64_t> counters_;
  std::vector<Event> events_;
  std::vector<Event> delivering_;
  UniqueFd wake_;
  std::atomic<bool> asleep_{false};
  std::atomic<bool> closing_{false};
  std::thread thread_;
};

}  // namespace towline::fabric
