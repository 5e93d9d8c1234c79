// tcpx beside tcp: GB/s and processor time a byte of WRITEs and READs between two agents of one process, in turns, by each
// source that is named. Ratios are of neighbouring runs: tcpx's throughput over tcp's, and tcp's processor time over tcpx's,
// so above 1 tcpx is ahead.
//
//   towline_bench_tcpx [sources [rounds [block bytes [address [address there, network there]]]]]
//
// Over a veth pair: ip netns add there; ip link add v1 type veth peer name v2 netns there; addresses, MTU, up; then
//   towline_bench_tcpx mapped,copy 7 65536 10.80.0.1 10.80.0.2 there
#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

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
  uint64_t block = 64u << 10;
  std::string here = "127.0.0.1";
  std::string there = "127.0.0.1";
  std::string network_there;
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
  Pair(const std::string& backend, const std::string& config, const Options& options)
      : here_(kBytes), there_(kBytes) {
    left_ = make_agent("here", {.listen = options.here + ":0", .backends = backend, .config = config}, "");
    right_ = make_agent("there", {.listen = options.there + ":0", .backends = backend, .config = config},
                        options.network_there);
    mine_.emplace(left_->register_memory(towline::dram(here_), {.access = towline::Access::kAll}));
    theirs_.emplace(right_->register_memory(towline::dram(there_), {.access = towline::Access::kAll}));
    peer_.emplace(left_->add_peer(right_->metadata()));
    const auto blocks = [&](const towline::Memory& memory) {
      return towline::Blocks::at(memory.data(), options.block).repeat(kBytes / options.block, options.block);
    };
    for (const towline::Op op : {towline::Op::write, towline::Op::read})
      transfers_.push_back(
          left_->transfer(op, left_->block_list(blocks(here_)), peer_->block_list(blocks(there_))));
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
  towline::Memory here_;
  towline::Memory there_;
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

void compare(bench::Rows& rows, const std::string& source, Pair& tcp, const Options& options) {
  Pair tcpx("tcpx", "plugins = [\"tcpx\"]\n[tuning.tcpx]\nsource = \"" + source + "\"\n", options);
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
    rows.push_back({tcpx.source(), read ? "READ" : "WRITE", show(gbps), show(faster), show(cheaper)});
  }
}

Options read_options(int count, char** arguments) {
  Options options;
  if (count > 1) {
    options.sources.clear();
    std::string text = arguments[1];
    for (std::size_t at = 0; at <= text.size();) {
      const std::size_t comma = std::min(text.find(',', at), text.size());
      options.sources.push_back(text.substr(at, comma - at));
      at = comma + 1;
    }
  }
  if (count > 2) options.rounds = std::atoi(arguments[2]);
  if (count > 3) options.block = std::strtoull(arguments[3], nullptr, 10);
  if (count > 4) options.here = options.there = arguments[4];
  if (count > 6) {
    options.there = arguments[5];
    options.network_there = arguments[6];
  }
  if (options.rounds < 1 || options.block == 0 || kBytes % options.block != 0)
    throw std::runtime_error("rounds must be above 0, and a block must divide 64 MiB");
  return options;
}

}  // namespace

int main(int count, char** arguments) {
  try {
    const Options options = read_options(count, arguments);
    Pair tcp("tcp", "", options);
    bench::Rows rows = {{"source", "op", "GB/s", "GB/s over tcp's", "tcp's processor time over it"}};
    for (const std::string& source : options.sources) compare(rows, source, tcp, options);
    std::printf("%s", bench::render(rows).c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
