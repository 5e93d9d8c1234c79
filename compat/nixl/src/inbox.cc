#include "inbox.h"

#include <cstdint>
#include <utility>

#include "messages.h"

namespace towline::nixl {

void Inbox::keep(std::string name, std::string text) {
  const size_t bytes = kEntryBytes + text.size();
  kept_.push_back({std::move(name), std::move(text)});
  kept_bytes_ += bytes;
}

void Inbox::drain_locked(const Agent& agent, size_t most_bytes) {
  Notice notice;
  while (kept_bytes_ < most_bytes && agent.receive(notice) == Status::kOk) {
    const std::string_view text = notice.text();
    std::string name{notice.peer_name()};
    if (!is_message(text)) {
      keep(std::move(name), nixl_blob_t{text});
    } else if (message_type(text) == MessageType::kText) {
      keep(std::move(name), nixl_blob_t{message_body(text)});
    } else if (message_type(text) == MessageType::kPiece || message_type(text) == MessageType::kEnd) {
      read_long(name, notice.peer_incarnation(), text);
    } else {
      reader_.read_message(name, notice.peer_incarnation(), text);
    }
  }
  reader_.read_all();
}

void Inbox::read_long(const std::string& name, std::string_view incarnation, std::string_view message) {
  std::vector<std::string> texts;
  long_.read(name, incarnation, message, texts);
  for (std::string& text : texts) keep(name, std::move(text));
}

void Inbox::put_message(const std::string& name, std::string_view incarnation, std::string_view message) {
  std::lock_guard lock(mutex_);
  read_long(name, incarnation, message);
}

void Inbox::drain(const Agent& agent) {
  std::lock_guard lock(mutex_);
  drain_locked(agent, most_bytes_);
}

std::vector<Notification> Inbox::take(const Agent& agent) {
  std::lock_guard lock(mutex_);
  drain_locked(agent, SIZE_MAX);
  kept_bytes_ = 0;
  return std::exchange(kept_, {});
}

void Inbox::put(const std::string& name, const std::string& text) {
  std::lock_guard lock(mutex_);
  keep(name, text);
}

}  // namespace towline::nixl
