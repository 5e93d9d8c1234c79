#include <charconv>

#include "base/error.h"
#include "fabric/verbs/verbs.h"

namespace towline::fabric {
namespace {

template <class Number>
bool read_number(std::string_view text, int low, int high, Number& number) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < low || value > high) return false;
  number = static_cast<Number>(value);
  return true;
}

}  // namespace

VerbsOptions parse_verbs_options(std::string_view text) {
  VerbsOptions options;
  constexpr std::string_view kGid = "gid=";
  std::string_view rest = text;
  bool right = true;
  if (const auto mark = rest.find('?'); mark != std::string_view::npos) {
    const std::string_view setting = rest.substr(mark + 1);
    right = setting.starts_with(kGid) && read_number(setting.substr(kGid.size()), 0, 255, options.gid_index);
    rest = rest.substr(0, mark);
  }
  if (const auto slash = rest.find('/'); slash != std::string_view::npos) {
    right = right && read_number(rest.substr(slash + 1), 1, 255, options.port);
    rest = rest.substr(0, slash);
  }
  options.device = rest;
  if (!right || rest.empty())
    fail(Status::kInvalidArgument, "\"{}\" names no verbs device; write DEVICE[/PORT][?gid=INDEX]", text);
  return options;
}

}  // namespace towline::fabric
