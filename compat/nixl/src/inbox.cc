#include "inbox.h"

#include <utility>

#include "messages.h"

namespace towline::nixl {

void Inbox::drain_locked(const Agent& agent) {
  Notice notice;
  while (agent.receive(notice) == Status::kOk) {
    const std::string_view text = notice.text();
    std::string name{notice.peer_name()};
    if (!is_message(text)) {
      kept_.push_back({std::move(name), nixl_blob_t{text}});
    } else if (message_type(text) == MessageType::kText) {
      kept_.push_back({std::move(name), nixl_blob_t{message_body(text)}});
    } else if (message_type(text) == MessageType::kPiece || message_type(text) == MessageType::kEnd) {
      read_long(name, notice.peer_incarnation(), text);
    } else {
      reader_.read_message(name, notice.peer_incarnation(), text);
    }
  }
}

void Inbox::read_long(const std::string& name, std::string_view incarnation, std::string_view message) {
  std::vector<std::string> texts;
  long_.read(name, incarnation, message, texts);
  for (std::string& text : texts) kept_.push_back({name, std::move(text)});
}

void Inbox::put_message(const std::string& name, std::string_view incarnation, std::string_view message) {
  std::lock_guard lock(mutex_);
  read_long(name, incarnation, message);
}

void Inbox::drain(const Agent& agent) {
  std::lock_guard lock(mutex_);
  drain_locked(agent);
}

std::vector<Notification> Inbox::take(const Agent& agent) {
  std::lock_guard lock(mutex_);
  drain_locked(agent);
  return std::exchange(kept_, {});
}

void Inbox::put(const std::string& name, const std::string& text) {
  std::lock_guard lock(mutex_);
  kept_.push_back({name, text});
}

}  // namespace towline::nixl
