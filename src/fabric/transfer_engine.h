// An engine with a thread and a carrier of its own, for programs that move memory without an agent: registered
// memory, pages by index, scatter, barriers, counters, messages, sends into posted receives, deadlines, cancel.
//
// Any thread may call anything. One lock guards an engine; programs that post from many cores make one each.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/os/memfd.h"
#include "base/os/unique_fd.h"
#include "fabric/carrier.h"
#include "fabric/registrations.h"

namespace towline::fabric {

struct TransferEngineOptions {
  EngineOptions engine;
  CarrierOptions carrier;
  std::size_t max_counters = 65'536;
  uint64_t spin_ns = 50 * kMicrosecondNs;  // after the last event, before the thread sleeps
  int worker_cpu = -1;                     // the processor that the engine's thread runs on; -1: any
  std::size_t max_unexpected = 1024;       // sends of peers that wait here for a receive; more are refused
  // Called on the engine's thread without its lock; the bytes are valid during the call. Must not block.
  std::function<void(Handle peer, std::span<const uint8_t> message)> on_message;
  std::function<void(Handle peer, const std::string& why)> on_lost;
  // A peer has added `count` to the counter `immediate`.
  std::function<void(Handle peer, uint32_t immediate, uint32_t count)> on_counted;
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

// One range of a scatter. Zero bytes: only its count.
struct ScatterPart {
  Handle peer;
  const LocalMemory* local = nullptr;
  uint64_t local_offset = 0;
  const RemoteMemory* remote = nullptr;
  uint64_t remote_offset = 0;
  uint64_t bytes = 0;
};

struct ReceiveOptions {
  Handle from;  // default: any peer
  uint64_t timeout_ns = kNoDeadline;
  std::function<void(Status, Handle peer, uint64_t bytes)> done;  // as TransferOptions::done
};

enum class SlotKind : uint8_t { kTransfer, kMany, kBarrier, kCounter, kSend, kReceive };

// Handles name transfers, sends, receives and waits alike, until they are released.
class TransferEngine final : private EngineHost {
 public:
  TransferEngine(std::vector<std::unique_ptr<Domain>> domains, TransferEngineOptions options);
  // Ends what is under way with kClosed. Nothing begins any more: callbacks get kClosed for it.
  ~TransferEngine() override;
  TransferEngine(const TransferEngine&) = delete;
  TransferEngine& operator=(const TransferEngine&) = delete;

  // To hand over to those who may connect, write and read.
  std::vector<uint8_t> address() const;
  Handle connect(std::span<const uint8_t> address);  // throws Error
  void disconnect(Handle peer);

  // The pointer stays valid until it is deregistered, which throws Error(kBusy) while a transfer uses it.
  const LocalMemory* register_memory(const MemoryToRegister& memory);
  void deregister_memory(const LocalMemory* memory);
  // Memory that is still registered although its owner goes: it stays as long as the engine.
  void keep(Mapping memory);
  // The descriptor that a peer needs to use it, and its decoding. Throws Error(kProtocol).
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
  // Writes to many peers as one transfer, which ends when all of it has: well, or with the first failure. A
  // peer's parts count together: its counter grows by `count` for each of them, after the last byte of all.
  Status scatter(std::span<const ScatterPart> parts, const TransferOptions& options, Handle* number);

  // Peers that signal and meet together. Throws Error for none, a peer named twice, or more than 65,536.
  uint32_t add_group(std::span<const Handle> peers);
  void remove_group(uint32_t group) noexcept;
  // The same signal to each peer of the group, as one transfer.
  Status signal_group(uint32_t group, const TransferOptions& options, Handle* number);
  // Ends once every peer of the group has called it as often as this engine, with a group of the same members
  // (each without itself) and the same immediate, whose counter must serve nothing else. Writes whose outcome a
  // member has seen before it called have arrived. After a failure: kStale; make a group with another immediate.
  Status barrier(uint32_t group, uint32_t immediate, const TransferOptions& options, Handle* number);

  // Sends go into receives that the peer has posted, in the order in which they arrive there. kOutOfRange on
  // both sides if the receive is too short, kAgain if too many sends wait for receives.
  Status send(Handle peer, const LocalMemory& local, uint64_t offset, uint64_t bytes,
              const TransferOptions& options, Handle* number);
  // The memory must be registered as writable by peers.
  Status receive(const LocalMemory& local, uint64_t offset, uint64_t bytes, const ReceiveOptions& options,
                 Handle* number);
  // About a receive that ended well.
  Status received_from(Handle number, Handle* peer, uint64_t* bytes) const;

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
  // The same as something that ends, with a callback, deadline and cancel.
  Status when_counted(uint32_t immediate, uint64_t value, const TransferOptions& options, Handle* number);
  // From here on the counter's value is stored there too, in release order: for GPUs that look at the word. Null
  // ends that, before it returns.
  void mirror_counter(uint32_t immediate, uint64_t* word);

  struct Rail {
    DomainTraits traits;
    RailCounters counters;
  };
  std::vector<Rail> rails() const;
  // The NUMA node that most of the rails are on; none: unknown.
  std::optional<uint32_t> node() const;
  std::string describe() const;

 private:
  struct Slot;
  class Claim;
  struct Event;
  struct Loss;
  struct Group;
  struct Counter;
  struct Unexpected;
  struct Replies;

  void complete(uint64_t cookie, const TransferResult& result) noexcept override;
  void fenced(uint64_t cookie, uint32_t fences) noexcept override;
  void counted(Handle peer, uint32_t immediate, uint32_t count) noexcept override;
  void received(Handle peer, std::span<const uint8_t> message) noexcept override;
  void lost(Handle peer, Status status, std::string_view why) noexcept override;
  void send_control(Handle peer, std::span<const uint8_t> message) noexcept override;

  // transfer_engine.cc: the thread and what the engine tells.
  std::unique_lock<std::mutex> lock() const;
  void run() noexcept;
  std::size_t turn() noexcept;
  void deliver(std::unique_lock<std::mutex>& held) noexcept;
  void sleep(uint64_t timer_ns, uint64_t quiet_ns, bool waits) noexcept;
  void wake() noexcept;
  void wake_if_asleep() noexcept;
  void check_deadlines(uint64_t now_ns) noexcept;
  void end_with_peer(Handle peer, Status status) noexcept;

  // transfer_engine_slots.cc: whatever has an outcome.
  void add_slot();
  Status take_slot(Slot** taken) noexcept;  // kOk; kAgain: too many; kOutOfMemory; kClosed
  void give_back(Slot& slot) noexcept;      // of which nothing has begun
  Slot* find(Handle number) const;
  void free_if_over(Slot& slot) noexcept;
  void tell(Slot& slot, Status status) noexcept;
  void end(Slot& slot, Status status, uint32_t fences) noexcept;
  void fence(Slot& slot, uint32_t fences) noexcept;
  void child_done(Slot& parent, Status status) noexcept;
  void stop(Slot& slot, Status status) noexcept;
  Status prepare(Slot& slot, const TransferOptions& options);
  Status start(Claim& slot, TransferRequest& request, const TransferOptions& options, Handle* number);
  void hand_out(Slot& slot, const TransferOptions& options, Handle* number) noexcept;

  // transfer_engine_many.cc: scatter, groups, barriers, counters.
  Status check_parts(std::span<const ScatterPart> parts) const noexcept;
  Status prepare_many(Slot& slot, const TransferOptions& options);
  void start_many(Slot& slot, const TransferOptions& options, Handle* number) noexcept;
  Counter& counter_with_room(uint32_t immediate);
  bool start_children(Slot& parent) noexcept;
  void end_barrier_if_met(Slot& slot) noexcept;
  Group* find_group(uint32_t group) noexcept;

  // transfer_engine_sends.cc: sends and receives.
  void take_message(Handle peer, std::span<const uint8_t> message);
  void on_announce(Handle peer, uint64_t send, uint64_t bytes, std::span<const uint8_t> payload);
  void on_grant(Handle peer, uint64_t send, uint64_t receive, uint64_t address,
                std::span<const uint8_t> descriptor);
  void on_complete(Handle peer, uint64_t receive) noexcept;
  void on_answer(Handle peer, uint64_t send, Status status) noexcept;
  void on_withdraw(Handle peer, uint64_t send) noexcept;
  void match(Slot& receive, Handle peer, uint64_t send, uint64_t bytes, std::span<const uint8_t> payload);
  void withdraw(const Slot& send) noexcept;
  bool start_granted(Slot& send) noexcept;
  Slot* find_used(uint64_t number, SlotKind kind) noexcept;
  bool is_host(const LocalMemory& memory) const noexcept { return memories_->is_host(memory); }
  Status submit_message(Handle peer, std::vector<uint8_t>& message, Slot** taken = nullptr) noexcept;
  void reply(Handle peer, std::vector<uint8_t> message);
  Status submit_reply(Handle peer, Replies& replies, std::vector<uint8_t>& message) noexcept;
  void send_replies() noexcept;
  void drop_replies(Handle peer) noexcept;
  void reply_is_over(const Slot& slot) noexcept;

  TransferEngineOptions options_;
  mutable std::mutex mutex_;
  mutable std::atomic<uint32_t> waiting_{0};
  std::condition_variable changed_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Carrier> carrier_;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<uint32_t> free_slots_;
  std::vector<uint32_t> stalled_;   // transfers to many peers, some of which did not fit into the engine
  std::vector<uint32_t> starting_;  // those of this turn
  std::unique_ptr<Registrations> memories_;
  std::vector<Mapping> kept_;
  std::vector<std::unique_ptr<Group>> groups_;
  uint32_t last_group_ = 0;
  std::unordered_map<uint32_t, Counter> counters_;
  std::deque<uint32_t> receives_;  // slots of posted receives, the oldest first
  std::deque<Unexpected> unexpected_;
  std::map<uint64_t, Replies> replies_;  // by peer; of those that have some
  std::size_t waiting_replies_ = 0;
  std::vector<Event> events_;
  std::vector<Event> delivering_;
  Slot* told_head_ = nullptr;  // those whose callbacks are due
  Slot* told_tail_ = nullptr;
  std::vector<Loss> losses_;
  std::vector<Loss> delivering_losses_;
  std::vector<int> rail_fds_;
  uint64_t next_deadline_ns_ = kNoDeadline;  // of those that the engine does not know
  UniqueFd wake_;
  std::atomic<bool> asleep_{false};
  std::atomic<bool> closing_{false};
  std::thread thread_;
};

}  // namespace towline::fabric
