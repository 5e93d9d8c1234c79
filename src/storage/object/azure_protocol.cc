#include "storage/object/azure_protocol.h"

#include <fmt/format.h>

#include "storage/object/checksum.h"
#include "storage/object/signer.h"
#include "storage/object/upload.h"

namespace towline::object {

namespace {

constexpr const char* kVersion = "2021-12-02";
constexpr const char* kMd5Header = "content-md5";
constexpr const char* kCrc64Header = "x-ms-content-crc64";
constexpr const char* kTagHeader = "x-ms-meta-towline";  // a blob's own metadata

// "Fri, 24 May 2013 00:00:00 GMT", whatever the process's language.
std::string http_date(std::time_t time) {
  constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                     "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  std::tm utc = {};
  gmtime_r(&time, &utc);
  return fmt::format("{}, {:02} {} {:04} {:02}:{:02}:{:02} GMT", kDays[utc.tm_wday], utc.tm_mday,
                     kMonths[utc.tm_mon], utc.tm_year + 1900, utc.tm_hour, utc.tm_min, utc.tm_sec);
}

// All identifiers of an object's blocks must be equally long.
std::string block_id(const std::string& upload_id, uint32_t number) {
  return to_base64(fmt::format("{}{:06}", upload_id, number));
}

}  // namespace

// The text to be signed with an account's key: see "Authorize with Shared Key" of Azure's documentation.
std::string azure_text_to_sign(const Outgoing& request, const std::string& account) {
  const auto value = [&](const char* name) {
    const auto found = request.headers.find(name);
    return found == request.headers.end() ? std::string() : found->second;
  };
  std::string text =
      fmt::format("{}\n\n\n{}\n{}\n{}\n\n\n{}\n{}\n\n{}\n", request.method,
                  request.body_bytes == 0 ? "" : std::to_string(request.body_bytes), value(kMd5Header),
                  value("content-type"), value("if-match"), value("if-none-match"), value("range"));
  for (const auto& [name, content] : request.headers) {
    if (name.starts_with("x-ms-")) text += name + ":" + content + "\n";
  }
  text += "/" + account + request.target.path;
  std::string_view query = request.target.query;  // sorted by name
  while (!query.empty()) {
    const std::string_view one = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(one.size() + 1, query.size()));
    const size_t equals = std::min(one.find('='), one.size());
    text += "\n" + percent_decode(one.substr(0, equals)) + ":" +
            percent_decode(one.substr(std::min(equals + 1, one.size())));
  }
  return text;
}

void AzureProtocol::sign(Outgoing& request, const Keys* keys, const Settings& settings) const {
  request.headers["x-ms-version"] = kVersion;
  request.headers["x-ms-date"] = http_date(request.now);
  if (keys == nullptr) {
    if (!settings.sas.empty())
      request.target.query += (request.target.query.empty() ? "" : "&") + settings.sas;
    return;
  }
  if (keys->secret_key.empty()) {
    request.headers["authorization"] = "Bearer " + keys->session_token;
    return;
  }
  const std::string signature =
      to_base64(hmac_sha256(keys->secret_key, azure_text_to_sign(request, keys->access_key)));
  request.headers["authorization"] = "SharedKey " + keys->access_key + ":" + signature;
}

// ---- in one request

void AzureProtocol::make_put(Call& call, const std::string& tag) const {
  call.query.clear();
  call.headers = {
      {"content-type", "application/octet-stream"}, {"x-ms-blob-type", "BlockBlob"}, {kTagHeader, tag}};
}

void AzureProtocol::make_upload(Call& call, SegmentsBody& body, Checksum checksum, bool,
                                UploadedPart& part) const {
  call.body = &body;
  call.cost = body.bytes();
  call.payload_hash = kUnsignedPayload;
  if (checksum == Checksum::kMd5) {
    part.md5 = to_base64(body.md5());
    call.headers.emplace_back(kMd5Header, part.md5);
  } else if (checksum == Checksum::kCrc64) {
    part.crc64 = crc64_text(body.crc64());
    call.headers.emplace_back(kCrc64Header, part.crc64);
  }
}

Verdict AzureProtocol::check_upload(const Answer& answer, const UploadedPart& part) const {
  Verdict verdict = check_sum(part.crc64, header(answer.headers, kCrc64Header));
  return verdict.status != Status::kOk ? verdict : check_sum(part.md5, header(answer.headers, kMd5Header));
}

void AzureProtocol::make_head(Call& call, const ObjectName& name) const {
  call.method = "HEAD";
  call.name = name;
  call.query.clear();
  call.headers.clear();
}

Version AzureProtocol::version_of(const Headers& headers) const {
  Version version;
  version.looked = true;
  version.exists = true;
  version.etag = header(headers, "etag");
  version.bytes = decode_number(header(headers, "content-length")).value_or(0);
  const auto modified = decode_time(header(headers, "last-modified"));
  if (modified && *modified > 0) version.modified_ns = static_cast<uint64_t>(*modified) * kSecondNs;
  version.tag = header(headers, kTagHeader);
  return version;
}

// ---- in blocks

void AzureProtocol::make_part(Call& call, const Object& object, const std::string& upload_id,
                              uint32_t number) const {
  call.method = "PUT";
  call.name = object.name();
  call.query = {{"comp", "block"}, {"blockid", block_id(upload_id, number)}};
  call.headers.clear();
}

Verdict AzureProtocol::check_part(const Answer& answer, UploadedPart& part) const {
  return check_upload(answer, part);
}

void AzureProtocol::make_complete(Call& call, const Object& object, const std::string& upload_id,
                                  const Parts& parts, Checksum) const {
  call.method = "PUT";
  call.name = object.name();
  call.query = {{"comp", "blocklist"}};
  call.headers = {{"content-type", "application/xml"},
                  {"x-ms-blob-content-type", "application/octet-stream"},
                  {kTagHeader, upload_id}};
  call.effective = true;
  call.text = "<?xml version=\"1.0\" encoding=\"utf-8\"?><BlockList>";
  for (const auto& [number, part] : parts)
    call.text += fmt::format("<Latest>{}</Latest>", block_id(upload_id, number));
  call.text += "</BlockList>";
}

// ---- listings

void AzureProtocol::make_list(Call& call, const ObjectName& prefix, const std::string& next) const {
  call.method = "GET";
  call.name = {prefix.bucket, "", prefix.scheme};
  call.query = {{"restype", "container"}, {"comp", "list"}};
  if (!prefix.key.empty()) call.query.emplace_back("prefix", prefix.key);
  if (!next.empty()) call.query.emplace_back("marker", next);
}

std::optional<Listing> AzureProtocol::decode_list(std::string_view body) const {
  return decode_azure_listing(body);
}

}  // namespace towline::object
