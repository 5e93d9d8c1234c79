// Sends into posted receives, made of messages and a write. The sender announces a send; the receiver grants
// the memory of a receive that it has posted; the sender writes there and says so with the same transfer.
// Short sends travel in the announcement. Messages may overtake one another, so that every step says what it
// belongs to, and steps that belong to nothing are answered or dropped.
#include <cstring>

#include "base/copy/copy.h"
#include "base/wire.h"
#include "fabric/transfer_engine_state.h"

namespace towline::fabric {
namespace {

template <class... Numbers>
std::vector<uint8_t> message_of(MessageKind kind, Numbers... numbers) {
  std::vector<uint8_t> message;
  WireWriter out{message};
  out.u8(static_cast<uint8_t>(kind));
  (out.u64(numbers), ...);
  return message;
}

std::vector<uint8_t> answer_of(uint64_t send, Status status) {
  std::vector<uint8_t> message = message_of(MessageKind::kAnswer, send);
  WireWriter out{message};
  out.i32(static_cast<int32_t>(status));
  return message;
}

uint8_t* at(const LocalMemory& memory, uint64_t offset) noexcept {
  return reinterpret_cast<uint8_t*>(memory.address + offset);
}

}  // namespace

Status TransferEngine::send(Handle peer, const LocalMemory& local, uint64_t offset, uint64_t bytes,
                            const TransferOptions& options, Handle* number) {
  if (options.count != 0 || options.has_message) return Status::kInvalidArgument;
  if (!fits(offset, bytes, local.bytes)) return Status::kOutOfRange;
  const auto held = lock();
  Claim slot{*this};
  if (slot.status() != Status::kOk) return slot.status();
  slot->kind = SlotKind::kSend;
  slot->local = &local;
  slot->offset = offset;
  slot->bytes = bytes;
  slot->peer = peer;
  std::vector<uint8_t> message = message_of(MessageKind::kAnnounce, slot->number().to_u64(), bytes);
  if (bytes <= kMaxPayload && is_host(local))
    message.insert(message.end(), at(local, offset), at(local, offset) + bytes);
  if (const Status status = prepare(*slot, options); status != Status::kOk) return status;
  const Status status = submit_message(peer, message);
  if (status == Status::kInProgress) hand_out(slot.keep(), options, number);
  return status;
}

Status TransferEngine::receive(const LocalMemory& local, uint64_t offset, uint64_t bytes,
                               const ReceiveOptions& options, Handle* number) {
  if (!fits(offset, bytes, local.bytes)) return Status::kOutOfRange;
  if (!local.remote_write) return Status::kPermissionDenied;
  const auto held = lock();
  Claim slot{*this};
  if (slot.status() != Status::kOk) return slot.status();
  if (!options.from.is_none())
    if (const Status state = engine_->state_of(options.from); state != Status::kOk) return state;
  slot->kind = SlotKind::kReceive;
  slot->local = &local;
  slot->offset = offset;
  slot->bytes = bytes;
  slot->any = options.from.is_none();
  slot->peer = options.from;
  slot->received = options.done;
  TransferOptions plain;
  plain.timeout_ns = options.timeout_ns;
  const auto waiting = std::find_if(unexpected_.begin(), unexpected_.end(), [&](const Unexpected& send) {
    return slot->any || send.peer == slot->peer;
  });
  if (waiting == unexpected_.end()) {
    receives_.push_back(slot->index);
    hand_out(slot.keep(), plain, number);
    return Status::kInProgress;
  }
  const Unexpected send = std::move(*waiting);
  unexpected_.erase(waiting);
  Slot& posted = slot.keep();
  hand_out(posted, plain, number);
  try {
    match(posted, send.peer, send.send, send.bytes, send.payload);
  } catch (const std::bad_alloc&) {
    engine_->abandon(send.peer);  // it would wait for an answer
  }
  wake();
  return Status::kInProgress;
}

Status TransferEngine::received_from(Handle number, Handle* peer, uint64_t* bytes) const {
  const auto held = lock();
  const Slot* slot = find(number);
  if (slot == nullptr || slot->kind != SlotKind::kReceive) return Status::kStale;
  if (slot->status != Status::kOk) return slot->status;
  *peer = slot->peer;
  *bytes = slot->bytes;
  return Status::kOk;
}

// --- The receiver's side -------------------------------------------------------------------------------

void TransferEngine::on_announce(Handle peer, uint64_t send, uint64_t bytes,
                                 std::span<const uint8_t> payload) {
  if (!payload.empty() && payload.size() != bytes) return;
  for (auto at = receives_.begin(); at != receives_.end(); ++at) {
    Slot& slot = *slots_[*at];
    if (!slot.any && slot.peer != peer) continue;
    receives_.erase(at);
    match(slot, peer, send, bytes, payload);
    return;
  }
  // One peer gets a quarter of the room, so that it can't take all of it from the others.
  const auto of_peer = [&](const Unexpected& waiting) { return waiting.peer == peer; };
  const std::size_t room = options_.max_unexpected;
  if (unexpected_.size() >= room ||
      static_cast<std::size_t>(std::count_if(unexpected_.begin(), unexpected_.end(), of_peer)) * 4 >= room)
    return reply(peer, answer_of(send, Status::kAgain));
  unexpected_.push_back({peer, send, bytes, {payload.begin(), payload.end()}});
}

// If memory runs out here, the receive has ended already, or ends with its peer.
void TransferEngine::match(Slot& receive, Handle peer, uint64_t send, uint64_t bytes,
                           std::span<const uint8_t> payload) {
  receive.any = false;
  receive.peer = peer;
  if (bytes > receive.bytes) {
    end(receive, Status::kOutOfRange, kFencedBoth);
    return reply(peer, answer_of(send, Status::kOutOfRange));
  }
  receive.bytes = bytes;
  if (bytes == payload.size() && (bytes == 0 || is_host(*receive.local))) {
    copy_bytes(at(*receive.local, receive.offset), payload.data(), bytes);
    end(receive, Status::kOk, kFencedBoth);
    return reply(peer, answer_of(send, Status::kOk));
  }
  receive.matched = true;
  receive.far = send;
  std::vector<uint8_t> grant = message_of(MessageKind::kGrant, send, receive.number().to_u64(),
                                          receive.local->address + receive.offset);
  const auto described = descriptor(*receive.local);
  grant.insert(grant.end(), described.begin(), described.end());
  reply(peer, std::move(grant));
}

void TransferEngine::on_complete(Handle peer, uint64_t receive) noexcept {
  Slot* slot = find_used(receive, SlotKind::kReceive);
  if (slot != nullptr && slot->matched && slot->peer == peer) end(*slot, Status::kOk, kFencedBoth);
}

void TransferEngine::on_withdraw(Handle peer, uint64_t send) noexcept {
  std::erase_if(unexpected_,
                [&](const Unexpected& waiting) { return waiting.peer == peer && waiting.send == send; });
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = *slots_[i];
    if (slot.used && slot.kind == SlotKind::kReceive && slot.matched && !slot.fenced && slot.peer == peer &&
        slot.far == send)
      end(slot, Status::kCancelled, kFencedBoth);
  }
}

// --- The sender's side ---------------------------------------------------------------------------------

void TransferEngine::on_answer(Handle peer, uint64_t send, Status status) noexcept {
  Slot* slot = find_used(send, SlotKind::kSend);
  if (slot == nullptr || slot->peer != peer || slot->matched) return;
  end(*slot, status, kFencedBoth);
}

void TransferEngine::on_grant(Handle peer, uint64_t send, uint64_t receive, uint64_t address,
                              std::span<const uint8_t> described) {
  Slot* slot = find_used(send, SlotKind::kSend);
  const auto memory = decode_memory(described);
  if (slot == nullptr || slot->is_over() || slot->peer != peer || slot->matched || !memory ||
      !memory->writable || !memory->contains(address, slot->bytes)) {
    // The grant is given back: nothing will be written there.
    return reply(peer, message_of(MessageKind::kWithdraw, send));
  }
  slot->granted.assign(1, *memory);
  slot->message = message_of(MessageKind::kComplete, receive);
  slot->matched = true;
  slot->far = receive;
  slot->one = {slot->local->address + slot->offset, address, slot->bytes, 0, 0};
  if (!start_children(*slot)) stalled_.push_back(slot->index);
}

// The write into the granted memory. False: the engine is full; call again.
bool TransferEngine::start_granted(Slot& send) noexcept {
  Slot* child = nullptr;
  if (take_slot(&child) != Status::kOk) return false;
  child->released = true;
  child->parent = &send;
  child->local = send.local;
  child->remote = &send.granted.front();
  child->one = send.one;
  TransferRequest request;
  request.peer = send.peer;
  request.op = TransferOp::kWrite;
  request.segments = {Slot::next_one, child};
  request.bytes = send.bytes;
  request.local = &child->local;
  request.remote = &child->remote;
  request.message = send.message;
  request.has_message = true;
  request.cookie = child->index;
  send.child = child;
  send.children = send.unfenced = 1;
  const Status status = engine_->submit(request, &child->transfer);
  if (status == Status::kInProgress) return true;
  send.child = nullptr;
  send.children = send.unfenced = 0;
  child->parent = nullptr;
  give_back(*child);
  if (status == Status::kAgain) return false;
  end(send, status, kFencedBoth);
  return true;
}

// --- Messages ------------------------------------------------------------------------------------------

TransferEngine::Slot* TransferEngine::find_used(uint64_t number, SlotKind kind) noexcept {
  const Handle handle = Handle::from_u64(number);
  if (handle.index >= slots_.size()) return nullptr;
  Slot& slot = *slots_[handle.index];
  return slot.used && slot.generation == handle.generation && slot.kind == kind ? &slot : nullptr;
}

// Takes the message's bytes, and sets `taken`, only if it returns kInProgress.
Status TransferEngine::submit_message(Handle peer, std::vector<uint8_t>& message, Slot** taken) noexcept {
  Slot* slot = nullptr;
  if (const Status status = take_slot(&slot); status != Status::kOk) return status;
  slot->released = true;
  slot->message.swap(message);
  TransferRequest request;
  request.peer = peer;
  request.message = slot->message;
  request.has_message = true;
  request.cookie = slot->index;
  const Status status = engine_->submit(request, &slot->transfer);
  if (status == Status::kInProgress) {
    if (taken != nullptr) *taken = slot;
    return status;
  }
  slot->message.swap(message);
  give_back(*slot);
  return status;
}

namespace {

bool try_again(Status status) noexcept { return status == Status::kAgain || status == Status::kOutOfMemory; }

}  // namespace

// A peer that takes no replies gets a sixteenth of the engine's transfers, and later it is lost. An engine that can't say what
// it has to say to many peers drops it; the others' deadlines end their waits.
void TransferEngine::reply(Handle peer, std::vector<uint8_t> message) {
  Replies& replies = replies_[peer.to_u64()];
  if (replies.waiting.empty() && !try_again(submit_reply(peer, replies, message))) {
    if (replies.none()) replies_.erase(peer.to_u64());
    return;
  }
  if (replies.waiting.size() >= kMaxReplies) return engine_->abandon(peer);
  if (waiting_replies_ >= kMostReplies) return;
  replies.waiting.push_back(std::move(message));
  ++waiting_replies_;
}

Status TransferEngine::submit_reply(Handle peer, Replies& replies, std::vector<uint8_t>& message) noexcept {
  if (replies.under_way >= std::max(4u, options_.engine.max_transfers / 16)) return Status::kAgain;
  Slot* slot = nullptr;
  const Status status = submit_message(peer, message, &slot);
  if (status != Status::kInProgress) return status;
  slot->reply = true;
  slot->peer = peer;
  ++replies.under_way;
  return status;
}

void TransferEngine::reply_is_over(const Slot& slot) noexcept {
  const auto replies = replies_.find(slot.peer.to_u64());
  --replies->second.under_way;
  if (replies->second.none()) replies_.erase(replies);
}

void TransferEngine::drop_replies(Handle peer) noexcept {
  const auto replies = replies_.find(peer.to_u64());
  if (replies == replies_.end()) return;
  waiting_replies_ -= replies->second.waiting.size();
  replies->second.waiting.clear();
  if (replies->second.none()) replies_.erase(replies);
}

// Nothing more is written for this send.
void TransferEngine::withdraw(const Slot& send) noexcept try {
  reply(send.peer, message_of(MessageKind::kWithdraw, send.number().to_u64()));
} catch (const std::bad_alloc&) {
  engine_->abandon(send.peer);  // its receive would wait for ever
}

void TransferEngine::send_replies() noexcept {
  for (auto at = replies_.begin(); at != replies_.end();) {
    const auto next = std::next(at);
    Replies& replies = at->second;
    while (!replies.waiting.empty() &&
           !try_again(submit_reply(Handle::from_u64(at->first), replies, replies.waiting.front()))) {
      replies.waiting.pop_front();
      --waiting_replies_;
    }
    if (replies.none()) replies_.erase(at);
    at = next;
  }
}

}  // namespace towline::fabric
