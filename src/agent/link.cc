#include "agent/link.h"

#include <algorithm>
#include <utility>

#include "agent/agent.h"
#include "agent/post.h"
#include "agent/worker.h"
#include "base/copy/copy.h"
#include "base/log.h"
#include "base/sync/in_use.h"
#include "base/sync/wake_path.h"

namespace towline {

namespace {

constexpr uint64_t kRoomPauseNs = 2 * kMillisecondNs;

// Anybody can bring names, and there is a limited number of series.
std::string_view name_of_series(const Peer& peer) noexcept {
  return peer.unsolicited() ? kStrangersName : std::string_view(peer.name());
}

}  // namespace

Link::Link(Peer& peer, Backend& backend, Worker& worker)
    : peer_(peer),
      backend_(backend),
      worker_(worker),
      sent_(peer.agent().metrics().series(name_of_series(peer), backend.name, Direction::kTx)),
      received_(peer.agent().metrics().series(name_of_series(peer), backend.name, Direction::kRx)) {}

Link::~Link() = default;

void Link::close_over(const std::exception& error) noexcept {
  TOWLINE_LOG(kError, "peer '{}' over {}: {}; the connection is closed", peer_.name(), backend_.name,
              error.what());
  close(Status::kInternal, "internal error");
}

// ---- coming up and going down

void Link::connect(uint64_t deadline_ns) {
  if (state() == State::kConnecting || state() == State::kUp) return;
  if (state() == State::kBroken && !teardown()) return;
  ++attempts_;
  last_error_ = Status::kOk;
  last_error_text_.clear();
  if (worker_.retired()) {
    last_error_ = Status::kClosed;
    last_error_text_ = "this agent was closed";
    return;
  }
  std::vector<uint8_t> address;
  if (!peer_.address(backend_.name, address)) {
    last_error_ = Status::kNoRoute;
    last_error_text_ = fmt::format("peer '{}' has given no {} address", peer_.name(), backend_.name);
    return;
  }
  const Agent& agent = worker_.agent();
  accepted_ = false;
  connecting_since_ns_ = agent.now_ns();
  connect_deadline_ns_ =
      std::min(deadline_ns, Deadline::after(connecting_since_ns_, agent.tuning().connect_timeout_ns).ns());
  worker_.remove_link(*this);
  worker_.add_link(*this);
  told_up_ = false;
  state_.store(State::kConnecting, std::memory_order_release);
  take_failure_text();
  towline_connection* connection = nullptr;
  const int32_t status =
      backend_.connection->connect(backend_.handle, worker_.index(), &peer_.identity(), address.data(),
                                   address.size(), connect_deadline_ns_, this, &connection);
  if (status != TOWLINE_OK) {
    worker_.remove_link(*this);
    last_error_ = of_lost_peer(static_cast<Status>(status));
    last_error_text_ = take_failure_text();
    state_.store(State::kDown, std::memory_order_release);
    return;
  }
  connection_ = connection;
  if (told_up_ && state() == State::kConnecting) dialled();
}

void Link::adopt(towline_connection* connection) {
  worker_.remove_link(*this);
  worker_.add_link(*this);  // may throw: the connection is not this link's yet
  connection_ = connection;
  accepted_ = true;
  ++attempts_;
  last_error_ = Status::kOk;
  connecting_since_ns_ = worker_.agent().now_ns();
  connect_deadline_ns_ =
      Deadline::after(connecting_since_ns_, worker_.agent().tuning().connect_timeout_ns).ns();
  state_.store(State::kConnecting, std::memory_order_release);
  told_up_ = true;
  begin_generation();
  if (!come_up()) worker_.maintain_soon();  // this connection carries nothing yet
}

void Link::on_event(uint32_t event, Status status, const char* text) noexcept {
  contain([&] { handle_event(event, status, text); });
}

void Link::handle_event(uint32_t event, Status status, const char* text) {
  if (event == TOWLINE_CONNECTION_UP) {
    if (std::exchange(told_up_, true) || connection_ == nullptr) return;
    if (state() == State::kConnecting) dialled();
    return;
  }
  close(status, text == nullptr ? "" : text);
}

// Nobody has answered within connection.timeout, though the operation that asked had more time.
bool Link::was_silent(Status why) const noexcept {
  const uint64_t limit_ns = worker_.agent().tuning().connect_timeout_ns;
  return why == Status::kTimedOut && state() == State::kConnecting &&
         connect_deadline_ns_ >= Deadline::after(connecting_since_ns_, limit_ns).ns();
}

// An address at which nobody answers says more if its agent was there before.
Status Link::of_lost_peer(Status why) const noexcept {
  if (was_silent(why)) why = Status::kUnreachable;
  return why == Status::kUnreachable && Agent::has_lost(peer_) ? Status::kPeerLost : why;
}

void Link::close(Status why, std::string_view text) noexcept {
  if (state() == State::kDown || state() == State::kBroken) return;
  const bool was_up = up();
  why = of_lost_peer(why);
  last_error_ = why;
  try {
    last_error_text_ = text;
  } catch (const std::bad_alloc&) {  // then the status has to say it
    last_error_text_.clear();
  }
  state_.store(State::kBroken, std::memory_order_release);
  talks_.store(false, std::memory_order_release);
  worker_.maintain_soon();
  if (was_up) {
    bool other_up = false;
    for (const Link* link = peer_.first_of_links(); link != nullptr; link = link->next())
      other_up = other_up || link->up();
    if (!other_up) peer_.set_health(TOWLINE_HEALTH_LOST);
    peer_.credit_came(other_up ? Status::kOk : worker_.agent().told(Status::kPeerLost), last_error_text_);
    TOWLINE_LOG(kInfo, "peer '{}' over {}: {} ({})", peer_.name(), backend_.name, last_error_text_,
                status_name(why));
  }
  for (Part* part : prepared_) part->post->link_ended(*part);
  // The backend ends the parts and reports fences; the outcome need not wait for that.
  const Status outcome =
      worker_.agent().told(why == Status::kClosed || why == Status::kOk ? Status::kPeerLost : why);
  for (Part* part : prepared_) {
    if (part->submitted) part->post->end(outcome, &worker_);
  }
}

void Link::add_prepared(Part& part) {
  part.prepared_at = prepared_.size();
  prepared_.push_back(&part);
}

// Moves the last entry into its place: code that removes while walking must walk from the end.
void Link::remove_prepared(Part& part) noexcept {
  prepared_[part.prepared_at] = prepared_.back();
  prepared_[part.prepared_at]->prepared_at = part.prepared_at;
  prepared_.pop_back();
}

// Regions are marked before the gates of their transfers are closed; here the gates are closed before any
// plan is released. Regions that are marked meanwhile wait for the next round.
bool Link::release_revoked() noexcept {
  bool any = false;
  for (Part* part : prepared_) {
    part->revoked = false;
    for (const auto& region : part->post->remote().remote_regions())
      part->revoked = part->revoked || region->revoked.load(std::memory_order_acquire);
    if (!part->revoked) continue;
    part->post->close_gate(static_cast<int32_t>(Status::kStale));
    any = true;
  }
  if (!any) return true;
  InUse::publish();
  bool clean = true;
  for (std::size_t i = prepared_.size(); i > 0; --i) {
    Part& part = *prepared_[i - 1];
    if (part.revoked) clean = part.post->try_release(part) && clean;
  }
  return clean;
}

void Link::drop_imports(bool all) noexcept {
  bool freed = false;
  std::erase_if(imports_, [&](const auto& entry) {
    const Import& import = entry.second;
    if (!all && !import.region->revoked.load(std::memory_order_acquire)) return false;
    if (import.handle != nullptr) backend_.memory->unimport(connection_, import.handle);
    const bool last = import.region->imports.fetch_sub(1, std::memory_order_acq_rel) == 1;
    freed = freed || (last && import.region->revoked.load(std::memory_order_acquire));
    return true;
  });
  // Links that wait to answer for such a region do so in their next round, not after the interval.
  if (freed) worker_.agent().maintain_soon();
}

bool Link::teardown(Patience patience) noexcept {
  // A thread in the short posting path may still be copying through a plan prepared here: wait for it first.
  bool posting = false;
  if (!prepared_.empty()) InUse::publish();
  for (std::size_t i = prepared_.size(); i > 0; --i) {
    Part& part = *prepared_[i - 1];
    if (!part.submitted && !part.post->try_release(part)) posting = true;
  }
  if (posting) return false;
  // Parts that are still prepared are in flight; disconnect ends them, and their plans are released when
  // their transfers are next used.
  if (connection_ != nullptr) {
    if (patience == Patience::kYes && backend_.connection->settle != nullptr &&
        backend_.connection->settle(connection_) == TOWLINE_AGAIN)
      return false;
    drop_imports(true);
    backend_.connection->disconnect(connection_);
    connection_ = nullptr;
    connection_id_.store(0, std::memory_order_release);
  }
  worker_.remove_link(*this);
  state_.store(State::kDown, std::memory_order_release);
  return true;
}

bool Link::shut() noexcept {
  close(Status::kClosed, "this agent was closed");
  return state() == State::kDown || teardown(Patience::kNone);
}

// ---- imports

Status Link::import(const std::shared_ptr<RemoteRegion>& region, towline_import** import) {
  if (region->revoked.load(std::memory_order_acquire)) {
    set_failure_text("the peer has deregistered the region");
    return Status::kStale;
  }
  auto [found, fresh] = imports_.try_emplace(region->ref.key);
  Import& entry = found->second;
  if (fresh) {
    entry.region = region;
    region->imports.fetch_add(1, std::memory_order_acq_rel);
  }
  if (!entry.ready) {
    const towline_region_args args = {sizeof(towline_region_args), region->ref, -1, 0, nullptr};
    const std::span<const uint8_t> token = region->token_for(backend_.index);
    take_failure_text();
    const int32_t status =
        backend_.memory->import(connection_, &args, token.data(), token.size(), &entry.handle, entry.how);
    if (status == TOWLINE_AGAIN) return Status::kAgain;
    if (status != TOWLINE_OK) {
      // An import left by an earlier kAgain that the backend has not released.
      if (entry.handle != nullptr) backend_.memory->unimport(connection_, entry.handle);
      imports_.erase(found);
      region->imports.fetch_sub(1, std::memory_order_acq_rel);
      return static_cast<Status>(status);
    }
    entry.how[sizeof entry.how - 1] = 0;
    entry.ready = true;
  }
  *import = entry.handle;
  return Status::kOk;
}

bool Link::reach(const RemoteRegion& region, uint64_t& address) const noexcept {
  const auto found = imports_.find(region.ref.key);
  return backend_.memory->reach != nullptr && found != imports_.end() && found->second.ready &&
         backend_.memory->reach(connection_, found->second.handle, &address) == TOWLINE_OK;
}

std::string Link::how(const RemoteRegion& region) const {
  const auto found = imports_.find(region.ref.key);
  return found == imports_.end() ? "" : found->second.how;
}

std::string Link::describe() const {
  if (connection_ == nullptr) return "{}";
  char text[2048] = "";
  if (backend_.connection->describe(connection_, text, sizeof text) != TOWLINE_OK) return "{}";
  return text;
}

// ---- messages

TOWLINE_WAKE_PATH Status Link::send(const void* message, size_t bytes) noexcept {
  if (!up()) return Status::kPeerLost;
  return transmit(message, bytes);
}

TOWLINE_WAKE_PATH Status Link::transmit(const void* message, size_t bytes) noexcept {
  const auto status = static_cast<Status>(backend_.data->send(connection_, message, bytes));
  if (status == Status::kOk) last_said_ns_ = worker_.pass_began_ns();
  return status;
}

TOWLINE_WAKE_PATH Status Link::take_notice_credit(uint64_t notice_bytes) noexcept {
  const uint64_t taken = notice_bytes_sent_ + notice_credit(notice_bytes);
  if (taken - notice_bytes_credited_ > kNoticeCreditBytes) return Status::kAgain;
  notice_bytes_sent_ = taken;
  return Status::kOk;
}

void Link::note_no_room() noexcept { room_at_ns_ = worker_.agent().now_ns() + kRoomPauseNs; }

bool Link::has_room() const noexcept {
  return notice_bytes_sent_ + notice_credit(TOWLINE_MAX_NOTICE_BYTES) - notice_bytes_credited_ <=
         kNoticeCreditBytes;
}

void Link::consumed(uint32_t generation, uint64_t notice_bytes) noexcept {
  peer_.return_notice_room(notice_credit(notice_bytes));
  if (generation != this->generation()) return;
  const uint64_t consumed =
      notice_bytes_consumed_.fetch_add(notice_credit(notice_bytes), std::memory_order_relaxed);
  // The sender may be waiting for credit: report it soon after a quarter of it is used, and from time to
  // time.
  constexpr uint64_t kStep = kNoticeCreditBytes / 4;
  if (consumed / kStep != (consumed + notice_credit(notice_bytes)) / kStep) {
    worker_.maintain_soon();
    worker_.wake();
  }
}

void Link::part_started() noexcept {
  ++parts_in_flight_;
  worker_.part_started(backend_.index);
}

void Link::part_ended() noexcept {
  --parts_in_flight_;
  worker_.part_ended(backend_.index);
}

void Link::on_served(Direction direction, uint64_t bytes) noexcept {
  (direction == Direction::kTx ? sent_ : received_)->add_served(worker_.index(), bytes);
}

TOWLINE_WAKE_PATH void Link::on_heard() noexcept {
  heard_ = true;
  last_heard_ns_ = worker_.pass_began_ns();
  asked_ns_ = 0;
  if (peer_.health() == TOWLINE_HEALTH_SUSPECT) peer_.set_health(TOWLINE_HEALTH_ALIVE);
}

void Link::on_refused(Status why) noexcept {
  received_->add_error(worker_.index(), why);
  TOWLINE_LOG_EVERY(kWarning, 10 * kSecondNs,
                    "peer '{}' over {}: an access to this agent's memory was refused ({})", peer_.name(),
                    backend_.name, status_name(why));
}

TOWLINE_WAKE_PATH void Link::on_message(const uint8_t* data, size_t bytes) noexcept {
  contain([&] { handle_message(data, bytes); });
}

TOWLINE_WAKE_PATH void Link::handle_message(const uint8_t* data, size_t bytes) {
  on_heard();
  ControlHeader header;
  if (bytes < sizeof header) return close(Status::kProtocol, "a control message was cut short");
  std::memcpy(&header, data, sizeof header);
  if (takes_tags() == Status::kAgain)
    takes_tags_.store((header.features & kTakesTags) != 0 ? Status::kOk : Status::kUnsupported,
                      std::memory_order_release);
  const bool tagged = header.type == static_cast<uint8_t>(ControlType::kTagged);
  if (tagged || header.type == static_cast<uint8_t>(ControlType::kData)) {
    TaggedMessage message = {};
    const size_t header_bytes = tagged ? sizeof(TaggedMessage) : sizeof(DataMessage);
    if (bytes < header_bytes) return close(Status::kProtocol, "a notice was cut short");
    std::memcpy(&message, data, header_bytes);
    if (header.notice_bytes != bytes - header_bytes || header.notice_bytes > TOWLINE_MAX_NOTICE_BYTES) {
      return close(Status::kProtocol, "a notice's length does not fit its message");
    }
    return on_data(message.data, message.tag, data + header_bytes, header.notice_bytes);
  }
  ValueMessage message;
  if (bytes < sizeof message) return close(Status::kProtocol, "a control message was cut short");
  std::memcpy(&message, data, sizeof message);
  switch (static_cast<ControlType>(header.type)) {
    case ControlType::kCredit:
      if (message.value > notice_bytes_sent_ || message.value < notice_bytes_credited_) {
        return close(Status::kProtocol, "the peer credits notices that were never sent");
      }
      notice_bytes_credited_ = message.value;
      if (peer_.awaits_credit()) worker_.maintain_soon();
      return;
    case ControlType::kPing:
      pong_due_ = true;
      pong_value_ = message.value;
      send_waiting();
      return;
    case ControlType::kPong:
      return;
    case ControlType::kRevoke:
      return on_revoke(message.value);
    case ControlType::kRevoked: {
      std::lock_guard lock(revocations_mutex_);
      std::erase(revocations_asked_, message.value);
      granted_.erase(message.value);
      return;
    }
    case ControlType::kBye:
      return close(Status::kPeerLost, "the peer said goodbye");
    case ControlType::kEndConnection:
      return on_end_connection(message.value);
    case ControlType::kConnectionEnded:
      peer_.confirm_ended(message.value);
      if (talks() && !up()) (void)come_up();
      return;
    case ControlType::kData:
    case ControlType::kTagged:
      break;
  }
  // Unknown types come from later versions; they must be safe to leave out.
}

TOWLINE_WAKE_PATH void Link::on_data(const DataMessage& message, uint64_t tag, const uint8_t* notice,
                                     uint32_t bytes) {
  Agent& agent = worker_.agent();
  if (message.counter_key != 0 && !agent.remote_counters().add(message.counter_key, message.counter_add)) {
    received_->add_error(worker_.index(), Status::kNotFound);
  }
  if (message.has_notice == 0) return;
  // The peer counts from the same start and knows of less credit than this side: a peer that obeys its credit
  // can't get here.
  notice_bytes_received_ += notice_credit(bytes);
  if (notice_bytes_received_ - notice_bytes_reported_ > kNoticeCreditBytes)
    return close(Status::kProtocol, "the peer sent more notices than it had credit for");
  if (!peer_.take_notice_room(notice_credit(bytes)))
    return close(Status::kLimitExceeded, "too many notices of the peer wait, of earlier connections as well");
  NoticeNode* node = worker_.notices().take(bytes);
  if (node == nullptr) {
    peer_.return_notice_room(notice_credit(bytes));
    return close(Status::kOutOfMemory, "no memory for an arriving notice");
  }
  node->peer = &peer_;
  peer_.hold();
  node->link = this;
  node->link_generation = generation();
  node->worker = worker_.index();
  node->bytes = bytes;
  node->tag = tag;
  copy_bytes(node->data(), notice, bytes);
  received_->add_notice(worker_.index());
  agent.queues().deliver(node);
}

// ---- revocations

void Link::on_granted(uint64_t key) noexcept {
  contain([&] {
    std::lock_guard lock(revocations_mutex_);
    granted_.insert(key);
  });
}

// Frames need no answer: each is checked and pins its memory. A peer that is only notified, and reads
// nothing, must not make the list of waiting messages grow without limit.
void Link::ask_revoke(uint64_t key) {
  constexpr std::size_t kMostTold = 1024;
  {
    std::lock_guard lock(revocations_mutex_);
    const bool reaches = !backend_.checks_every_access() &&
                         (!backend_.has_trait(TOWLINE_TRAIT_TELLS_GRANTS) || granted_.contains(key));
    if (!reaches && waiting_.size() >= kMostTold) return;
    if (reaches) revocations_asked_.push_back(key);
  }
  waiting_.push_back(make_value_message(ControlType::kRevoke, key));
  send_waiting();
}

bool Link::revocation_pending(uint64_t key) const noexcept {
  if (!talks()) return false;
  std::lock_guard lock(revocations_mutex_);
  return std::find(revocations_asked_.begin(), revocations_asked_.end(), key) != revocations_asked_.end();
}

void Link::on_revoke(uint64_t key) {
  constexpr std::size_t kMostUnanswered = 65536;
  if (revoking_here_.size() + waiting_.size() >= kMostUnanswered)
    return close(Status::kProtocol, "the peer revokes regions and takes no answers");
  worker_.agent().revoke_remote(peer_, key);
  revoking_here_.push_back(key);
  worker_.maintain_soon();
}

uint32_t Link::answer_revocations() {
  // Every link of the peer detaches from revoked regions in its own maintain(); the answer waits for all of
  // them.
  if (release_revoked()) drop_imports(false);
  uint32_t done = 0;
  std::erase_if(revoking_here_, [&](uint64_t key) {
    if (worker_.agent().revoked_region_in_use(peer_, key)) return false;
    waiting_.push_back(make_value_message(ControlType::kRevoked, key));
    ++done;
    return true;
  });
  return done;
}

// ---- periodic work

uint32_t Link::send_waiting() noexcept {
  uint32_t done = 0;
  // A backend may deliver within send: then this runs recursively, with the same message still in front.
  if (!talks() || std::exchange(sending_waiting_, true)) return 0;
  if (pong_due_) {
    const ValueMessage pong = make_value_message(ControlType::kPong, pong_value_);
    if (transmit(&pong, sizeof pong) == Status::kOk) {
      pong_due_ = false;
      ++done;
    }
  }
  while (!waiting_.empty() && transmit(&waiting_.front(), sizeof(ValueMessage)) == Status::kOk) {
    waiting_.pop_front();
    ++done;
  }
  const uint64_t consumed = notice_bytes_consumed_.load(std::memory_order_relaxed);
  if (consumed - notice_bytes_reported_ >= kNoticeCreditBytes / 8) {
    const ValueMessage credit = make_value_message(ControlType::kCredit, consumed);
    if (transmit(&credit, sizeof credit) == Status::kOk) {
      notice_bytes_reported_ = consumed;
      ++done;
    }
  }
  sending_waiting_ = false;
  return done;
}

void Link::heartbeat(uint64_t now_ns) {
  const AgentTuning& tuning = worker_.agent().tuning();
  const uint64_t silent_ns = now_ns > last_heard_ns_ ? now_ns - last_heard_ns_ : 0;
  // A silent side sends a ping as well: a peer that sends for long over a slow network has its own pings
  // queued behind its data, and must receive something meanwhile.
  const uint64_t quiet_ns = std::max(silent_ns, now_ns > last_said_ns_ ? now_ns - last_said_ns_ : 0);
  if (quiet_ns >= tuning.heartbeat_ns && now_ns - last_ping_ns_ >= tuning.heartbeat_ns) {
    last_ping_ns_ = now_ns;
    if (asked_ns_ == 0) asked_ns_ = now_ns;
    const ValueMessage ping = make_value_message(ControlType::kPing, now_ns);
    // No room for a ping means that the peer does not read; its silence will be noticed.
    (void)send(&ping, sizeof ping);
  }
  // A worker that was held up, by an engine that blocks or by its application, has asked nobody: a peer that was not asked
  // has not failed to answer.
  const auto unanswered = [&](uint64_t limit_ns) {
    return silent_ns >= limit_ns && asked_ns_ != 0 && now_ns - asked_ns_ + tuning.heartbeat_ns >= limit_ns;
  };
  if (!unanswered(tuning.suspect_ns)) return;
  if (peer_.health() == TOWLINE_HEALTH_ALIVE) peer_.set_health(TOWLINE_HEALTH_SUSPECT);
  // A caller-driven peer is silent while its application is busy elsewhere: suspect, but not lost. A peer
  // that connected and never sent anything only occupies a descriptor.
  const bool may_be_silent = peer_.identity().caller_driven != 0 && (heard_ || !accepted_);
  if (unanswered(tuning.lost_ns) && !may_be_silent) {
    close(Status::kPeerLost, fmt::format("nothing heard for {} ms", silent_ns / kMillisecondNs));
  }
}

bool Link::has_chores() const noexcept {
  return state() == State::kBroken || state() == State::kConnecting || pong_due_ || peer_.awaits_credit() ||
         !waiting_.empty() || !revoking_here_.empty() || !ending_.empty() ||
         asked_changes_ != peer_.given_up_changes() || peer_.ended() != Status::kOk ||
         worker_.agent().has_revoked_regions() ||
         notice_bytes_consumed_.load(std::memory_order_relaxed) - notice_bytes_reported_ >=
             kNoticeCreditBytes / 8;
}

uint32_t Link::maintain(uint64_t now_ns) noexcept {
  uint32_t done = 1;  // what it throws closes the link, which is something
  contain([&] { done = do_upkeep(now_ns); });
  return done;
}

uint32_t Link::do_upkeep(uint64_t now_ns) {
  if (const Status ended = peer_.ended(); ended != Status::kOk) {
    close(ended == Status::kStale ? Status::kCancelled : ended, status_text(ended));
  }
  end_if_asked();
  uint32_t done = 0;
  switch (state()) {
    case State::kDown:
      return 0;
    case State::kConnecting:
      if (now_ns >= connect_deadline_ns_) {
        close(Status::kTimedOut,
              fmt::format("connecting to '{}' over {} took too long{}", peer_.name(), backend_.name,
                          talks() ? ": it has not ended the connection before" : ""));
        return 1;
      }
      if (!talks()) return 0;
      done = come_up() ? 1 : 0;
      break;
    case State::kBroken:
      return teardown() ? 1 : 0;
    case State::kUp:
      break;
  }
  if (up()) heartbeat(now_ns);
  if (up() && peer_.awaits_credit() && has_room() && now_ns >= room_at_ns_) peer_.credit_came(Status::kOk);
  if (!talks()) return done;
  done += ask_to_end() + answer_endings();
  if (worker_.agent().has_revoked_regions() || !revoking_here_.empty()) done += answer_revocations();
  done += send_waiting();
  last_used_ns_ = parts_in_flight_ != 0 ? now_ns : std::max(last_used_ns_, last_heard_ns_);
  if (backend_.farthest == TOWLINE_WHERE_ANY_HOST &&
      now_ns > Deadline::after(last_used_ns_, worker_.agent().tuning().idle_ns).ns()) {
    close(Status::kClosed, "idle");
  }
  return done;
}

}  // namespace towline
