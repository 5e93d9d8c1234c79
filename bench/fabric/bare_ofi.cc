// The fabric's engine against a bare libfabric program: the same lists over the same provider, between two processes, in
// turns. Both complete with delivery; the engine has at most 256 requests under way, the bare program DEPTH.
//
//   towline_bench_fabric_bare [PROVIDER] [rounds] [DEPTH, 256 unless given]
//
// Prints GB/s of both (medians) and the median of each round's ratio.
#include <fmt/format.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_rma.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "fabric/carrier.h"
#include "fabric/engine.h"
#include "fabric/rails.h"

namespace {

using namespace towline;
using namespace towline::fabric;

constexpr std::size_t kSpan = 64 << 20;
std::size_t depth = 256;  // of the bare program

void must(bool good, const char* what) {
  if (good) return;
  fmt::print(stderr, "{} failed\n", what);
  std::exit(1);
}

struct Node final : EngineHost {
  explicit Node(const std::string& rail) {
    std::vector<std::unique_ptr<Domain>> domains;
    domains.push_back(make_rail(rail));
    engine = std::make_unique<Engine>(EngineOptions{}, std::move(domains), *this);
    carrier = std::make_unique<Carrier>(*engine, CarrierOptions{});
  }
  void complete(uint64_t, const TransferResult& result) noexcept override {
    must(result.status == Status::kOk, "a transfer of the engine");
    ++done;
  }
  void fenced(uint64_t, uint32_t) noexcept override {}
  void counted(Handle, uint32_t, uint32_t) noexcept override {}
  void received(Handle, std::span<const uint8_t>) noexcept override {}
  void lost(Handle, Status, std::string_view) noexcept override {}
  void send_control(Handle peer, std::span<const uint8_t> message) noexcept override {
    if (carrier != nullptr) carrier->send(peer, message);
  }
  void turn() {
    const uint64_t now_ns = monotonic_now_ns();
    if (turns++ % 64 == 0) carrier->progress(now_ns);
    engine->progress(now_ns);
  }

  uint64_t done = 0;
  uint64_t turns = 0;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Carrier> carrier;
};

struct BareAddress {
  uint64_t base = 0;
  uint64_t key = 0;
  std::size_t bytes = 0;
  uint8_t name[256] = {};
};

struct Bare {
  Bare(const char* provider, std::vector<uint8_t>& memory) : contexts(depth) {
    fi_info* hints = fi_allocinfo();
    hints->caps = FI_MSG | FI_RMA | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE | FI_SEND | FI_RECV;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
    hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
    hints->fabric_attr->prov_name = strdup(provider);
    must(fi_getinfo(FI_VERSION(1, 11), nullptr, nullptr, 0, hints, &info) == 0, "fi_getinfo");
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
  void meet(const BareAddress& address) {
    theirs = address;
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

void say(int socket, const void* data, std::size_t bytes) {
  must(write(socket, data, bytes) == static_cast<ssize_t>(bytes), "write to the other process");
}
std::vector<uint8_t> hear(int socket) {
  std::vector<uint8_t> packet(64 << 10);
  const ssize_t got = read(socket, packet.data(), packet.size());
  must(got > 0, "read from the other process");
  packet.resize(static_cast<std::size_t>(got));
  return packet;
}

// Serves whichever of the two is measured.
void own(int socket, const char* provider) {
  std::vector<uint8_t> memory(kSpan, 1);
  Node node{std::string{"ofi:"} + provider};
  Bare bare{provider, memory};
  const LocalMemory mine = node.engine->register_memory({memory.data(), memory.size(), true, true});
  const std::vector<uint8_t> address = encode(node.carrier->address());
  const std::vector<uint8_t> described = encode(Engine::describe(mine));
  say(socket, address.data(), address.size());
  say(socket, described.data(), described.size());
  say(socket, &bare.mine, sizeof bare.mine);
  const std::vector<uint8_t> theirs = hear(socket);
  BareAddress mover;
  std::memcpy(&mover, theirs.data(), sizeof mover);
  bare.meet(mover);
  char mode = 'e';
  for (uint64_t i = 0;; ++i) {
    char next = 0;
    if (i % 256 == 0 && recv(socket, &next, 1, MSG_DONTWAIT) == 1) {
      mode = next;
      if (mode == 'q') break;
      say(socket, &mode, 1);
    }
    if (mode == 'e') {
      node.turn();
    } else {
      (void)bare.poll();
      bare.free.clear();
    }
  }
  _exit(0);
}

struct Pages {
  const LocalMemory* local = nullptr;
  const RemoteMemory* remote = nullptr;
  std::size_t bytes = 0;
  std::size_t count = 0;
  std::size_t given = 0;
  static std::size_t next(void* context, towline_segment* out, std::size_t capacity) {
    Pages& pages = *static_cast<Pages*>(context);
    const std::size_t count = std::min(capacity, pages.count - pages.given);
    for (std::size_t i = 0; i < count; ++i, ++pages.given)
      out[i] = {pages.local->address + pages.given * pages.bytes,
                pages.remote->address + pages.given * pages.bytes, pages.bytes, 0, 0};
    return count;
  }
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void compare(int socket, const char* provider, int rounds) {
  const auto address = decode_carrier_address(hear(socket));
  const auto remote = decode_memory(hear(socket));
  const std::vector<uint8_t> theirs = hear(socket);
  std::vector<uint8_t> memory(kSpan, 2);
  Node node{std::string{"ofi:"} + provider};
  Bare bare{provider, memory};
  BareAddress owner;
  std::memcpy(&owner, theirs.data(), sizeof owner);
  bare.meet(owner);
  say(socket, &bare.mine, sizeof bare.mine);
  const LocalMemory mine = node.engine->register_memory({memory.data(), memory.size(), true, true});
  const Handle peer = node.carrier->connect(*address);
  const LocalMemory* local = &mine;
  const RemoteMemory* far = &*remote;
  const auto by_engine = [&](bool write, std::size_t bytes, std::size_t count) {
    Pages pages{local, far, bytes, count, 0};
    TransferRequest request;
    request.peer = peer;
    request.op = write ? TransferOp::kWrite : TransferOp::kRead;
    request.segments = {Pages::next, &pages};
    request.local = &local;
    request.remote = &far;
    request.bytes = bytes * count;
    const uint64_t until = node.done + 1;
    must(node.engine->submit(request) == Status::kInProgress, "submit");
    while (node.done != until) node.turn();
  };
  const auto timed = [&](char mode, auto&& run) {
    say(socket, &mode, 1);
    (void)hear(socket);
    const uint64_t start_ns = monotonic_now_ns();
    run();
    return static_cast<double>(monotonic_now_ns() - start_ns);
  };
  fmt::print("{:<8} {:>10} {:>8} {:>10} {:>10} {:>8}\n", "op", "bytes", "pages", "engine", "bare", "ratio");
  for (const bool write : {true, false}) {
    for (const auto& [bytes, count] :
         {std::pair<std::size_t, std::size_t>{4 << 10, 4096}, {64 << 10, 1024}, {1 << 20, 64}}) {
      std::vector<double> engine, raw, ratios;
      for (int i = -2; i < rounds; ++i) {  // two to warm up
        const double one = timed('e', [&] { by_engine(write, bytes, count); });
        const double two = timed('b', [&] { bare.move(write, bytes, count); });
        if (i < 0) continue;
        engine.push_back(static_cast<double>(bytes * count) / one);
        raw.push_back(static_cast<double>(bytes * count) / two);
        ratios.push_back(two / one);
      }
      fmt::print("{:<8} {:>10} {:>8} {:>10.2f} {:>10.2f} {:>8.2f}\n", write ? "write" : "read", bytes, count,
                 median(engine), median(raw), median(ratios));
    }
  }
  say(socket, "q", 1);
}

}  // namespace

int main(int argc, char** argv) {
  const char* provider = argc > 1 ? argv[1] : "tcp;ofi_rxm";
  if (argc > 3) depth = std::strtoul(argv[3], nullptr, 10);
  must(depth != 0, "a depth of 0");
  int sockets[2];
  must(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets) == 0, "socketpair");
  const pid_t owner = fork();
  if (owner == 0) own(sockets[1], provider);
  close(sockets[1]);
  compare(sockets[0], provider, argc > 2 ? std::atoi(argv[2]) : 11);
  waitpid(owner, nullptr, 0);
  std::fflush(nullptr);
  _exit(0);  // libfabric's objects go with the process
}
