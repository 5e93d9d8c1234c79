// Names: addresses of objects, keys in URLs, the server of a bucket. Pure functions.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace towline::object {

struct ObjectName {
  std::string bucket;  // Azure's word is container
  std::string key;
  const char* scheme = "s3";

  [[nodiscard]] std::string text() const { return std::string(scheme) + "://" + bucket + "/" + key; }
};

// "scheme://bucket/key", taken as it is: nothing is decoded. Throws plugin::Failure saying what is wrong with it.
ObjectName parse_uri(std::string_view uri, const char* scheme);
// The same for a listing: the key may be empty.
ObjectName parse_prefix(std::string_view uri, const char* scheme);

// As S3 wants it in paths and queries: all but A-Z a-z 0-9 - . _ ~ becomes %XX.
std::string percent_encode(std::string_view bytes, bool keep_slashes);
// nullopt where a % is not followed by two hexadecimal digits.
std::string percent_decode(std::string_view text);

// For messages: unprintable bytes become \xNN, and text beyond one line is cut.
std::string shown(std::string_view bytes);

enum class Style {
  kAuto,     // virtual hosts at amazonaws.com, paths elsewhere
  kPath,     // http://host/bucket/key
  kVirtual,  // http://bucket.host/key
};

using Query = std::vector<std::pair<std::string, std::string>>;

// May it be a region's name at Amazon? It becomes a part of a host name.
[[nodiscard]] bool is_region(std::string_view name) noexcept;

// The server that requests go to: "https://s3.eu-west-1.amazonaws.com", "http://127.0.0.1:9000".
struct Endpoint {
  std::string scheme;  // "http", "https"
  std::string host;    // with the port where it is not the scheme's own
  Style style = Style::kPath;
  std::string path{};  // before the bucket: "/account" of an emulator; "": none

  // Throws plugin::Failure; `source` says whose value it is.
  static Endpoint parse(std::string_view url, std::string_view source);
  // Amazon's, for a region.
  static Endpoint amazon(std::string_view region);

  [[nodiscard]] bool encrypted() const { return scheme == "https"; }
};

// The target of a request, as it is signed and sent.
struct Target {
  std::string host;
  std::string path;   // encoded
  std::string query;  // encoded and sorted, without ?

  [[nodiscard]] std::string url(const Endpoint& endpoint) const {
    return endpoint.scheme + "://" + host + path + (query.empty() ? "" : "?" + query);
  }
};

// Names with dots go by path, since no certificate covers them.
Target make_target(const Endpoint& endpoint, const std::string& bucket, const std::string& key,
                   const Query& query);

}  // namespace towline::object
