#include "storage/object/upload.h"

#include <fmt/format.h>

#include <algorithm>

#include "storage/object/checksum.h"

namespace towline::object {

namespace {

constexpr uint64_t kMib = 1 << 20;

}  // namespace

uint64_t part_size(uint64_t object_bytes, uint64_t wanted_bytes) {
  const uint64_t least = (object_bytes + kMostParts - 1) / kMostParts;
  return least <= wanted_bytes ? wanted_bytes : (least + kMib - 1) / kMib * kMib;
}

void cut(uint64_t begin, uint64_t end, uint64_t size, uint64_t least, bool followed,
         std::vector<Piece>& pieces) {
  while (begin < end) {
    uint64_t bytes = std::min(size, end - begin);
    const uint64_t rest = end - begin - bytes;
    if (followed && rest != 0 && rest < least) bytes += rest;
    pieces.push_back({begin, begin + bytes, false});
    begin += bytes;
  }
}

std::vector<Piece> patch_pieces(uint64_t begin, uint64_t end, uint64_t old_bytes, const Settings& settings) {
  const uint64_t least = settings.least_part_bytes;
  const uint64_t bytes = std::max(end, old_bytes);
  const auto refuse = [&](const std::string& why) {
    throw plugin::Failure(
        Status::kUnsupported,
        fmt::format("bytes {} to {} of an object of {} bytes can't be written alone: {}; write the "
                    "object whole",
                    begin, end, old_bytes, why));
  };
  if (bytes > kMostParts * kMostCopyBytes) refuse("it is longer than any object");
  if (begin > old_bytes) refuse("an object has no holes");
  if (begin != 0 && begin < least)
    refuse(fmt::format("what comes before would be copied as a part, which has at least {} bytes", least));
  if (end < old_bytes && end - begin < least)
    refuse(fmt::format("it would be a part with others behind it, which has at least {} bytes", least));
  std::vector<Piece> pieces;
  const auto copy = [&](uint64_t from, uint64_t to, bool followed) {
    const size_t first = pieces.size();
    cut(from, to, kMostCopyBytes - least, least, followed, pieces);
    for (size_t i = first; i < pieces.size(); ++i) pieces[i].copied = true;
  };
  copy(0, begin, true);
  cut(begin, end, part_size(bytes, settings.part_bytes), least, end < old_bytes, pieces);
  if (end < old_bytes) copy(end, old_bytes, false);
  if (pieces.size() > kMostParts) refuse("it would have too many parts; a larger tuning.object.part helps");
  return pieces;
}

uint32_t joined_crc(const Parts& parts) noexcept {
  uint32_t crc = 0;
  for (const auto& [number, part] : parts) crc = crc32c_join(crc, part.crc, part.bytes);
  return crc;
}

Verdict check_sum(std::string_view sent, std::string_view theirs) {
  if (sent.empty() || theirs.empty() || sent == theirs) return {};
  return {Status::kCorrupt, true, "the server has other bytes than it was sent: the checksums differ"};
}

Verdict check_created(const Answer& answer, std::string& upload_id) {
  upload_id = decode_upload_id(answer.body);
  if (upload_id.empty()) return {Status::kProtocol, false, "the answer names no upload"};
  return {};
}

std::string etag_of(const Answer& answer) {
  const std::string_view etag = header(answer.headers, "etag");
  return etag.empty() ? decode_etag(answer.body) : std::string(etag);
}

std::string why_not_there(const Answer& answer, const ObjectName& name) {
  if (!answer.ok()) return answer.text + "; whether it was written is not known";
  return fmt::format(
      "{}: the server says that the upload is complete, after an answer that got lost, and has another "
      "object there: write it again",
      name.text());
}

}  // namespace towline::object
