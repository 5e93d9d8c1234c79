#include "collectives/messages.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/copy/copy.h"
#include "base/error.h"
#include "collectives/calls/types.h"

namespace towline::collectives {

Message message_of(const towline_collective_t& call) {
  Message message;
  message.is_send = call.op == TOWLINE_COLLECTIVE_SEND;
  message.peer = call.root;
  message.tag = call.tag;
  message.datatype = call.datatype;
  message.data = static_cast<uint8_t*>(message.is_send ? const_cast<void*>(call.input) : call.output);
  message.bytes = call.count * datatype_bytes(call.datatype);
  return message;
}

MessageEngine::MessageEngine(int rank, int size, Open open, Breaker& breaker)
    : rank_(rank), open_(std::move(open)), breaker_(breaker), peers_(static_cast<size_t>(size)) {}

void MessageEngine::activate(int rank) {
  if (std::ranges::find(active_, rank) == active_.end()) active_.push_back(rank);
}

void MessageEngine::add(Message& message) {
  message.order = started_++;
  if (message.peer == kAnyPeer) {
    any_.push_back(&message);
    return;
  }
  Peer& peer = peers_[static_cast<size_t>(message.peer)];
  if (message.is_send)
    peer.sends.push_back(&message);
  else
    peer.receives.push_back(&message);
}

void MessageEngine::activate(const Message& message) {
  if (message.peer != kAnyPeer) return activate(message.peer);
  for (size_t rank = 0; rank < peers_.size(); ++rank) activate(static_cast<int>(rank));
}

void MessageEngine::start(Message& message) {
  const std::lock_guard lock(mutex_);
  activate(message);  // first: if this or that throws, the message is in no list
  add(message);
}

Status MessageEngine::run(Message& message) {
  if (breaker_.broken()) return breaker_.status();
  const std::lock_guard lock(mutex_);
  add(message);
  if (message.peer != kAnyPeer) {
    Peer& peer = peers_[static_cast<size_t>(message.peer)];
    if (connected(message.peer, peer)) {
      if (message.peer != rank_) message.channel = peer.channel.get();
      if (message.is_send)
        move_out(peer);
      else
        move_in(message.peer, peer);
    }
  }
  if (message.ended) return Status::kOk;
  activate(message);
  return breaker_.broken() ? breaker_.status() : Status::kInProgress;
}

Status MessageEngine::test(Message& message) {
  if (breaker_.broken()) return breaker_.status();
  const std::lock_guard lock(mutex_);
  while (!message.ended && move()) {
  }
  if (message.ended) return Status::kOk;
  return breaker_.broken() ? breaker_.status() : Status::kInProgress;
}

void MessageEngine::forget(Message& message) {
  const std::lock_guard lock(mutex_);
  if (message.ended) return;
  std::erase(any_, &message);
  if (message.peer == kAnyPeer) return;
  Peer& peer = peers_[static_cast<size_t>(message.peer)];
  std::erase(peer.sends, &message);
  std::erase(peer.receives, &message);
  if (peer.target == &message) {
    peer.target = nullptr;
    peer.dropped = true;
  }
}

bool MessageEngine::ready(std::vector<int>& read_fds, std::vector<int>& write_fds, uint64_t& seen) {
  const std::lock_guard lock(mutex_);
  if (std::exchange(seen, ended_) != ended_) return true;
  for (const int rank : active_) {
    Peer& peer = peers_[static_cast<size_t>(rank)];
    if (peer.channel == nullptr) continue;  // that rank has not connected yet
    if (!peer.sends.empty()) {
      if (peer.channel->can_write()) return true;
      if (peer.channel->fd() >= 0) write_fds.push_back(peer.channel->fd());
    }
    if (receives(peer)) {
      if (peer.ahead_begin != peer.ahead_end || peer.channel->can_read()) return true;
      if (peer.channel->fd() >= 0) read_fds.push_back(peer.channel->fd());
    }
  }
  return false;
}

bool MessageEngine::connected(int rank, Peer& peer) {
  if (peer.channel == nullptr) peer.channel = open_(rank);
  return peer.channel != nullptr;
}

// One round over all peers; true if anything moved.
bool MessageEngine::move() {
  bool moved = false;
  for (size_t i = 0; i < active_.size();) {
    const int rank = active_[i];
    Peer& peer = peers_[static_cast<size_t>(rank)];
    if (connected(rank, peer)) {
      moved |= move_out(peer);
      moved |= move_in(rank, peer);
    }
    if (peer.sends.empty() && !receives(peer)) {
      active_[i] = active_.back();
      active_.pop_back();
    } else {
      ++i;
    }
  }
  return moved && !breaker_.broken();
}

bool MessageEngine::move_out(Peer& peer) {
  bool moved = false;
  while (!peer.sends.empty()) {
    Message& message = *peer.sends.front();
    const Wire wire = {message.bytes, message.tag, message.datatype, 0};
    if (message.done == 0 && message.bytes <= kWithHeader) {
      uint8_t both[sizeof wire + kWithHeader];
      std::memcpy(both, &wire, sizeof wire);
      if (message.bytes != 0) std::memcpy(both + sizeof wire, message.data, message.bytes);
      message.done = peer.channel->write(both, sizeof wire + message.bytes);
      moved |= message.done != 0;
    }
    if (message.done < sizeof wire) {
      const size_t n = peer.channel->write(reinterpret_cast<const uint8_t*>(&wire) + message.done,
                                           sizeof wire - message.done);
      message.done += n;
      moved |= n != 0;
      if (message.done < sizeof wire) break;
    }
    const uint64_t at = message.done - sizeof wire;
    if (at < message.bytes) {
      const size_t n = peer.channel->write(message.data + at, message.bytes - at);
      message.done += n;
      moved |= n != 0;
      if (message.done - sizeof wire < message.bytes) break;
    }
    end(message);
    moved = true;
    peer.sends.pop_front();
  }
  return moved;
}

bool MessageEngine::move_in(int rank, Peer& peer) {
  bool moved = take_kept(peer, rank);
  while (receives(peer) && !breaker_.broken()) {
    if (peer.wire_bytes < sizeof peer.wire) {
      const size_t n = read(peer, reinterpret_cast<uint8_t*>(&peer.wire) + peer.wire_bytes,
                            sizeof peer.wire - peer.wire_bytes);
      peer.wire_bytes += n;
      moved |= n != 0;
      if (peer.wire_bytes < sizeof peer.wire) return moved;
    }
    if (!peer.accepted && !accept(rank, peer)) return moved;
    if (const uint64_t left = peer.wire.bytes - peer.arrived; left != 0) {
      uint8_t* const to = peer.target != nullptr ? peer.target->data : peer.arriving.data();
      const size_t n = peer.dropped ? drop(peer, left) : read(peer, to + peer.arrived, left);
      peer.arrived += n;
      moved |= n != 0;
      if (peer.arrived < peer.wire.bytes) return moved;
    }
    finish_in(rank, peer);
    moved = true;
  }
  return moved;
}

size_t MessageEngine::read(Peer& peer, uint8_t* to, size_t bytes) {
  if (peer.ahead_begin == peer.ahead_end) {
    if (bytes >= peer.ahead.size()) return peer.channel->read(to, bytes);
    peer.ahead_begin = 0;
    peer.ahead_end = peer.channel->read(peer.ahead.data(), peer.ahead.size());
  }
  const size_t count = std::min(bytes, peer.ahead_end - peer.ahead_begin);
  std::memcpy(to, peer.ahead.data() + peer.ahead_begin, count);
  peer.ahead_begin += count;
  return count;
}

size_t MessageEngine::drop(Peer& peer, uint64_t bytes) {
  std::array<uint8_t, 4096> rest;
  return read(peer, rest.data(), std::min<uint64_t>(bytes, rest.size()));
}

// The oldest receive that matches a rank's next message with this tag; from here on it belongs to that rank.
Message* MessageEngine::match(Peer& peer, int rank, uint64_t tag) {
  const auto matches = [&](const Message* one) { return one->tag == tag && one != peer.target; };
  const auto own = std::ranges::find_if(peer.receives, matches);
  const auto any = std::ranges::find_if(any_, matches);
  if (any == any_.end()) return own == peer.receives.end() ? nullptr : *own;
  if (own != peer.receives.end() && (*own)->order < (*any)->order) return *own;
  Message* const found = *any;
  found->peer = rank;
  peer.receives.push_back(found);
  any_.erase(any);
  return found;
}

// Breaks the communicator if it does not fit.
bool MessageEngine::fits(const Wire& wire, int rank, const Message& message) {
  if (wire.bytes == message.bytes && wire.datatype == message.datatype) return true;
  const auto describe = [](uint64_t bytes, uint32_t datatype) {
    const uint64_t element = datatype_bytes(datatype);
    if (element == 0) return fmt::format("{} bytes of an unknown type", bytes);
    return fmt::format("{} {} ({} bytes)", bytes / element, datatype_name(datatype), bytes);
  };
  breaker_.raise(Status::kMismatch,
                 fmt::format("ranks disagree: rank {} sends {} with tag {} to rank {}, which receives {}",
                             rank, describe(wire.bytes, wire.datatype), wire.tag, rank_,
                             describe(message.bytes, message.datatype)));
  return false;
}

// Delivers a kept message that arrived before its receive.
bool MessageEngine::take_kept(Peer& peer, int rank) {
  bool moved = false;
  for (auto kept = peer.kept.begin(); kept != peer.kept.end();) {
    Message* const message = match(peer, rank, kept->wire.tag);
    if (message == nullptr) {
      ++kept;
      continue;
    }
    if (!fits(kept->wire, rank, *message)) return moved;
    copy_bytes(message->data, kept->data.data(), message->bytes);
    peer.kept_bytes -= message->bytes;
    kept = peer.kept.erase(kept);
    end(*message);
    moved = true;
    std::erase(peer.receives, message);
  }
  return moved;
}

// Finds a destination for the message whose header has arrived. False: none yet.
bool MessageEngine::accept(int rank, Peer& peer) {
  peer.arrived = 0;
  peer.target = nullptr;
  Message* const message = match(peer, rank, peer.wire.tag);
  if (message == nullptr) {
    if (peer.wire.bytes > kMostKept || peer.kept_bytes > kMostKept - peer.wire.bytes) return false;
    if (peer.kept.size() >= kMostKeptMessages) return false;
    peer.arriving.resize(peer.wire.bytes);
  } else if (!fits(peer.wire, rank, *message)) {
    return false;
  }
  peer.target = message;
  peer.accepted = true;
  return true;
}

void MessageEngine::finish_in(int rank, Peer& peer) {
  peer.wire_bytes = 0;
  peer.accepted = false;
  if (std::exchange(peer.dropped, false)) return;
  if (peer.target != nullptr) {
    end(*peer.target);
    std::erase(peer.receives, peer.target);
    peer.target = nullptr;
    return;
  }
  peer.kept_bytes += peer.arriving.size();
  peer.kept.push_back({peer.wire, std::move(peer.arriving)});
  peer.arriving = {};
  take_kept(peer, rank);
}

}  // namespace towline::collectives
