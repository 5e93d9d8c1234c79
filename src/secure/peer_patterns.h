// Which peers a process talks to: patterns for the names in their certificates (`secure.peers`).
//
//   prefill-*.serving.example.com            a DNS name
//   spiffe://example.com/ns/serving/*        a URI: a scheme, a host, a path
//
// `*` stands for one or more characters of one label of a host, or of one segment of a path; there may be several. It never
// spans a dot of a host or a slash of a path, as a wildcard of a certificate covers one label (RFC 9525). Hosts and
// schemes are compared without regard to case, paths byte by byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace towline::secure {

// A subject alternative name of a certificate.
struct PeerName {
  enum class Kind : uint8_t { kDns, kUri };
  Kind kind = Kind::kDns;
  std::string text;
};

// Neither empty nor too long, and of printable characters without blanks, as a name or a pattern is.
bool may_be_name(std::string_view text) noexcept;

class PeerPatterns {
 public:
  static constexpr std::size_t kMost = 256;
  static constexpr std::size_t kMostBytes = 2048;  // of one; SPIFFE's limit for a name

  PeerPatterns() = default;  // takes any name
  // Throws Error(kInvalidArgument), naming the setting and the pattern.
  explicit PeerPatterns(const std::vector<std::string>& patterns);

  [[nodiscard]] bool empty() const noexcept { return patterns_.empty(); }
  // A name that has a wildcard itself stands for many peers, and fits none; nor does a URI without a host, or with an
  // empty segment, "." or "..".
  [[nodiscard]] bool fit(const PeerName& name) const;
  // "prefill-*.example.com, spiffe://example.com/ns/serving/*"
  [[nodiscard]] const std::string& text() const noexcept { return text_; }

 private:
  struct Parts {
    std::string scheme;  // empty: a DNS name
    std::vector<std::string> labels;
    std::vector<std::string> segments;
  };
  static bool take_apart(PeerName::Kind kind, std::string_view text, Parts& parts);

  std::vector<Parts> patterns_;
  std::string text_;
};

}  // namespace towline::secure
