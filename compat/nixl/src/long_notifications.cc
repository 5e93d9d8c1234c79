#include "long_notifications.h"

#include <cstring>
#include <iterator>

namespace towline::nixl {

std::string make_end_message(uint64_t number) {
  return make_message(MessageType::kEnd, {reinterpret_cast<const char*>(&number), sizeof number});
}

void LongNotifications::read(const std::string& sender, std::string_view incarnation,
                             std::string_view message, std::vector<std::string>& texts) {
  const std::string_view body = message_body(message);
  uint64_t number = 0;
  if (body.size() < sizeof number) return;
  std::memcpy(&number, body.data(), sizeof number);
  Sender& from = senders_[sender];
  if (from.incarnation != incarnation) from = {std::string{incarnation}, {}};
  Arriving& arriving = from.arriving[number];
  // Numbers count up, so the first is the oldest one, unless it is this one itself.
  if (from.arriving.size() > kMostArriving) {
    const auto oldest = from.arriving.begin();
    from.arriving.erase(oldest->first == number ? std::next(oldest) : oldest);
  }
  if (message_type(message) == MessageType::kEnd) {
    ++arriving.ended;
  } else if (arriving.pieces.add(body.substr(sizeof number), arriving.text)) {
    ++arriving.whole;
  }
  while (arriving.whole != 0 && arriving.ended != 0) {
    --arriving.whole;
    --arriving.ended;
    texts.push_back(arriving.text);
  }
  if (arriving.whole == 0 && arriving.ended == 0 && arriving.pieces.none()) from.arriving.erase(number);
}

}  // namespace towline::nixl
