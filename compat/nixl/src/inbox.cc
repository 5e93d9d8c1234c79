#include "inbox.h"

#include <utility>

#include "messages.h"

namespace towline::nixl {

void Inbox::drain_locked(const Agent& agent, nixl_notifs_t& into) {
  Notice notice;
  std::string name;
  while (agent.receive(notice) == Status::kOk) {
    const std::string_view text = notice.text();
    name.assign(notice.peer_name());
    if (!is_message(text)) {
      into[name].emplace_back(text);
    } else if (message_type(text) == MessageType::kText) {
      into[name].emplace_back(message_body(text));
    } else if (message_type(text) == MessageType::kPiece || message_type(text) == MessageType::kEnd) {
      read_long(name, notice.peer_incarnation(), text, into);
    } else {
      reader_.read_message(name, notice.peer_incarnation(), text);
    }
  }
}

void Inbox::read_long(const std::string& name, std::string_view incarnation, std::string_view message,
                      nixl_notifs_t& into) {
  std::vector<std::string> texts;
  long_.read(name, incarnation, message, texts);
  for (std::string& text : texts) into[name].push_back(std::move(text));
}

void Inbox::put_message(const std::string& name, std::string_view incarnation, std::string_view message) {
  std::lock_guard lock(mutex_);
  read_long(name, incarnation, message, kept_);
}

void Inbox::drain(const Agent& agent) {
  std::lock_guard lock(mutex_);
  drain_locked(agent, kept_);
}

void Inbox::take(const Agent& agent, nixl_notifs_t& notifications) {
  std::lock_guard lock(mutex_);
  for (auto& [name, texts] : kept_) {
    auto& into = notifications[name];
    for (nixl_blob_t& text : texts) into.push_back(std::move(text));
  }
  kept_.clear();
  drain_locked(agent, notifications);
}

void Inbox::put(const std::string& name, const std::string& text) {
  std::lock_guard lock(mutex_);
  kept_[name].push_back(text);
}

}  // namespace towline::nixl
