#include "base/config/config_file.h"

#define TOML_HEADER_ONLY 1
#define TOML_ENABLE_FORMATTERS 0
#include <toml++/toml.h>

#include "base/error.h"

namespace towline {
namespace {

using Values = std::map<std::string, ConfigFileValue, std::less<>>;

std::string scalar_text(const toml::node& node, std::string_view key, std::string_view file_name) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) return fmt::format("{}", number->get());
  if (const auto* number = node.as_floating_point()) return fmt::format("{}", number->get());
  if (const auto* flag = node.as_boolean()) return flag->get() ? "true" : "false";
  fail(Status::kInvalidArgument,
       "{} line {}: {} must be a text, a number, true or false, or an array of these", file_name,
       node.source().begin.line, key);
}

std::string array_text(const toml::array& array, std::string_view key, std::string_view file_name) {
  std::string joined;
  for (const toml::node& item : array) {
    const std::string text = scalar_text(item, key, file_name);
    if (text.find(',') != std::string::npos) {
      fail(Status::kInvalidArgument, "{} line {}: an item of {} contains a comma: \"{}\"", file_name,
           item.source().begin.line, key, text);
    }
    if (!joined.empty()) joined += ',';
    joined += text;
  }
  return joined;
}

void flatten(const toml::table& table, const std::string& prefix, std::string_view file_name,
             Values& values) {
  for (const auto& [name, node] : table) {
    const std::string key = prefix + std::string(name.str());
    if (const auto* inner = node.as_table()) {
      flatten(*inner, key + ".", file_name, values);
    } else {
      const toml::array* array = node.as_array();
      values[key] = {
          .text = array != nullptr ? array_text(*array, key, file_name) : scalar_text(node, key, file_name),
          .line = node.source().begin.line};
    }
  }
}

}  // namespace

Values parse_config_file(std::string_view text, std::string_view file_name) {
  Values values;
  try {
    flatten(toml::parse(text, file_name), "", file_name, values);
  } catch (const toml::parse_error& error) {
    const toml::source_position at = error.source().begin;
    fail(Status::kInvalidArgument, "{} line {} column {}: {}", file_name, at.line, at.column,
         error.description());
  }
  return values;
}

}  // namespace towline
