#include "json_output.h"

#include <fmt/format.h>

#include <cstdio>
#include <exception>

namespace tool {

void print_json(nlohmann::json object, JsonLayout layout) {
  using nlohmann::json;
  object["schema"] = kJsonSchema;
  fmt::print("{}\n", object.dump(layout == JsonLayout::kIndented ? 2 : -1, ' ', false,
                                 json::error_handler_t::replace));
  std::fflush(stdout);
}

void print_json_failure(std::string_view message, int exit_code) noexcept {
  try {
    print_json({{"error", message}, {"exit_code", exit_code}}, JsonLayout::kLine);
  } catch (const std::exception&) {  // no reader, or no memory
  }
}

}  // namespace tool
