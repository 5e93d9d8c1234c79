#include "support/etcd_servers.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <stdexcept>
#include <utility>

namespace towline::support {

// ---- etcd

bool Etcd::installed() { return !found_program("etcd").empty(); }

// Somebody else may take a free port before it does.
Etcd::Etcd(const EtcdOptions& options) : options_(options) {
  constexpr int kAttempts = 3;
  for (int attempt = 1;; ++attempt) {
    port_ = free_port();
    peer_port_ = free_port();
    try {
      start();
      return;
    } catch (const std::runtime_error&) {
      if (attempt == kAttempts) throw;
      wipe();
    }
  }
}

std::string Etcd::address() const { return loopback_address(port_); }

void Etcd::start() {
  const std::string scheme = options_.cert_file.empty() ? "http://" : "https://";
  const std::string url = scheme + loopback_address(port_);
  const std::string peer_url = "http://" + loopback_address(peer_port_);
  std::vector<std::string> words = {"etcd",
                                    "--data-dir",
                                    folder_ / "data",
                                    "--listen-client-urls",
                                    url,
                                    "--advertise-client-urls",
                                    url,
                                    "--listen-peer-urls",
                                    peer_url,
                                    "--initial-advertise-peer-urls",
                                    peer_url,
                                    "--initial-cluster",
                                    "default=" + peer_url,
                                    "--log-level",
                                    "error"};
  if (!options_.cert_file.empty()) {
    words.insert(words.end(), {"--cert-file", options_.cert_file, "--key-file", options_.key_file});
  }
  if (!options_.client_ca_file.empty()) {
    words.insert(words.end(), {"--trusted-ca-file", options_.client_ca_file, "--client-cert-auth"});
  }
  process_.start(std::move(words), {}, folder_ / "log", port_);
}

void Etcd::wipe() const { std::filesystem::remove_all(folder_ / "data"); }

std::string Etcd::post(const std::string& path, const std::string& json) const {
  const int fd = connect_to(port_);
  if (fd < 0) throw std::runtime_error("etcd does not take connections");
  const std::string request = "POST " + path +
                              " HTTP/1.0\r\nHost: etcd\r\nContent-Length: " + std::to_string(json.size()) +
                              "\r\n\r\n" + json;
  std::string answer;
  if (send_all(fd, request.data(), request.size())) {
    char piece[4096];
    for (ssize_t got = 0; (got = recv(fd, piece, sizeof piece, 0)) > 0;)
      answer.append(piece, static_cast<size_t>(got));
  }
  close(fd);
  const size_t body = answer.find("\r\n\r\n");
  if (answer.find(" 200 ") == std::string::npos || body == std::string::npos) {
    throw std::runtime_error("etcd refuses " + path + ": " + answer);
  }
  return answer.substr(body + 4);
}

// ---- a line

Line::Line(uint16_t to) : to_(to), listener_(listen_anywhere(port_)), thread_([this] { run(); }) {}

Line::~Line() {
  stop_ = true;
  thread_.join();
  close(listener_);
}

std::string Line::address() const { return loopback_address(port_); }

void Line::become(State state) {
  state_ = state;
  while (seen_ != state) std::this_thread::yield();
}

void Line::run() {
  std::map<int, int> pairs;  // both ways
  const auto drop = [&](int fd) {
    const int other = pairs[fd];
    close(fd);
    close(other);
    pairs.erase(fd);
    pairs.erase(other);
  };
  while (!stop_) {
    std::vector<pollfd> watched = {{listener_, POLLIN, 0}};
    const State state = state_;
    if (state == State::kCut) {
      while (!pairs.empty()) drop(pairs.begin()->first);
    }
    seen_ = state;
    if (state == State::kOpen) {
      for (const auto& [fd, other] : pairs) watched.push_back({fd, POLLIN, 0});
    }
    if (poll(watched.data(), watched.size(), kLookMs) <= 0) continue;
    for (const pollfd& one : watched) {
      if ((one.revents & (POLLIN | POLLHUP | POLLERR)) == 0) continue;
      if (one.fd == listener_) {
        const int from = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
        const int to = state == State::kCut ? -1 : connect_to(to_);
        if (to < 0) {
          close(from);
          continue;
        }
        ++carried_;
        pairs[from] = to;
        pairs[to] = from;
      } else if (pairs.contains(one.fd)) {
        char piece[65536];
        const ssize_t got = recv(one.fd, piece, sizeof piece, 0);
        if (got <= 0 || !send_all(pairs[one.fd], piece, static_cast<size_t>(got))) drop(one.fd);
      }
    }
  }
  while (!pairs.empty()) drop(pairs.begin()->first);
}

// ---- a server that answers anything

FakeServer::FakeServer(Handler handler)
    : handler_(std::move(handler)), listener_(listen_anywhere(port_)), thread_([this] { run(); }) {}

FakeServer::~FakeServer() {
  stop_ = true;
  thread_.join();
  for (std::thread& client : clients_) client.join();
  close(listener_);
}

std::string FakeServer::address() const { return loopback_address(port_); }

FakeServer::Answer FakeServer::http(int status, const std::string& body) {
  return {"HTTP/1.1 " + std::to_string(status) + " X\r\nContent-Type: application/json\r\nContent-Length: " +
          std::to_string(body.size()) + "\r\n\r\n" + body};
}

void FakeServer::run() {
  while (!stop_) {
    pollfd watched = {listener_, POLLIN, 0};
    if (poll(&watched, 1, kLookMs) <= 0) continue;
    const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd >= 0) clients_.emplace_back([this, fd] { serve(fd); });
  }
}

void FakeServer::serve(int fd) {
  std::string request;
  const auto read_more = [&] {
    while (!stop_) {
      pollfd watched = {fd, POLLIN, 0};
      if (poll(&watched, 1, kLookMs) <= 0) continue;
      char piece[65536];
      const ssize_t got = recv(fd, piece, sizeof piece, 0);
      if (got <= 0) return false;
      request.append(piece, static_cast<size_t>(got));
      return true;
    }
    return false;
  };
  while (true) {
    size_t body = 0;
    size_t whole = 0;
    do {
      body = request.find("\r\n\r\n");
      if (body == std::string::npos) continue;
      const size_t length = request.find("Content-Length: ");
      whole = body + 4 + (length < body ? std::stoul(request.substr(length + 16)) : 0);
      if (request.size() >= whole) break;
    } while (read_more());
    if (body == std::string::npos || request.size() < whole) break;
    ++requests_;
    const size_t path = request.find(' ') + 1;
    const Answer answer = handler_(request.substr(path, request.find(' ', path) - path),
                                   request.substr(body + 4, whole - body - 4));
    request.erase(0, whole);
    if (!send_all(fd, answer.bytes.data(), answer.bytes.size())) break;
    const std::string more(16384, answer.bytes.empty() ? 'x' : answer.bytes.back());
    while (answer.endless && !stop_ && send_all(fd, more.data(), more.size())) {
    }
    while (answer.hold && !stop_ && read_more()) {
    }
    if (answer.endless || answer.hold || answer.bytes.empty()) break;
  }
  close(fd);
}

}  // namespace towline::support
