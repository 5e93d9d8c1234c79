#include "object_store.h"

#include <towline/storage.hpp>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <vector>

#include "log.h"
#include "settings.h"

namespace towline::nixl {

namespace {

constexpr const char* kYes = "true";
constexpr unsigned long kMostObjectThreads = 64;  // Towline's limit

std::string value_of(const nixl_b_params_t& parameters, const char* key) {
  const auto found = parameters.find(key);
  return found == parameters.end() ? std::string{} : found->second;
}

// JSON's strings are TOML's.
std::string setting(const char* key, const std::string& value) {
  return fmt::format("object.{} = {}\n", key, nlohmann::json(value).dump());
}

AgentOptions options_for(const nixl_b_params_t& parameters, uint64_t timeout_ns) {
  AgentOptions options;
  options.listen = "none";
  options.config = object_settings(parameters);
  options.default_timeout = std::chrono::nanoseconds{timeout_ns};
  return options;
}

bool serves_objects(const Agent& agent) {
  const auto info = nlohmann::json::parse(agent.info());
  return std::ranges::any_of(info.at("backends"), [](const auto& backend) {
    const auto kinds = backend.value("kinds", nlohmann::json::array());
    return backend.value("usable", false) && std::ranges::find(kinds, "object") != kinds.end();
  });
}

}  // namespace

nixl_b_params_t object_parameters() {
  return {{"access_key", ""},
          {"secret_key", ""},
          {"session_token", ""},
          {"bucket", ""},
          {"endpoint_override", ""},
          {"scheme", "https"},
          {"region", ""},
          {"use_virtual_addressing", "false"},
          {"req_checksum", ""},
          {"ca_bundle", ""},
          {"num_threads", ""}};
}

std::string object_settings(const nixl_b_params_t& parameters) {
  std::string text = "plugins = \"object\"\n";
  text += setting("writes", "whole");  // as in NIXL, which writes each descriptor as an object
  constexpr std::array<std::array<const char*, 2>, 5> kAlike = {{{"access_key", "access_key"},
                                                                 {"secret_key", "secret_key"},
                                                                 {"session_token", "session_token"},
                                                                 {"region", "region"},
                                                                 {"ca_bundle", "ca_file"}}};
  for (const auto& [theirs, ours] : kAlike) {
    if (const std::string value = value_of(parameters, theirs); !value.empty()) text += setting(ours, value);
  }
  if (!value_of(parameters, "access_key").empty()) text += setting("credentials", "settings");
  if (std::string endpoint = value_of(parameters, "endpoint_override"); !endpoint.empty()) {
    const std::string scheme = value_of(parameters, "scheme");
    if (endpoint.find("://") == std::string::npos)
      endpoint = (scheme.empty() ? "https" : scheme) + "://" + endpoint;
    text += setting("endpoint", endpoint);
  }
  text += setting("style", value_of(parameters, "use_virtual_addressing") == kYes ? "virtual" : "path");
  const std::string checksum = value_of(parameters, "req_checksum");
  if (!checksum.empty() && checksum != "required" && checksum != "supported") {
    throw Error{Status::kInvalidArgument,
                "req_checksum is '" + checksum + "', and should be 'required' or 'supported'"};
  }
  if (checksum == "required") text += setting("checksum", "none");
  if (const std::string threads = value_of(parameters, "num_threads"); !threads.empty()) {
    if (threads.size() > 4 || !std::ranges::all_of(threads, [](char c) { return c >= '0' && c <= '9'; }) ||
        std::stoul(threads) == 0) {
      throw Error{Status::kInvalidArgument,
                  "num_threads is '" + threads + "', and should be a number above 0"};
    }
    text += fmt::format("object.threads = {}\n", std::min(std::stoul(threads), kMostObjectThreads));
  }
  return text;
}

ObjectStore::ObjectStore(const std::string& name, const nixl_b_params_t& parameters, uint64_t timeout_ns)
    : bucket_(value_of(parameters, "bucket").empty() ? default_bucket() : value_of(parameters, "bucket")),
      agent_(name, options_for(parameters, timeout_ns)),
      options_{false, timeout_ns, bucket_} {}

bool ObjectStore::usable() {
  static const bool found = [] {
    try {
      return serves_objects(Agent{"towline-nixl-objects", options_for({}, 0)});
    } catch (const Error& error) {
      log(LogLevel::kInfo, fmt::format("objects: {}", error.what()));
      return false;
    }
  }();
  return found;
}

void ObjectStore::check_bucket() const {
  if (bucket_.empty()) {
    throw Error{Status::kInvalidArgument,
                "OBJ was created without the parameter 'bucket', and AWS_DEFAULT_BUCKET is not set"};
  }
}

void ObjectStore::add(const nixl_reg_dlist_t& descs) {
  if (descs.getType() == OBJ_SEG) check_bucket();
  memory_.add(agent_, descs, options_);
}

int32_t ObjectStore::make_list(nixl_mem_t type, const Rows& rows, towline_block_list_t** list,
                               std::optional<size_t>& missing) const {
  if (type != OBJ_SEG) {
    return towline_block_list_create_flat(agent_.native(), nullptr, kind_of(type), rows.addresses,
                                          rows.address_stride, rows.lengths, rows.other_stride, 0, rows.count,
                                          list);
  }
  std::vector<towline_blocks_t> blocks;
  size_t first = 0;
  if (!memory_.storage_blocks(type, rows, blocks, first)) {
    missing = first;
    return TOWLINE_NOT_FOUND;
  }
  return towline_block_list_create(agent_.native(), nullptr, blocks.data(), blocks.size(), list);
}

nixl_query_resp_t ObjectStore::query(const nixlBlobDesc& desc) const {
  check_bucket();
  const StorageInfo info = query_storage(agent_, uri_of_object(bucket_, desc));
  if (info.exists == 0) return std::nullopt;
  return nixl_b_params_t{{"size", std::to_string(info.bytes)}};
}

}  // namespace towline::nixl
