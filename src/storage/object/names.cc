#include "storage/object/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "towline/plugin/backend.hpp"

namespace towline::object {

namespace {

constexpr size_t kMostKeyBytes = 1024;
constexpr size_t kMostShown = 200;
constexpr char kDigits[] = "0123456789ABCDEF";

[[noreturn]] void refuse(std::string_view uri, const char* scheme, const std::string& why) {
  throw plugin::Failure(
      Status::kInvalidArgument,
      fmt::format("'{}': {}; an object is named \"{}://bucket/key\"", shown(uri), why, scheme));
}

bool is_lower(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }
bool is_plain(char c) {
  return is_lower(c) || (c >= 'A' && c <= 'Z') || c == '-' || c == '.' || c == '_' || c == '~';
}

// Names of before 2018 may have capitals and underscores.
bool is_bucket(std::string_view name) {
  return name.size() >= 3 && name.size() <= 255 && is_plain(name.front()) && is_plain(name.back()) &&
         name.front() != '.' && name.find("..") == std::string_view::npos &&
         std::all_of(name.begin(), name.end(), [](char c) { return is_plain(c) && c != '~'; });
}

// The length of the well-formed UTF-8 character at the front; 0: it is not well-formed.
size_t utf8_character(std::string_view text) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = at(0);
  if (first < 0x80) return 1;
  const size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < bytes) return 0;
  for (size_t i = 1; i < bytes; ++i) {
    if ((at(i) & 0xc0) != 0x80) return 0;
  }
  const bool too_long = (first == 0xe0 && at(1) < 0xa0) || (first == 0xf0 && at(1) < 0x90);
  const bool no_character = (first == 0xed && at(1) >= 0xa0) || (first == 0xf4 && at(1) >= 0x90);
  return too_long || no_character ? 0 : bytes;
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const size_t bytes = utf8_character(text);
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

ObjectName parse_prefix(std::string_view uri, const char* scheme) {
  const std::string begin = std::string(scheme) + "://";
  if (!uri.starts_with(begin)) refuse(uri, scheme, "two slashes are missing behind the scheme");
  const std::string_view rest = uri.substr(begin.size());
  const size_t slash = std::min(rest.find('/'), rest.size());
  ObjectName name;
  name.scheme = scheme;
  name.bucket = rest.substr(0, slash);
  if (slash < rest.size()) name.key = rest.substr(slash + 1);
  if (!is_bucket(name.bucket))
    refuse(uri, scheme,
           fmt::format("'{}' is no name of a bucket, which has 3 to 255 letters, digits, dots, dashes",
                       shown(name.bucket)));
  if (name.key.size() > kMostKeyBytes)
    refuse(uri, scheme, fmt::format("its key has {} bytes, {} is the most", name.key.size(), kMostKeyBytes));
  if (!is_utf8(name.key)) refuse(uri, scheme, "its key is not UTF-8");
  return name;
}

ObjectName parse_uri(std::string_view uri, const char* scheme) {
  ObjectName name = parse_prefix(uri, scheme);
  if (name.key.empty()) refuse(uri, scheme, "it names no key");
  return name;
}

std::string percent_encode(std::string_view bytes, bool keep_slashes) {
  std::string text;
  text.reserve(bytes.size());
  for (const char c : bytes) {
    if (is_plain(c) || (keep_slashes && c == '/')) {
      text += c;
    } else {
      const auto value = static_cast<uint8_t>(c);
      text += {'%', kDigits[value >> 4], kDigits[value & 15]};
    }
  }
  return text;
}

std::string percent_decode(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const int high = i + 2 < text.size() && text[i] == '%' ? hex_digit(text[i + 1]) : -1;
    const int low = high >= 0 ? hex_digit(text[i + 2]) : -1;
    if (low >= 0) {
      bytes += static_cast<char>(high * 16 + low);
      i += 2;
    } else {
      bytes += text[i] == '+' ? ' ' : text[i];  // listings write a space so
    }
  }
  return bytes;
}

std::string shown(std::string_view bytes) {
  std::string text;
  for (const char c : bytes.substr(0, kMostShown)) {
    if (static_cast<uint8_t>(c) >= 0x20 && static_cast<uint8_t>(c) < 0x7f) {
      text += c;
    } else {
      text += fmt::format("\\x{:02x}", static_cast<uint8_t>(c));
    }
  }
  return bytes.size() > kMostShown ? text + "..." : text;
}

Endpoint Endpoint::parse(std::string_view url, std::string_view source) {
  Endpoint endpoint;
  std::string_view rest = url;
  for (const std::string_view scheme : {"http", "https"}) {
    if (!url.starts_with(fmt::format("{}://", scheme))) continue;
    endpoint.scheme = scheme;
    rest = url.substr(scheme.size() + 3);
  }
  while (rest.ends_with('/')) rest.remove_suffix(1);
  const bool host = !rest.empty() && std::all_of(rest.begin(), rest.end(), [](char c) {
    return is_plain(c) || c == ':' || c == '[' || c == ']';
  });
  if (endpoint.scheme.empty() || !host)
    throw plugin::Failure(
        Status::kInvalidArgument,
        fmt::format("{} = \"{}\": expected http://host[:port] or https://host[:port]", source, shown(url)));
  const std::string_view own_port = endpoint.encrypted() ? ":443" : ":80";
  if (rest.ends_with(own_port)) rest.remove_suffix(own_port.size());
  endpoint.host = rest;
  endpoint.style = rest.ends_with(".amazonaws.com") ? Style::kVirtual : Style::kPath;
  return endpoint;
}

bool is_region(std::string_view name) noexcept {
  return !name.empty() && name.size() <= 63 &&
         std::all_of(name.begin(), name.end(), [](char c) { return is_lower(c) || c == '-'; });
}

Endpoint Endpoint::amazon(std::string_view region) {
  const std::string_view suffix = region.starts_with("cn-") ? ".cn" : "";
  return {"https", fmt::format("s3.{}.amazonaws.com{}", region, suffix), Style::kVirtual, ""};
}

Target make_target(const Endpoint& endpoint, const std::string& bucket, const std::string& key,
                   const Query& query) {
  Target target;
  const bool by_path = endpoint.style == Style::kPath ||
                       (endpoint.encrypted() && bucket.find('.') != std::string::npos) || bucket.empty();
  target.host = by_path ? endpoint.host : bucket + "." + endpoint.host;
  target.path = endpoint.path + "/";
  if (by_path && !bucket.empty()) target.path += percent_encode(bucket, false);
  if (!key.empty()) target.path += (target.path.ends_with('/') ? "" : "/") + percent_encode(key, true);
  std::vector<std::pair<std::string, std::string>> encoded;
  encoded.reserve(query.size());
  for (const auto& [name, value] : query)
    encoded.emplace_back(percent_encode(name, false), percent_encode(value, false));
  std::sort(encoded.begin(), encoded.end());
  for (const auto& [name, value] : encoded)
    target.query += (target.query.empty() ? "" : "&") + name + "=" + value;
  return target;
}

}  // namespace towline::object
