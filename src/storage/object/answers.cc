#include "storage/object/answers.h"

#include <locale.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <nlohmann/json.hpp>
#include <pugixml.hpp>

#include "base/clock.h"
#include "storage/object/names.h"

namespace towline::object {

namespace {

using Next = Refusal::Next;

// The meaning of error codes of S3, then of Azure. Other codes are judged by the HTTP status.
struct Meaning {
  const char* code;
  Next next;
  Status status;
};
constexpr Meaning kMeanings[] = {
    {"NoSuchKey", Next::kFail, Status::kNotFound},
    {"NoSuchBucket", Next::kFail, Status::kNotFound},
    {"NoSuchUpload", Next::kFail, Status::kNotFound},
    {"NoSuchVersion", Next::kFail, Status::kNotFound},
    {"InvalidRange", Next::kFail, Status::kShort},
    {"PreconditionFailed", Next::kFail, Status::kStale},
    {"ConditionalRequestConflict", Next::kRetry, Status::kBusy},
    {"OperationAborted", Next::kRetry, Status::kBusy},
    {"AccessDenied", Next::kFail, Status::kPermissionDenied},
    {"InvalidAccessKeyId", Next::kFail, Status::kPermissionDenied},
    {"XAdminUserNotFound", Next::kFail, Status::kPermissionDenied},  // versitygw's word for it, with 404
    {"SignatureDoesNotMatch", Next::kFail, Status::kPermissionDenied},
    {"ExpiredToken", Next::kRenew, Status::kPermissionDenied},
    {"TokenRefreshRequired", Next::kRenew, Status::kPermissionDenied},
    {"InvalidToken", Next::kFail, Status::kPermissionDenied},
    {"RequestTimeTooSkewed", Next::kClock, Status::kPermissionDenied},
    {"BadDigest", Next::kRetry, Status::kCorrupt},
    {"InvalidDigest", Next::kRetry, Status::kCorrupt},
    {"XAmzContentSHA256Mismatch", Next::kRetry, Status::kCorrupt},
    {"XAmzContentChecksumMismatch", Next::kRetry, Status::kCorrupt},
    {"IncompleteBody", Next::kRetry, Status::kIo},
    {"RequestTimeout", Next::kRetry, Status::kTimedOut},
    {"SlowDown", Next::kRetry, Status::kBusy},
    {"ServiceUnavailable", Next::kRetry, Status::kBusy},
    {"InternalError", Next::kRetry, Status::kIo},
    {"EntityTooSmall", Next::kFail, Status::kInvalidArgument},
    {"EntityTooLarge", Next::kFail, Status::kLimitExceeded},
    {"KeyTooLongError", Next::kFail, Status::kInvalidArgument},
    {"QuotaExceeded", Next::kFail, Status::kNoSpace},
    {"XMinioStorageFull", Next::kFail, Status::kNoSpace},
    {"NotImplemented", Next::kFail, Status::kUnsupported},
    {"BlobNotFound", Next::kFail, Status::kNotFound},
    {"ContainerNotFound", Next::kFail, Status::kNotFound},
    {"ResourceNotFound", Next::kFail, Status::kNotFound},
    {"BlobAlreadyExists", Next::kFail, Status::kStale},  // if-none-match: *
    {"ConditionNotMet", Next::kFail, Status::kStale},
    {"TargetConditionNotMet", Next::kFail, Status::kStale},
    {"InvalidBlockList", Next::kFail, Status::kStale},  // another writer's commit dropped our blocks
    {"LeaseIdMissing", Next::kFail, Status::kBusy},
    {"ContainerBeingDeleted", Next::kRetry, Status::kBusy},
    {"ServerBusy", Next::kRetry, Status::kBusy},
    {"OperationTimedOut", Next::kRetry, Status::kTimedOut},
    {"Md5Mismatch", Next::kRetry, Status::kCorrupt},
    {"Crc64Mismatch", Next::kRetry, Status::kCorrupt},
    {"AuthenticationFailed", Next::kFail, Status::kPermissionDenied},
    {"AuthorizationFailure", Next::kFail, Status::kPermissionDenied},
    {"AuthorizationPermissionMismatch", Next::kFail, Status::kPermissionDenied},
    {"AuthenticationRequired", Next::kRenew, Status::kPermissionDenied},  // Google's, of a token
    {"InvalidAuthenticationInfo", Next::kRenew, Status::kPermissionDenied},
    {"ExpiredAuthenticationToken", Next::kRenew, Status::kPermissionDenied},
    {"RequestBodyTooLarge", Next::kFail, Status::kLimitExceeded},
    {"BlobImmutableDueToPolicy", Next::kFail, Status::kPermissionDenied},
};

void judge_by_status(long http_status, Refusal& refusal) {
  if (http_status == 429 || http_status == 408 || may_be_done(http_status)) {
    refusal.next = Next::kRetry;
    refusal.status = http_status == 429 || http_status == 503 ? Status::kBusy : Status::kIo;
    return;
  }
  switch (http_status) {
    case 400:
      refusal.status = Status::kInvalidArgument;
      return;
    case 401:
    case 403:
      refusal.status = Status::kPermissionDenied;
      return;
    case 404:
      refusal.status = Status::kNotFound;
      return;
    case 412:
      refusal.status = Status::kStale;
      return;
    case 416:
      refusal.status = Status::kShort;
      return;
    case 501:
    case 505:
      refusal.status = Status::kUnsupported;
      return;
    case 507:
      refusal.status = Status::kNoSpace;
      return;
    default:
      refusal.status = http_status / 100 == 4 ? Status::kIo : Status::kProtocol;
  }
}

// The document's first element; null when it is no XML.
pugi::xml_node parse(pugi::xml_document& document, std::string_view body) {
  const auto parsed =
      document.load_buffer(body.data(), body.size(), pugi::parse_default, pugi::encoding_utf8);
  return parsed ? document.document_element() : pugi::xml_node();
}

bool is_named(const pugi::xml_node& node, const char* name) { return std::strcmp(node.name(), name) == 0; }

std::string host_of(std::string_view url) {
  const size_t begin = url.find("://");
  if (begin == std::string_view::npos) return {};
  const std::string_view rest = url.substr(begin + 3);
  return std::string(rest.substr(0, rest.find_first_of("/?#")));
}

std::string quoted(std::string etag) {
  if (etag.empty() || etag.front() == '"') return etag;
  return '"' + etag + '"';
}

}  // namespace

std::string_view header(const Headers& headers, std::string_view name) noexcept {
  const auto found = headers.find(name);
  return found == headers.end() ? std::string_view{} : found->second;
}

bool may_be_done(long http_status) noexcept {
  return http_status >= 500 && http_status != 501 && http_status != 505 && http_status != 507;
}

bool carries_error(std::string_view body) {
  pugi::xml_document document;
  return is_named(parse(document, body), "Error");
}

Refusal decode_refusal(long http_status, const Headers& headers, std::string_view body) {
  Refusal refusal;
  judge_by_status(http_status, refusal);
  pugi::xml_document document;
  pugi::xml_node error = parse(document, body);
  if (is_named(error, "ErrorResponse")) error = error.child("Error");  // of STS
  if (is_named(error, "Error")) {
    refusal.code = shown(error.child("Code").text().get());
    refusal.message = shown(error.child("Message").text().get());
    refusal.region = shown(error.child("Region").text().get());
  }
  if (refusal.code.empty()) refusal.code = shown(header(headers, "x-ms-error-code"));  // of HEAD
  for (const Meaning& meaning : kMeanings) {
    if (refusal.code != meaning.code) continue;
    refusal.next = meaning.next;
    refusal.status = meaning.status;
    return refusal;
  }
  if (const std::string_view region = header(headers, "x-amz-bucket-region"); !region.empty())
    refusal.region = shown(region);
  const bool moved = http_status == 301 || http_status == 302 || http_status == 307 || http_status == 308;
  if (moved || refusal.code == "AuthorizationHeaderMalformed" ||
      refusal.code == "IllegalLocationConstraintException") {
    refusal.host = moved ? shown(host_of(header(headers, "location"))) : "";
    if (!refusal.region.empty() || !refusal.host.empty()) refusal.next = Next::kRedirect;
  }
  return refusal;
}

std::string decode_upload_id(std::string_view body) {
  pugi::xml_document document;
  return parse(document, body).child("UploadId").text().get();
}

std::string decode_etag(std::string_view body) {
  pugi::xml_document document;
  return quoted(parse(document, body).child("ETag").text().get());
}

std::optional<Listing> decode_listing(std::string_view body) {
  pugi::xml_document document;
  const pugi::xml_node root = parse(document, body);
  if (!is_named(root, "ListBucketResult")) return std::nullopt;
  const bool encoded = std::strcmp(root.child("EncodingType").text().get(), "url") == 0;
  Listing listing;
  for (const pugi::xml_node entry : root.children("Contents")) {
    const std::string key = entry.child("Key").text().get();
    const auto bytes = decode_number(entry.child("Size").text().get());
    if (key.empty() || !bytes) return std::nullopt;
    const auto modified = decode_time(entry.child("LastModified").text().get());
    listing.objects.push_back({encoded ? percent_decode(key) : key, *bytes,
                               modified && *modified > 0 ? static_cast<uint64_t>(*modified) * kSecondNs : 0});
  }
  if (std::strcmp(root.child("IsTruncated").text().get(), "true") == 0) {
    listing.next = root.child("NextContinuationToken").text().get();
    if (listing.next.empty()) return std::nullopt;
  }
  return listing;
}

std::optional<Listing> decode_azure_listing(std::string_view body) {
  if (body.starts_with("\xef\xbb\xbf")) body.remove_prefix(3);
  pugi::xml_document document;
  const pugi::xml_node root = parse(document, body);
  if (!is_named(root, "EnumerationResults")) return std::nullopt;
  Listing listing;
  for (const pugi::xml_node entry : root.child("Blobs").children("Blob")) {
    const pugi::xml_node name = entry.child("Name");
    const pugi::xml_node properties = entry.child("Properties");
    const std::string key = name.text().get();
    const auto bytes = decode_number(properties.child("Content-Length").text().get());
    if (key.empty() || !bytes) return std::nullopt;
    const bool encoded = std::strcmp(name.attribute("Encoded").value(), "true") == 0;
    const auto modified = decode_time(properties.child("Last-Modified").text().get());
    listing.objects.push_back({encoded ? percent_decode(key) : key, *bytes,
                               modified && *modified > 0 ? static_cast<uint64_t>(*modified) * kSecondNs : 0});
  }
  listing.next = root.child("NextMarker").text().get();
  return listing;
}

std::optional<std::vector<Upload>> decode_uploads(std::string_view body) {
  pugi::xml_document document;
  const pugi::xml_node root = parse(document, body);
  if (!is_named(root, "ListMultipartUploadsResult")) return std::nullopt;
  std::vector<Upload> uploads;
  for (const pugi::xml_node entry : root.children("Upload")) {
    uploads.push_back({entry.child("Key").text().get(), entry.child("UploadId").text().get(),
                       decode_time(entry.child("Initiated").text().get()).value_or(0)});
  }
  return uploads;
}

std::optional<uint64_t> decode_number(std::string_view value) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc{} || end != value.data() + value.size()) return std::nullopt;
  return number;
}

std::optional<ContentRange> decode_content_range(std::string_view value) {
  constexpr std::string_view kUnit = "bytes ";
  const size_t dash = value.find('-');
  const size_t slash = value.find('/');
  if (!value.starts_with(kUnit) || dash == std::string_view::npos || slash == std::string_view::npos ||
      slash < dash)
    return std::nullopt;
  const auto first = decode_number(value.substr(kUnit.size(), dash - kUnit.size()));
  const auto last = decode_number(value.substr(dash + 1, slash - dash - 1));
  if (!first || !last || *last < *first || *last == UINT64_MAX) return std::nullopt;
  ContentRange range{*first, *last + 1, UINT64_MAX};
  if (const std::string_view whole = value.substr(slash + 1); whole != "*") {
    const auto bytes = decode_number(whole);
    if (!bytes || *bytes < range.end) return std::nullopt;
    range.whole = *bytes;
  }
  return range;
}

std::optional<std::time_t> decode_time(std::string_view value) {
  // The names of days and months are English, whatever locale the application has set.
  static const locale_t english = ::newlocale(LC_ALL_MASK, "C", nullptr);
  const std::string text(value.substr(0, 64));
  for (const char* format : {"%a, %d %b %Y %H:%M:%S", "%Y-%m-%dT%H:%M:%S"}) {
    std::tm time = {};
    if (::strptime_l(text.c_str(), format, &time, english) == nullptr) continue;
    time.tm_isdst = 0;
    return ::timegm(&time);
  }
  return std::nullopt;
}

std::optional<TimedKeys> decode_assumed_role(std::string_view body) {
  pugi::xml_document document;
  const pugi::xml_node found =
      parse(document, body).child("AssumeRoleWithWebIdentityResult").child("Credentials");
  TimedKeys keys;
  keys.keys = {found.child("AccessKeyId").text().get(), found.child("SecretAccessKey").text().get(),
               found.child("SessionToken").text().get()};
  keys.expires = decode_time(found.child("Expiration").text().get()).value_or(0);
  if (keys.keys.access_key.empty() || keys.keys.secret_key.empty()) return std::nullopt;
  return keys;
}

std::optional<TimedKeys> decode_bearer_token(std::string_view body) {
  const auto json = nlohmann::json::parse(body, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  const auto token = json.find("access_token");
  if (token == json.end() || !token->is_string() || token->get<std::string>().empty()) return std::nullopt;
  TimedKeys keys;
  keys.keys.session_token = token->get<std::string>();
  // Seconds since 1970 or from now, as a number or a text. So many that they never pass stay a time.
  const auto seconds = [&](const char* name) -> std::time_t {
    constexpr uint64_t kMost = uint64_t{1} << 40;
    const auto found = json.find(name);
    if (found == json.end()) return 0;
    uint64_t number = 0;
    if (found->is_number_unsigned()) number = found->get<uint64_t>();
    if (found->is_string()) number = decode_number(found->get<std::string>()).value_or(0);
    return static_cast<std::time_t>(std::min(number, kMost));
  };
  keys.expires = seconds("expires_on");
  if (keys.expires == 0 && seconds("expires_in") != 0)
    keys.expires = std::time(nullptr) + seconds("expires_in");
  return keys;
}

std::optional<TimedKeys> decode_instance_keys(std::string_view body) {
  const auto json = nlohmann::json::parse(body, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  const auto text = [&](const char* name) {
    const auto found = json.find(name);
    return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  TimedKeys keys;
  keys.keys = {text("AccessKeyId"), text("SecretAccessKey"), text("Token")};
  keys.expires = decode_time(text("Expiration")).value_or(0);
  if (keys.keys.access_key.empty() || keys.keys.secret_key.empty()) return std::nullopt;
  return keys;
}

}  // namespace towline::object
