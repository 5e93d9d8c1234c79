// Parses servers' answers and decides what to do. Pure functions that accept any bytes; pugixml reads XML.
#pragma once

#include <cstdint>
#include <ctime>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "http/request.h"
#include "storage/object/signer.h"
#include "towline/status.h"

namespace towline::object {

using http::Headers;

// The value, or empty.
[[nodiscard]] std::string_view header(const Headers& headers, std::string_view name) noexcept;

// ---- what failed, and what to do about it

struct Refusal {
  enum class Next {
    kFail,      // for good
    kRetry,     // the same again, later
    kRenew,     // with new credentials
    kClock,     // with the server's time
    kRedirect,  // in `region`, or at `host`
  };
  Next next = Next::kFail;
  Status status = Status::kIo;
  std::string code;     // S3's word: "NoSuchKey"
  std::string message;  // its sentence
  std::string region{};
  std::string host{};
};

// For a status that is no success, or the 200 of a CompleteMultipartUpload that carries an error (is_error).
Refusal decode_refusal(long http_status, const Headers& headers, std::string_view body);
[[nodiscard]] bool carries_error(std::string_view body);
// The server failed at it, perhaps after it was done. False for 5xx that refuse: not implemented, no such HTTP, no room.
[[nodiscard]] bool may_be_done(long http_status) noexcept;

// ---- good ones; nullopt or empty when they make no sense

std::string decode_upload_id(std::string_view body);
// The ETag of CompleteMultipartUpload, CopyPart and their like, with its quotes.
std::string decode_etag(std::string_view body);

struct ListedObject {
  std::string key;
  uint64_t bytes = 0;
  uint64_t modified_ns = 0;
};
struct Listing {
  std::vector<ListedObject> objects;
  std::string next;  // to go on; empty: that was all
};
std::optional<Listing> decode_listing(std::string_view body);
std::optional<Listing> decode_azure_listing(std::string_view body);

struct Upload {
  std::string key;
  std::string id;
  std::time_t initiated = 0;
};
std::optional<std::vector<Upload>> decode_uploads(std::string_view body);

// "bytes 0-9/100"
struct ContentRange {
  uint64_t begin = 0;
  uint64_t end = 0;             // one past
  uint64_t whole = UINT64_MAX;  // UINT64_MAX: not said
};
std::optional<ContentRange> decode_content_range(std::string_view value);
std::optional<uint64_t> decode_number(std::string_view value);
// "Fri, 24 May 2013 00:00:00 GMT"; "2013-05-24T00:00:00.000Z"; nullopt: neither.
std::optional<std::time_t> decode_time(std::string_view value);

// ---- credentials

struct TimedKeys {
  Keys keys;
  std::time_t expires = 0;  // 0: never
};
// AssumeRoleWithWebIdentity's XML; instance metadata's JSON.
std::optional<TimedKeys> decode_assumed_role(std::string_view body);
std::optional<TimedKeys> decode_instance_keys(std::string_view body);
// The JSON of a managed identity of Azure's, or of Google's servers: the token is `session_token`, and there are no keys.
std::optional<TimedKeys> decode_bearer_token(std::string_view body);

}  // namespace towline::object
