#include "metadata/etcd/codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "base/error.h"
#include "metadata/etcd/json_value.h"

namespace towline::etcd {
namespace {

using Kind = JsonValue::Kind;

constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr std::size_t kMostShown = 300;

constexpr std::array<int8_t, 256> reverse_alphabet() {
  std::array<int8_t, 256> values{};
  values.fill(-1);
  for (std::size_t i = 0; i < kAlphabet.size(); ++i) {
    values[static_cast<unsigned char>(kAlphabet[i])] = static_cast<int8_t>(i);
  }
  return values;
}

// The member; null where it is missing or null.
const JsonValue* member_if(const JsonValue& object, const char* name) noexcept {
  const JsonValue* const found = object.find(name);
  return found == nullptr || found->kind == Kind::kNull ? nullptr : found;
}

uint64_t number(const JsonValue& object, const char* name) {
  const JsonValue* const found = member_if(object, name);
  if (found == nullptr) return 0;
  if (found->kind == Kind::kNumber) return found->number;
  if (found->kind == Kind::kText) {
    const std::string& text = found->text;
    uint64_t value = 0;
    const auto [at, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc() && at == text.data() + text.size()) return value;
  }
  fail(Status::kProtocol, "\"{}\" is no number", name);
}

bool flag(const JsonValue& object, const char* name) {
  const JsonValue* const found = member_if(object, name);
  if (found == nullptr) return false;
  if (found->kind != Kind::kFlag) fail(Status::kProtocol, "\"{}\" is neither true nor false", name);
  return found->flag;
}

std::string text(const JsonValue& object, const char* name) {
  const JsonValue* const found = member_if(object, name);
  if (found == nullptr) return {};
  if (found->kind != Kind::kText) fail(Status::kProtocol, "\"{}\" is no text", name);
  return found->text;
}

std::string bytes(const JsonValue& object, const char* name) {
  std::string decoded;
  if (!from_base64(text(object, name), decoded)) fail(Status::kProtocol, "\"{}\" is not base64", name);
  return decoded;
}

const JsonValue& member(const JsonValue& object, const char* name) {
  const JsonValue* const found = object.find(name);
  if (found == nullptr || found->kind != Kind::kObject) fail(Status::kProtocol, "it has no \"{}\"", name);
  return *found;
}

// Calls visit with every object of the array of this name, if there is one.
template <class Visit>
void each(const JsonValue& object, const char* name, Visit&& visit) {
  const JsonValue* const found = member_if(object, name);
  if (found == nullptr) return;
  if (found->kind != Kind::kArray) fail(Status::kProtocol, "\"{}\" is no array", name);
  for (const JsonValue& entry : found->values) {
    if (entry.kind != Kind::kObject) fail(Status::kProtocol, "\"{}\" holds what is no object", name);
    visit(entry);
  }
}

Header header_of(const JsonValue& object) {
  const JsonValue& header = member(object, "header");
  return {number(header, "cluster_id"), number(header, "revision")};
}

KeyValue key_value(const JsonValue& object) {
  return {bytes(object, "key"), bytes(object, "value"), number(object, "mod_revision"),
          number(object, "lease")};
}

std::string encoded(std::string_view bytes) { return '"' + to_base64(bytes) + '"'; }
// Of a span; empty: it is one key.
std::string range_end(const Span& span) { return span.end.empty() ? "" : encoded(span.end); }

std::string put_fields(std::string_view key, std::string_view value, uint64_t lease) {
  return json_object({{"key", encoded(key)}, {"lease", json_number(lease)}, {"value", encoded(value)}});
}

}  // namespace

std::string to_base64(std::string_view bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::size_t count = std::min<std::size_t>(3, bytes.size() - i);
    uint32_t word = 0;
    for (std::size_t j = 0; j < 3; ++j) {
      word = word << 8 | (j < count ? static_cast<unsigned char>(bytes[i + j]) : 0u);
    }
    for (std::size_t j = 0; j < 4; ++j) {
      text += j <= count ? kAlphabet[word >> (18 - 6 * j) & 63] : '=';
    }
  }
  return text;
}

bool from_base64(std::string_view text, std::string& bytes) {
  static constexpr std::array<int8_t, 256> kValues = reverse_alphabet();
  bytes.clear();
  if (text.size() % 4 != 0) return false;
  bytes.reserve(text.size() / 4 * 3);
  for (std::size_t i = 0; i < text.size(); i += 4) {
    const bool last = i + 4 == text.size();
    std::size_t padding = 0;
    if (last && text[i + 3] == '=') padding = text[i + 2] == '=' ? 2 : 1;
    uint32_t word = 0;
    for (std::size_t j = 0; j < 4; ++j) {
      const int value = j >= 4 - padding ? 0 : kValues[static_cast<unsigned char>(text[i + j])];
      if (value < 0) return false;
      word = word << 6 | static_cast<uint32_t>(value);
    }
    if ((word & ((1u << (8 * padding)) - 1)) != 0) return false;  // bits that nothing wrote
    for (std::size_t j = 0; j < 3 - padding; ++j) bytes += static_cast<char>(word >> (16 - 8 * j) & 0xff);
  }
  return true;
}

std::string shown(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) {
    if (text.size() >= kMostShown) return text + "...";
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      text += c;
    } else {
      text += fmt::format("\\x{:02x}", byte);
    }
  }
  return text;
}

std::string end_of_prefix(std::string_view prefix) {
  std::string end(prefix);
  while (!end.empty() && static_cast<unsigned char>(end.back()) == 0xff) end.pop_back();
  if (end.empty()) return std::string(1, '\0');  // no end: every key
  end.back() = static_cast<char>(static_cast<unsigned char>(end.back()) + 1);
  return end;
}

std::string range_request(const RangeArgs& args) {
  return json_object({{"key", encoded(args.span.key)},
                      {"keys_only", args.keys_only ? "true" : ""},
                      {"limit", json_number(args.limit)},
                      {"range_end", range_end(args.span)},
                      {"revision", json_number(args.revision)}});
}

std::string put_request(std::string_view key, std::string_view value, uint64_t lease) {
  return put_fields(key, value, lease);
}

std::string create_request(std::string_view key, std::string_view value, uint64_t lease) {
  const std::string compare = json_object({{"create_revision", "\"0\""},
                                           {"key", encoded(key)},
                                           {"result", "\"EQUAL\""},
                                           {"target", "\"CREATE\""}});
  const std::string get = json_object({{"request_range", json_object({{"key", encoded(key)}})}});
  const std::string put = json_object({{"request_put", put_fields(key, value, lease)}});
  return json_object(
      {{"compare", json_array(compare)}, {"failure", json_array(get)}, {"success", json_array(put)}});
}

std::string remove_request(const Span& span) {
  return json_object({{"key", encoded(span.key)}, {"range_end", range_end(span)}});
}

std::string grant_request(uint64_t ttl_s) { return json_object({{"TTL", json_number(ttl_s)}}); }
std::string lease_request(uint64_t lease) { return json_object({{"ID", json_number(lease)}}); }

std::string watch_request(const Span& span, uint64_t start_revision, bool removals_only) {
  return json_object({{"create_request", json_object({{"filters", removals_only ? "[\"NOPUT\"]" : ""},
                                                      {"key", encoded(span.key)},
                                                      {"progress_notify", "true"},
                                                      {"range_end", range_end(span)},
                                                      {"start_revision", json_number(start_revision)}})}});
}

std::string authenticate_request(std::string_view user, std::string_view password) {
  return json_object({{"name", json_text(user)}, {"password", json_text(password)}});
}

Header decode_header(std::string_view body) { return header_of(JsonValue::parse(body)); }

RangeAnswer decode_range(std::string_view body) {
  const JsonValue answer = JsonValue::parse(body);
  RangeAnswer result{header_of(answer), {}, flag(answer, "more")};
  each(answer, "kvs", [&](const JsonValue& entry) { result.items.push_back(key_value(entry)); });
  return result;
}

CreateAnswer decode_create(std::string_view body) {
  const JsonValue answer = JsonValue::parse(body);
  CreateAnswer result{header_of(answer), flag(answer, "succeeded"), {}};
  if (result.created) return result;
  each(answer, "responses", [&](const JsonValue& response) {
    if (response.find("response_range") == nullptr) return;
    each(member(response, "response_range"), "kvs",
         [&](const JsonValue& entry) { result.present.push_back(key_value(entry)); });
  });
  return result;
}

RemoveAnswer decode_remove(std::string_view body) {
  const JsonValue answer = JsonValue::parse(body);
  return {header_of(answer), number(answer, "deleted")};
}

LeaseAnswer decode_grant(std::string_view body) {
  const JsonValue answer = JsonValue::parse(body);
  LeaseAnswer result{header_of(answer), number(answer, "ID"), number(answer, "TTL")};
  if (result.id == 0 || result.ttl_s == 0) fail(Status::kProtocol, "it grants no lease: {}", shown(body));
  return result;
}

LeaseAnswer decode_keepalive(std::string_view body) {
  const JsonValue answer = JsonValue::parse(body);
  const JsonValue& result = member(answer, "result");
  return {header_of(result), number(result, "ID"), number(result, "TTL")};
}

WatchAnswer decode_watch(std::string_view line) {
  const JsonValue answer = JsonValue::parse(line);
  const JsonValue& result = member(answer, "result");
  WatchAnswer decoded;
  decoded.header = header_of(result);
  decoded.created = flag(result, "created");
  decoded.canceled = flag(result, "canceled");
  decoded.compact_revision = number(result, "compact_revision");
  decoded.reason = shown(text(result, "cancel_reason"));
  each(result, "events", [&](const JsonValue& entry) {
    const std::string type = text(entry, "type");
    if (!type.empty() && type != "PUT" && type != "DELETE") {
      fail(Status::kProtocol, "an event is a '{}'", shown(type));
    }
    decoded.events.push_back({type == "DELETE", key_value(member(entry, "kv"))});
  });
  return decoded;
}

std::string decode_token(std::string_view body) {
  std::string token = text(JsonValue::parse(body), "token");
  for (const char c : token) {
    if (c <= ' ' || c > '~') fail(Status::kProtocol, "its token is no header");
  }
  if (token.empty()) fail(Status::kProtocol, "it gives no token");
  return token;
}

namespace {

struct GatewayError {
  uint64_t code = 2;  // of gRPC: unknown
  std::string message;
};

GatewayError read_error(std::string_view body) {
  const JsonValue answer = JsonValue::parse(body);
  GatewayError error;
  // A stream's error is an object, a call's lies open; older servers call the message "error".
  const JsonValue* const inner = answer.find("error");
  const bool nested = inner != nullptr && inner->kind == Kind::kObject;
  const JsonValue& fields = nested ? *inner : answer;
  error.message = text(fields, "message");
  if (error.message.empty() && !nested) error.message = text(answer, "error");
  error.code = number(fields, nested ? "grpc_code" : "code");
  return error;
}

bool has(const std::string& message, std::string_view part) {
  return message.find(part) != std::string::npos;
}

}  // namespace

Refusal decode_refusal(long http_status, std::string_view body) {
  using Kind = Refusal::Kind;
  GatewayError error;
  try {
    error = read_error(body);
  } catch (const Error&) {
    const std::string text = fmt::format("HTTP {} {}", http_status, shown(body));
    if (http_status >= 500 || http_status == 429) return {Kind::kAgain, Status::kUnreachable, text};
    return {Kind::kFinal, Status::kProtocol, text + " (is it an etcd with its JSON gateway?)"};
  }
  const std::string& message = error.message;
  const std::string text = shown(message);
  if (has(message, "auth token") || has(message, "revision of auth store is old")) {
    return {Kind::kToken, Status::kPermissionDenied, text};
  }
  if (has(message, "authentication is not enabled")) return {Kind::kNoAuth, Status::kUnsupported, text};
  if (has(message, "user name is empty")) {
    return {Kind::kFinal, Status::kPermissionDenied, text + "; set etcd.user and etcd.password_file"};
  }
  if (has(message, "authentication failed") || has(message, "permission denied")) {
    return {Kind::kFinal, Status::kPermissionDenied, text};
  }
  if (has(message, "lease not found")) return {Kind::kNoLease, Status::kStale, text};
  if (has(message, "compacted")) return {Kind::kCompacted, Status::kOutOfRange, text};
  if (has(message, "space exceeded")) return {Kind::kFinal, Status::kNoSpace, text};
  if (has(message, "too large") || has(message, "larger than max")) {
    return {Kind::kFinal, Status::kLimitExceeded,
            text + "; publish fewer regions under one label, or raise etcd's --max-request-bytes"};
  }
  switch (error.code) {
    case 3:   // invalid argument
    case 11:  // out of range
    case 12:  // unimplemented
      return {Kind::kFinal, Status::kInvalidArgument, text};
    case 5:
      return {Kind::kFinal, Status::kNotFound, text};
    case 7:
    case 16:
      return {Kind::kFinal, Status::kPermissionDenied, text};
    default:
      return {Kind::kAgain, Status::kUnreachable, text};
  }
}

}  // namespace towline::etcd
