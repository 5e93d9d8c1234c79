// Measures how long many engines in several processes take to connect to each other: over real libraries, whose endpoints
// cost more than the engine's own part, which towline_bench_fabric_startup measures over loopback.
//
//   towline_bench_fabric_mesh [RAIL] [ENGINES] [PROCESSES]      "ofi:tcp;ofi_rxm", 16, 4 unless given
//
// Every engine knows the addresses of all others, connects to them and signals each once; the time is from when all have
// the addresses until each has counted all others. Also printed: the processors' time of all processes, and the descriptors
// and the memory of the process that has most. towline_bench_fabric_bare_mesh does the same with libfabric alone.
#include "mesh.h"

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
    options.control_kept = true;
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

  [[nodiscard]] std::vector<uint8_t> address() const { return encode(carrier->address()); }
  void meet(const std::vector<uint8_t>& address) {
    TransferRequest request;
    request.peer = carrier->connect(*decode_carrier_address(address));
    request.immediate = request.count = 1;
    must(engine->submit(request) == Status::kInProgress, "submit");
  }
  std::size_t turn() {
    const uint64_t now_ns = monotonic_now_ns();
    const std::size_t events = carrier->progress(now_ns);
    return events + engine->progress(now_ns);
  }
  bool arm() { return engine->arm(); }
  [[nodiscard]] std::vector<int> descriptors() const {
    std::vector<int> all{carrier->event_fd()};
    engine->event_fds(all);
    return all;
  }
  [[nodiscard]] uint64_t signals() const { return counts; }
  void count(MeshFigures& figures) const {
    const RailCounters counters = engine->counters(0);
    figures.connections += counters.connections;
    figures.evictions += counters.evictions;
    figures.breaks += counters.breaks;
  }

  std::unique_ptr<Engine> engine;
  std::unique_ptr<Carrier> carrier;
  uint64_t counts = 0;
};

}  // namespace

int main(int argc, char** argv) { return run_mesh<Member>(argc, argv, "ofi:tcp;ofi_rxm", "engines"); }
