#include "meeting.h"

#include <fmt/format.h>
#include <unistd.h>

#include <iostream>
#include <stdexcept>

namespace nixlbench {

namespace {

using namespace std::chrono_literals;
using towline::Status;

constexpr auto kPatience = 120s;
constexpr auto kServerAnswersWithin = 10s;
constexpr const char* kHello = "hello";

std::unique_ptr<towline::Agent> make_agent(const std::string& listen) {
  towline::AgentOptions options;
  options.listen = listen;
  options.backends = "tcp";
  options.default_timeout = kPatience;
  return std::make_unique<towline::Agent>(fmt::format("nixlbench-{}", ::getpid()), options);
}

}  // namespace

Meeting::Meeting(const Flags& flags) {
  flags.runtime_type == "ETCD" ? meet_at_etcd(flags) : meet_at_address(flags);
  if (rank_ == 1) return;
  std::cout << "Waiting for the other process" << std::endl;
  towline::Notice notice;
  while (agent_->receive(notice) != Status::kOk) {
    if (agent_->wait(kPatience) == Status::kNotYet)
      throw std::runtime_error("the other process has not come");
  }
  other_ = agent_->find_peer(std::string{notice.peer_name()});
  if (!other_) throw std::runtime_error("the other process has gone");
}

void Meeting::meet_at_address(const Flags& flags) {
  const std::string address = fmt::format("{}:{}", flags.asio_address, flags.asio_port);
  try {
    agent_ = make_agent(address);
  } catch (const towline::Error&) {  // most likely the other process listens there
    rank_ = 1;
    greet(address);
  }
}

void Meeting::meet_at_etcd(const Flags& flags) {
  std::string servers = flags.etcd_endpoints;
  for (size_t at = 0; (at = servers.find("http://")) != std::string::npos;) servers.erase(at, 7);
  agent_ = make_agent("*:0");
  try {
    directory_ = std::make_unique<towline::Directory>(*agent_, "etcd://" + servers);
  } catch (const towline::Error&) {
    if (!servers.empty()) throw;
    throw std::runtime_error(fmt::format(
        "--backend {} joins two processes: give both --etcd_endpoints http://HOST:PORT, where they meet, or "
        "--runtime_type=ASIO with --asio_address and --asio_port",
        flags.backend));
  }
  const std::string key = fmt::format("nixlbench/{}/address", flags.benchmark_group);
  const auto put = directory_->put(key, agent_->address(),
                                   {.leased = true, .create = true, .timeout = kServerAnswersWithin});
  const Status status = put.wait();
  if (status == Status::kOk) return;
  if (status != Status::kAlreadyExists)
    throw std::runtime_error(fmt::format("--etcd_endpoints: {}", put.error()));
  rank_ = 1;
  greet(directory_->get(key).get_value());
}

void Meeting::greet(const std::string& address) {
  if (agent_ == nullptr) agent_ = make_agent("*:0");
  other_.emplace(agent_->connect(address, kPatience));
  send(kHello);
}

void Meeting::send(const std::string& text) const {
  for (;;) {
    const Status status = other_->send(text);
    if (status == Status::kOk) return;
    if (status != Status::kAgain) throw std::runtime_error("the other process has gone");
    (void)agent_->wait(1ms);
  }
}

std::string Meeting::receive() const {
  towline::Notice notice;
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (agent_->receive(notice) != Status::kOk) {
    if (std::chrono::steady_clock::now() > until) throw std::runtime_error("the other process says nothing");
    // A text that can't be sent says that it has gone.
    if (agent_->wait(1s) == Status::kNotYet) send("");
  }
  if (notice.text().empty()) return receive();
  return std::string{notice.text()};
}

}  // namespace nixlbench
