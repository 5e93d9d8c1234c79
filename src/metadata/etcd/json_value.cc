#include "metadata/etcd/json_value.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "metadata/etcd/codec.h"

namespace towline::etcd {
namespace {

using nlohmann::json;

constexpr std::size_t kDeepest = 32;

// Takes the parser's events.
class Builder final : public json::json_sax_t {
 public:
  explicit Builder(JsonValue& root) noexcept : root_(root) {}

  bool null() override { return begin(JsonValue::Kind::kNull) != nullptr; }
  bool boolean(bool value) override {
    begin(JsonValue::Kind::kFlag)->flag = value;
    return true;
  }
  bool number_integer(number_integer_t) override { return begin(JsonValue::Kind::kOtherNumber) != nullptr; }
  bool number_unsigned(number_unsigned_t value) override {
    begin(JsonValue::Kind::kNumber)->number = value;
    return true;
  }
  bool number_float(number_float_t, const string_t&) override {
    return begin(JsonValue::Kind::kOtherNumber) != nullptr;
  }
  bool string(string_t& value) override {
    begin(JsonValue::Kind::kText)->text = std::move(value);
    return true;
  }
  bool binary(binary_t&) override { return false; }  // there is none in a text
  bool start_object(std::size_t) override { return open(JsonValue::Kind::kObject); }
  bool key(string_t& name) override {
    open_.back()->names.push_back(std::move(name));
    return true;
  }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open(JsonValue::Kind::kArray); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t, const std::string&, const json::exception&) override { return false; }

 private:
  // A value is in the list of the one that is open, whose others do not move while it is.
  JsonValue* begin(JsonValue::Kind kind) {
    JsonValue* value = &root_;
    if (!open_.empty()) value = &open_.back()->values.emplace_back();
    value->kind = kind;
    return value;
  }
  bool open(JsonValue::Kind kind) {
    if (open_.size() >= kDeepest) fail(Status::kProtocol, "JSON nested deeper than {}", kDeepest);
    open_.push_back(begin(kind));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  JsonValue& root_;
  std::vector<JsonValue*> open_;
};

}  // namespace

JsonValue JsonValue::parse(std::string_view text) {
  JsonValue value;
  Builder builder(value);
  if (!json::sax_parse(text, &builder)) fail(Status::kProtocol, "no JSON: {}", shown(text));
  if (value.kind != Kind::kObject) fail(Status::kProtocol, "no JSON object: {}", shown(text));
  return value;
}

const JsonValue* JsonValue::find(std::string_view name) const noexcept {
  for (std::size_t i = names.size(); i-- != 0;)
    if (names[i] == name) return &values[i];
  return nullptr;
}

std::string json_object(std::initializer_list<std::pair<std::string_view, std::string>> members) {
  std::string object = "{";
  for (const auto& [name, value] : members) {
    if (value.empty()) continue;
    if (object.size() > 1) object += ',';
    object += fmt::format("\"{}\":{}", name, value);
  }
  return object + '}';
}

std::string json_text(std::string_view text) {
  return json(text).dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string json_number(uint64_t number) { return number == 0 ? "" : fmt::format("\"{}\"", number); }

std::string json_array(const std::string& only) { return '[' + only + ']'; }

}  // namespace towline::etcd
