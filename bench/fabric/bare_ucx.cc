// The fabric's engine over UCX against a bare UCX program: ucp_put_nbx and ucp_get_nbx of each page, DEPTH of them under
// way, and a flush of the endpoint after the writes.
//
//   towline_bench_fabric_bare_ucx [TRANSPORTS, as UCX_TLS: tcp unless given] [rounds] [DEPTH, 256 unless given]
//
// Prints GB/s of both (medians), and of each round's ratio the median, the least and the most.
#include <ucp/api/ucp.h>

#include "bare.h"

namespace {

using towline::bench::must;

struct Bare {
  Bare(const char* transports, std::size_t depth, std::vector<uint8_t>& memory) : most(depth) {
    ucp_config_t* config = nullptr;
    must(ucp_config_read(nullptr, nullptr, &config) == UCS_OK, "ucp_config_read");
    // As the engine takes that name.
    const char* const wanted_transports = std::strcmp(transports, "shm") == 0 ? "posix,sysv" : transports;
    must(ucp_config_modify(config, "TLS", wanted_transports) == UCS_OK, "ucp_config_modify");
    ucp_params_t parameters{};
    parameters.field_mask = UCP_PARAM_FIELD_FEATURES;
    parameters.features = UCP_FEATURE_RMA;
    must(ucp_init(&parameters, config, &context) == UCS_OK, "ucp_init");
    ucp_config_release(config);
    ucp_worker_params_t wanted{};
    wanted.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    wanted.thread_mode = UCS_THREAD_MODE_SINGLE;
    must(ucp_worker_create(context, &wanted, &worker) == UCS_OK, "ucp_worker_create");
    ucp_mem_map_params_t map{};
    map.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
    map.address = memory.data();
    map.length = memory.size();
    must(ucp_mem_map(context, &map, &region) == UCS_OK, "ucp_mem_map");
    local = memory.data();
  }
  // Base, length of the key, key, the worker's address.
  [[nodiscard]] std::vector<uint8_t> address() const {
    ucp_address_t* name = nullptr;
    std::size_t name_bytes = 0;
    void* packed = nullptr;
    std::size_t key_bytes = 0;
    must(ucp_worker_get_address(worker, &name, &name_bytes) == UCS_OK, "ucp_worker_get_address");
    must(ucp_rkey_pack(context, region, &packed, &key_bytes) == UCS_OK, "ucp_rkey_pack");
    const uint64_t head[2] = {reinterpret_cast<uint64_t>(local), key_bytes};
    std::vector<uint8_t> bytes(sizeof head + key_bytes + name_bytes);
    std::memcpy(bytes.data(), head, sizeof head);
    std::memcpy(&bytes[sizeof head], packed, key_bytes);
    std::memcpy(&bytes[sizeof head + key_bytes], name, name_bytes);
    ucp_rkey_buffer_release(packed);
    ucp_worker_release_address(worker, name);
    return bytes;
  }
  void meet(const std::vector<uint8_t>& address) {
    uint64_t head[2];
    std::memcpy(head, address.data(), sizeof head);
    remote = head[0];
    ucp_ep_params_t parameters{};
    parameters.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    parameters.address = reinterpret_cast<const ucp_address_t*>(&address[sizeof head + head[1]]);
    must(ucp_ep_create(worker, &parameters, &peer) == UCS_OK, "ucp_ep_create");
    must(ucp_ep_rkey_unpack(peer, &address[sizeof head], &key) == UCS_OK, "ucp_ep_rkey_unpack");
  }
  void serve() { ucp_worker_progress(worker); }
  void move(bool write, std::size_t bytes, std::size_t count) {
    ucp_request_param_t how{};
    how.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    how.user_data = this;
    how.cb.send = [](void* request, ucs_status_t status, void* self) {
      must(status == UCS_OK, "ucp_put_nbx or ucp_get_nbx");
      --static_cast<Bare*>(self)->under_way;
      ucp_request_free(request);
    };
    for (std::size_t at = 0; at < count;) {
      while (under_way < most && at < count) {
        auto* const from = local + at * bytes;
        const uint64_t to = remote + at * bytes;
        ++at;
        const ucs_status_ptr_t request = write ? ucp_put_nbx(peer, from, bytes, to, key, &how)
                                               : ucp_get_nbx(peer, from, bytes, to, key, &how);
        must(!UCS_PTR_IS_ERR(request), "ucp_put_nbx or ucp_get_nbx");
        if (request != nullptr) ++under_way;
      }
      ucp_worker_progress(worker);
    }
    if (write) {
      const ucs_status_ptr_t request = ucp_ep_flush_nbx(peer, &how);
      must(!UCS_PTR_IS_ERR(request), "ucp_ep_flush_nbx");
      if (request != nullptr) ++under_way;
    }
    while (under_way != 0) ucp_worker_progress(worker);
  }

  ucp_context_h context = nullptr;
  ucp_worker_h worker = nullptr;
  ucp_mem_h region = nullptr;
  ucp_ep_h peer = nullptr;
  ucp_rkey_h key = nullptr;
  uint8_t* local = nullptr;
  uint64_t remote = 0;
  const std::size_t most;
  std::size_t under_way = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const char* const transports = argc > 1 ? argv[1] : "tcp";
  const std::size_t depth = argc > 3 ? std::strtoul(argv[3], nullptr, 10) : 256;
  must(depth != 0, "a depth of 0");
  const towline::bench::Side side{.rail = std::string{"ucx:"} + transports};
  return towline::bench::run(side, side, argc > 2 ? std::atoi(argv[2]) : 11,
                             [&](const std::string&, std::vector<uint8_t>& memory) {
                               return std::make_unique<Bare>(transports, depth, memory);
                             });
}
