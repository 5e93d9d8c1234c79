#include "servers.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
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
  if (fd < 0 || bind(fd, reinterpret_cast<sockaddr*>(&address), bytes) != 0 || listen(fd, 128) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes) != 0)
    throw std::runtime_error("no port to listen at");
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
bool send_all(int fd, const std::string& text) { return send_all(fd, text.data(), text.size()); }

std::string found_program(const char* name) {
  const char* home = getenv("HOME");
  const std::string kept = std::string(home == nullptr ? "" : home) + "/.cache/towline/bin/" + name;
  if (access(kept.c_str(), X_OK) == 0) return kept;
  return std::system((std::string("command -v ") + name + " >/dev/null 2>&1").c_str()) == 0 ? name : "";
}

// Reads until what `whole` wants is there; false: the connection ended, or `stop`.
template <class Whole>
bool read_until(int fd, std::string& text, const std::atomic<bool>& stop, Whole&& whole) {
  while (!whole()) {
    pollfd watched = {fd, POLLIN, 0};
    if (stop) return false;
    if (poll(&watched, 1, kLookMs) <= 0) continue;
    char piece[65536];
    const ssize_t got = recv(fd, piece, sizeof piece, 0);
    if (got <= 0) return false;
    text.append(piece, static_cast<size_t>(got));
  }
  return true;
}

std::map<std::string, std::string> parse_headers(const std::string& head) {
  std::map<std::string, std::string> headers;
  for (size_t at = head.find("\r\n"); at != std::string::npos && at + 2 < head.size();) {
    const size_t end = head.find("\r\n", at + 2);
    const std::string line = head.substr(at + 2, end - at - 2);
    if (const size_t colon = line.find(':'); colon != std::string::npos) {
      std::string name = line.substr(0, colon);
      std::transform(name.begin(), name.end(), name.begin(), ::tolower);
      const size_t value = line.find_first_not_of(' ', colon + 1);
      headers[name] = value == std::string::npos ? "" : line.substr(value);
    }
    at = end;
  }
  return headers;
}

}  // namespace

TemporaryFolder::TemporaryFolder() {
  std::string pattern = (std::filesystem::current_path() / "towline-s3-XXXXXX").string();
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

// ---- the server

std::string S3Server::program() {
  if (const char* minio = getenv("TOWLINE_TEST_MINIO"); minio != nullptr) return minio;
  return found_program("versitygw");
}

S3Server::S3Server(std::vector<std::string> buckets, std::string cert_file, std::string key_file)
    : cert_file_(std::move(cert_file)),
      key_file_(std::move(key_file)),
      minio_(getenv("TOWLINE_TEST_MINIO") != nullptr),
      port_(free_port()) {
  for (const std::string& bucket : buckets)
    std::filesystem::create_directories(folder_.path() + "/data/" + bucket);
  start();
}

S3Server::~S3Server() { stop(SIGKILL); }

std::string S3Server::url() const {
  return (cert_file_.empty() ? "http://127.0.0.1:" : "https://127.0.0.1:") + std::to_string(port_);
}

std::string S3Server::file(const std::string& bucket, const std::string& key) const {
  return folder_.path() + "/data/" + bucket + "/" + key;
}

void S3Server::start() {
  const std::string address = "127.0.0.1:" + std::to_string(port_);
  std::vector<std::string> words;
  if (minio_) {
    words = {program(), "server", "--quiet", "--anonymous", "--address", address, folder_.path() + "/data"};
  } else {
    words = {program(), "--port", address, "--region", "us-east-1", "-q", "--keep-alive"};
    if (!cert_file_.empty()) words.insert(words.end(), {"--cert", cert_file_, "--key", key_file_});
    words.insert(words.end(), {"posix", folder_.path() + "/data"});
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
    setenv("ROOT_ACCESS_KEY", kAccessKey, 1);
    setenv("ROOT_SECRET_KEY", kSecretKey, 1);
    setenv("MINIO_ROOT_USER", kAccessKey, 1);
    setenv("MINIO_ROOT_PASSWORD", kSecretKey, 1);
    setenv("MINIO_BROWSER", "off", 1);
    setenv("MINIO_UPDATE", "off", 1);
    setenv("MINIO_CI_CD", "1", 1);
    execvp(arguments[0], arguments.data());
    _exit(127);
  }
  const auto until = std::chrono::steady_clock::now() + kStartLimit;
  while (std::chrono::steady_clock::now() < until) {
    if (waitpid(pid_, nullptr, WNOHANG) == pid_) break;
    if (const int fd = connect_to(port_); fd >= 0) {
      close(fd);
      return;
    }
    (void)poll(nullptr, 0, kLookMs);
  }
  throw std::runtime_error("the S3 server does not start; see " + log);
}

void S3Server::stop(int signal) {
  if (pid_ <= 0) return;
  kill(pid_, SIGCONT);
  kill(pid_, signal);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

// ---- the proxy

Proxy::Proxy(uint16_t to, Judge judge)
    : to_(to), listener_(listen_anywhere(port_)), judge_(std::move(judge)), thread_([this] { run(); }) {}

Proxy::~Proxy() {
  stop_ = true;
  thread_.join();
  for (std::thread& connection : connections_) connection.join();
  close(listener_);
}

std::string Proxy::url() const { return "http://127.0.0.1:" + std::to_string(port_); }

void Proxy::judge(Judge judge) {
  const std::lock_guard lock(mutex_);
  judge_ = std::move(judge);
}

std::vector<Request> Proxy::seen() const {
  const std::lock_guard lock(mutex_);
  return seen_;
}

void Proxy::forget() {
  const std::lock_guard lock(mutex_);
  seen_.clear();
}

std::string Proxy::http(int status, const std::string& body, const std::string& headers) {
  return "HTTP/1.1 " + std::to_string(status) + " X\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n" + headers + "\r\n" + body;
}

std::string Proxy::s3_error(int status, const std::string& code, const std::string& headers) {
  return http(status,
              "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>" + code +
                  "</Code><Message>as the test wants" + "</Message></Error>",
              "Content-Type: application/xml\r\n" + headers);
}

void Proxy::run() {
  while (!stop_) {
    pollfd watched = {listener_, POLLIN, 0};
    if (poll(&watched, 1, kLookMs) <= 0) continue;
    const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd >= 0) connections_.emplace_back([this, fd] { serve(fd); });
  }
}

void Proxy::serve(int client) {
  int server = -1;
  std::string text;
  while (true) {
    size_t body = 0;
    if (!read_until(client, text, stop_, [&] { return (body = text.find("\r\n\r\n")) != std::string::npos; }))
      break;
    const std::string head = text.substr(0, body + 2);
    Request request;
    request.headers = parse_headers(head);
    const size_t space = head.find(' ');
    request.method = head.substr(0, space);
    request.target = head.substr(space + 1, head.find(' ', space + 1) - space - 1);
    const size_t length =
        request.headers.contains("content-length") ? std::stoul(request.headers["content-length"]) : 0;
    if (!read_until(client, text, stop_, [&] { return text.size() >= body + 4 + length; })) break;
    request.body = text.substr(body + 4, length);
    text.erase(0, body + 4 + length);
    request.number = ++count_;
    Judge judge;
    {
      const std::lock_guard lock(mutex_);
      judge = judge_;
      seen_.push_back({request.method, request.target, request.headers, "", request.number});
    }
    const Fault fault = judge ? judge(request) : Fault{};
    if (fault.drop) break;
    if (!fault.answer.empty()) {
      const bool head_only = request.method == "HEAD";
      if (!send_all(client,
                    head_only ? fault.answer.substr(0, fault.answer.find("\r\n\r\n") + 4) : fault.answer))
        break;
      continue;
    }
    if (fault.flip_request && !request.body.empty()) request.body[request.body.size() / 2] ^= 0x20;
    if (!forward(server, client, request, head, fault)) break;
  }
  if (server >= 0) close(server);
  close(client);
}

bool Proxy::forward(int& server, int client, const Request& request, const std::string& head,
                    const Fault& fault) {
  if (server < 0) server = connect_to(to_);
  if (server < 0 || !send_all(server, head + "\r\n" + request.body)) return false;
  std::string answer;
  size_t body = 0;
  if (!read_until(server, answer, stop_,
                  [&] { return (body = answer.find("\r\n\r\n")) != std::string::npos; }))
    return false;
  std::string answer_head = answer.substr(0, body + 2);
  auto headers = parse_headers(answer_head);
  const int status = std::stoi(answer_head.substr(9, 3));
  const bool no_body = request.method == "HEAD" || status == 204 || status == 304;
  const size_t length =
      no_body || !headers.contains("content-length") ? 0 : std::stoul(headers["content-length"]);
  if (!no_body && headers.contains("transfer-encoding")) {
    if (!read_until(server, answer, stop_,
                    [&] { return answer.ends_with("\r\n0\r\n\r\n") || answer.ends_with("\n0\r\n\r\n"); }))
      return false;
  } else if (!read_until(server, answer, stop_, [&] { return answer.size() >= body + 4 + length; })) {
    return false;
  }
  if (fault.drop_answer) return false;
  if (fault.hold) {
    std::string ignored;
    (void)read_until(client, ignored, stop_, [] { return false; });
    return false;
  }
  std::string bytes = answer.substr(body + 4);
  if (fault.flip_byte_at < bytes.size()) bytes[fault.flip_byte_at] ^= 0x40;
  if (fault.shorten_by != 0 && fault.shorten_by <= bytes.size()) {
    bytes.resize(bytes.size() - fault.shorten_by);
    headers["content-length"] = std::to_string(bytes.size());
  }
  for (const auto& [name, value] : fault.set_headers) headers[name] = value;
  if (fault.shorten_by != 0 || !fault.set_headers.empty()) {
    answer_head.resize(answer_head.find("\r\n") + 2);
    for (const auto& [name, value] : headers) answer_head += name + ": " + value + "\r\n";
  }
  const size_t sent = std::min(bytes.size(), fault.cut_answer_at);
  if (!send_all(client, answer_head + "\r\n" + bytes.substr(0, sent))) return false;
  return sent == bytes.size() || fault.cut_answer_at == SIZE_MAX;
}

}  // namespace towline::interop
