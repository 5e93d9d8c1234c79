// What towline_bench_fabric_mesh does, with libfabric alone: a message to each other member is its signal.
//
//   towline_bench_fabric_bare_mesh [PROVIDER] [MEMBERS] [PROCESSES]      "tcp;ofi_rxm", 16, 4 unless given
//
// Each member has an endpoint that sends and one that receives, as the engine has, so that libfabric makes as many
// connections. Nobody authenticates a member, its addresses come with no message of their own, and none can be removed.
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>

#include <deque>

#include "mesh.h"
#include "ofi_hints.h"

namespace {

using namespace towline::bench;

constexpr std::size_t kReceives = 256;
constexpr std::size_t kRecordBytes = 1024;  // of the engine's over this provider

struct Name {
  std::size_t bytes = 256;
  uint8_t name[256] = {};
};

struct BareMember {
  BareMember(const std::string& provider, uint32_t members)
      : contexts(kReceives + members), buffers((kReceives + 1) * kRecordBytes) {
    must(fi_getinfo(FI_VERSION(1, 11), nullptr, nullptr, 0, ofi_hints(provider.c_str()), &info) == 0,
         "fi_getinfo");
    must(fi_fabric(info->fabric_attr, &fabric, nullptr) == 0, "fi_fabric");
    must(fi_domain(fabric, info, &domain, nullptr) == 0, "fi_domain");
    fi_cq_attr attributes{};
    attributes.size = 4096;
    attributes.format = FI_CQ_FORMAT_DATA;
    attributes.wait_obj = FI_WAIT_FD;
    must(fi_cq_open(domain, &attributes, &queue, nullptr) == 0, "fi_cq_open");
    must(fi_mr_reg(domain, buffers.data(), buffers.size(), FI_SEND | FI_RECV, 0, 0, 0, &region, nullptr) == 0,
         "fi_mr_reg");
    for (Side* side : {&sends, &receives}) open(*side, members);
    for (std::size_t i = 0; i < kReceives; ++i) receive(contexts[i]);
  }
  struct Side {
    fid_av* table = nullptr;
    fid_ep* endpoint = nullptr;
  };
  void open(Side& side, uint32_t members) const {
    fi_av_attr table{};
    table.type = FI_AV_TABLE;
    table.count = members;
    must(fi_av_open(domain, &table, &side.table, nullptr) == 0, "fi_av_open");
    must(fi_endpoint(domain, info, &side.endpoint, nullptr) == 0, "fi_endpoint");
    must(fi_ep_bind(side.endpoint, &side.table->fid, 0) == 0, "fi_ep_bind");
    must(fi_ep_bind(side.endpoint, &queue->fid, FI_TRANSMIT | FI_RECV) == 0, "fi_ep_bind");
    must(fi_enable(side.endpoint) == 0, "fi_enable");
  }
  void receive(fi_context2& context) {
    const auto at = static_cast<std::size_t>(&context - contexts.data());
    const ssize_t result = fi_recv(receives.endpoint, buffers.data() + at * kRecordBytes, kRecordBytes,
                                   fi_mr_desc(region), FI_ADDR_UNSPEC, &context);
    must(result == 0, "fi_recv");
  }

  [[nodiscard]] std::vector<uint8_t> address() const {
    Name mine;
    must(fi_getname(&receives.endpoint->fid, mine.name, &mine.bytes) == 0, "fi_getname");
    return pack_plain(mine);
  }
  void meet(const std::vector<uint8_t>& address) {
    Name theirs;
    unpack_plain(address, theirs);
    fi_addr_t peer = FI_ADDR_UNSPEC;
    must(fi_av_insert(sends.table, theirs.name, 1, &peer, 0, nullptr) == 1, "fi_av_insert");
    unsent.push_back(peer);
  }
  std::size_t turn() {
    std::size_t events = 0;
    for (std::size_t tries = unsent.size(); tries != 0; --tries) {
      const fi_addr_t peer = unsent.front();
      unsent.pop_front();
      const ssize_t result = fi_senddata(sends.endpoint, buffers.data() + kReceives * kRecordBytes, 64,
                                         fi_mr_desc(region), 1, peer, &contexts[kReceives + sent]);
      must(result == 0 || result == -FI_EAGAIN, "fi_senddata");
      if (result == 0)
        ++sent, ++events;
      else
        unsent.push_back(peer);
    }
    fi_cq_data_entry entries[64];
    const ssize_t got = fi_cq_read(queue, entries, std::size(entries));
    must(got >= 0 || got == -FI_EAGAIN, "fi_cq_read");
    for (ssize_t i = 0; i < got; ++i) {
      auto* const context = static_cast<fi_context2*>(entries[i].op_context);
      if (context - contexts.data() >= static_cast<std::ptrdiff_t>(kReceives)) continue;
      ++had;
      receive(*context);
    }
    return events + static_cast<std::size_t>(std::max<ssize_t>(got, 0));
  }
  bool arm() {
    fid* waits = &queue->fid;
    return unsent.empty() && fi_trywait(fabric, &waits, 1) == 0;
  }
  [[nodiscard]] std::vector<int> descriptors() const {
    int fd = -1;
    must(fi_control(&queue->fid, FI_GETWAIT, &fd) == 0, "FI_GETWAIT");
    return {fd};
  }
  [[nodiscard]] uint64_t signals() const { return had; }
  void count(MeshFigures& figures) const { figures.connections += sent + had; }

  fi_info* info = nullptr;
  fid_fabric* fabric = nullptr;
  fid_domain* domain = nullptr;
  fid_cq* queue = nullptr;
  fid_mr* region = nullptr;
  Side sends;
  Side receives;
  std::vector<fi_context2> contexts;  // of receives, then of sends
  std::vector<uint8_t> buffers;       // the same, and one that is sent
  std::deque<fi_addr_t> unsent;
  uint64_t sent = 0;
  uint64_t had = 0;
};

}  // namespace

int main(int argc, char** argv) { return run_mesh<BareMember>(argc, argv, "tcp;ofi_rxm", "members"); }
