#include "messages.h"

#include <cstring>
#include <utility>

namespace towline::nixl {

std::vector<std::string> make_load_messages(const std::string& frame) {
  const auto count = static_cast<uint32_t>((frame.size() + kPieceBytes - 1) / kPieceBytes);
  std::vector<std::string> messages;
  for (uint32_t index = 0; index < count; ++index) {
    const PieceHead head = {index, count};
    std::string body{reinterpret_cast<const char*>(&head), sizeof head};
    body.append(frame, index * kPieceBytes, kPieceBytes);
    messages.push_back(make_message(MessageType::kLoad, body));
  }
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

}  // namespace towline::nixl
