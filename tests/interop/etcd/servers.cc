#include "servers.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <stdexcept>

namespace towline::interop {
namespace {

constexpr int kLookMs = 20;
constexpr auto kStartLimit = std::chrono::seconds(60);

sockaddr_in loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

int listen_anywhere(uint16_t& port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = loopback(0);
  socklen_t bytes = sizeof address;
  if (fd < 0 || bind(fd, reinterpret_cast<sockaddr*>(&address), bytes) != 0 || listen(fd, 64) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) {
    throw std::runtime_error("no port to listen at");
  }
  port = ntohs(address.sin_port);
  return fd;
}

int connect_to(uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = loopback(port);
  if (fd >= 0 && connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    close(fd);
    return -1;
  }
  return fd;
}

bool send_all(int fd, const char* data, size_t bytes) {
  while (bytes != 0) {
    const ssize_t sent = ::send(fd, data, bytes, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    data += sent;
    bytes -= static_cast<size_t>(sent);
  }
  return true;
}

std::string local(uint16_t port) { return "127.0.0.1:" + std::to_string(port); }

}  // namespace

TemporaryFolder::TemporaryFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "towline-etcd-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

uint16_t free_port() {
  uint16_t port = 0;
  close(listen_anywhere(port));
  return port;
}

// ---- etcd

bool Etcd::installed() { return std::system("command -v etcd >/dev/null 2>&1") == 0; }

Etcd::Etcd(const EtcdOptions& options) : options_(options), port_(free_port()), peer_port_(free_port()) {
  start();
}

Etcd::~Etcd() { stop(SIGKILL); }

std::string Etcd::address() const { return local(port_); }

void Etcd::start() {
  const std::string scheme = options_.cert_file.empty() ? "http://" : "https://";
  const std::string url = scheme + local(port_);
  const std::string peer_url = "http://" + local(peer_port_);
  std::vector<std::string> words = {"etcd",
                                    "--data-dir",
                                    folder_.path() + "/data",
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
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const std::string log = folder_.path() + "/log";
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int fd = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    dup2(fd, 1);
    dup2(fd, 2);
    execvp("etcd", arguments.data());
    _exit(127);
  }
  const auto until = std::chrono::steady_clock::now() + kStartLimit;
  while (std::chrono::steady_clock::now() < until) {
    if (waitpid(pid_, nullptr, WNOHANG) == pid_) break;
    const int fd = connect_to(port_);
    if (fd >= 0) {
      close(fd);
      return;
    }
    (void)poll(nullptr, 0, kLookMs);
  }
  throw std::runtime_error("etcd does not start; see " + log);
}

void Etcd::stop(int signal) {
  if (pid_ <= 0) return;
  kill(pid_, SIGCONT);
  kill(pid_, signal);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

void Etcd::wipe() const { std::filesystem::remove_all(folder_.path() + "/data"); }

void Etcd::send(int signal) const {
  kill(pid_, signal);
  int status = 0;
  if (signal == SIGSTOP) waitpid(pid_, &status, WUNTRACED);  // until every thread stands still
}

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

std::string Line::address() const { return local(port_); }

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

std::string FakeServer::address() const { return local(port_); }

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

}  // namespace towline::interop
