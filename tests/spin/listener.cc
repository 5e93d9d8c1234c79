#include "spin/listener.h"

#include <algorithm>

#include "spin/posts.h"

namespace towline::spin {
void Listener::begin(Place& place) {
  towline_queue_options_t options{};
  options.struct_size = sizeof options;
  options.capacity = static_cast<uint32_t>(random_.chance(0.5) ? 1 + random_.below(8) : 0);
  health_ = random_.chance(0.5);
  options.peer_health = health_ ? 1 : 0;
  options.user_data = this;
  if (!events_.open(place.agent, options)) return;
  agent_name_ = towline_agent_name(place.agent);
  if (random_.chance(0.3) && call(towline_directory_open(place.agent, world_.options().directory.c_str(),
                                                         &directory_)) != TOWLINE_OK)
    directory_ = nullptr;
}

void Listener::step() {
  const uint64_t drawn = random_.below(100);
  if (drawn < 2) return end();
  if (drawn < 20) return subscribe();
  if (drawn < 60) return directory_ != nullptr ? directory_call() : void(events_.take(8));
  if (drawn < 65) call(towline_queue_wait(events_.queue(), 1));
  events_.take(1 + random_.below(8));
}

void Listener::other(const towline_event_t& event) {
  if (event.user_data != this) give_up("an event that no call asked for has somebody else's user_data");
  if (event.kind == TOWLINE_EVENT_PEER_HEALTH) {
    if (!health_) give_up("a peer's health came to a queue that did not ask for it");
    if (event.value > TOWLINE_HEALTH_LOST) give_up("a peer's health is " + std::to_string(event.value));
    return;
  }
  const auto takes = [&](const Subscription& one) { return ((event.tag ^ one.tag) & one.mask) == 0; };
  if (std::none_of(subscriptions_.begin(), subscriptions_.end(), takes))
    give_up("a notice with tag " + std::to_string(event.tag) +
            " came to a queue that did not subscribe to it");
  world_.notice_came(event.data, event.bytes);
  towline_peer_t* peer = nullptr;
  if (random_.chance(0.2) && call(towline_event_peer(&event, &peer)) == TOWLINE_OK)
    towline_peer_release(peer);
}

void Listener::subscribe() {
  if (subscriptions_.size() > 6 || (!subscriptions_.empty() && random_.chance(0.3))) {
    Subscription& one = subscriptions_[random_.below(subscriptions_.size())];
    const int32_t status = call(towline_queue_unsubscribe(events_.queue(), one.tag, one.mask));
    if (status == TOWLINE_OK && one.over) give_up("a subscription ended twice");
    one.over = true;
    if (subscriptions_.size() > 6) {
      while (events_.queue() != nullptr && events_.take(8) > 0) continue;
      std::erase_if(subscriptions_, [](const Subscription& each) { return each.over; });
    }
    return;
  }
  constexpr std::array<uint64_t, 4> kMasks = {~uint64_t{0}, 1, 3, 0};
  Subscription made{any_tag(), kMasks[random_.below(random_.chance(0.1) ? 4 : 3)]};
  const auto same = [&](const Subscription& one) { return one.tag == made.tag && one.mask == made.mask; };
  if (std::any_of(subscriptions_.begin(), subscriptions_.end(), same)) return;
  if (call(towline_queue_subscribe(events_.queue(), made.tag, made.mask)) == TOWLINE_OK)
    subscriptions_.push_back(made);
}

void Listener::talk_to(towline_peer_t* peer) {
  if (random_.chance(0.8)) {
    std::vector<uint64_t> notice(1 + random_.below(random_.chance(0.1) ? 8192 : 8));
    notice.front() = world_.number();
    call(towline_notice_send_tagged(peer, any_tag(), notice.data(), notice.size() * sizeof notice.front()));
    return;
  }
  if (!begun()) return;
  if (credit_.told && random_.chance(0.7))
    events_.ask(credit_, [&] { return towline_peer_credit_async(peer, events_.queue(), &credit_); });
  else if (refreshed_.told)
    events_.ask(refreshed_,
                [&] { return towline_peer_refresh_async(peer, 0, events_.queue(), &refreshed_); });
}

// ---- The directory

void Listener::directory_call() {
  const uint64_t drawn = random_.below(20);
  if (drawn == 0) return close_directory();
  if (drawn < 5) return watch_call();
  if (drawn == 5) {
    std::array<char, 4000> text;
    std::size_t needed = 0;
    call(towline_directory_info(directory_, text.data(), random_.below(text.size()), &needed));
    return;
  }
  Call& slot = calls_[random_.below(calls_.size())];
  slot.call == nullptr ? start(slot) : look(slot);
}

void Listener::start(Call& slot) {
  if (!slot.ended.told) return;  // of the one before
  const std::string key = agent_name_ + "/" + std::to_string(any_tag());
  const uint64_t timeout_ns = 1 + random_.below(random_.chance(0.8) ? kPauseNs : 50 * kPauseNs);
  const uint32_t flags = static_cast<uint32_t>(random_.below(32));
  towline_directory_call_t** const made = random_.chance(0.9) ? &slot.call : nullptr;
  int32_t status = TOWLINE_OK;
  const uint64_t drawn = random_.below(6);
  slot.unpublishes = drawn == 4;
  switch (drawn) {
    case 0:
      status =
          towline_directory_put(directory_, key.c_str(), key.data(), key.size(), flags & 3, timeout_ns, made);
      break;
    case 1:
      status = towline_directory_get(directory_, key.c_str(), flags & 12, timeout_ns, made);
      break;
    case 2:
      status = towline_directory_delete(directory_, key.c_str(), flags & 4, timeout_ns, made);
      break;
    case 3:
      status = towline_directory_publish(directory_, nullptr, nullptr, 0, timeout_ns, made);
      break;
    case 4:
      status = towline_directory_unpublish(directory_, nullptr, timeout_ns, made);
      break;
    default:
      status =
          towline_directory_fetch(directory_, agent_name_.c_str(), nullptr, flags & 24, timeout_ns, made);
  }
  if (call(status) != TOWLINE_OK) slot.call = nullptr;
}

void Listener::look(Call& slot) {
  switch (random_.below(6)) {
    case 0:
      call(towline_directory_call_cancel(slot.call));
      return;
    case 1:
      if (slot.ended.told)
        events_.ask(slot.ended, [&] {
          return towline_directory_call_wait_async(slot.call, events_.queue(), &slot.ended);
        });
      return;
    case 2: {
      const int32_t status = call(towline_directory_call_wait(slot.call, random_.below(kPauseNs)));
      if (status == TOWLINE_OK) {
        if (world_.options().directory != kNoDirectory) return check(*slot.call);
        if (slot.unpublishes) return;
        give_up("a directory without servers did something");
      }
      if (status != TOWLINE_NOT_YET && *towline_directory_call_error(slot.call) == 0)
        give_up("a directory's call failed without a word");
      return;
    }
    case 3:
      towline_directory_call_release(slot.call);
      slot.call = nullptr;
      return;
    default:
      call(towline_directory_call_poll(slot.call));
  }
}

// Values are as their keys; an agent's metadata is not.
void Listener::check_entry(const towline_directory_entry_t& entry) {
  const std::string key = entry.key;
  if (key.ends_with("/metadata")) return;
  if (std::string(static_cast<const char*>(entry.value), entry.bytes) != key)
    give_up("the directory has another value of " + key);
}

void Listener::check(const towline_directory_call_t& of) {
  std::array<towline_directory_entry_t, 16> entries;
  std::size_t count = entries.size();
  if (call(towline_directory_call_entries(&of, entries.data(), sizeof entries.front(), &count)) == TOWLINE_OK)
    for (std::size_t i = 0; i < std::min(count, entries.size()); ++i) check_entry(entries[i]);
  towline_peer_t* peer = nullptr;
  if (call(towline_directory_call_peer(&of, &peer)) == TOWLINE_OK) towline_peer_release(peer);
}

void Listener::watch_call() {
  if (watch_ == nullptr) {
    if (call(towline_directory_watch(directory_, random_.chance(0.5) ? "" : agent_name_.c_str(), &watch_)) !=
        TOWLINE_OK)
      watch_ = nullptr;
    return;
  }
  towline_directory_event_t event{};
  switch (random_.below(4)) {
    case 0:
      towline_watch_release(watch_);
      watch_ = nullptr;
      break;
    case 1:
      if (watched_.told)
        events_.ask(watched_, [&] { return towline_watch_wait_async(watch_, events_.queue(), &watched_); });
      break;
    case 2:
      if (call(towline_watch_next(watch_, random_.below(kPauseNs), &event)) == TOWLINE_OK &&
          event.kind == TOWLINE_WATCH_PUT)
        check_entry(event.entry);
      break;
    default:
      call(towline_watch_status(watch_));
  }
}

// Watches and calls may outlive the handle of their directory.
void Listener::close_directory() {
  if (random_.chance(0.5))
    call(towline_directory_close(directory_, 5 * kPauseNs));
  else
    towline_directory_release(directory_);
  directory_ = nullptr;
}

void Listener::end() {
  if (!begun()) return;
  if (directory_ != nullptr && random_.chance(0.5)) close_directory();
  for (Call& slot : calls_) {
    towline_directory_call_release(slot.call);
    slot.call = nullptr;
  }
  towline_watch_release(watch_);
  watch_ = nullptr;
  if (directory_ != nullptr) close_directory();
  if (random_.chance(0.7)) {
    events_.wait_for(credit_);
    events_.wait_for(refreshed_);
    for (Call& slot : calls_) events_.wait_for(slot.ended);
    events_.wait_for(watched_);
  }
  events_.release();  // what was not told is dropped
  for (Asked* asked : {&credit_, &refreshed_, &watched_}) asked->told = true;
  for (Call& slot : calls_) slot.ended.told = true;
  subscriptions_.clear();
}

}  // namespace towline::spin
