#include "collectives/messages.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace towline::collectives {

MessageEngine::MessageEngine(int rank, int size, Open open, Breaker& breaker)
    : rank_(rank), open_(std::move(open)), breaker_(breaker), peers_(static_cast<size_t>(size)) {}

void MessageEngine::start(Message& message) {
  const std::lock_guard lock(mutex_);
  Peer& peer = peers_[static_cast<size_t>(message.peer)];
  if (message.is_send)
    peer.sends.push_back(&message);
  else
    peer.receives.push_back(&message);
  if (std::ranges::find(active_, message.peer) == active_.end()) active_.push_back(message.peer);
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
  Peer& peer = peers_[static_cast<size_t>(message.peer)];
  std::erase(peer.sends, &message);
  peer.receives.remove(&message);
  if (peer.target == &message) {  // the rest of it goes nowhere
    peer.target = nullptr;
    peer.arriving.resize(peer.wire.bytes);
  }
}

bool MessageEngine::ready(std::vector<int>& read_fds, std::vector<int>& write_fds) {
  const std::lock_guard lock(mutex_);
  for (const int rank : active_) {
    Peer& peer = peers_[static_cast<size_t>(rank)];
    if (peer.channel == nullptr) return true;
    if (!peer.sends.empty()) {
      if (peer.channel->can_write()) return true;
      if (peer.channel->fd() >= 0) write_fds.push_back(peer.channel->fd());
    }
    if (!peer.receives.empty()) {
      if (peer.channel->can_read()) return true;
      if (peer.channel->fd() >= 0) read_fds.push_back(peer.channel->fd());
    }
  }
  return false;
}

// One round over everybody; whether anything moved.
bool MessageEngine::move() {
  bool moved = false;
  for (size_t i = 0; i < active_.size();) {
    const int rank = active_[i];
    Peer& peer = peers_[static_cast<size_t>(rank)];
    if (peer.channel == nullptr) peer.channel = open_(rank);
    if (peer.channel != nullptr) {
      moved |= move_out(peer);
      moved |= move_in(rank, peer);
    }
    if (peer.sends.empty() && peer.receives.empty()) {
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
    const Wire wire = {message.bytes, message.tag};
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
    message.ended = true;
    moved = true;
    peer.sends.pop_front();
  }
  return moved;
}

bool MessageEngine::move_in(int rank, Peer& peer) {
  bool moved = take_kept(peer, rank);
  while (!peer.receives.empty() && !breaker_.broken()) {
    if (peer.wire_bytes < sizeof peer.wire) {
      const size_t n = peer.channel->read(reinterpret_cast<uint8_t*>(&peer.wire) + peer.wire_bytes,
                                          sizeof peer.wire - peer.wire_bytes);
      peer.wire_bytes += n;
      moved |= n != 0;
      if (peer.wire_bytes < sizeof peer.wire) return moved;
    }
    if (!peer.accepted && !accept(rank, peer)) return moved;
    uint8_t* const to = peer.target != nullptr ? peer.target->data : peer.arriving.data();
    if (peer.arrived < peer.wire.bytes) {
      const size_t n = peer.channel->read(to + peer.arrived, peer.wire.bytes - peer.arrived);
      peer.arrived += n;
      moved |= n != 0;
      if (peer.arrived < peer.wire.bytes) return moved;
    }
    finish_in(rank, peer);
    moved = true;
  }
  return moved;
}

// Messages that came before their receive.
bool MessageEngine::take_kept(Peer& peer, int rank) {
  if (peer.kept.empty()) return false;
  bool moved = false;
  for (auto receive = peer.receives.begin(); receive != peer.receives.end();) {
    Message& message = **receive;
    const auto kept = std::ranges::find(peer.kept, message.tag, &Kept::tag);
    if (kept == peer.kept.end() || peer.target == &message) {
      ++receive;
      continue;
    }
    if (kept->data.size() != message.bytes) {
      refuse(rank, kept->data.size(), message);
      return moved;
    }
    if (message.bytes != 0) std::memcpy(message.data, kept->data.data(), message.bytes);
    peer.kept_bytes -= message.bytes;
    peer.kept.erase(kept);
    message.ended = true;
    moved = true;
    receive = peer.receives.erase(receive);
  }
  return moved;
}

// Finds a place for the message whose header has come. False: there is none yet.
bool MessageEngine::accept(int rank, Peer& peer) {
  peer.arrived = 0;
  peer.target = nullptr;
  const auto receive = std::ranges::find_if(
      peer.receives, [&](const Message* message) { return message->tag == peer.wire.tag; });
  if (receive == peer.receives.end()) {
    if (peer.wire.bytes > kMostKept || peer.kept_bytes > kMostKept - peer.wire.bytes) return false;
    peer.arriving.resize(peer.wire.bytes);
    peer.accepted = true;
    return true;
  }
  if ((*receive)->bytes != peer.wire.bytes) {
    refuse(rank, peer.wire.bytes, **receive);
    return false;
  }
  peer.target = *receive;
  peer.accepted = true;
  return true;
}

void MessageEngine::finish_in(int rank, Peer& peer) {
  peer.wire_bytes = 0;
  peer.accepted = false;
  if (peer.target != nullptr) {
    peer.target->ended = true;
    peer.receives.remove(peer.target);
    peer.target = nullptr;
    return;
  }
  peer.kept_bytes += peer.arriving.size();
  peer.kept.push_back({peer.wire.tag, std::move(peer.arriving)});
  peer.arriving = {};
  take_kept(peer, rank);
}

void MessageEngine::refuse(int rank, uint64_t sent, const Message& message) {
  breaker_.raise(Status::kMismatch,
                 fmt::format("ranks disagree: rank {} sends {} bytes with tag {} to rank {}, which "
                             "receives {} bytes",
                             rank, sent, message.tag, rank_, message.bytes));
}

}  // namespace towline::collectives
