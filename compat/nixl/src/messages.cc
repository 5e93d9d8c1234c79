#include "messages.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace towline::nixl {

std::vector<std::string> cut_to_pieces(std::string_view whole) {
  const auto count = static_cast<uint32_t>((whole.size() + kPieceBytes - 1) / kPieceBytes);
  std::vector<std::string> pieces;
  pieces.reserve(count);
  for (uint32_t index = 0; index < count; ++index) {
    const PieceHead head = {index, count};
    std::string& piece = pieces.emplace_back(reinterpret_cast<const char*>(&head), sizeof head);
    piece.append(whole.substr(index * kPieceBytes, kPieceBytes));
  }
  return pieces;
}

std::vector<std::string> make_load_messages(const std::string& frame) {
  std::vector<std::string> messages = cut_to_pieces(frame);
  for (std::string& message : messages) message = make_message(MessageType::kLoad, message);
  return messages;
}

bool Pieces::add(std::string_view body, std::string& frame) {
  PieceHead head = {};
  if (body.size() >= sizeof head) std::memcpy(&head, body.data(), sizeof head);
  if (head.index == 0) {
    next_ = 0;
    bytes_.clear();
  }
  if (head.index != next_ || head.index >= head.count || head.count > kMaxPieces) {
    next_ = 0;
    bytes_.clear();
    return false;
  }
  bytes_.append(body.substr(sizeof head));
  if (++next_ != head.count) return false;
  next_ = 0;
  frame = std::exchange(bytes_, {});
  return true;
}

bool ArrivingFrames::add(const std::string& sender, std::string_view incarnation, std::string_view body,
                         std::string& frame) {
  const auto found = senders_.try_emplace({sender, std::string{incarnation}}).first;
  Sender& from = found->second;
  const bool complete = from.pieces.add(body, frame);
  const size_t before = std::exchange(from.counted, kEntryBytes + from.pieces.bytes());
  bytes_ += from.counted - before;
  const auto drop = [&](auto entry) {
    bytes_ -= entry->second.counted;
    senders_.erase(entry);
  };
  if (from.pieces.none()) drop(found);
  while (bytes_ > most_bytes_)
    drop(std::ranges::max_element(senders_, {}, [](const auto& entry) { return entry.second.counted; }));
  return complete;
}

}  // namespace towline::nixl
