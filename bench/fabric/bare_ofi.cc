// The fabric's engine against a bare libfabric program. Both complete with delivery; the engine has at most 256 requests
// under way, the bare program DEPTH.
//
//   towline_bench_fabric_bare [PROVIDER] [rounds] [DEPTH, 256 unless given]
//
// Prints GB/s of both (medians), and of each round's ratio the median, the least and the most.
#include <rdma/fi_cm.h>
#include <rdma/fi_rma.h>

#include "bare.h"
#include "ofi_hints.h"

namespace {

using towline::bench::must;

struct BareAddress {
  uint64_t base = 0;
  uint64_t key = 0;
  std::size_t bytes = 0;
  uint8_t name[256] = {};
};

struct Bare {
  Bare(const char* provider, std::size_t depth, std::vector<uint8_t>& memory) : contexts(depth) {
    must(fi_getinfo(FI_VERSION(1, 11), nullptr, nullptr, 0, towline::bench::ofi_hints(provider), &info) == 0,
         "fi_getinfo");
    must(fi_fabric(info->fabric_attr, &fabric, nullptr) == 0, "fi_fabric");
    must(fi_domain(fabric, info, &domain, nullptr) == 0, "fi_domain");
    fi_cq_attr queue{};
    queue.format = FI_CQ_FORMAT_CONTEXT;
    must(fi_cq_open(domain, &queue, &completions, nullptr) == 0, "fi_cq_open");
    fi_av_attr table{};
    table.type = FI_AV_TABLE;
    must(fi_av_open(domain, &table, &addresses, nullptr) == 0, "fi_av_open");
    must(fi_endpoint(domain, info, &endpoint, nullptr) == 0, "fi_endpoint");
    must(fi_ep_bind(endpoint, &addresses->fid, 0) == 0, "fi_ep_bind");
    must(fi_ep_bind(endpoint, &completions->fid, FI_TRANSMIT | FI_RECV) == 0, "fi_ep_bind");
    must(fi_enable(endpoint) == 0, "fi_enable");
    const uint64_t all = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    must(fi_mr_reg(domain, memory.data(), memory.size(), all, 0, 77, 0, &region, nullptr) == 0, "fi_mr_reg");
    mine.bytes = sizeof mine.name;
    must(fi_getname(&endpoint->fid, mine.name, &mine.bytes) == 0, "fi_getname");
    mine.key = fi_mr_key(region);
    if ((info->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0)
      mine.base = reinterpret_cast<uint64_t>(memory.data());
    local = memory.data();
  }
  [[nodiscard]] std::vector<uint8_t> address() const { return towline::bench::pack_plain(mine); }
  void meet(const std::vector<uint8_t>& address) {
    towline::bench::unpack_plain(address, theirs);
    must(fi_av_insert(addresses, theirs.name, 1, &peer, 0, nullptr) == 1, "fi_av_insert");
  }
  std::size_t poll() {
    fi_cq_entry entries[64];
    const ssize_t got = fi_cq_read(completions, entries, std::size(entries));
    must(got >= 0 || got == -FI_EAGAIN, "fi_cq_read");
    if (got <= 0) return 0;
    for (ssize_t i = 0; i < got; ++i) free.push_back(entries[i].op_context);
    return static_cast<std::size_t>(got);
  }
  void serve() {
    (void)poll();
    free.clear();
  }
  void move(bool write, std::size_t bytes, std::size_t count) {
    free.clear();
    for (fi_context2& context : contexts) free.push_back(&context);
    std::size_t done = 0;
    for (std::size_t at = 0; done < count;) {
      while (at < count && !free.empty()) {
        void* const context = free.back();
        auto* const from = local + at * bytes;
        const uint64_t to = theirs.base + at * bytes;
        void* const key = fi_mr_desc(region);
        const ssize_t posted = write ? fi_write(endpoint, from, bytes, key, peer, to, theirs.key, context)
                                     : fi_read(endpoint, from, bytes, key, peer, to, theirs.key, context);
        if (posted == -FI_EAGAIN) break;
        must(posted == 0, "fi_write or fi_read");
        free.pop_back();
        ++at;
      }
      done += poll();
    }
  }

  fi_info* info = nullptr;
  fid_fabric* fabric = nullptr;
  fid_domain* domain = nullptr;
  fid_cq* completions = nullptr;
  fid_av* addresses = nullptr;
  fid_ep* endpoint = nullptr;
  fid_mr* region = nullptr;
  fi_addr_t peer = FI_ADDR_UNSPEC;
  BareAddress mine;
  BareAddress theirs;
  uint8_t* local = nullptr;
  std::vector<fi_context2> contexts;
  std::vector<void*> free;
};

}  // namespace

int main(int argc, char** argv) {
  const char* const provider = argc > 1 ? argv[1] : "tcp;ofi_rxm";
  const std::size_t depth = argc > 3 ? std::strtoul(argv[3], nullptr, 10) : 256;
  must(depth != 0, "a depth of 0");
  const towline::bench::Side side{.rail = std::string{"ofi:"} + provider};
  return towline::bench::run(side, side, argc > 2 ? std::atoi(argv[2]) : 11,
                             [&](const std::string&, std::vector<uint8_t>& memory) {
                               return std::make_unique<Bare>(provider, depth, memory);
                             });
}
