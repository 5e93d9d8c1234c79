// nixlbench's flags: "--name=value", "--name value", "--name" and "--noname" for switches; "-name" as well. A file of
// --config_file has the same names, as TOML.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace nixlbench {

struct Flags {
  std::string config_file;
  std::string benchmark_group = "default";
  std::string runtime_type = "ETCD";
  std::string worker_type = "nixl";
  std::string backend = "UCX";
  std::string initiator_seg_type = "DRAM";
  std::string target_seg_type = "DRAM";
  std::string scheme = "pairwise";
  std::string mode = "SG";
  std::string op_type = "WRITE";
  bool check_consistency = false;
  uint64_t total_buffer_size = uint64_t{8} << 30;
  uint64_t start_block_size = 4096;
  uint64_t max_block_size = uint64_t{64} << 20;
  uint64_t start_batch_size = 1;
  uint64_t max_batch_size = 1;
  uint64_t num_iter = 1000;
  bool recreate_xfer = false;
  bool prepared_xfer = false;
  uint64_t pipeline_depth = 1;
  uint64_t large_blk_iter_ftr = 16;
  uint64_t warmup_iter = 100;
  uint64_t num_threads = 1;
  bool use_hugepages = false;
  std::string filepath;
  std::string filenames;
  uint64_t num_files = 1;
  bool storage_enable_direct = false;
  std::string etcd_endpoints;
  std::string asio_address = "127.0.0.1";
  uint64_t asio_port = 12345;
  std::string obj_access_key, obj_secret_key, obj_session_token;
  std::string obj_bucket_name = "nixlbench-bucket";
  std::string obj_scheme = "http";
  std::string obj_region = "eu-central-1";
  bool obj_use_virtual_addressing = false;
  std::string obj_endpoint_override;
  std::string obj_req_checksum = "supported";
  std::string obj_ca_bundle;
  std::string azure_blob_account_url, azure_blob_container_name, azure_blob_connection_string;
  bool help = false;

  std::vector<std::string>
      without_effect;  // flags of NIXL's nixlbench that were given and change nothing here

  [[nodiscard]] bool moves_objects() const { return backend == "OBJ" || backend == "AZURE_BLOB"; }
  [[nodiscard]] bool moves_files() const {
    return backend == "POSIX" || backend == "GDS" || backend == "GDS_MT" || backend == "HF3FS";
  }
  // One process; all other backends join two.
  [[nodiscard]] bool is_storage() const { return moves_objects() || moves_files(); }
  [[nodiscard]] bool writes() const { return op_type == "WRITE"; }
  // The values for one block size.
  [[nodiscard]] uint64_t iterations(uint64_t block_size) const;

  // Throws std::runtime_error naming the flag and what it takes.
  static Flags parse(const std::vector<std::string>& arguments);
  static std::string usage();
};

}  // namespace nixlbench
