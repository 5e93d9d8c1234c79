#include "flags.h"

#include <fmt/format.h>

#include <toml++/toml.h>
#include <algorithm>
#include <charconv>
#include <functional>
#include <map>
#include <stdexcept>
#include <variant>

namespace nixlbench {

namespace {

constexpr uint64_t kLargeBlock = 1 << 20;

using Target = std::variant<std::string*, bool*, uint64_t*>;

// Options of NIXL's nixlbench that Towline decides by itself, or has no counterpart of.
constexpr const char* kIgnored[] = {"reregister_mem",          "num_initiator_dev",
                                    "num_target_dev",          "enable_pt",
                                    "progress_threads",        "enable_vmm",
                                    "gds_batch_pool_size",     "gds_batch_limit",
                                    "gds_mt_num_threads",      "device_list",
                                    "randomize_location_mode", "randomize_location_mode_seed",
                                    "posix_api_type",          "posix_ios_pool_size",
                                    "posix_kernel_queue_size", "gpunetio_device_list",
                                    "gpunetio_oob_list",       "obj_crt_min_limit",
                                    "obj_accelerated_enable",  "obj_accelerated_type",
                                    "infinia_config_file",     "hf3fs_iopool_size",
                                    "gusli_client_name",       "gusli_max_simultaneous_requests",
                                    "gusli_config_file",       "gusli_device_byte_offsets",
                                    "gusli_device_security",   "gusli_try_use_uring",
                                    "use_device_api"};
constexpr const char* kIgnoredSwitches[] = {"reregister_mem", "enable_pt",
                                            "enable_vmm",     "obj_accelerated_enable",
                                            "use_device_api", "gusli_try_use_uring"};

std::map<std::string, Target> targets(Flags& flags) {
  return {{"config_file", &flags.config_file},
          {"benchmark_group", &flags.benchmark_group},
          {"runtime_type", &flags.runtime_type},
          {"worker_type", &flags.worker_type},
          {"backend", &flags.backend},
          {"initiator_seg_type", &flags.initiator_seg_type},
          {"target_seg_type", &flags.target_seg_type},
          {"scheme", &flags.scheme},
          {"mode", &flags.mode},
          {"op_type", &flags.op_type},
          {"check_consistency", &flags.check_consistency},
          {"total_buffer_size", &flags.total_buffer_size},
          {"start_block_size", &flags.start_block_size},
          {"max_block_size", &flags.max_block_size},
          {"start_batch_size", &flags.start_batch_size},
          {"max_batch_size", &flags.max_batch_size},
          {"num_iter", &flags.num_iter},
          {"recreate_xfer", &flags.recreate_xfer},
          {"prepared_xfer", &flags.prepared_xfer},
          {"pipeline_depth", &flags.pipeline_depth},
          {"large_blk_iter_ftr", &flags.large_blk_iter_ftr},
          {"warmup_iter", &flags.warmup_iter},
          {"num_threads", &flags.num_threads},
          {"use_hugepages", &flags.use_hugepages},
          {"filepath", &flags.filepath},
          {"filenames", &flags.filenames},
          {"num_files", &flags.num_files},
          {"storage_enable_direct", &flags.storage_enable_direct},
          {"etcd_endpoints", &flags.etcd_endpoints},
          {"asio_address", &flags.asio_address},
          {"asio_port", &flags.asio_port},
          {"obj_access_key", &flags.obj_access_key},
          {"obj_secret_key", &flags.obj_secret_key},
          {"obj_session_token", &flags.obj_session_token},
          {"obj_bucket_name", &flags.obj_bucket_name},
          {"obj_scheme", &flags.obj_scheme},
          {"obj_region", &flags.obj_region},
          {"obj_use_virtual_addressing", &flags.obj_use_virtual_addressing},
          {"obj_endpoint_override", &flags.obj_endpoint_override},
          {"obj_req_checksum", &flags.obj_req_checksum},
          {"obj_ca_bundle", &flags.obj_ca_bundle},
          {"azure_blob_account_url", &flags.azure_blob_account_url},
          {"azure_blob_container_name", &flags.azure_blob_container_name},
          {"azure_blob_connection_string", &flags.azure_blob_connection_string},
          {"help", &flags.help}};
}

template <class Names>
bool is_among(const Names& names, const std::string& name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

[[noreturn]] void refuse(const std::string& text) { throw std::runtime_error(text); }

void set(const Target& target, const std::string& name, const std::string& value) {
  if (std::string* const* text = std::get_if<std::string*>(&target)) {
    **text = value;
  } else if (bool* const* flag = std::get_if<bool*>(&target)) {
    const bool yes = value == "true" || value == "1" || value == "yes" || value == "t" || value == "y";
    const bool no = value == "false" || value == "0" || value == "no" || value == "f" || value == "n";
    if (!yes && !no) refuse(fmt::format("--{} is '{}', and should be true or false", name, value));
    **flag = yes;
  } else {
    uint64_t& number = *std::get<uint64_t*>(target);
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error != std::errc{} || end != value.data() + value.size())
      refuse(fmt::format("--{} is '{}', and should be a number", name, value));
  }
}

// A flag with its value; a flag without one takes the next argument, unless it is a switch.
void read_arguments(Flags& flags, const std::vector<std::string>& arguments,
                    std::vector<std::string>& given) {
  auto known = targets(flags);
  for (size_t i = 0; i < arguments.size(); ++i) {
    std::string name = arguments[i];
    if (!name.starts_with('-') || name == "-" || name == "--") refuse(fmt::format("'{}' is no flag", name));
    name.erase(0, name.starts_with("--") ? 2 : 1);
    const size_t equals = name.find('=');
    bool has_value = equals != std::string::npos;
    std::string value = has_value ? name.substr(equals + 1) : "";
    name = name.substr(0, equals);
    const auto is_known = [&](const std::string& flag) {
      return known.contains(flag) || is_among(kIgnored, flag);
    };
    const bool negated = name.starts_with("no") && !is_known(name) && is_known(name.substr(2));
    if (negated) name.erase(0, 2);
    const auto found = known.find(name);
    const bool is_switch = found == known.end() ? is_among(kIgnoredSwitches, name)
                                                : std::holds_alternative<bool*>(found->second);
    if (!is_known(name)) refuse(fmt::format("there is no flag --{}", name));
    if (negated && !is_switch) refuse(fmt::format("--{} takes a value", name));
    if (!has_value && is_switch) value = negated ? "false" : "true";
    if (!has_value && !is_switch) {
      if (++i == arguments.size()) refuse(fmt::format("--{} takes a value", name));
      value = arguments[i];
    }
    given.push_back(name);
    if (found == known.end())
      flags.without_effect.push_back(name);
    else
      set(found->second, name, value);
  }
}

void read_file(Flags& flags, const std::vector<std::string>& given) {
  auto known = targets(flags);
  const toml::table file = [&] {
    try {
      return toml::parse_file(flags.config_file);
    } catch (const toml::parse_error& error) {
      refuse(fmt::format("--config_file {}: {}", flags.config_file, error.what()));
    }
  }();
  const std::function<void(const toml::table&)> read = [&](const toml::table& table) {
    for (const auto& [key, node] : table) {
      const std::string name{key.str()};
      if (const toml::table* inner = node.as_table()) {
        read(*inner);
        continue;
      }
      if (is_among(given, name)) continue;  // the command line wins
      const auto found = known.find(name);
      if (found == known.end() && !is_among(kIgnored, name))
        refuse(fmt::format("--config_file {}: there is no flag {}", flags.config_file, name));
      if (found == known.end()) {
        flags.without_effect.push_back(name);
      } else if (const auto text = node.value_exact<std::string>()) {
        set(found->second, name, *text);
      } else if (const auto flag = node.value_exact<bool>()) {
        set(found->second, name, *flag ? "true" : "false");
      } else if (const auto number = node.value_exact<int64_t>()) {
        set(found->second, name, std::to_string(*number));
      } else {
        refuse(fmt::format("--config_file {}: {} should be text, a number, true or false", flags.config_file,
                           name));
      }
    }
  };
  read(file);
}

void check(const Flags& flags) {
  const auto one_of = [](const char* name, const std::string& value,
                         std::initializer_list<const char*> choices) {
    std::string all;
    for (const char* choice : choices) {
      if (value == choice) return;
      all += (all.empty() ? "" : ", ") + std::string(choice);
    }
    refuse(fmt::format("--{} is '{}', and here it can be {}", name, value, all));
  };
  one_of("worker_type", flags.worker_type, {"nixl"});
  one_of("scheme", flags.scheme, {"pairwise"});
  one_of("mode", flags.mode, {"SG"});
  one_of("op_type", flags.op_type, {"READ", "WRITE"});
  one_of("runtime_type", flags.runtime_type, {"ETCD", "ASIO"});
  one_of("initiator_seg_type", flags.initiator_seg_type, {"DRAM"});
  if (!flags.is_storage()) one_of("target_seg_type", flags.target_seg_type, {"DRAM"});
  if (flags.num_threads == 0 || flags.num_threads > 256) refuse("--num_threads is from 1 to 256");
  if (flags.pipeline_depth == 0 || flags.pipeline_depth > 1024) refuse("--pipeline_depth is from 1 to 1024");
  if (flags.start_block_size == 0 || flags.start_block_size > flags.max_block_size)
    refuse("--start_block_size is above 0, and not above --max_block_size");
  if (flags.start_batch_size == 0 || flags.start_batch_size > flags.max_batch_size)
    refuse("--start_batch_size is above 0, and not above --max_batch_size");
  if (flags.num_iter < flags.num_threads) refuse("--num_iter is at least --num_threads");
  if (flags.large_blk_iter_ftr == 0) refuse("--large_blk_iter_ftr is above 0");
  if (flags.asio_port == 0 || flags.asio_port > 65535) refuse("--asio_port is from 1 to 65535");
  if (flags.num_files == 0 || flags.num_files > 65536) refuse("--num_files is from 1 to 65536");
  const uint64_t share = flags.total_buffer_size / flags.num_threads / flags.num_files;
  if (flags.max_block_size > share)
    refuse(
        fmt::format("--max_block_size {} does not fit into a thread's share of --total_buffer_size, {} bytes",
                    flags.max_block_size, share));
}

}  // namespace

uint64_t Flags::iterations(uint64_t block_size) const {
  const uint64_t all =
      block_size > kLargeBlock ? std::max<uint64_t>(num_iter / large_blk_iter_ftr, num_threads) : num_iter;
  return all / num_threads;
}

Flags Flags::parse(const std::vector<std::string>& arguments) {
  Flags flags;
  std::vector<std::string> given;
  read_arguments(flags, arguments, given);
  if (flags.help) return flags;
  if (!flags.config_file.empty()) read_file(flags, given);
  check(flags);
  return flags;
}

std::string Flags::usage() {
  Flags flags;
  std::string text = "nixlbench, on Towline. Flags, with their defaults:\n";
  for (const auto& [name, target] : targets(flags)) {
    std::string value;
    if (std::string* const* word = std::get_if<std::string*>(&target)) value = **word;
    if (bool* const* flag = std::get_if<bool*>(&target)) value = **flag ? "true" : "false";
    if (uint64_t* const* number = std::get_if<uint64_t*>(&target)) value = std::to_string(**number);
    text += fmt::format("  --{}={}\n", name, value);
  }
  text += "Accepted, without effect here:";
  for (const char* name : kIgnored) text += fmt::format(" --{}", name);
  return text + "\n";
}

}  // namespace nixlbench
