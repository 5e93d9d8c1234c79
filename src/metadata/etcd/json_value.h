// JSON as etcd's gateway speaks it. A value is destroyed without memory: one of nlohmann's takes some to destroy what is in
// it, so that running out of it would end the process and not the call.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace towline::etcd {

class JsonValue {
 public:
  enum class Kind : uint8_t { kNull, kFlag, kNumber, kOtherNumber, kText, kArray, kObject };

  // Throws Error(kProtocol) for what is no JSON, no object, or nested too deeply.
  static JsonValue parse(std::string_view text);

  // Of an object; null: there is none. Of several with this name the last.
  [[nodiscard]] const JsonValue* find(std::string_view name) const noexcept;

  Kind kind = Kind::kNull;
  bool flag = false;
  uint64_t number = 0;             // kNumber
  std::string text;                // kText
  std::vector<std::string> names;  // kObject: of `values`
  std::vector<JsonValue> values;   // kArray, kObject
};

// Texts of JSON. `json_object` leaves out members without a text.
std::string json_object(std::initializer_list<std::pair<std::string_view, std::string>> members);
std::string json_text(std::string_view text);     // what is no UTF-8 is replaced
std::string json_number(uint64_t number);         // 64-bit numbers are texts to the gateway; 0: none
std::string json_array(const std::string& only);  // of one value

}  // namespace towline::etcd
