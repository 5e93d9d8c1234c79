// Records: counts and messages, which arrive once and after their transfers' bytes, and the credits for them.
#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "fabric/engine_state.h"

namespace towline::fabric {

bool Engine::State::issue_record(Peer& peer, Transfer& transfer) noexcept {
  if (transfer.record_posted || transfer.outstanding != 0) return true;
  Connection* connection = choose(peer, transfer.request.rails, true, 1);
  if (connection == nullptr || !may_record(peer, transfer, *connection)) return false;
  add_record(peer, transfer, *connection, requests[0]);
  post(*connection, 1);
  return true;
}

bool Engine::State::may_record(const Peer& peer, const Transfer& transfer,
                               const Connection& connection) const noexcept {
  if (connection.sent >= connection.granted || connection.free_buffers == 0) return false;
  return transfer.sequence != 0 || !peer.unused.empty() ||
         peer.last_sequence + 1 - peer.confirmed < SequenceWindow::kSpan;
}

// The peer's window moves on only if it gets every number: what a transfer did not need, another one takes.
uint64_t Engine::State::next_sequence(Peer& peer) noexcept {
  if (peer.unused.empty()) return ++peer.last_sequence;
  const uint64_t sequence = peer.unused.back();
  peer.unused.pop_back();
  return sequence;
}

void Engine::State::add_record(Peer& peer, Transfer& transfer, Connection& connection,
                               WorkRequest& request) noexcept {
  if (transfer.sequence == 0) transfer.sequence = next_sequence(peer);
  uint8_t* at = nullptr;
  const uint32_t buffer = take_buffer(connection, at);
  const std::span<const uint8_t> message = transfer.request.message;
  RecordHeader header;
  header.flags = static_cast<uint16_t>((transfer.request.count != 0 ? kRecordCounts : 0) |
                                       (transfer.request.has_message ? kRecordMessage : 0));
  header.message_bytes = static_cast<uint16_t>(message.size());
  header.sequence = transfer.sequence;
  header.immediate = transfer.request.immediate;
  header.count = transfer.request.count;
  std::memcpy(at, &header, sizeof header);
  if (!message.empty()) std::memcpy(at + sizeof header, message.data(), message.size());
  Entry& entry = connection.at(connection.tail);
  entry.slice = {};
  entry.slice.transfer = static_cast<uint32_t>(&transfer - transfers.data());
  entry.slice.local_region = buffer;
  entry.kind = EntryKind::kRecord;
  entry.done = false;
  request.cookie = connection.tail++;
  request.local = reinterpret_cast<uint64_t>(at);
  request.local_key = connection.block_key.local_key;
  request.length = static_cast<uint32_t>(sizeof header + message.size());
  request.kind = RequestKind::kSend;
  request.signalled = true;
  ++connection.sent;
  transfer.record_posted = true;
  ++transfer.outstanding;
}

// A lone slice and a small count fit into one request: the immediate's lower half is the counter, its upper
// half the record's sequence.
bool Engine::State::add_immediate(Peer& peer, Transfer& transfer, Connection& connection,
                                  WorkRequest& request) noexcept {
  const uint32_t half = rails[connection.rail].domain->traits().immediate_bits / 2;
  if (half == 0 || transfer.request.has_message || transfer.request.count != 1) return false;
  const uint64_t mask = (uint64_t{1} << half) - 1;
  if (transfer.request.immediate > mask) return false;
  if (transfer.sequence == 0) transfer.sequence = next_sequence(peer);
  request.kind = RequestKind::kWriteImmediate;
  request.immediate = (transfer.sequence & mask) << half | transfer.request.immediate;
  request.signalled = true;
  connection.at(connection.tail - 1).kind = EntryKind::kDataAndRecord;
  ++connection.sent;
  transfer.record_posted = true;
  return true;
}

uint32_t Engine::State::take_buffer(Connection& connection, uint8_t*& at) noexcept {
  const auto buffer = static_cast<uint32_t>(std::countr_zero(connection.free_buffers));
  connection.free_buffers &= connection.free_buffers - 1;
  at = connection.block.get() + uint64_t{connection.receives + buffer} * options.record_bytes;
  return buffer;
}

void Engine::State::post_receive(Connection& connection, uint64_t buffer) noexcept {
  ReceiveRequest request;
  request.cookie = buffer;
  request.address = reinterpret_cast<uint64_t>(connection.block.get() + buffer * options.record_bytes);
  request.local_key = connection.block_key.local_key;
  request.length = options.record_bytes;
  if (rails[connection.rail].domain->post_receives(connection.number, &request, 1) != 1)
    break_connection(connection, Status::kIo);
}

void Engine::State::receive(Connection& connection, const Completion& completion) noexcept {
  if (completion.status != Status::kOk) return break_connection(connection, completion.status);
  const uint64_t buffer = completion.cookie;
  if (buffer >= connection.receives) return;
  connection.last_progress_ns = now_ns;
  if (completion.kind == CompletionKind::kReceiveImmediate) {
    const uint32_t half = rails[connection.rail].domain->traits().immediate_bits / 2;
    const uint64_t mask = (uint64_t{1} << half) - 1;
    RecordHeader header;
    header.flags = kRecordCounts;
    header.immediate = static_cast<uint32_t>(completion.immediate & mask);
    header.sequence = peers[connection.peer]->seen.widen(completion.immediate >> half & mask, half);
    header.count = 1;
    take_record(connection, header, nullptr);
  } else {
    const uint8_t* at = connection.block.get() + buffer * options.record_bytes;
    const auto header = decode_record({at, std::min(completion.length, options.record_bytes)});
    if (!header) return break_connection(connection, Status::kProtocol);
    if (header->flags == kRecordCredit) {
      connection.granted = std::max(connection.granted, header->granted);
      Peer& peer = *peers[connection.peer];
      if (header->sequence <= peer.last_sequence + 1)
        peer.confirmed = std::max(peer.confirmed, header->sequence);
    } else {
      take_record(connection, *header, at + sizeof *header);
    }
  }
  if (connection.state != ConnectionState::kReady) return;
  post_receive(connection, buffer);
  send_credit(connection);
}

void Engine::State::take_record(Connection& connection, const RecordHeader& header,
                                const uint8_t* message) noexcept {
  Peer& peer = *peers[connection.peer];
  if (connection.initiator || peer.seen.beyond(header.sequence))
    return break_connection(connection, Status::kProtocol);
  if (!peer.seen.insert(header.sequence)) return;  // arrived before, perhaps on another rail
  ++connection.consumed;
  if ((header.flags & kRecordCounts) != 0) host.counted(peer.handle(), header.immediate, header.count);
  if ((header.flags & kRecordMessage) != 0) host.received(peer.handle(), {message, header.message_bytes});
}

void Engine::State::send_credit(Connection& connection) noexcept {
  if (connection.initiator || connection.state != ConnectionState::kReady) return;
  Peer& peer = *peers[connection.peer];
  const bool many =
      connection.owes_credit || connection.consumed - connection.told >= (options.credits + 1) / 2;
  if (!many && peer.seen.base() - peer.told_base < SequenceWindow::kSpan / 4) return;
  if (connection.free_buffers == 0 || connection.under_way() == kCreditRing) return;  // when one has gone
  pay_credit(connection);
  uint8_t* at = nullptr;
  const uint32_t buffer = take_buffer(connection, at);
  RecordHeader header;
  header.flags = kRecordCredit;
  header.granted = options.credits + connection.consumed;
  header.sequence = peer.told_base = peer.seen.base();
  std::memcpy(at, &header, sizeof header);
  connection.told = connection.consumed;
  Entry& entry = connection.at(connection.tail);
  entry.slice = {};
  entry.slice.local_region = buffer;
  entry.kind = EntryKind::kCredit;
  entry.done = false;
  WorkRequest& request = requests[0];
  request.cookie = connection.tail++;
  request.local = reinterpret_cast<uint64_t>(at);
  request.local_key = connection.block_key.local_key;
  request.length = sizeof header;
  request.kind = RequestKind::kSend;
  post(connection, 1);
}

// Until it comes the peer may have nothing that it may send, so that nothing of it would remind this side.
void Engine::State::owe_credit(Connection& connection) noexcept {
  if (!std::exchange(connection.owes_credit, true)) ++owed_credits;
}

void Engine::State::pay_credit(Connection& connection) noexcept {
  if (std::exchange(connection.owes_credit, false)) --owed_credits;
}

void Engine::State::send_owed_credits() noexcept {
  for (Rail& rail : rails) {
    for (Connection& connection : rail.connections) {
      if (!connection.owes_credit) continue;
      if (takes_nothing(connection))
        break_connection(connection, Status::kTimedOut);
      else
        send_credit(connection);
    }
  }
}

}  // namespace towline::fabric
