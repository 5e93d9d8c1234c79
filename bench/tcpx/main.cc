// tcpx beside tcp: GB/s and processor time a byte of WRITEs and READs between two agents of one process, in turns, by each
// source that is named, in host memory or in a GPU's. Ratios are of neighbouring runs: tcpx's throughput over tcp's, and tcp's
// processor time over tcpx's, so above 1 tcpx is ahead. Both move the same bytes, which are compared before anything is timed.
//
// Over a veth pair: ip netns add there; ip link add v1 type veth peer name v2 netns there; addresses, MTU, up; then
//   towline_bench_tcpx --source mapped,copy --here 10.80.0.1 --there 10.80.0.2 --network there
#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "gpu_memory.h"
#include "support/statistics.h"
#include "support/table.h"
#include "towline/towline.hpp"

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr uint64_t kBytes = 64u << 20;
constexpr int kPosts = 8;  // of a run

struct Options {
  std::vector<std::string> sources{"mapped", "copy"};
  int rounds = 5;
  std::vector<uint64_t> blocks{64u << 10};
  bool vram = false;
  int gpu_here = 0;
  int gpu_there = 0;
  std::string plugins;  // a folder; empty: where agents look
  std::string here = "127.0.0.1";
  std::string there = "127.0.0.1";
  std::string network_there;
};

// Of the host, or of a GPU.
class Bytes {
 public:
  Bytes(bool vram, int gpu) {
    if (vram)
      gpu_ = std::make_unique<tool::GpuMemory>(gpu, kBytes);
    else
      host_.emplace(kBytes);
  }
  [[nodiscard]] towline::MemoryView view() const {
    if (gpu_ == nullptr) return towline::dram(*host_);
    return {.address = reinterpret_cast<void*>(gpu_->address()),
            .bytes = kBytes,
            .kind = towline::Kind::kVram,
            .device = gpu_->device()};
  }
  void fill(uint8_t seed) {
    std::vector<uint8_t> made(kBytes);
    for (uint64_t i = 0; i < kBytes; ++i) made[i] = static_cast<uint8_t>(i * 31 + (i >> 9) + seed);
    if (gpu_ == nullptr)
      std::memcpy(host_->data(), made.data(), kBytes);
    else
      gpu_->put(0, made.data(), kBytes);
  }
  [[nodiscard]] std::vector<uint8_t> copy() const {
    std::vector<uint8_t> made(kBytes);
    if (gpu_ == nullptr)
      std::memcpy(made.data(), host_->data(), kBytes);
    else
      gpu_->get(0, made.data(), kBytes);
    return made;
  }

 private:
  std::optional<towline::Memory> host_;
  std::unique_ptr<tool::GpuMemory> gpu_;
};

struct Speed {
  double gbps = 0;
  double ns_a_byte = 0;  // of processors, of the process, so of both ends
};

double processor_ns() {
  rusage usage = {};
  (void)getrusage(RUSAGE_SELF, &usage);
  const auto ns = [](const timeval& time) {
    return 1e9 * static_cast<double>(time.tv_sec) + 1e3 * static_cast<double>(time.tv_usec);
  };
  return ns(usage.ru_utime) + ns(usage.ru_stime);
}

// Its threads are in the network namespace of the thread that makes it.
std::unique_ptr<towline::Agent> make_agent(const char* name, const towline::AgentOptions& options,
                                           const std::string& network) {
  std::unique_ptr<towline::Agent> agent;
  std::string failure;
  std::thread([&] {
    try {
      if (!network.empty()) {
        const int fd = ::open(("/run/netns/" + network).c_str(), O_RDONLY | O_CLOEXEC);
        if (fd < 0 || ::setns(fd, CLONE_NEWNET) != 0)
          throw std::runtime_error("there is no network namespace " + network);
        ::close(fd);
      }
      agent = std::make_unique<towline::Agent>(name, options);
    } catch (const std::exception& error) {
      failure = error.what();
    }
  }).join();
  if (agent == nullptr) throw std::runtime_error(failure);
  return agent;
}

// Two agents over one backend.
class Pair {
 public:
  Pair(const std::string& backend, const std::string& settings, const Options& options, uint64_t block)
      : here_(options.vram, options.gpu_here), there_(options.vram, options.gpu_there) {
    std::vector<std::string> libraries;
    if (backend != "tcp") libraries.push_back(backend);
    if (options.vram) libraries.emplace_back("cuda");
    std::string config = "plugins = [";
    for (const std::string& name : libraries)
      config += options.plugins.empty() ? fmt::format("\"{}\",", name)
                                        : fmt::format("\"{}/libtowline_{}.so\",", options.plugins, name);
    config += "]\n" + settings;
    // cuda tells what lies on a GPU; as the second it is not what carries bytes between two agents of a host.
    const std::string backends = options.vram ? backend + ",cuda" : backend;
    left_ = make_agent("here", {.listen = options.here + ":0", .backends = backends, .config = config}, "");
    right_ = make_agent("there", {.listen = options.there + ":0", .backends = backends, .config = config},
                        options.network_there);
    mine_.emplace(left_->register_memory(here_.view(), {.access = towline::Access::kAll}));
    theirs_.emplace(right_->register_memory(there_.view(), {.access = towline::Access::kAll}));
    peer_.emplace(left_->add_peer(right_->metadata()));
    const auto blocks = [&](const Bytes& memory) {
      const towline::MemoryView view = memory.view();
      return towline::Blocks::at(view.address, block, view.kind, view.device).repeat(kBytes / block, block);
    };
    const towline::BlockList mine = left_->block_list(blocks(here_));
    const towline::BlockList theirs = peer_->block_list(blocks(there_));
    transfers_.push_back(left_->transfer(mine, theirs));
    transfers_.push_back(left_->transfer(theirs, mine));
    if (const std::string route = transfers_[0].route(); route.find(backend) == std::string::npos)
      throw std::runtime_error(fmt::format("{} does not carry this: {}", backend, route));
    check();
  }

  Speed run(bool read) {
    const towline::Transfer& transfer = transfers_[read ? 1 : 0];
    const double processor = processor_ns();
    const auto start = Clock::now();
    for (int i = 0; i < kPosts; ++i) {
      const towline::Status posted = transfer.post();
      if ((posted == towline::Status::kInProgress ? transfer.wait(60s) : posted) != towline::Status::kOk)
        throw std::runtime_error(fmt::format("a transfer failed: {}", towline::last_error()));
    }
    const double ns = std::chrono::duration<double, std::nano>(Clock::now() - start).count();
    constexpr double kMoved = static_cast<double>(kBytes) * kPosts;
    return {kMoved / ns, (processor_ns() - processor) / kMoved};
  }
  // As the backend says it.
  [[nodiscard]] std::string source() const {
    const std::string info = right_->info();
    const std::string key = "\"source\":\"";
    const std::size_t at = info.find(key);
    return at == std::string::npos
               ? ""
               : info.substr(at + key.size(), info.find('"', at + key.size()) - at - key.size());
  }

 private:
  void check() {
    for (const bool read : {false, true}) {
      here_.fill(read ? 3 : 1);
      there_.fill(read ? 4 : 2);
      const std::vector<uint8_t> sent = read ? there_.copy() : here_.copy();
      (void)run(read);
      if ((read ? here_ : there_).copy() != sent)
        throw std::runtime_error(fmt::format("a {} brought wrong bytes", read ? "READ" : "WRITE"));
    }
  }

  Bytes here_;
  Bytes there_;
  std::unique_ptr<towline::Agent> left_;
  std::unique_ptr<towline::Agent> right_;
  std::optional<towline::Region> mine_;
  std::optional<towline::Region> theirs_;
  std::optional<towline::Peer> peer_;
  std::vector<towline::Transfer> transfers_;
};

std::string show(const std::vector<double>& values) {
  const bench::Spread spread = bench::spread_of(values);
  return fmt::format("{:.2f} [{:.2f} {:.2f}]", spread.median, spread.min, spread.max);
}

void compare(bench::Rows& rows, const std::string& source, uint64_t block, Pair& tcp,
             const Options& options) {
  Pair tcpx("tcpx", "[tuning.tcpx]\nsource = \"" + source + "\"\n", options, block);
  for (const bool read : {false, true}) {
    (void)tcp.run(read);
    (void)tcpx.run(read);
    std::vector<double> gbps, faster, cheaper;
    for (int round = 0; round < options.rounds; ++round) {
      const bool first = round % 2 == 0;
      const Speed before = first ? tcp.run(read) : Speed{};
      const Speed ours = tcpx.run(read);
      const Speed plain = first ? before : tcp.run(read);
      gbps.push_back(ours.gbps);
      faster.push_back(ours.gbps / plain.gbps);
      cheaper.push_back(plain.ns_a_byte / ours.ns_a_byte);
    }
    rows.push_back({tcpx.source(), fmt::format("{} KiB x {}", block >> 10, kBytes / block),
                    read ? "READ" : "WRITE", show(gbps), show(faster), show(cheaper)});
  }
}

}  // namespace

int main(int count, char** arguments) {
  Options options;
  std::string memory = "dram";
  CLI::App app{"tcpx beside tcp, between two agents of this process: GB/s and processor time a byte"};
  app.add_option("--source", options.sources, "sources of tcpx, in turns with tcp")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--rounds", options.rounds)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--block", options.blocks, "bytes of a block, or several; 64 MiB are moved in such blocks")
      ->delimiter(',')
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(uint64_t{1024}, kBytes))
      ->capture_default_str();
  app.add_option("--memory", memory, "where both ends' bytes lie")
      ->check(CLI::IsMember({"dram", "vram"}))
      ->capture_default_str();
  app.add_option("--gpu", options.gpu_here, "of this end, with --memory vram")->capture_default_str();
  app.add_option("--gpu-there", options.gpu_there, "of the other")->capture_default_str();
  app.add_option("--plugins", options.plugins, "folder with tcpx's and cuda's libraries")
      ->check(CLI::ExistingDirectory);
  app.add_option("--here", options.here, "address of this end")->capture_default_str();
  app.add_option("--there", options.there, "address of the other")->capture_default_str();
  app.add_option("--network", options.network_there, "network namespace of the other");
  CLI11_PARSE(app, count, arguments);
  options.vram = memory == "vram";
  try {
    bench::Rows rows = {
        {"source", "blocks", "op", "GB/s", "GB/s over tcp's", "tcp's processor time over it"}};
    for (const uint64_t block : options.blocks) {
      if (kBytes % block != 0) throw std::runtime_error("--block: it must divide 64 MiB");
      Pair tcp("tcp", "", options, block);
      for (const std::string& source : options.sources) compare(rows, source, block, tcp, options);
    }
    std::printf("%s", bench::render(rows).c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "towline_bench_tcpx: %s\n", error.what());
    return 1;
  }
  return 0;
}
