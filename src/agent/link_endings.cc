// Link: connections that are given up with bytes in flight. The network may still hold bytes for the peer, so
// only the peer's confirmation that it has ended the connection proves that no more can land.
//
// A backend names its connections by random numbers that both ends know (v1.h). The side that gave
// one up asks over another connection to end it (kEndConnection). The peer closes its link of that number, on
// any worker, and answers when its backend has released it (kConnectionEnded). Until then a new connection of
// the same link carries no transfer, so that older bytes can't overtake a transfer that is posted again.
#include <algorithm>
#include <new>
#include <utility>

#include "agent/agent.h"
#include "agent/link.h"
#include "agent/worker.h"

namespace towline {

namespace {

// A peer has given up one connection of each of its links at most.
constexpr std::size_t kMostEndings = 4096;

}  // namespace

// The backend carries messages from now on.
void Link::begin_generation() {
  generation_.fetch_add(1, std::memory_order_acq_rel);
  last_heard_ns_ = last_said_ns_ = last_ping_ns_ = last_used_ns_ = worker_.agent().now_ns();
  asked_ns_ = 0;
  notice_bytes_sent_ = notice_bytes_credited_ = notice_bytes_reported_ = notice_bytes_received_ = 0;
  notice_bytes_consumed_.store(0, std::memory_order_relaxed);
  heard_ = pong_due_ = sending_waiting_ = false;
  takes_tags_.store(Status::kAgain, std::memory_order_release);
  waiting_.clear();
  ending_.clear();
  asked_changes_ = 0;
  {
    std::lock_guard lock(revocations_mutex_);
    revocations_asked_.clear();
    granted_.clear();
  }
  const uint64_t id = backend_.connection->id == nullptr ? 0 : backend_.connection->id(connection_);
  connection_id_.store(id, std::memory_order_seq_cst);
  talks_.store(true, std::memory_order_release);
}

// The requested connection is up. The peer may already have used it and given it up.
void Link::dialled() {
  begin_generation();
  if (peer_.ended() == Status::kOk && !peer_.was_ended(connection_id())) {
    // Every side that will use the connection sends something to the acceptor: see heartbeat().
    waiting_.push_back(make_value_message(ControlType::kPing, last_ping_ns_));
    worker_.maintain_soon();
    if (!come_up()) (void)ask_to_end();
    return;
  }
  close(Status::kPeerLost, "the peer has given this connection up already");
  // Not in the next pass: bytes that have arrived on it must not be placed.
  backend_.connection->disconnect(std::exchange(connection_, nullptr));
  connection_id_.store(0, std::memory_order_release);
}

bool Link::come_up() noexcept {
  if (unfenced_id_.load(std::memory_order_acquire) != 0) return false;
  state_.store(State::kUp, std::memory_order_release);
  talks_.store(false, std::memory_order_release);
  peer_.set_health(TOWLINE_HEALTH_ALIVE);
  return true;
}

// ---- the side that gave a connection up

void Link::note_unfenced() noexcept {
  const uint32_t generation = this->generation();
  const uint64_t id = connection_id();
  if (id == 0) {
    never_fenced_.store(generation, std::memory_order_release);
    return;
  }
  if (unfenced_id_.load(std::memory_order_relaxed) == id) return;
  unfenced_generation_.store(generation, std::memory_order_release);
  unfenced_id_.store(id, std::memory_order_release);
  peer_.given_up_changed();
}

// Where connections have no numbers, nobody but a restart of the peer tells; this agent, which has its own files and
// objects as its peer, does not restart.
Status Link::remote_fence(uint32_t generation) const noexcept {
  const bool own = peer_.incarnation() == worker_.agent().incarnation();
  if (generation <= never_fenced_.load(std::memory_order_acquire))
    return own ? Status::kUnsupported : Status::kNotYet;
  const bool asked = unfenced_id_.load(std::memory_order_acquire) != 0 &&
                     unfenced_generation_.load(std::memory_order_acquire) == generation;
  return asked ? Status::kNotYet : Status::kOk;
}

void Link::ended_at_peer(uint64_t id) noexcept {
  if (!unfenced_id_.compare_exchange_strong(id, 0, std::memory_order_acq_rel)) return;
  worker_.maintain_soon();
  worker_.wake();
}

void Link::seek_confirmation(uint32_t generation) noexcept {
  if (remote_fence(generation) != Status::kNotYet) return;
  for (const Link* link = peer_.first_of_links(); link != nullptr; link = link->next())
    if (link->talks() || link->state() == State::kConnecting) return;
  const Agent& agent = worker_.agent();
  const uint64_t now_ns = agent.now_ns();
  if (now_ns < seek_again_ns_.load(std::memory_order_relaxed) || !worker_.try_lock()) return;
  seek_again_ns_.store(now_ns + agent.tuning().heartbeat_ns, std::memory_order_relaxed);
  contain([&] {
    if (peer_.ended() == Status::kOk) connect(UINT64_MAX);
  });
  worker_.unlock();
  worker_.wake();  // it watches the deadline
}

uint32_t Link::ask_to_end() noexcept {
  const uint64_t changes = peer_.given_up_changes();
  if (asked_changes_ == changes) return 0;
  for (const Link* link = peer_.first_of_links(); link != nullptr; link = link->next()) {
    const uint64_t id = link->unfenced_id_.load(std::memory_order_acquire);
    if (id == 0) continue;
    const ValueMessage message = make_value_message(ControlType::kEndConnection, id);
    if (transmit(&message, sizeof message) != Status::kOk) return 0;  // all again in the next round
  }
  asked_changes_ = changes;
  return 1;
}

// ---- the side that is asked to end one

void Link::on_end_connection(uint64_t id) {
  if (id == 0 || ending_.size() == kMostEndings)
    return close(Status::kProtocol, "the peer asks to end connections that it can't have");
  (void)worker_.agent().end_connection(peer_.incarnation(), id);
  if (std::find(ending_.begin(), ending_.end(), id) == ending_.end()) ending_.push_back(id);
  worker_.maintain_soon();
}

uint32_t Link::answer_endings() {
  uint32_t done = 0;
  std::erase_if(ending_, [&](uint64_t id) {
    if (worker_.agent().end_connection(peer_.incarnation(), id)) return false;  // not yet
    const ValueMessage message = make_value_message(ControlType::kConnectionEnded, id);
    const bool told = transmit(&message, sizeof message) == Status::kOk;
    done += told ? 1 : 0;
    return told;
  });
  return done;
}

void Link::end_soon(uint64_t id) noexcept {
  end_asked_.store(id, std::memory_order_release);
  worker_.maintain_soon();
  worker_.wake();
}

void Link::end_if_asked() {
  const uint64_t asked = end_asked_.load(std::memory_order_acquire);
  if (asked != 0 && asked == connection_id())
    close(Status::kPeerLost, "the peer has given this connection up");
}

}  // namespace towline
