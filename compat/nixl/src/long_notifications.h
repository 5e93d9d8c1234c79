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

// The receiver's side, of all senders. Not synchronised.
class LongNotifications {
 public:
  // Reads one message and adds texts that are complete to `texts`. Invalid messages are dropped.
  void read(const std::string& sender, std::string_view incarnation, std::string_view message,
            std::vector<std::string>& texts);

 private:
  struct Arriving {
    Pieces pieces;
    std::string text;    // the last complete one
    uint64_t whole = 0;  // complete arrivals not delivered yet
    uint64_t ended = 0;  // ends not matched yet
  };
  struct Sender {
    std::string incarnation;  // data of another incarnation is dropped
    std::map<uint64_t, Arriving> arriving;
  };

  std::map<std::string, Sender, std::less<>> senders_;
};

}  // namespace towline::nixl
