// Amazon's S3, and what is compatible with it.
#include "storage/object/s3_protocol.h"

#include <fmt/format.h>

#include "storage/object/checksum.h"
#include "storage/object/upload.h"

namespace towline::object {

namespace {

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

void S3Protocol::sign(Outgoing& request, const Keys* keys, const Settings&) const {
  const std::string time = signing_time(request.now);
  request.headers["x-amz-content-sha256"] = request.payload_hash;
  request.headers["x-amz-date"] = time;
  if (keys == nullptr) return;
  if (!keys->session_token.empty()) request.headers["x-amz-security-token"] = keys->session_token;
  ToSign to_sign{.method = request.method,
                 .path = request.target.path,
                 .query = request.target.query,
                 .headers = request.headers,
                 .payload_hash = request.payload_hash,
                 .region = request.region,
                 .time = time};
  to_sign.headers["host"] = request.target.host;
  request.headers["authorization"] = authorization(*keys, to_sign);
}

void S3Protocol::make_put(Call& call, const std::string&) const {
  call.headers = {{"content-type", "application/octet-stream"}};
}

void S3Protocol::make_upload(Call& call, SegmentsBody& body, Checksum checksum, bool signs,
                             UploadedPart& part) const {
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

Verdict S3Protocol::check_upload(const Answer& answer, const UploadedPart& part) const {
  return check_sum(part.crc32c, header(answer.headers, "x-amz-checksum-crc32c"));
}

void S3Protocol::make_head(Call& call, const ObjectName& name) const {
  call.method = "HEAD";
  call.name = name;
  call.query.clear();
  call.headers = {{"x-amz-checksum-mode", "ENABLED"}};
}

Version S3Protocol::version_of(const Headers& headers) const {
  Version version;
  version.looked = true;
  version.exists = true;
  version.etag = header(headers, "etag");
  version.bytes = decode_number(header(headers, "content-length")).value_or(0);
  const auto modified = decode_time(header(headers, "last-modified"));
  if (modified && *modified > 0) version.modified_ns = static_cast<uint64_t>(*modified) * kSecondNs;
  if (header(headers, "x-amz-checksum-type") != "COMPOSITE") {
    version.crc32c = header(headers, "x-amz-checksum-crc32c");
    version.sha256 = header(headers, "x-amz-checksum-sha256");
    if (version.sha256.find('-') != std::string::npos) version.sha256.clear();
    if (version.crc32c.find('-') != std::string::npos) version.crc32c.clear();
  }
  return version;
}

void S3Protocol::make_create(Call& call, const Object& object, Checksum checksum) const {
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

void S3Protocol::make_part(Call& call, const Object& object, const std::string& upload_id,
                           uint32_t number) const {
  call.method = "PUT";
  call.name = object.name();
  call.query = {{"partNumber", std::to_string(number)}, {"uploadId", upload_id}};
  call.headers.clear();
}

void S3Protocol::make_copy(Call& call, const Object& object, const Version& from, const Piece& piece) const {
  const ObjectName& name = object.name();
  call.headers.emplace_back("x-amz-copy-source",
                            "/" + percent_encode(name.bucket, false) + "/" + percent_encode(name.key, true));
  call.headers.emplace_back("x-amz-copy-source-range",
                            fmt::format("bytes={}-{}", piece.begin, piece.end - 1));
  if (!from.etag.empty()) call.headers.emplace_back("x-amz-copy-source-if-match", from.etag);
}

Verdict S3Protocol::check_part(const Answer& answer, UploadedPart& part) const {
  part.etag = header(answer.headers, "etag");
  if (Verdict verdict = check_upload(answer, part); verdict.status != Status::kOk) return verdict;
  return part.etag.empty() ? Verdict{Status::kProtocol, false, "the part has no ETag"} : Verdict{};
}

void S3Protocol::make_complete(Call& call, const Object& object, const std::string& upload_id,
                               const Parts& parts, Checksum checksum) const {
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

Verdict S3Protocol::check_completed(Answer& answer) const {
  if (!carries_error(answer.body)) return {};
  const Refusal refusal = decode_refusal(500, {}, answer.body);  // it came with 200
  answer.code = refusal.code;
  return {refusal.status, refusal.next == Refusal::Next::kRetry, refusal.code + ": " + refusal.message};
}

void S3Protocol::make_abort(Call& call, const ObjectName& name, const std::string& upload_id) const {
  call.method = "DELETE";
  call.name = name;
  call.query = {{"uploadId", upload_id}};
}

void S3Protocol::make_list(Call& call, const ObjectName& prefix, const std::string& next) const {
  call.method = "GET";
  call.name.bucket = prefix.bucket;
  call.query = {{"list-type", "2"}, {"encoding-type", "url"}, {"prefix", prefix.key}};
  if (!next.empty()) call.query.emplace_back("continuation-token", next);
}

std::optional<Listing> S3Protocol::decode_list(std::string_view body) const { return decode_listing(body); }

}  // namespace towline::object
