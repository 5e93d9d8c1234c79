// Messages between agents of this interface, sent as Towline's notices.
//
// A notification is sent as a plain notice, so that programs with Towline's own interface can send and read
// it. A notice that begins with kMark is an internal message; a notification that begins with kMark is
// wrapped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <towline/towline.h>

namespace towline::nixl {

enum class MessageType : char {
  kText = 't',        // a wrapped notification follows
  kLoad = 'l',        // a piece of the sender's metadata follows (PieceHead)
  kInvalidate = 'i',  // forget the sender
  kNothing = 'n',     // only makes a connection
  kPiece = 'p',       // a piece of a notification longer than a notice follows (long_notifications.h)
  kEnd = 'e',         // that notification may be delivered now
};

inline constexpr std::string_view kMark{"\0\x1bTLNX\x01", 7};
inline constexpr size_t kMessageHeadBytes = kMark.size() + 1;
inline constexpr size_t kMaxNotificationBytes = TOWLINE_MAX_NOTICE_BYTES;

[[nodiscard]] inline bool is_message(std::string_view notice) noexcept {
  return notice.size() >= kMessageHeadBytes && notice.starts_with(kMark);
}
[[nodiscard]] inline MessageType message_type(std::string_view notice) noexcept {
  return MessageType{notice[kMark.size()]};
}
[[nodiscard]] inline std::string_view message_body(std::string_view notice) noexcept {
  return notice.substr(kMessageHeadBytes);
}
[[nodiscard]] inline std::string make_message(MessageType type, std::string_view body = {}) {
  std::string message;
  message.reserve(kMessageHeadBytes + body.size());
  message.append(kMark);
  message.push_back(static_cast<char>(type));
  message.append(body);
  return message;
}

// Metadata and long notifications are sent in pieces, in order.
struct PieceHead {
  uint32_t index;
  uint32_t count;
};
inline constexpr size_t kPieceBytes = 60'000;

// Each with its head.
[[nodiscard]] std::vector<std::string> cut_to_pieces(std::string_view whole);
[[nodiscard]] std::vector<std::string> make_load_messages(const std::string& frame);

// Puts the pieces of one sender together.
class Pieces {
 public:
  // True when `frame` is complete. A piece out of order drops the earlier ones.
  bool add(std::string_view body, std::string& frame);
  // True if no incomplete frame is pending.
  [[nodiscard]] bool none() const noexcept { return next_ == 0; }
  // That the incomplete frame has so far.
  [[nodiscard]] size_t bytes() const noexcept { return bytes_.size(); }

 private:
  static constexpr uint32_t kMaxPieces = 20'000;

  uint32_t next_ = 0;
  std::string bytes_;
};

// Frames of metadata that arrive in pieces, one of each incarnation of a sender. Anybody may begin one, so all that are
// incomplete have a bound, and where it is passed the largest goes.
class ArrivingFrames {
 public:
  explicit ArrivingFrames(size_t most_bytes = kMostBytes) noexcept : most_bytes_(most_bytes) {}

  // As Pieces::add().
  bool add(const std::string& sender, std::string_view incarnation, std::string_view body,
           std::string& frame);
  // Of all that are incomplete.
  [[nodiscard]] size_t bytes() const noexcept { return bytes_; }

  static constexpr size_t kMostBytes = size_t{256} << 20;
  static constexpr size_t kEntryBytes = 1024;  // what each counts for beside its pieces

 private:
  struct Sender {
    Pieces pieces;
    size_t counted = 0;  // in bytes_: an exception may leave it behind
  };

  const size_t most_bytes_;
  size_t bytes_ = 0;
  std::map<std::pair<std::string, std::string>, Sender> senders_;  // by name and incarnation
};

// The notice that carries a notification: its text, wrapped if it would be taken for a message.
class NotificationNotice {
 public:
  explicit NotificationNotice(const std::string& text) {
    if (std::string_view{text}.starts_with(kMark)) wrapped_ = make_message(MessageType::kText, text);
    view_ = wrapped_.empty() ? std::string_view{text} : wrapped_;
  }
  NotificationNotice(const NotificationNotice&) = delete;
  NotificationNotice& operator=(const NotificationNotice&) = delete;
  ~NotificationNotice() = default;

  [[nodiscard]] bool fits() const noexcept { return view_.size() <= kMaxNotificationBytes; }
  // Never null, since null would mean no notice.
  [[nodiscard]] const char* data() const noexcept { return view_.data() == nullptr ? "" : view_.data(); }
  [[nodiscard]] size_t size() const noexcept { return view_.size(); }

 private:
  std::string wrapped_;
  std::string_view view_;
};

}  // namespace towline::nixl
