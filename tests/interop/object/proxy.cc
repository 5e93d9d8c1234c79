#include "proxy.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "support/failing_allocations.h"
#include "support/loopback.h"

namespace towline::interop {

using support::connect_to;
using support::kLookMs;
using support::listen_anywhere;
using support::send_all;

namespace {

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

Proxy::Proxy(uint16_t to, Judge judge)
    : to_(to), listener_(listen_anywhere(port_)), judge_(std::move(judge)), thread_([this] { run(); }) {}

Proxy::~Proxy() {
  stop_ = true;
  thread_.join();
  for (std::thread& connection : connections_) connection.join();
  close(listener_);
}

std::string Proxy::url() const { return "http://" + support::loopback_address(port_); }

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
  support::spare_this_thread();
  while (!stop_) {
    pollfd watched = {listener_, POLLIN, 0};
    if (poll(&watched, 1, kLookMs) <= 0) continue;
    const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd >= 0) connections_.emplace_back([this, fd] { serve(fd); });
  }
}

void Proxy::serve(int client) {
  support::spare_this_thread();
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
  if (fault.late_ms != 0) {  // unless the client says something or leaves first
    pollfd watched = {client, POLLIN, 0};
    (void)poll(&watched, 1, static_cast<int>(fault.late_ms));
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
