// Measures how long many engines in several processes take to connect to each other: over real libraries, whose endpoints
// cost more than the engine's own part, which towline_bench_fabric_startup measures over loopback.
//
//   towline_bench_fabric_mesh [RAIL] [ENGINES] [PROCESSES]      "ofi:tcp;ofi_rxm", 16, 4 unless given
//
// Every engine knows the addresses of all others, connects to them and signals each once; the time is from when all have
// the addresses until each has counted all others. Engines of one process share its thread. Also printed: the processors'
// time of all processes, and the descriptors and the memory of the process that has most.
#include <sys/resource.h>

#include <dirent.h>
#include <time.h>

#include <optional>

#include "bare.h"

namespace {

using namespace towline;
using namespace towline::bench;

struct Member final : EngineHost {
  Member(const std::string& rail, uint32_t engines) {
    std::vector<std::unique_ptr<Domain>> domains;
    domains.push_back(make_rail(rail));
    EngineOptions options;
    options.max_connections = engines;
    options.credits = 4;
    options.lost_ns = options.give_up_ns =
        120 * kSecondNs;  // one thread has many engines: each waits long for its turn
    engine = std::make_unique<Engine>(options, std::move(domains), *this);
    CarrierOptions control;
    control.hello_ns = 120 * kSecondNs;
    carrier = std::make_unique<Carrier>(*engine, control);
  }
  void complete(uint64_t, const TransferResult& result) noexcept override {
    must(result.status == Status::kOk, "a signal");
  }
  void fenced(uint64_t, uint32_t) noexcept override {}
  void counted(Handle, uint32_t, uint32_t count) noexcept override { counts += count; }
  void received(Handle, std::span<const uint8_t>) noexcept override {}
  void lost(Handle, Status, std::string_view why) noexcept override {
    fmt::print(stderr, "a peer is lost: {}\n", why);
    std::exit(1);
  }
  void send_control(Handle peer, std::span<const uint8_t> message) noexcept override {
    if (carrier != nullptr) carrier->send(peer, message);
  }
  void turn() {
    const uint64_t now_ns = monotonic_now_ns();
    carrier->progress(now_ns);
    engine->progress(now_ns);
  }

  std::unique_ptr<Engine> engine;
  std::unique_ptr<Carrier> carrier;
  uint64_t counts = 0;
};

struct Figures {
  double processor_s = 0;
  uint64_t connections = 0;  // open at the end, as initiator and as responder
  uint64_t evictions = 0;
  uint64_t descriptors = 0;
  uint64_t resident_kib = 0;
};

uint64_t descriptors() {
  uint64_t count = 0;
  DIR* const folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

double processor_s() {
  timespec used{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) / 1e9;
}

// Process `index` of so many. It has the engines whose number leaves that rest.
[[noreturn]] void one_process(int socket, const std::string& rail, uint32_t engines, uint32_t index,
                              uint32_t processes) {
  std::vector<std::unique_ptr<Member>> members;
  for (uint32_t i = index; i < engines; i += processes) {
    members.push_back(std::make_unique<Member>(rail, engines));
    const auto address = encode(members.back()->carrier->address());
    say(socket, address.data(), address.size());
  }
  std::vector<CarrierAddress> addresses;
  for (uint32_t i = 0; i < engines; ++i) addresses.push_back(*decode_carrier_address(hear(socket)));
  say(socket, "r", 1);
  (void)hear(socket);
  const double used_s = processor_s();
  for (uint32_t to = 0; to < engines; ++to) {  // a little at a time: others want answers meanwhile
    for (const auto& member : members) {
      if (addresses[to].engine.engine == member->engine->id()) continue;
      TransferRequest request;
      request.peer = member->carrier->connect(addresses[to]);
      request.immediate = request.count = 1;
      must(member->engine->submit(request) == Status::kInProgress, "submit");
    }
    for (const auto& member : members) member->turn();
  }
  const auto complete = [&] {
    return std::all_of(members.begin(), members.end(),
                       [&](const auto& member) { return member->counts == engines - 1; });
  };
  while (!complete())
    for (const auto& member : members) member->turn();
  Figures figures;
  say(socket, "d", 1);
  for (char next = 0; recv(socket, &next, 1, MSG_DONTWAIT) != 1;)  // the others still need answers
    for (const auto& member : members) member->turn();
  figures.processor_s = processor_s() - used_s;
  for (const auto& member : members) {
    const RailCounters counters = member->engine->counters(0);
    figures.connections += counters.connections;
    figures.evictions += counters.evictions;
  }
  figures.descriptors = descriptors();
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  figures.resident_kib = static_cast<uint64_t>(used.ru_maxrss);
  say(socket, &figures, sizeof figures);
  (void)hear(socket);
  _exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string rail = argc > 1 ? argv[1] : "ofi:tcp;ofi_rxm";
  const auto engines = argc > 2 ? static_cast<uint32_t>(std::strtoul(argv[2], nullptr, 10)) : 16;
  const auto processes = argc > 3 ? static_cast<uint32_t>(std::strtoul(argv[3], nullptr, 10)) : 4;
  must(engines > 1 && processes > 0 && processes <= engines, "engines and processes");
  rlimit most{};
  getrlimit(RLIMIT_NOFILE, &most);
  most.rlim_cur = most.rlim_max;
  setrlimit(RLIMIT_NOFILE, &most);
  std::vector<int> sockets;
  for (uint32_t i = 0; i < processes; ++i) {
    int pair[2];
    must(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0, "socketpair");
    if (fork() == 0) {
      close(pair[0]);
      for (const int other : sockets) close(other);
      one_process(pair[1], rail, engines, i, processes);
    }
    close(pair[1]);
    sockets.push_back(pair[0]);
  }
  std::vector<std::vector<uint8_t>> addresses(engines);
  for (uint32_t i = 0; i < engines; ++i) addresses[i] = hear(sockets[i % processes]);
  for (const int socket : sockets)
    for (const auto& address : addresses) say(socket, address.data(), address.size());
  const auto of_all = [&](const char* letter) {
    if (letter != nullptr)
      for (const int socket : sockets) say(socket, letter, 1);
    else
      for (const int socket : sockets) (void)hear(socket);
  };
  of_all(nullptr);
  const uint64_t begin_ns = monotonic_now_ns();
  of_all("g");
  of_all(nullptr);
  const double took_s = static_cast<double>(monotonic_now_ns() - begin_ns) / 1e9;
  of_all("e");
  Figures all;
  for (const int socket : sockets) {
    Figures one;
    unpack_plain(hear(socket), one);
    all.processor_s += one.processor_s;
    all.connections += one.connections;
    all.evictions += one.evictions;
    all.descriptors = std::max(all.descriptors, one.descriptors);
    all.resident_kib = std::max(all.resident_kib, one.resident_kib);
  }
  fmt::print(
      "{}: {} engines of {} processes connected to each other in {:.2f} s ({:.2f} s of processors): {} ends "
      "of "
      "connections open, {} closed for others; at most {} descriptors and {} MiB a process\n",
      rail, engines, processes, took_s, all.processor_s, all.connections, all.evictions, all.descriptors,
      all.resident_kib >> 10);
  of_all("q");
  std::fflush(nullptr);
  while (wait(nullptr) > 0) {
  }
  _exit(0);
}
