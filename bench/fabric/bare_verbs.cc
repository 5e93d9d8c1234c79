// The fabric's engine over verbs against a bare ibverbs program: chains of 16 RDMA writes or reads on one reliable
// connection, the last of each chain signalled. Both processes use the same port, with itself; or the other is on the host
// that a network namespace stands for.
//
//   towline_bench_fabric_bare_verbs DEVICE/PORT?gid=INDEX [rounds] [DEPTH, 256 unless given]
//                                   [THERE: DEVICE/PORT?gid=INDEX NETWORK ADDRESS_HERE ADDRESS_THERE]
//
// Prints GB/s of both (medians), and of each round's ratio the median, the least and the most.
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
    ibv_device_attr limits{};
    must(ibv_query_device(context, &limits) == 0, "ibv_query_device");
    reads = static_cast<uint8_t>(std::clamp(limits.max_qp_rd_atom, 1, 16));  // as the engine
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
    to.max_dest_rd_atomic = reads;
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
    to.max_rd_atomic = reads;
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
  uint8_t reads = 1;
  ibv_context* context = nullptr;
  ibv_pd* domain = nullptr;
  ibv_mr* region = nullptr;
  ibv_cq* queue = nullptr;
  ibv_qp* pair = nullptr;
  BareAddress mine;
  BareAddress theirs;
  uint8_t* local = nullptr;
};

// "verbs:DEVICE/PORT?gid=INDEX"
std::unique_ptr<Bare> make_bare(const std::string& rail, std::size_t depth, std::vector<uint8_t>& memory) {
  constexpr std::string_view kDomain = "verbs:";
  constexpr std::string_view kGid = "?gid=";
  const std::size_t slash = rail.find('/');
  const std::size_t gid = rail.find(kGid);
  must(slash != std::string::npos && gid != std::string::npos, "DEVICE/PORT?gid=INDEX: reading it");
  return std::make_unique<Bare>(rail.substr(kDomain.size(), slash - kDomain.size()),
                                static_cast<uint8_t>(std::atoi(&rail[slash + 1])),
                                std::atoi(&rail[gid + kGid.size()]), depth, memory);
}

}  // namespace

int main(int argc, char** argv) {
  must(argc > 1 && (argc < 5 || argc == 8), "reading the arguments, which the source explains,");
  const std::size_t depth = argc > 3 ? std::strtoul(argv[3], nullptr, 10) : 256;
  must(depth >= kChain, "a depth below a chain's length");
  towline::bench::Side here{.rail = std::string("verbs:") + argv[1]};
  towline::bench::Side there = here;
  if (argc == 8) {
    // Such hosts are a guest's, whose clock may be slow to read; the bare program does not read it.
    constexpr uint64_t kTurns = 64;
    there = {std::string("verbs:") + argv[4], argv[7], argv[5], kTurns};
    here.host = argv[6];
    here.turns_of_a_time = kTurns;
  }
  return towline::bench::run(here, there, argc > 2 ? std::atoi(argv[2]) : 11,
                             [depth](const std::string& rail, std::vector<uint8_t>& memory) {
                               return make_bare(rail, depth, memory);
                             });
}
