// Telemetry as NIXL's users see it: its buffer of events, its page for Prometheus, one page for several processes.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <stdexcept>

#include <common/cyclic_buffer.h>
#include <telemetry_event.h>
#include "support.h"
#include "variables.h"

namespace compat {
namespace {

using Event = nixl_telemetry_event_type_t;

class Telemetry : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  const std::filesystem::path folder_ =
      std::filesystem::path(testing::TempDir()) / ("nixl_telemetry_" + std::to_string(::getpid()));
};

// A port that nothing uses.
int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof address;
  EXPECT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), bytes), 0);
  EXPECT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes), 0);
  ::close(fd);
  return ntohs(address.sin_port);
}

// The page, or "" if nothing answers.
std::string scrape(int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string page;
  const std::string request = "GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n";
  if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
      ::send(fd, request.data(), request.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(request.size())) {
    char buffer[4096];
    for (ssize_t got = 0; (got = ::read(fd, buffer, sizeof buffer)) > 0;)
      page.append(buffer, static_cast<size_t>(got));
  }
  ::close(fd);
  return page;
}

// The sample of this name whose labels contain all of `labels`; nothing if not found.
std::optional<double> sample(const std::string& page, const std::string& name,
                             const std::vector<std::string>& labels) {
  for (size_t at = 0; at < page.size();) {
    const size_t end = std::min(page.find('\n', at), page.size());
    const std::string line = page.substr(at, end - at);
    at = end + 1;
    if (!line.starts_with(name + "{")) continue;
    if (!std::ranges::all_of(labels,
                             [&](const std::string& label) { return line.find(label) != std::string::npos; }))
      continue;
    return std::stod(line.substr(line.rfind(' ')));
  }
  return std::nullopt;
}

// A WRITE of 64 blocks of 4 KiB to another agent.
void write_blocks(Side& from, Side& to) {
  nixlXferReqH* moved = request(from, NIXL_WRITE, from.blocks(64, 4096), to.blocks(64, 4096), to.name);
  ASSERT_EQ(run(*from.agent, moved), NIXL_SUCCESS);
  ASSERT_EQ(from.agent->releaseXferReq(moved), NIXL_SUCCESS);
}
constexpr uint64_t kMoved = 64 * 4096;

struct RingHeader {  // as NIXL's readers declare it
  uint64_t write_position, read_position;
  uint32_t version, expected_version;
  uint64_t capacity, mask;
};

TEST_F(Telemetry, EventsLieInTheBufferThatNixlsReadersMap) {
  const Variables variables{{{"NIXL_TELEMETRY_ENABLE", "y"},
                             {"NIXL_TELEMETRY_DIR", folder_.string()},
                             {"NIXL_TELEMETRY_BUFFER_SIZE", "8"}}};
  Side to("buffered_to");
  Side from("buffered_from");
  from.load(to);
  write_blocks(from, to);
  std::ifstream file(folder_ / "buffered_from", std::ios::binary);
  RingHeader header{};
  std::vector<nixlTelemetryEvent> events(8);
  file.read(reinterpret_cast<char*>(&header), sizeof header);
  file.read(reinterpret_cast<char*>(events.data()),
            static_cast<std::streamsize>(events.size() * sizeof events[0]));
  ASSERT_TRUE(file.good());
  EXPECT_EQ(header.version, static_cast<uint32_t>(TELEMETRY_VERSION));
  EXPECT_EQ(header.capacity, 8u);
  EXPECT_EQ(header.mask, 7u);
  ASSERT_EQ(header.write_position, 5u);
  EXPECT_EQ(header.read_position, 0u);
  const Event expected[] = {Event::AGENT_MEMORY_REGISTERED, Event::AGENT_XFER_POST_TIME,
                            Event::AGENT_XFER_TIME, Event::AGENT_TX_BYTES, Event::AGENT_TX_REQUESTS_NUM};
  for (size_t i = 0; i < std::size(expected); ++i) EXPECT_EQ(events[i].eventType_, expected[i]) << i;
  EXPECT_EQ(events[0].value_, from.memory.size());
  EXPECT_EQ(events[3].value_, kMoved);
  EXPECT_EQ(events[4].value_, 1u);
  // Nobody reads: what does not fit is lost, and nothing else happens.
  for (int i = 0; i < 5; ++i) write_blocks(from, to);
  std::ifstream again(folder_ / "buffered_from", std::ios::binary);
  again.read(reinterpret_cast<char*>(&header), sizeof header);
  EXPECT_EQ(header.write_position, 7u);
}

// What NIXL's readers do: they map the file and take events out of it, in a process of their own.
class Reader {
 public:
  explicit Reader(const std::filesystem::path& file) : buffer_(file.string(), false, TELEMETRY_VERSION) {}

  // How often each event came, and the sum of its values.
  struct Sum {
    int events = 0;
    uint64_t values = 0;
  };
  std::map<Event, Sum> take() {
    std::map<Event, Sum> sums;
    for (nixlTelemetryEvent event{}; buffer_.pop(event);) {
      Sum& sum = sums[event.eventType_];
      ++sum.events;
      sum.values += event.value_;
    }
    EXPECT_TRUE(buffer_.empty());
    return sums;
  }

 private:
  sharedRingBuffer<nixlTelemetryEvent> buffer_;
};

TEST_F(Telemetry, AReaderRefusesWhatIsNoBuffer) {
  const std::filesystem::path file = folder_ / "none";
  EXPECT_THROW(Reader{file}, std::runtime_error);
  const auto refused = [&](const RingHeader& header, size_t bytes) {
    std::vector<char> content(bytes);
    std::memcpy(content.data(), &header, std::min(bytes, sizeof header));
    std::ofstream(file, std::ios::binary).write(content.data(), static_cast<std::streamsize>(bytes));
    EXPECT_THROW(Reader{file}, std::runtime_error) << bytes;
  };
  constexpr uint32_t kVersion = TELEMETRY_VERSION;
  refused({}, 10);
  refused({0, 0, 3, 3, 8, 7}, 168);
  refused({0, 0, kVersion, kVersion, 8, 7}, 167);
  refused({0, 0, kVersion, kVersion, 6, 5}, 168);
}

TEST_F(Telemetry, AReaderInAnotherProcessOutlivesAgents) {
  const auto environment = [&](const std::string& events) {
    return std::vector<std::string>{"NIXL_TELEMETRY_ENABLE=y", "NIXL_TELEMETRY_DIR=" + folder_.string(),
                                    "NIXL_TELEMETRY_BUFFER_SIZE=" + events};
  };
  Side peer("read_peer");
  const auto write = [&](Child& child) {
    EXPECT_EQ(child.ask("write read_peer " + std::to_string(peer.address()) + " 4096 done"), "NIXL_SUCCESS");
  };
  const std::filesystem::path file = folder_ / "read_agent";
  Child first("read_agent", environment("1024"));
  ASSERT_EQ(first.ask("load " + to_hex(peer.metadata())), "NIXL_SUCCESS");
  Reader reader(file);
  EXPECT_EQ(reader.take()[Event::AGENT_MEMORY_REGISTERED].events, 1);
  uint64_t moved = 0;
  for (int i = 0; i < 300; ++i) {  // more events than the ring holds
    write(first);
    moved += reader.take()[Event::AGENT_TX_BYTES].values;
  }
  EXPECT_EQ(moved, 300u * 4096);
  write(first);
  first.signal(SIGKILL);
  EXPECT_EQ(first.wait(), -1);

  // The next agent of that name goes on in the ring: nothing that was not read is lost.
  Child second("read_agent", environment("1024"));
  ASSERT_EQ(second.ask("load " + to_hex(peer.metadata())), "NIXL_SUCCESS");
  write(second);
  const auto both = reader.take();
  EXPECT_EQ(both.at(Event::AGENT_MEMORY_REGISTERED).events, 1);
  EXPECT_EQ(both.at(Event::AGENT_TX_BYTES).values, 2u * 4096);

  // A third one of that name, while the second lives, or with another size, gets a file of its own.
  Child third("read_agent", environment("8"));
  EXPECT_NE(third.ask("address"), "");
  EXPECT_EQ(std::filesystem::file_size(file), sizeof(RingHeader) + 8 * sizeof(nixlTelemetryEvent));
  EXPECT_EQ(Reader(file).take()[Event::AGENT_MEMORY_REGISTERED].events, 1);
  write(second);
  EXPECT_EQ(reader.take()[Event::AGENT_TX_BYTES].values, 4096u);  // SIGBUS if the file was cut short
  Child fourth("read_agent", environment("8"));
  EXPECT_NE(fourth.ask("address"), "");
  EXPECT_EQ(Reader(file).take()[Event::AGENT_MEMORY_REGISTERED].events, 1);
}

TEST_F(Telemetry, ARingThatMakesNoSenseIsReplaced) {
  const Variables variables{{{"NIXL_TELEMETRY_ENABLE", "y"},
                             {"NIXL_TELEMETRY_DIR", folder_.string()},
                             {"NIXL_TELEMETRY_BUFFER_SIZE", "8"}}};
  const std::filesystem::path file = folder_ / "spoilt";
  constexpr uint32_t kVersion = TELEMETRY_VERSION;
  const RingHeader spoilt[] = {{8, 0, kVersion, kVersion, 8, 7},
                               {0, 9, kVersion, kVersion, 8, 7},
                               {0, 0, kVersion, kVersion, 16, 15},
                               {0, 0, 3, 3, 8, 7}};
  for (const RingHeader& header : spoilt) {
    std::vector<char> bytes(sizeof header + 8 * sizeof(nixlTelemetryEvent));
    std::memcpy(bytes.data(), &header, sizeof header);
    std::filesystem::remove(file);
    std::ofstream(file, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    const Side side("spoilt");
    EXPECT_EQ(Reader(file).take()[Event::AGENT_MEMORY_REGISTERED].events, 1) << &header - spoilt;
  }
}

TEST_F(Telemetry, ABufferThatCannotBeMadeIsRefused) {
  const std::map<std::string, std::string> good = {{"NIXL_TELEMETRY_ENABLE", "y"},
                                                   {"NIXL_TELEMETRY_EXPORTER", "BUFFER"},
                                                   {"NIXL_TELEMETRY_DIR", folder_.string()}};
  const auto refused = [&](const std::string& name, const std::string& value, const std::string& agent) {
    auto values = good;
    if (!name.empty()) values[name] = value;
    const Variables variables{values};
    try {
      const nixlAgent made(agent, nixlAgentConfig{});
      return std::string{};
    } catch (const std::runtime_error& error) {
      return std::string{error.what()};
    }
  };
  EXPECT_NE(refused("NIXL_TELEMETRY_BUFFER_SIZE", "12", "a").find("power of two"), std::string::npos);
  EXPECT_NE(refused("NIXL_TELEMETRY_DIR", "/nowhere/at/all", "a").find("/nowhere/at/all/a"),
            std::string::npos);
  EXPECT_NE(refused("NIXL_TELEMETRY_DIR", "", "a").find("NIXL_TELEMETRY_DIR"), std::string::npos);
  EXPECT_NE(refused("", "", "../a").find("'/'"), std::string::npos);
  EXPECT_EQ(refused("", "", "a"), "");
}

TEST_F(Telemetry, PrometheusServesNixlsNames) {
  const int port = free_port();
  const Variables variables{{{"NIXL_TELEMETRY_ENABLE", "y"},
                             {"NIXL_TELEMETRY_EXPORTER", "prometheus"},
                             {"NIXL_TELEMETRY_PROMETHEUS_LOCAL", "y"},
                             {"NIXL_TELEMETRY_PROMETHEUS_PORT", std::to_string(port)},
                             {"NIXL_TELEMETRY_HISTOGRAM_BUCKETS_US", "1000000,30000000"}}};
  Side to("served_to");
  Side from("served_from");
  from.load(to);
  for (int i = 0; i < 3; ++i) write_blocks(from, to);
  nixlXferReqH* back = request(from, NIXL_READ, from.blocks(1, 4096), to.blocks(1, 4096), to.name);
  ASSERT_EQ(run(*from.agent, back), NIXL_SUCCESS);
  const std::string page = scrape(port);
  if (page.empty()) GTEST_SKIP() << "the plugin for Prometheus is not here";
  const std::vector<std::string> labels = {"agent_name=\"served_from\"", "hostname="};
  EXPECT_EQ(sample(page, "agent_tx_bytes_total", labels), 3.0 * kMoved);
  EXPECT_EQ(sample(page, "agent_tx_last_bytes", labels), 1.0 * kMoved);
  EXPECT_EQ(sample(page, "agent_rx_bytes_total", labels), 4096.0);
  EXPECT_EQ(sample(page, "agent_tx_requests_num_total", labels), 3.0);
  EXPECT_EQ(sample(page, "agent_rx_requests_num_total", labels), 1.0);
  EXPECT_EQ(sample(page, "agent_memory_registered_total", labels), static_cast<double>(from.memory.size()));
  EXPECT_EQ(sample(page, "agent_xfer_time_us_count", labels), 4.0);
  EXPECT_EQ(sample(page, "agent_xfer_post_time_us_count", labels), 4.0);
  EXPECT_EQ(sample(page, "agent_xfer_time_us_bucket", {labels[0], "le=\"30000000\""}), 4.0);
  EXPECT_EQ(sample(page, "agent_xfer_time_us_bucket", {labels[0], "le=\"+Inf\""}), 4.0);
  EXPECT_GT(sample(page, "agent_xfer_time_total", labels).value_or(0), 0.0);
  EXPECT_EQ(sample(page, "agent_errors_total", {labels[0], "status=\"remote_disconnect\""}), 0.0);
  EXPECT_EQ(sample(page, "agent_tx_bytes_total", {"agent_name=\"served_to\""}), 0.0);
  EXPECT_TRUE(
      sample(page, "towline_bytes_total", {"agent=\"served_from\""}).has_value());  // and Towline's own
  // Failures count once each, by status.
  to.agent.reset();
  ASSERT_TRUE(eventually([&] { return run(*from.agent, back) < 0; }));
  const double lost =
      sample(scrape(port), "agent_errors_total", {labels[0], "status=\"remote_disconnect\""}).value_or(0);
  EXPECT_GE(lost, 1.0);
  for (int i = 0; i < 3; ++i) EXPECT_LT(from.agent->getXferStatus(back), 0);
  EXPECT_EQ(sample(scrape(port), "agent_errors_total", {labels[0], "status=\"remote_disconnect\""}), lost);
  EXPECT_EQ(from.agent->releaseXferReq(back), NIXL_SUCCESS);
}

TEST_F(Telemetry, OnlyTheMetricsThatAreNamedAreServed) {
  const int port = free_port();
  const Variables variables{{{"NIXL_TELEMETRY_ENABLE", "y"},
                             {"NIXL_TELEMETRY_EXPORTER", "prometheus"},
                             {"NIXL_TELEMETRY_PROMETHEUS_LOCAL", "y"},
                             {"NIXL_TELEMETRY_PROMETHEUS_PORT", std::to_string(port)},
                             {"NIXL_TELEMETRY_ENABLED_METRICS", "agent_tx_*, agent_no_such"}}};
  const Side side("few_metrics");
  const std::string page = scrape(port);
  if (page.empty()) GTEST_SKIP() << "the plugin for Prometheus is not here";
  EXPECT_EQ(sample(page, "agent_tx_bytes_total", {"few_metrics"}), 0.0);
  EXPECT_FALSE(sample(page, "agent_rx_bytes_total", {"few_metrics"}).has_value());
  EXPECT_FALSE(sample(page, "agent_memory_registered_total", {"few_metrics"}).has_value());
}

TEST_F(Telemetry, OneOfSeveralProcessesServesThemAll) {
  const int port = free_port();
  const std::vector<std::string> environment = {"NIXL_TELEMETRY_ENABLE=y",
                                                "NIXL_TELEMETRY_EXPORTER=prometheus_mp",
                                                "NIXL_TELEMETRY_MULTIPROC_DIR=" + folder_.string(),
                                                "NIXL_TELEMETRY_PROMETHEUS_LOCAL=y",
                                                "NIXL_TELEMETRY_MP_STALE_TTL=3600",
                                                "LOCAL_RANK=5",
                                                "NIXL_TELEMETRY_PROMETHEUS_PORT=" + std::to_string(port)};
  Child first("many_first", environment);
  (void)first.ask("address");  // it has its agent
  Child second("many_second", environment);
  const std::string where = second.ask("address");
  std::string page = scrape(port);
  if (page.empty()) GTEST_SKIP() << "the plugin for Prometheus is not here";
  first.ask("load " + second.ask("metadata"));
  ASSERT_EQ(first.ask("write many_second " + where + " 4096 hello"), "NIXL_SUCCESS");
  page = scrape(port);
  EXPECT_EQ(sample(page, "agent_tx_bytes_total",
                   {"many_first", "pid=", "local_rank=\"5\"", "agent_instance=\"0\""}),
            4096.0);
  EXPECT_EQ(sample(page, "agent_tx_bytes_total", {"many_second"}), 0.0);
  // Files that are none of ours, or cut short, change nothing.
  std::ofstream(folder_ / "towline-nixl-counts.short") << "short";
  std::filesystem::create_directory(folder_ / "towline-nixl-counts.folder");
  EXPECT_TRUE(sample(scrape(port), "agent_tx_bytes_total", {"many_second"}).has_value());
  // The process that serves is killed. The other one takes over as it counts, and serves what the first had counted.
  first.signal(SIGKILL);
  EXPECT_EQ(first.wait(), -1);
  Side peer("many_peer");
  second.ask("load " + to_hex(peer.metadata()));
  ASSERT_TRUE(eventually([&] {
    EXPECT_EQ(second.ask("write many_peer " + std::to_string(peer.address()) + " 4096 again"),
              "NIXL_SUCCESS");
    page = scrape(port);
    return !page.empty();
  }));
  EXPECT_EQ(sample(page, "agent_tx_bytes_total", {"many_first"}), 4096.0);
  EXPECT_GE(sample(page, "agent_tx_bytes_total", {"many_second"}).value_or(0), 4096.0);
}

}  // namespace
}  // namespace compat
