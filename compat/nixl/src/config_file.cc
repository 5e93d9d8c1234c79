#include "config_file.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <stdexcept>

namespace towline::nixl {

namespace {

std::optional<std::string> text_of(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) return std::to_string(number->get());
  if (const auto* truth = node.as_boolean()) return truth->get() ? "true" : "false";
  return std::nullopt;
}

}  // namespace

ConfigFile ConfigFile::read(const std::string& file) {
  ConfigFile result;
  result.name_ = file;
  try {
    for (auto&& [key, node] : toml::parse_file(file))
      result.values_.emplace(std::string{key.str()}, text_of(node));
  } catch (const toml::parse_error& error) {
    throw std::runtime_error(fmt::format("the configuration file {}, line {}: {}", file,
                                         error.source().begin.line, error.description()));
  }
  return result;
}

std::optional<std::string> ConfigFile::find(std::string_view key) const {
  const auto found = values_.find(key);
  if (found == values_.end()) return std::nullopt;
  if (!found->second) {
    throw std::runtime_error(
        fmt::format("the configuration file {}: {} should be text, a number, true or false", name_, key));
  }
  return found->second;
}

}  // namespace towline::nixl
