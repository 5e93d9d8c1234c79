#include "fabric/transfer_engine.h"

#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "base/error.h"
#include "base/wire.h"
#include "base/wire_status.h"
#include "fabric/pin_thread.h"
#include "fabric/transfer_engine_state.h"

namespace towline::fabric {

TransferEngine::TransferEngine(std::vector<std::unique_ptr<Domain>> domains, TransferEngineOptions options)
    : options_(std::move(options)) {
  options_.engine.record_bytes += kMessageHeader;
  options_.engine.asks_to_poll = true;
  options_.engine.control_kept = true;
  engine_ = std::make_unique<Engine>(options_.engine, std::move(domains), static_cast<EngineHost&>(*this));
  memories_ = std::make_unique<Registrations>(*engine_);
  carrier_ = std::make_unique<Carrier>(*engine_, options_.carrier);
  counters_.reserve(1024);
  rail_fds_.reserve(kMaxRails);
  wake_ = UniqueFd{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  if (!wake_) fail_errno(errno, "the engine's thread can't be woken");
  thread_ = std::thread([this] { run(); });
  if (const int error = pin_thread(thread_, options_.worker_cpu); error != 0) {
    closing_ = true;
    wake();
    thread_.join();
    fail_errno(error, "the engine's thread can't run on processor {}", options_.worker_cpu);
  }
}

TransferEngine::~TransferEngine() {
  closing_ = true;
  wake();
  thread_.join();
  auto held = lock();
  engine_->close();
  for (auto& slot : slots_) {
    if (!slot->used) continue;
    if (!slot->is_over() && slot->parent == nullptr) tell(*slot, Status::kClosed);
    slot->fenced = true;
  }
  deliver(held);  // callbacks may still call what takes things apart
  carrier_.reset();
  memories_.reset();
  engine_.reset();
}

// The engine's thread holds the lock most of the time; it gives way to threads that are announced here.
std::unique_lock<std::mutex> TransferEngine::lock() const {
  waiting_.fetch_add(1, std::memory_order_relaxed);
  std::unique_lock held{mutex_};
  waiting_.fetch_sub(1, std::memory_order_relaxed);
  return held;
}

void TransferEngine::wake() noexcept {
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof one);
}

void TransferEngine::wake_if_asleep() noexcept {
  if (asleep_.load(std::memory_order_seq_cst)) wake();
}

void TransferEngine::run() noexcept {
  uint64_t last_event_ns = monotonic_now_ns();
  while (!closing_) {
    std::unique_lock held{mutex_};
    const std::size_t happened = turn();
    const uint64_t timer_ns =
        std::min({engine_->next_timer_ns(), carrier_->next_timer_ns(), next_deadline_ns_});
    const uint64_t now_ns = monotonic_now_ns();
    if (happened != 0) last_event_ns = now_ns;
    deliver(held);
    const bool polls = engine_->needs_polls();
    const bool spin = polls || now_ns - last_event_ns < options_.spin_ns;
    const bool waits = engine_->busy() || next_deadline_ns_ != kNoDeadline;
    if (!spin) asleep_.store(true, std::memory_order_seq_cst);
    held.unlock();
    if (!spin) sleep(timer_ns, now_ns - last_event_ns, waits);
    if (polls && happened == 0) sched_yield();  // to the other side, where processors are few
    while (waiting_.load(std::memory_order_relaxed) != 0 && !closing_) sched_yield();
  }
}

std::size_t TransferEngine::turn() noexcept {
  const uint64_t now_ns = monotonic_now_ns();
  try {  // so that the loss of a peer can be told without memory
    constexpr std::size_t kNewPeers = 64;
    make_room(losses_, engine_->known_peers() + kNewPeers);
    make_room(delivering_losses_, losses_.capacity());
  } catch (const std::bad_alloc&) {  // peers that were known before have room
  }
  std::size_t happened = carrier_->progress(now_ns);
  happened += engine_->progress(now_ns);
  if (waiting_replies_ != 0) send_replies();
  if (!stalled_.empty()) {
    std::swap(starting_, stalled_);
    for (const uint32_t index : starting_)
      if (!start_children(*slots_[index])) stalled_.push_back(index);
    starting_.clear();
  }
  if (now_ns >= next_deadline_ns_) check_deadlines(now_ns);
  return happened;
}

// Calls out what has been gathered: what came from peers, outcomes, losses. Gives the lock up meanwhile.
void TransferEngine::deliver(std::unique_lock<std::mutex>& held) noexcept {
  if (events_.empty() && told_head_ == nullptr && losses_.empty()) return;
  std::swap(events_, delivering_);
  std::swap(losses_, delivering_losses_);
  Slot* const first = std::exchange(told_head_, nullptr);
  told_tail_ = nullptr;
  held.unlock();
  for (Event& event : delivering_) {
    if (event.is_message)
      options_.on_message(event.peer, event.message);
    else
      options_.on_counted(event.peer, event.immediate, event.count);
  }
  // Nothing else changes these slots' outcomes and callbacks.
  for (Slot* slot = first; slot != nullptr; slot = slot->next_told) {
    if (const auto done = std::exchange(slot->done, nullptr)) done(slot->status);
    if (const auto received = std::exchange(slot->received, nullptr))
      received(slot->status, slot->peer, is_error(slot->status) ? 0 : slot->bytes);
  }
  for (const Loss& loss : delivering_losses_) options_.on_lost(loss.peer, loss.why);
  delivering_.clear();
  delivering_losses_.clear();
  held.lock();
  for (Slot* slot = first; slot != nullptr;) {
    Slot* const next = slot->next_told;
    slot->telling = false;
    free_if_over(*slot);
    slot = next;
  }
}

// Rails without a descriptor are polled: without a pause while the engine waits for something, else a thousand times a second at
// first, and every 4 ms when nothing has happened for a quarter of a second.
void TransferEngine::sleep(uint64_t timer_ns, uint64_t quiet_ns, bool waits) noexcept {
  bool armed = false;
  rail_fds_.clear();
  {
    std::unique_lock held{mutex_};
    engine_->event_fds(rail_fds_);
    armed = engine_->arm();
  }
  pollfd wanted[2 + kMaxRails] = {{wake_.get(), POLLIN, 0}, {carrier_->event_fd(), POLLIN, 0}};
  nfds_t count = 2;
  for (const int fd : rail_fds_) wanted[count++] = {fd, POLLIN, 0};
  const uint64_t now_ns = monotonic_now_ns();
  uint64_t sleep_ns = timer_ns == kNoDeadline ? kSecondNs : timer_ns > now_ns ? timer_ns - now_ns : 0;
  const uint64_t pause_ns = std::clamp<uint64_t>(quiet_ns / 64, kMillisecondNs, 4 * kMillisecondNs);
  if (!armed) sleep_ns = std::min<uint64_t>(sleep_ns, waits ? 0 : pause_ns);
  const timespec limit{static_cast<time_t>(sleep_ns / kSecondNs), static_cast<long>(sleep_ns % kSecondNs)};
  ppoll(wanted, count, &limit, nullptr);
  asleep_.store(false, std::memory_order_seq_cst);
  uint64_t wakes = 0;
  (void)!read(wake_.get(), &wakes, sizeof wakes);
}

// Ends those whose time is over; transfers of the engine end by themselves.
void TransferEngine::check_deadlines(uint64_t now_ns) noexcept {
  next_deadline_ns_ = kNoDeadline;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = *slots_[i];
    if (!slot.used || slot.is_over()) continue;
    if (slot.deadline_ns <= now_ns)
      stop(slot, Status::kTimedOut);
    else
      next_deadline_ns_ = std::min(next_deadline_ns_, slot.deadline_ns);
  }
}

// Ends what waits for something from a peer that is gone. Its transfers have been ended by the engine.
void TransferEngine::end_with_peer(Handle peer, Status status) noexcept {
  std::erase_if(unexpected_, [&](const Unexpected& send) { return send.peer == peer; });
  drop_replies(peer);
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = *slots_[i];
    if (!slot.used || slot.fenced) continue;
    if (slot.kind == SlotKind::kSend && slot.peer == peer && slot.child == nullptr) {
      end(slot, status, kFencedBoth);
    } else if (slot.kind == SlotKind::kReceive && slot.matched && slot.peer == peer) {
      end(slot, status, kFencedLocal);
    } else if (slot.kind == SlotKind::kReceive && !slot.is_over() && !slot.any && slot.peer == peer) {
      stop(slot, status);  // no other peer can fill it
    } else if (slot.kind == SlotKind::kBarrier && !slot.is_over()) {
      const Group* group = find_group(slot.group);
      if (group != nullptr && std::find(group->peers.begin(), group->peers.end(), peer) != group->peers.end())
        stop(slot, status);
    }
  }
}

// --- What the engine tells -----------------------------------------------------------------------------

void TransferEngine::complete(uint64_t cookie, const TransferResult& result) noexcept {
  Slot& slot = *slots_[cookie];
  if (slot.parent == nullptr) {
    tell(slot, result.status);
  } else {
    slot.status = result.status;
    child_done(*slot.parent, result.status);
  }
  slot.fences = result.fences;
  if (result.fences == kFencedBoth) fence(slot, kFencedBoth);
}

void TransferEngine::fenced(uint64_t cookie, uint32_t fences) noexcept { fence(*slots_[cookie], fences); }

// A count that can't be kept or reported ends its peer: otherwise nobody would know that it is missing.
void TransferEngine::counted(Handle peer, uint32_t immediate, uint32_t count) noexcept try {
  if (counters_.size() >= options_.max_counters && !counters_.contains(immediate))
    return engine_->abandon(peer);
  Counter& counter = counters_[immediate];
  if (options_.on_counted) events_.push_back({.peer = peer, .immediate = immediate, .count = count});
  counter.value += count;
  if (counter.mirror != nullptr)
    std::atomic_ref<uint64_t>{*counter.mirror}.store(counter.value, std::memory_order_release);
  changed_.notify_all();
  for (std::size_t i = 0; i < counter.waiters.size();) {
    const uint32_t index = counter.waiters[i];
    Slot& slot = *slots_[index];
    if (slot.kind == SlotKind::kBarrier)
      end_barrier_if_met(slot);
    else if (counter.value >= slot.target)
      end(slot, Status::kOk, kFencedBoth);
    if (i < counter.waiters.size() && counter.waiters[i] == index) ++i;  // else it has left the list
  }
} catch (const std::bad_alloc&) {
  engine_->abandon(peer);
}

void TransferEngine::received(Handle peer, std::span<const uint8_t> message) noexcept try {
  take_message(peer, message);
} catch (const std::bad_alloc&) {
  engine_->abandon(peer);
}

void TransferEngine::take_message(Handle peer, std::span<const uint8_t> message) {
  WireReader in{message};
  const auto kind = static_cast<MessageKind>(in.u8());
  if (!in.ok()) return;
  if (kind == MessageKind::kUser) {
    if (options_.on_message)
      events_.push_back({.peer = peer, .is_message = true, .message = {message.begin() + 1, message.end()}});
    return;
  }
  const uint64_t number = in.u64();
  switch (kind) {
    case MessageKind::kAnnounce: {
      const uint64_t bytes = in.u64();
      if (in.ok()) on_announce(peer, number, bytes, message.last(in.remaining()));
      break;
    }
    case MessageKind::kGrant: {
      const uint64_t receive = in.u64();
      const uint64_t address = in.u64();
      if (in.ok()) on_grant(peer, number, receive, address, message.last(in.remaining()));
      break;
    }
    case MessageKind::kComplete:
      if (in.ok()) on_complete(peer, number);
      break;
    case MessageKind::kAnswer: {
      const int32_t said = in.i32();
      const Status status = said < 0 ? error_from_wire(said) : Status::kOk;
      if (in.ok()) on_answer(peer, number, status);
      break;
    }
    case MessageKind::kWithdraw:
      if (in.ok()) on_withdraw(peer, number);
      break;
    default:
      break;
  }
}

void TransferEngine::lost(Handle peer, Status, std::string_view why) noexcept {
  end_with_peer(peer, Status::kPeerLost);
  if (!options_.on_lost) return;
  try {
    losses_.push_back({peer, {}});  // turn() has made room
    losses_.back().why = why;
  } catch (const std::bad_alloc&) {  // without a reason
  }
}

void TransferEngine::send_control(Handle peer, std::span<const uint8_t> message) noexcept {
  if (carrier_ != nullptr) carrier_->send(peer, message);
}

// --- What applications call ----------------------------------------------------------------------------

std::vector<uint8_t> TransferEngine::address() const {
  const auto held = lock();
  return encode(carrier_->address());
}

Handle TransferEngine::connect(std::span<const uint8_t> address) {
  const auto decoded = decode_carrier_address(address);
  if (!decoded) fail(Status::kProtocol, "these {} bytes are no address of an engine", address.size());
  const auto held = lock();
  if (closing_) fail(Status::kClosed, "the engine is about to go");
  const Handle peer = carrier_->connect(*decoded);
  wake();
  return peer;
}

void TransferEngine::disconnect(Handle peer) {
  const auto held = lock();
  carrier_->disconnect(peer);
  end_with_peer(peer, Status::kClosed);
  wake();
}

const LocalMemory* TransferEngine::register_memory(const MemoryToRegister& memory) {
  const auto held = lock();
  return memories_->add(memory);
}

void TransferEngine::deregister_memory(const LocalMemory* memory) {
  const auto held = lock();
  if (!memories_->contains(memory)) fail(Status::kNotFound, "this memory is not registered here");
  for (const auto& slot : slots_)
    if (slot->used && !slot->fenced && slot->uses(memory))
      fail(Status::kBusy, "a transfer that is not fenced uses this memory");
  memories_->remove(memory);
}

void TransferEngine::keep(Mapping memory) {
  const auto held = lock();
  kept_.push_back(std::move(memory));
}

std::vector<uint8_t> TransferEngine::descriptor(const LocalMemory& memory) {
  return encode(Engine::describe(memory));
}

RemoteMemory TransferEngine::import(std::span<const uint8_t> descriptor) {
  const auto memory = decode_memory(descriptor);
  if (!memory) fail(Status::kProtocol, "these {} bytes describe no memory", descriptor.size());
  return *memory;
}

std::vector<TransferEngine::Rail> TransferEngine::rails() const {
  const auto held = lock();
  std::vector<Rail> rails;
  for (std::size_t i = 0; i < engine_->rails(); ++i)
    rails.push_back({engine_->traits(i), engine_->counters(i)});
  return rails;
}

std::optional<uint32_t> TransferEngine::node() const {
  std::map<int32_t, uint32_t> rails_of;
  for (const Rail& rail : rails())
    if (rail.traits.numa_node >= 0) ++rails_of[rail.traits.numa_node];
  const auto most = std::max_element(rails_of.begin(), rails_of.end(), [](const auto& one, const auto& two) {
    return one.second < two.second;
  });
  return most == rails_of.end() ? std::nullopt : std::optional(static_cast<uint32_t>(most->first));
}

std::string TransferEngine::describe() const {
  const auto held = lock();
  return engine_->describe();
}

}  // namespace towline::fabric
