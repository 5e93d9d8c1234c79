#include "object_store.h"

#include <towline/storage.hpp>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "log.h"
#include "settings.h"

namespace towline::nixl {

namespace {

constexpr const char* kYes = "true";
constexpr unsigned long kMostObjectThreads = 64;  // Towline's limits
constexpr unsigned long kMostObjectRequests = 4096;

std::string value_of(const nixl_b_params_t& parameters, const char* key) {
  const auto found = parameters.find(key);
  return found == parameters.end() ? std::string{} : found->second;
}

// JSON's strings are TOML's.
std::string setting_of(const char* backend, const char* key, const std::string& value) {
  return fmt::format("{}.{} = {}\n", backend, key, nlohmann::json(value).dump());
}
std::string setting(const char* key, const std::string& value) { return setting_of("object", key, value); }

// A number from 1 on as a setting for tuning, at most `most`; nothing for "".
std::string number_setting(const nixl_b_params_t& parameters, const char* parameter, const char* backend,
                           const char* key, unsigned long most) {
  const std::string text = value_of(parameters, parameter);
  if (text.empty()) return {};
  if (text.size() > 12 || !std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; }) ||
      std::stoul(text) == 0) {
    throw Error{Status::kInvalidArgument,
                fmt::format("{} is '{}', and should be a number above 0", parameter, text)};
  }
  return fmt::format("tuning.{}.{} = {}\n", backend, key, std::min(std::stoul(text), most));
}

// A thread of NIXL's has one request under way. Towline's have many, so that more of them than processors are of no use.
std::string requests_at_once(const nixl_b_params_t& parameters, const char* backend) {
  const unsigned long processors = std::max(std::thread::hardware_concurrency(), 1u);
  return number_setting(parameters, "num_threads", backend, "concurrency", kMostObjectRequests) +
         number_setting(parameters, "num_threads", backend, "threads",
                        std::min(kMostObjectThreads, processors));
}

AgentOptions options_for(const StoreType& type, const nixl_b_params_t& parameters, uint64_t timeout_ns) {
  AgentOptions options;
  options.listen = "none";
  // A request of an object takes a millisecond: polling after each for the next would take the processor from the client.
  if (type.stored == OBJ_SEG) options.config = "progress.spin = \"0us\"\n";
  options.config += type.settings(parameters);
  options.default_timeout = std::chrono::nanoseconds{timeout_ns};
  return options;
}

struct Served {
  bool here = false;
  std::string why_not{};  // in the backend's words; empty if it has none
};

// Whether a backend of the agent serves what is stored, by its scheme: asking about something needs no server.
Served served(const StoreType& type, const Agent& agent) {
  const char* const kind = type.stored == OBJ_SEG ? "object" : "file";
  const auto info = nlohmann::json::parse(agent.info());
  Served result;
  for (const auto& backend : info.at("backends")) {
    const bool named = backend.value("name", "") == type.scheme;
    if (named) result.why_not = backend.value("reason", "");
    const auto kinds = backend.value("kinds", nlohmann::json::array());
    if ((named || type.stored == OBJ_SEG) && backend.value("usable", false) &&
        std::ranges::find(kinds, kind) != kinds.end())
      return {.here = true};
  }
  return result;
}

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
  text += setting_of("tuning.object", "writes",
                     "whole");  // as in NIXL, which writes each descriptor as an object
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
  text += setting_of("tuning.object", "style",
                     value_of(parameters, "use_virtual_addressing") == kYes ? "virtual" : "path");
  const std::string checksum = value_of(parameters, "req_checksum");
  if (!checksum.empty() && checksum != "required" && checksum != "supported") {
    throw Error{Status::kInvalidArgument,
                "req_checksum is '" + checksum + "', and should be 'required' or 'supported'"};
  }
  if (checksum == "required") text += setting_of("tuning.object", "checksum", "none");
  return text + requests_at_once(parameters, "object");
}

// ---- Azure's blobs

nixl_b_params_t azure_parameters() {
  return {{"account_url", ""},
          {"container_name", ""},
          {"connection_string", ""},
          {"ca_bundle", ""},
          {"num_threads", ""}};
}

std::string azure_settings(const nixl_b_params_t& parameters) {
  std::string text = "plugins = \"object\"\n";
  text += setting_of("tuning.azure", "writes", "whole");
  constexpr std::array<std::array<const char*, 2>, 3> kAlike = {
      {{"account_url", "endpoint"}, {"connection_string", "connection_string"}, {"ca_bundle", "ca_file"}}};
  for (const auto& [theirs, ours] : kAlike) {
    if (const std::string value = value_of(parameters, theirs); !value.empty())
      text += setting_of("azure", ours, value);
  }
  return text + requests_at_once(parameters, "azure");
}

// ---- files by vendors' libraries

nixl_b_params_t gds_parameters() {
  return {{"batch_pool_size", "16"}, {"batch_limit", "128"}, {"max_request_size", "16777216"}};
}
nixl_b_params_t gds_mt_parameters() { return {{"thread_count", ""}}; }

std::string gds_settings(const nixl_b_params_t& parameters) {
  constexpr unsigned long kMostBatch = 64;  // Towline's limits
  constexpr unsigned long kMostPiece = 1ul << 30;
  constexpr unsigned long kMostThreads = 64;
  return "plugins = \"gds\"\n" + number_setting(parameters, "batch_limit", "gds", "batch", kMostBatch) +
         number_setting(parameters, "max_request_size", "gds", "piece", kMostPiece) +
         number_setting(parameters, "thread_count", "gds", "threads", kMostThreads);
}

nixl_b_params_t hf3fs_parameters() {
  return {{"mount_point", "/mnt/3fs/"}, {"mem_config", "auto"}, {"iopool_size", "64"}};
}

std::string hf3fs_settings(const nixl_b_params_t& parameters) {
  const std::string mount_point = value_of(parameters, "mount_point");
  return "plugins = \"hf3fs\"\n" +
         (mount_point.empty() ? "" : setting_of("hf3fs", "mount_point", mount_point));
}

constexpr StoreType kStoreTypes[] = {
    {"OBJ", OBJ_SEG, "s3", "bucket", false, object_parameters, object_settings},
    {"AZURE_BLOB", OBJ_SEG, "az", "container_name", false, azure_parameters, azure_settings},
    {"GDS", FILE_SEG, "gds", nullptr, true, gds_parameters, gds_settings},
    {"GDS_MT", FILE_SEG, "gds", nullptr, true, gds_mt_parameters, gds_settings},
    {"HF3FS", FILE_SEG, "hf3fs", nullptr, false, hf3fs_parameters, hf3fs_settings},
};

std::string bucket_of(const StoreType& type, const nixl_b_params_t& parameters) {
  if (type.bucket == nullptr) return {};
  const std::string given = value_of(parameters, type.bucket);
  return given.empty() && std::string_view{type.scheme} == "s3" ? default_bucket() : given;
}

}  // namespace

const StoreType* find_store_type(const std::string& name) noexcept {
  const auto* const found =
      std::ranges::find_if(kStoreTypes, [&](const StoreType& type) { return name == type.name; });
  return found == std::end(kStoreTypes) ? nullptr : found;
}

ObjectStore::ObjectStore(const StoreType& type, const std::string& name, const nixl_b_params_t& parameters,
                         uint64_t timeout_ns)
    : type_(type),
      bucket_(bucket_of(type, parameters)),
      agent_(name, options_for(type, parameters, timeout_ns)),
      options_{false, timeout_ns, bucket_, type.scheme} {
  if (!served(type_, agent_).here)
    throw Error{Status::kUnsupported,
                fmt::format("Towline's backend for {}: files is not usable here", type_.scheme)};
}

namespace {

// Found out once in a process, with an agent that is made for it; again when another library is named.
Served found_out(const StoreType& type) {
  static std::mutex mutex;
  static std::map<std::pair<const StoreType*, std::string>, Served> found;
  const std::lock_guard lock(mutex);
  const auto [known, is_new] = found.try_emplace({&type, vendor_library(type.scheme)});
  if (is_new) {
    try {
      known->second = served(type, Agent{"towline-nixl-store", options_for(type, {}, 0)});
    } catch (const Error& error) {
      known->second.why_not = error.what();
      log(LogLevel::kInfo, fmt::format("{}: {}", type.name, error.what()));
    }
  }
  return known->second;
}

}  // namespace

std::string ObjectStore::why_not(const StoreType& type) { return found_out(type).why_not; }

nixl_mem_list_t ObjectStore::memories(const StoreType& type) {
  if (!found_out(type).here) return {};
  if (type.gpu) return {DRAM_SEG, VRAM_SEG, type.stored};
  return {DRAM_SEG, type.stored};
}

void ObjectStore::check_bucket() const {
  if (type_.bucket != nullptr && bucket_.empty()) {
    throw Error{
        Status::kInvalidArgument,
        fmt::format("{} was created without the parameter '{}'{}", type_.name, type_.bucket,
                    std::string_view{type_.scheme} == "s3" ? ", and AWS_DEFAULT_BUCKET is not set" : "")};
  }
}

void ObjectStore::add(const nixl_reg_dlist_t& descs) {
  if (descs.getType() == OBJ_SEG) check_bucket();
  memory_.add(agent_, descs, options_);
}

int32_t ObjectStore::make_list(nixl_mem_t type, const Rows& rows, towline_block_list_t** list,
                               std::optional<size_t>& missing) const {
  if (type != type_.stored) {
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
  return towline_block_list_create(agent_.native(), nullptr, blocks.data(), sizeof(towline_blocks_t),
                                   blocks.size(), list);
}

nixl_query_resp_t ObjectStore::query(const nixlBlobDesc& desc) const {
  check_bucket();
  const StorageInfo info = agent_.query_storage(uri_of_object(options_, desc));
  if (info.exists == 0) return std::nullopt;
  return nixl_b_params_t{{"size", std::to_string(info.bytes)}};
}

}  // namespace towline::nixl
