#include "json_output.h"

#include <fmt/format.h>

#include <cstdio>

namespace tool {

void print_json(nlohmann::json object, JsonLayout layout) {
  using nlohmann::json;
  object["schema"] = kJsonSchema;
  fmt::print("{}\n", object.dump(layout == JsonLayout::kIndented ? 2 : -1, ' ', false,
                                 json::error_handler_t::replace));
  std::fflush(stdout);
}

}  // namespace tool
