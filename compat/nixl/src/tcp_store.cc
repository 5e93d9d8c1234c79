#include "tcp_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <towline/towline.hpp>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

namespace towline::nixl {

namespace {

// The store's protocol: numbers are the machine's, texts have their length before them, keys begin with a slash.
constexpr uint32_t kMagic = 0x3C85F7CE;
constexpr uint64_t kMostBytes = uint64_t{1} << 30;
enum Query : uint8_t { kValidate = 0, kSet = 1, kGet = 3, kCheck = 5, kDelete = 8, kPing = 13 };
constexpr uint8_t kReady = 0;

template <class Number>
void put(std::string& bytes, Number number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
}
void put_text(std::string& bytes, const std::string& text) {
  put(bytes, uint64_t{text.size()});
  bytes += text;
}
std::string query(Query kind) { return std::string(1, static_cast<char>(kind)); }
// The store echoes its number.
constexpr uint32_t kEchoed = 0x54574e58;
std::string ping() {
  std::string bytes = query(kPing);
  put(bytes, kEchoed);
  return bytes;
}

struct FreeAddresses {
  void operator()(addrinfo* addresses) const noexcept { ::freeaddrinfo(addresses); }
};

}  // namespace

TcpStore::TcpStore(std::string endpoint, std::chrono::nanoseconds connect_timeout,
                   std::chrono::nanoseconds timeout)
    : endpoint_(std::move(endpoint)), connect_timeout_(connect_timeout), timeout_(timeout) {
  const size_t colon = endpoint_.rfind(':');
  const bool split = colon != std::string::npos && colon != 0 && colon + 1 != endpoint_.size();
  host_ = endpoint_.substr(0, colon);
  port_ = split ? endpoint_.substr(colon + 1) : "";
  if (host_.starts_with('[') && host_.ends_with(']')) host_ = host_.substr(1, host_.size() - 2);
  const bool number = std::ranges::all_of(port_, [](char c) { return c >= '0' && c <= '9'; });
  if (!split || !number || port_.size() > 5 || std::stoul(port_) > 65535)
    throw Error{Status::kInvalidArgument,
                fmt::format("NIXL_TCPSTORE_ENDPOINT is '{}', and should be host:port", endpoint_)};
}

void TcpStore::fail_with(const std::string& what) const {
  throw Error{Status::kUnreachable, fmt::format("the TCPStore at {}: {}", endpoint_, what)};
}

// After a failure the connection may hold half a request or answer: it is not used again. One of an earlier call may have been
// dead for long, where the store was started again: then the call is made once more.
template <class Work>
auto TcpStore::call(Work work) {
  const std::lock_guard lock(mutex_);
  for (;;) {
    const bool of_earlier_call = fd_.valid();
    try {
      if (!fd_.valid()) {
        until_ = Clock::now() + connect_timeout_;
        connect();
      }
      until_ = Clock::now() + timeout_;
      return work();
    } catch (...) {
      fd_.reset();
      if (!of_earlier_call || Clock::now() >= until_) throw;
    }
  }
}

void TcpStore::set(const std::string& key, const std::string& value) {
  std::string bytes = query(kSet);
  put_text(bytes, "/" + key);
  put_text(bytes, value);
  // The store does not answer this, but what follows it.
  bytes += ping();
  call([&] {
    send(bytes);
    receive_echo();
  });
}

std::optional<std::string> TcpStore::get(const std::string& key) {
  return call([&]() -> std::optional<std::string> {
    std::string bytes = query(kCheck);
    put(bytes, uint64_t{1});
    put_text(bytes, "/" + key);
    send(bytes);
    uint8_t ready = 1;
    receive(&ready, sizeof ready);
    if (ready != kReady) return std::nullopt;
    bytes = query(kGet);
    put_text(bytes, "/" + key);
    send(bytes);
    uint64_t length = 0;
    receive(&length, sizeof length);
    if (length > kMostBytes) fail_with(fmt::format("an answer of {} bytes", length));
    std::string value(length, '\0');
    receive(value.data(), length);
    // It was removed between the two questions.
    if (value.empty()) return std::nullopt;
    return value;
  });
}

void TcpStore::remove(const std::string& key) {
  std::string bytes = query(kDelete);
  put_text(bytes, "/" + key);
  call([&] {
    send(bytes);
    int64_t removed = 0;
    receive(&removed, sizeof removed);
  });
}

// ---- the connection

void TcpStore::connect() {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(host_.c_str(), port_.c_str(), &hints, &found); error != 0)
    fail_with(::gai_strerror(error));
  const std::unique_ptr<addrinfo, FreeAddresses> addresses(found);
  std::string last;
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    try {
      fd_ = ::nixl::scopedFd{::socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
      if (!fd_.valid()) fail_with(std::strerror(errno));
      const int one = 1;
      (void)::setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
      if (::connect(fd_.get(), address->ai_addr, address->ai_addrlen) != 0) {
        if (errno != EINPROGRESS) fail_with(std::strerror(errno));
        wait_for(POLLOUT);
        int error = 0;
        socklen_t bytes = sizeof error;
        (void)::getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &bytes);
        if (error != 0) fail_with(std::strerror(error));
      }
      // The store drops those that do not begin so. Its echo shows that it is one.
      std::string hello = query(kValidate);
      put(hello, kMagic);
      hello += ping();
      send(hello);
      receive_echo();
      return;
    } catch (const Error& error) {
      last = error.what();
    }
  }
  fd_.reset();
  throw Error{Status::kUnreachable, last};
}

void TcpStore::receive_echo() {
  uint32_t echo = 0;
  receive(&echo, sizeof echo);
  if (echo != kEchoed) fail_with("it is no TCPStore");
}

void TcpStore::wait_for(short events) {
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until_ - Clock::now()).count();
    if (left <= 0) fail_with("no answer in time");
    pollfd polled{fd_.get(), events, 0};
    const int ready = ::poll(&polled, 1, static_cast<int>(std::min<int64_t>(left, 60'000)));
    if (ready > 0) return;
    if (ready < 0 && errno != EINTR) fail_with(std::strerror(errno));
  }
}

void TcpStore::send(const std::string& bytes) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t put = ::send(fd_.get(), bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
    if (put > 0) {
      done += static_cast<size_t>(put);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      wait_for(POLLOUT);
    } else if (errno != EINTR) {
      fail_with(std::strerror(errno));
    }
  }
}

void TcpStore::receive(void* into, size_t bytes) {
  auto* at = static_cast<char*>(into);
  while (bytes != 0) {
    const ssize_t got = ::recv(fd_.get(), at, bytes, 0);
    if (got > 0) {
      at += got;
      bytes -= static_cast<size_t>(got);
    } else if (got == 0) {
      fail_with("it closed the connection");
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      wait_for(POLLIN);
    } else if (errno != EINTR) {
      fail_with(std::strerror(errno));
    }
  }
}

}  // namespace towline::nixl
