#include "secure/peer_patterns.h"

#include <algorithm>

#include "base/error.h"

namespace towline::secure {
namespace {

constexpr std::string_view kSchemeEnd = "://";

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return result;
}

std::vector<std::string> split(std::string_view text, char at) {
  std::vector<std::string> pieces;
  for (;;) {
    const std::size_t end = text.find(at);
    pieces.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return pieces;
    text.remove_prefix(end + 1);
  }
}

// One label or segment: `*` is one or more characters. Goes back to the last star only, which is enough.
bool fits(std::string_view pattern, std::string_view text) noexcept {
  std::size_t p = 0, t = 0, after_star = std::string_view::npos, taken = 0;
  while (t < text.size() || p < pattern.size()) {
    if (p < pattern.size() && t < text.size() && pattern[p] == '*') {
      after_star = ++p;
      taken = ++t;
    } else if (p < pattern.size() && t < text.size() && pattern[p] == text[t]) {
      ++p, ++t;
    } else if (after_star != std::string_view::npos && taken < text.size()) {
      p = after_star;
      t = ++taken;
    } else {
      return false;
    }
  }
  return true;
}

bool fit_all(const std::vector<std::string>& patterns, const std::vector<std::string>& texts) noexcept {
  return std::equal(patterns.begin(), patterns.end(), texts.begin(), texts.end(),
                    [](const std::string& pattern, const std::string& text) { return fits(pattern, text); });
}

}  // namespace

bool may_be_name(std::string_view text) noexcept {
  return !text.empty() && text.size() <= PeerPatterns::kMostBytes &&
         std::ranges::all_of(text, [](char c) { return c > ' ' && c < 127; });
}

bool PeerPatterns::take_apart(PeerName::Kind kind, std::string_view text, Parts& parts) {
  if (!may_be_name(text)) return false;
  if (kind == PeerName::Kind::kUri) {
    const std::size_t end = text.find(kSchemeEnd);
    if (end == 0 || end == std::string_view::npos) return false;
    parts.scheme = lower(text.substr(0, end));
    if (parts.scheme.find_first_of("*/?#") != std::string::npos) return false;
    text.remove_prefix(end + kSchemeEnd.size());
    const std::size_t path = text.find('/');
    if (path != std::string_view::npos) {
      parts.segments = split(text.substr(path + 1), '/');
      text = text.substr(0, path);
    }
  }
  parts.labels = split(lower(text), '.');
  const auto nothing = [](const std::string& piece) {
    return piece.empty() || piece == "." || piece == "..";
  };
  return std::ranges::none_of(parts.labels, nothing) && std::ranges::none_of(parts.segments, nothing) &&
         text.find('/') == std::string_view::npos;
}

PeerPatterns::PeerPatterns(const std::vector<std::string>& patterns) {
  if (patterns.size() > kMost)
    fail(Status::kInvalidArgument, "secure.peers has {} patterns; at most {} are taken", patterns.size(),
         kMost);
  for (const std::string& pattern : patterns) {
    const bool uri = pattern.find(kSchemeEnd) != std::string::npos;
    if (!take_apart(uri ? PeerName::Kind::kUri : PeerName::Kind::kDns, pattern, patterns_.emplace_back()))
      fail(Status::kInvalidArgument,
           "secure.peers: \"{}\" is no pattern of a name, such as prefill-*.example.com or "
           "spiffe://example.com/ns/serving/*",
           pattern);
    text_ += (text_.empty() ? "" : ", ") + pattern;
  }
}

bool PeerPatterns::fit(const PeerName& name) const {
  Parts parts;
  if (name.text.find('*') != std::string::npos || !take_apart(name.kind, name.text, parts)) return false;
  return std::ranges::any_of(patterns_, [&](const Parts& pattern) {
    return pattern.scheme == parts.scheme && fit_all(pattern.labels, parts.labels) &&
           fit_all(pattern.segments, parts.segments);
  });
}

}  // namespace towline::secure
