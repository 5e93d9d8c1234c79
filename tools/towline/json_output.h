// What `--json` prints: one object per document, which names the version of its shape.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

namespace tool {

// Counts changes that break a reader: a key that goes, or that changes its name, type, unit or meaning. New keys leave
// it as it is.
inline constexpr int kJsonSchema = 1;

enum class JsonLayout : uint8_t { kIndented, kLine };

// Writes `object` with "schema" to standard output, and flushes it: a reader may wait for a line of a command that
// runs on. Bytes that are not UTF-8, as in names of files, are replaced.
void print_json(nlohmann::json object, JsonLayout layout);

// Writes how a command failed, as a line: {"error": "..", "exit_code": .., "schema": ..}. After a document that was
// printed before, it is one more. Never fails: standard error has the message as well.
void print_json_failure(std::string_view message, int exit_code) noexcept;

}  // namespace tool
