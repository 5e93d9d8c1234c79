// Notifications longer than a notice: in pieces, and a message that says when they may be delivered.
//
// The pieces are sent as separate messages, in order, followed by an end message. With a transfer, the end is
// the transfer's notice, so that the notification arrives no sooner than the data. Pieces and end may take
// different connections: the one that arrives last delivers the notification. A transfer that runs again
// sends the same pieces under the same number again, and is delivered as often as it ended.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nixl_types.h>
#include "messages.h"

namespace towline::nixl {

inline constexpr size_t kMaxLongBytes = size_t{1} << 30;
inline constexpr size_t kMostArriving = 4096;  // of one sender at a time; beyond, the oldest is dropped

[[nodiscard]] std::string make_end_message(uint64_t number);

// Gives each piece's message to `send`, which returns a nixl_status_t; stops at the first that fails.
template <class Send>
nixl_status_t send_pieces(uint64_t number, std::string_view text, Send send) {
  for (const std::string& body : cut_to_pieces(text)) {
    std::string numbered{reinterpret_cast<const char*>(&number), sizeof number};
    numbered += body;
    const nixl_status_t status = send(make_message(MessageType::kPiece, numbered));
    if (status != NIXL_SUCCESS) return status;
  }
  return NIXL_SUCCESS;
}

// The receiver's side, of all senders. Not synchronised. What is incomplete stays when its sender leaves, and anybody may
// send, so all of it together has a bound: where it is passed, the largest of the sender with the most goes.
class LongNotifications {
 public:
  explicit LongNotifications(size_t most_bytes = kMostBytes) noexcept : most_bytes_(most_bytes) {}

  // Reads one message and adds texts that are complete to `texts`. Invalid messages are dropped.
  void read(const std::string& sender, std::string_view incarnation, std::string_view message,
            std::vector<std::string>& texts);
  // Of all that are incomplete.
  [[nodiscard]] size_t bytes() const noexcept { return bytes_; }

  static constexpr size_t kMostBytes = 2 * kMaxLongBytes;
  static constexpr size_t kEntryBytes = 512;  // what each counts for beside its text

 private:
  struct Arriving {
    Pieces pieces;
    std::string text;    // the last complete one
    uint64_t whole = 0;  // complete arrivals not delivered yet
    uint64_t ended = 0;  // ends not matched yet
    size_t counted = 0;  // bytes(), as the sums have it: an exception may leave it behind
    [[nodiscard]] size_t bytes() const noexcept { return kEntryBytes + pieces.bytes() + text.size(); }
  };
  struct Sender {
    std::map<uint64_t, Arriving> arriving;
    size_t bytes = 0;  // of those
  };

  void count(Sender& of, Arriving& one) noexcept;
  void drop(Sender& of, std::map<uint64_t, Arriving>::iterator one) noexcept;
  void keep_bound() noexcept;

  const size_t most_bytes_;
  size_t bytes_ = 0;
  std::map<std::pair<std::string, std::string>, Sender> senders_;  // by name and incarnation
};

}  // namespace towline::nixl
