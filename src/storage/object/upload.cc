#include "storage/object/upload.h"

#include <fmt/format.h>

#include <algorithm>

#include "storage/object/checksum.h"

namespace towline::object {

namespace {

constexpr uint64_t kMib = 1 << 20;

const char* algorithm(Checksum checksum) { return checksum == Checksum::kCrc32c ? "CRC32C" : "SHA256"; }

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '&')
      result += "&amp;";
    else if (c == '<')
      result += "&lt;";
    else
      result += c;
  }
  return result;
}

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
  if (pieces.size() > kMostParts) refuse("it would have too many parts; a larger object.part helps");
  return pieces;
}

void make_create(Call& call, const Object& object, Checksum checksum) {
  call.method = "POST";
  call.name = object.name();
  call.query = {{"uploads", ""}};
  call.headers = {{"content-type", "application/octet-stream"}};
  if (checksum != Checksum::kNone) {
    call.headers.emplace_back("x-amz-checksum-algorithm", algorithm(checksum));
    call.headers.emplace_back("x-amz-checksum-type",
                              checksum == Checksum::kCrc32c ? "FULL_OBJECT" : "COMPOSITE");
  }
}

void make_part(Call& call, const Object& object, const std::string& upload_id, uint32_t number) {
  call.method = "PUT";
  call.name = object.name();
  call.query = {{"partNumber", std::to_string(number)}, {"uploadId", upload_id}};
  call.headers.clear();
}

void make_upload(Call& call, SegmentsBody& body, Checksum checksum, bool signs, UploadedPart& part) {
  call.body = &body;
  call.cost = body.bytes();
  std::string sha256;
  if (signs || checksum == Checksum::kSha256) sha256 = body.sha256();
  if (signs) call.payload_hash = to_hex(sha256);
  if (checksum == Checksum::kSha256) {
    part.sha256 = to_base64(sha256);
    call.headers.emplace_back("x-amz-checksum-sha256", part.sha256);
  } else if (checksum == Checksum::kCrc32c) {
    part.crc = body.crc();
    part.crc32c = crc32c_text(part.crc);
    call.headers.emplace_back("x-amz-checksum-crc32c", part.crc32c);
  }
}

void make_copy(Call& call, const Object& object, const Version& from, const Piece& piece) {
  const ObjectName& name = object.name();
  call.headers.emplace_back("x-amz-copy-source",
                            "/" + percent_encode(name.bucket, false) + "/" + percent_encode(name.key, true));
  call.headers.emplace_back("x-amz-copy-source-range",
                            fmt::format("bytes={}-{}", piece.begin, piece.end - 1));
  if (!from.etag.empty()) call.headers.emplace_back("x-amz-copy-source-if-match", from.etag);
}

void make_complete(Call& call, const Object& object, const std::string& upload_id, const Parts& parts,
                   Checksum checksum) {
  call.method = "POST";
  call.name = object.name();
  call.query = {{"uploadId", upload_id}};
  call.headers = {{"content-type", "application/xml"}};
  call.effective = true;
  call.text = "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">";
  for (const auto& [number, part] : parts) {
    call.text += fmt::format("<Part><PartNumber>{}</PartNumber><ETag>{}</ETag>", number, escaped(part.etag));
    if (!part.crc32c.empty())
      call.text += fmt::format("<ChecksumCRC32C>{}</ChecksumCRC32C>", escaped(part.crc32c));
    if (!part.sha256.empty())
      call.text += fmt::format("<ChecksumSHA256>{}</ChecksumSHA256>", escaped(part.sha256));
    call.text += "</Part>";
  }
  call.text += "</CompleteMultipartUpload>";
  if (checksum == Checksum::kCrc32c) {
    call.headers.emplace_back("x-amz-checksum-type", "FULL_OBJECT");
    call.headers.emplace_back("x-amz-checksum-crc32c", crc32c_text(joined_crc(parts)));
  }
}

void make_abort(Call& call, const ObjectName& name, const std::string& upload_id) {
  call.method = "DELETE";
  call.name = name;
  call.query = {{"uploadId", upload_id}};
}

void make_head(Call& call, const ObjectName& name) {
  call.method = "HEAD";
  call.name = name;
  call.query.clear();
  call.headers = {{"x-amz-checksum-mode", "ENABLED"}};
}

uint32_t joined_crc(const Parts& parts) noexcept {
  uint32_t crc = 0;
  for (const auto& [number, part] : parts) crc = crc32c_join(crc, part.crc, part.bytes);
  return crc;
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
  if (!answer.ok()) return answer.text + "; an answer got lost: whether it was written is not known";
  return fmt::format(
      "{}: the server says that the upload is complete, after an answer that got lost, and has another "
      "object there: write it again",
      name.text());
}

Verdict check_completed(Answer& answer) {
  if (!carries_error(answer.body)) return {};
  const Refusal refusal = decode_refusal(500, {}, answer.body);  // it came with 200
  answer.code = refusal.code;
  return {refusal.status, refusal.next == Refusal::Next::kRetry, refusal.code + ": " + refusal.message};
}

}  // namespace towline::object
