// The fabric's engine over verbs against a bare ibverbs program: chains of 16 RDMA writes or reads on one reliable
// connection, the last of each chain signalled. Both processes use the same port, with itself.
//
//   towline_bench_fabric_bare_verbs DEVICE/PORT GID_INDEX [rounds] [DEPTH, 256 unless given]
//
// Prints GB/s of both (medians) and the median of each round's ratio.
#include <infiniband/verbs.h>

#include "bare.h"

namespace {

using towline::bench::must;

constexpr std::size_t kChain = 16;

struct BareAddress {
  uint64_t base = 0;
  uint32_t key = 0;
  uint32_t pair = 0;
  uint32_t lid = 0;
  uint32_t mtu = 0;
  ibv_gid gid = {};
};

struct Bare {
  Bare(const std::string& device, uint8_t port_number, int gid_index, std::size_t depth,
       std::vector<uint8_t>& memory)
      : port(port_number), gid(gid_index), most(depth) {
    int count = 0;
    ibv_device** const list = ibv_get_device_list(&count);
    for (int i = 0; i < count && context == nullptr; ++i)
      if (device == ibv_get_device_name(list[i])) context = ibv_open_device(list[i]);
    must(context != nullptr, "ibv_open_device");
    ibv_free_device_list(list);
    domain = ibv_alloc_pd(context);
    must(domain != nullptr, "ibv_alloc_pd");
    constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
    region = ibv_reg_mr(domain, memory.data(), memory.size(), kAccess);
    must(region != nullptr, "ibv_reg_mr");
    queue = ibv_create_cq(context, static_cast<int>(2 * depth), nullptr, nullptr, 0);
    must(queue != nullptr, "ibv_create_cq");
    ibv_qp_init_attr wanted{};
    wanted.send_cq = wanted.recv_cq = queue;
    wanted.qp_type = IBV_QPT_RC;
    wanted.cap.max_send_wr = static_cast<uint32_t>(depth);
    wanted.cap.max_send_sge = 1;
    pair = ibv_create_qp(domain, &wanted);
    must(pair != nullptr, "ibv_create_qp");
    ibv_qp_attr to{};
    to.qp_state = IBV_QPS_INIT;
    to.port_num = port;
    to.qp_access_flags = kAccess;
    must(ibv_modify_qp(pair, &to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0,
         "ibv_modify_qp to INIT");
    ibv_port_attr about{};
    must(ibv_query_port(context, port, &about) == 0, "ibv_query_port");
    mine = {reinterpret_cast<uint64_t>(memory.data()),
            region->rkey,
            pair->qp_num,
            about.lid,
            static_cast<uint32_t>(about.active_mtu),
            {}};
    must(ibv_query_gid(context, port, gid, &mine.gid) == 0, "ibv_query_gid");
    local = memory.data();
  }
  [[nodiscard]] std::vector<uint8_t> address() const { return towline::bench::pack_plain(mine); }
  void meet(const std::vector<uint8_t>& address) {
    towline::bench::unpack_plain(address, theirs);
    ibv_qp_attr to{};
    to.qp_state = IBV_QPS_RTR;
    to.path_mtu = static_cast<ibv_mtu>(std::min(mine.mtu, theirs.mtu));
    to.dest_qp_num = theirs.pair;
    to.max_dest_rd_atomic = 1;
    to.min_rnr_timer = 12;
    to.ah_attr.port_num = port;
    to.ah_attr.dlid = static_cast<uint16_t>(theirs.lid);
    to.ah_attr.is_global = 1;
    to.ah_attr.grh.dgid = theirs.gid;
    to.ah_attr.grh.sgid_index = static_cast<uint8_t>(gid);
    to.ah_attr.grh.hop_limit = 64;
    must(ibv_modify_qp(pair, &to,
                       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0,
         "ibv_modify_qp to RTR");
    to = {};
    to.qp_state = IBV_QPS_RTS;
    to.timeout = 14;
    to.retry_cnt = to.rnr_retry = 7;
    to.max_rd_atomic = 1;
    must(ibv_modify_qp(pair, &to,
                       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                           IBV_QP_MAX_QP_RD_ATOMIC) == 0,
         "ibv_modify_qp to RTS");
  }
  void serve() {}  // the NIC does it
  void move(bool write, std::size_t bytes, std::size_t count) {
    ibv_sge pieces[kChain] = {};
    ibv_send_wr chain[kChain] = {};
    std::size_t done = 0;
    for (std::size_t at = 0; done < count;) {
      while (at < count && at - done + kChain <= most) {
        const std::size_t length = std::min(kChain, count - at);
        for (std::size_t i = 0; i < length; ++i, ++at) {
          pieces[i] = {reinterpret_cast<uint64_t>(local + at * bytes), static_cast<uint32_t>(bytes),
                       region->lkey};
          chain[i] = {};
          chain[i].wr_id = length;
          chain[i].next = i + 1 < length ? &chain[i + 1] : nullptr;
          chain[i].sg_list = &pieces[i];
          chain[i].num_sge = 1;
          chain[i].opcode = write ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
          chain[i].send_flags = i + 1 < length ? 0u : unsigned{IBV_SEND_SIGNALED};
          chain[i].wr.rdma = {theirs.base + at * bytes, theirs.key};
        }
        ibv_send_wr* bad = nullptr;
        must(ibv_post_send(pair, chain, &bad) == 0, "ibv_post_send");
      }
      ibv_wc entries[16];
      const int got = ibv_poll_cq(queue, 16, entries);
      must(got >= 0, "ibv_poll_cq");
      for (int i = 0; i < got; ++i) {
        must(entries[i].status == IBV_WC_SUCCESS, "a request");
        done += entries[i].wr_id;
      }
    }
  }

  const uint8_t port;
  const int gid;
  const std::size_t most;
  ibv_context* context = nullptr;
  ibv_pd* domain = nullptr;
  ibv_mr* region = nullptr;
  ibv_cq* queue = nullptr;
  ibv_qp* pair = nullptr;
  BareAddress mine;
  BareAddress theirs;
  uint8_t* local = nullptr;
};

}  // namespace

int main(int argc, char** argv) {
  must(argc > 2, "usage: DEVICE/PORT GID_INDEX [rounds] [DEPTH]: it");
  const std::string rail = argv[1];
  const std::size_t slash = rail.find('/');
  const auto port = static_cast<uint8_t>(slash == std::string::npos ? 1 : std::atoi(&rail[slash + 1]));
  const int gid = std::atoi(argv[2]);
  const std::size_t depth = argc > 4 ? std::strtoul(argv[4], nullptr, 10) : 256;
  must(depth >= kChain, "a depth below a chain's length");
  return towline::bench::run("verbs:" + rail, argc > 3 ? std::atoi(argv[3]) : 11,
                             [&](std::vector<uint8_t>& memory) {
                               return std::make_unique<Bare>(rail.substr(0, slash), port, gid, depth, memory);
                             });
}
