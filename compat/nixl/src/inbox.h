// Notices that have arrived. Notifications are kept until the application takes them; internal messages go to
// their reader in order of arrival.
#pragma once

#include <cstddef>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include <towline_nixl.h>
#include <towline/towline.hpp>
#include "long_notifications.h"

namespace towline::nixl {

class MessageReader {
 public:
  virtual ~MessageReader() = default;
  // Reads an internal message. Called with the inbox locked.
  virtual void read_message(const std::string& name, std::string_view incarnation,
                            std::string_view message) = 0;
  // All messages that have come are read. Called with the inbox locked.
  virtual void read_all() {}
};

class Inbox {
 public:
  explicit Inbox(MessageReader& reader, size_t most_bytes = kMostBytes)
      : reader_(reader), most_bytes_(most_bytes) {}

  // Reads what has arrived, unless it keeps `most_bytes` of notifications: then the rest waits with its senders' credit.
  void drain(const Agent& agent);
  // The same, and returns all notifications.
  std::vector<Notification> take(const Agent& agent);
  // A notification that an agent sends itself.
  void put(const std::string& name, const std::string& text);
  // A message of a long one that an agent sends itself.
  void put_message(const std::string& name, std::string_view incarnation, std::string_view message);

 private:
  static constexpr size_t kMostBytes = size_t{1} << 30;
  static constexpr size_t kEntryBytes = 128;  // what each counts for beside its text

  void drain_locked(const Agent& agent, size_t most_bytes);
  void keep(std::string name, std::string text);
  void read_long(const std::string& name, std::string_view incarnation, std::string_view message);

  MessageReader& reader_;
  const size_t most_bytes_;
  std::mutex mutex_;
  std::vector<Notification> kept_;
  size_t kept_bytes_ = 0;
  LongNotifications long_;
};

}  // namespace towline::nixl
