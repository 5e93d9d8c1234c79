// libtcpx_p2p for C++: objects that end with their scope, failures as exceptions. tcpx_p2p.h has the contracts.
#pragma once

#include <tcpx_p2p.h>

#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>

namespace tcpx {

class Error : public std::runtime_error {
 public:
  Error(int32_t status, const std::string& text) : std::runtime_error(text), status_(status) {}
  [[nodiscard]] int32_t status() const noexcept { return status_; }

 private:
  int32_t status_;
};

inline int32_t check(int32_t status) {
  if (status < 0) throw Error(status, tcpx_last_error());
  return status;
}

using Timeout = std::chrono::nanoseconds;

class Transfer {
 public:
  explicit Transfer(tcpx_transfer_t* transfer) : handle_(transfer) {}
  [[nodiscard]] bool is_complete() const noexcept {
    return tcpx_is_complete(handle_.get()) != TOWLINE_IN_PROGRESS;
  }
  // The outcome; TOWLINE_IN_PROGRESS if the time is over first.
  [[nodiscard]] int32_t wait(Timeout timeout) const noexcept {
    return tcpx_wait(handle_.get(), static_cast<uint64_t>(timeout.count()));
  }
  [[nodiscard]] int32_t outcome() const noexcept { return tcpx_is_complete(handle_.get()); }
  [[nodiscard]] uint64_t bytes() const noexcept { return tcpx_transfer_bytes(handle_.get()); }
  int32_t release(Timeout timeout) noexcept {
    const int32_t status = tcpx_release(handle_.get(), static_cast<uint64_t>(timeout.count()));
    if (status == TOWLINE_OK) (void)handle_.release();
    return status;
  }

 private:
  struct Release {
    void operator()(tcpx_transfer_t* transfer) const noexcept { (void)tcpx_release(transfer, TCPX_FOREVER); }
  };
  std::unique_ptr<tcpx_transfer_t, Release> handle_;
};

class Connection {
 public:
  explicit Connection(tcpx_connection_t* connection) : handle_(connection) {}
  [[nodiscard]] Transfer send(uint64_t memory, uint64_t offset, uint64_t bytes, uint64_t tag) const {
    tcpx_transfer_t* transfer = nullptr;
    check(tcpx_post_send(handle_.get(), memory, offset, bytes, tag, &transfer));
    return Transfer(transfer);
  }
  [[nodiscard]] Transfer receive(uint64_t memory, uint64_t offset, uint64_t bytes, uint64_t tag) const {
    tcpx_transfer_t* transfer = nullptr;
    check(tcpx_post_receive(handle_.get(), memory, offset, bytes, tag, &transfer));
    return Transfer(transfer);
  }

 private:
  struct Close {
    void operator()(tcpx_connection_t* connection) const noexcept { (void)tcpx_connection_close(connection); }
  };
  std::unique_ptr<tcpx_connection_t, Close> handle_;
};

class Session {
 public:
  explicit Session(tcpx_session_options_t options) {
    options.struct_size = sizeof options;
    tcpx_session_t* session = nullptr;
    check(tcpx_session_create(&options, &session));
    handle_.reset(session);
  }
  [[nodiscard]] std::string address() const {
    char text[256] = "";
    check(tcpx_session_address(handle_.get(), text, sizeof text));
    return text;
  }
  [[nodiscard]] std::string describe() const {
    size_t needed = 0;
    check(tcpx_session_describe(handle_.get(), nullptr, 0, &needed));
    std::string json(needed, '\0');
    check(tcpx_session_describe(handle_.get(), json.data(), json.size(), &needed));
    json.resize(json.find('\0'));
    return json;
  }
  [[nodiscard]] Connection accept(Timeout timeout) const {
    tcpx_connection_t* connection = nullptr;
    check(tcpx_session_accept(handle_.get(), static_cast<uint64_t>(timeout.count()), &connection));
    return Connection(connection);
  }
  [[nodiscard]] Connection connect(const std::string& address, Timeout timeout) const {
    tcpx_connection_t* connection = nullptr;
    check(tcpx_session_connect(handle_.get(), address.c_str(), static_cast<uint64_t>(timeout.count()),
                               &connection));
    return Connection(connection);
  }
  [[nodiscard]] uint64_t register_memory(void* address, uint64_t bytes,
                                         int32_t gpu = TCPX_HOST_MEMORY) const {
    uint64_t memory = 0;
    check(tcpx_memory_register(handle_.get(), address, bytes, gpu, &memory));
    return memory;
  }
  void deregister_memory(uint64_t memory) const { check(tcpx_memory_deregister(handle_.get(), memory)); }

 private:
  struct Destroy {
    void operator()(tcpx_session_t* session) const noexcept { (void)tcpx_session_destroy(session); }
  };
  std::unique_ptr<tcpx_session_t, Destroy> handle_;
};

}  // namespace tcpx
