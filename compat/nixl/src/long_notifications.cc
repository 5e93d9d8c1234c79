#include "long_notifications.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

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
  const auto known = senders_.try_emplace({sender, std::string{incarnation}}).first;
  Sender& from = known->second;
  const auto found = from.arriving.try_emplace(number).first;
  Arriving& arriving = found->second;
  // Numbers count up, so the first is the oldest one, unless it is this one itself.
  if (from.arriving.size() > kMostArriving) {
    const auto oldest = from.arriving.begin();
    drop(from, oldest == found ? std::next(oldest) : oldest);
  }
  if (message_type(message) == MessageType::kEnd) {
    ++arriving.ended;
  } else if (arriving.pieces.add(body.substr(sizeof number), arriving.text)) {
    ++arriving.whole;
  }
  while (arriving.whole != 0 && arriving.ended != 0) {
    texts.push_back(arriving.text);
    --arriving.whole;
    --arriving.ended;
  }
  count(from, arriving);
  if (arriving.whole == 0 && arriving.ended == 0 && arriving.pieces.none()) drop(from, found);
  if (from.arriving.empty()) senders_.erase(known);
  keep_bound();
}

void LongNotifications::count(Sender& of, Arriving& one) noexcept {
  const size_t before = std::exchange(one.counted, one.bytes());
  bytes_ += one.counted - before;
  of.bytes += one.counted - before;
}

void LongNotifications::drop(Sender& of, std::map<uint64_t, Arriving>::iterator one) noexcept {
  bytes_ -= one->second.counted;
  of.bytes -= one->second.counted;
  of.arriving.erase(one);
}

void LongNotifications::keep_bound() noexcept {
  while (bytes_ > most_bytes_) {
    const auto most =
        std::ranges::max_element(senders_, {}, [](const auto& entry) { return entry.second.bytes; });
    Sender& sender = most->second;
    drop(sender, std::ranges::max_element(sender.arriving, {},
                                          [](const auto& entry) { return entry.second.bytes(); }));
    if (sender.arriving.empty()) senders_.erase(most);
  }
}

}  // namespace towline::nixl
