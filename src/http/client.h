// HTTP requests, many at a time, through libcurl's multi interface; connections are kept. Used by one thread,
// but for wake(). libcurl is driven here and nowhere else.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/sync/timers.h"
#include "http/request.h"

namespace towline::http {

struct Options {
  uint64_t connect_timeout_ns = 0;
  uint64_t stall_timeout_ns = 0;  // a request that moves nothing for so long ends; 0: it goes on
  std::string proxy{};            // empty: none; the environment's is never used
  std::string ca_file{};          // empty: the system's authorities
  bool ca_file_alone = true;      // the system's are not trusted beside that file
  std::string cert_file{};        // empty: the client shows no certificate
  std::string key_file{};
  uint32_t idle_connections = 16;
  uint32_t buffer_bytes = 0;  // for receiving, and for sending; 0: libcurl's own choice
};

// One request in flight. Owned by its starter; it may be started again when it is over.
class Exchange {
 public:
  Exchange() = default;
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;
  ~Exchange();

  End end = End::kNotSent;
  long status = 0;  // 0: no answer
  Headers headers;
  std::string error;  // for people, where it did not answer
  [[nodiscard]] uint64_t sent_bytes() const noexcept { return std::max(sent_, sent_before_); }
  // The same before it was sent again: libcurl does so by itself, once a connection that had been idle turns
  // out to be gone without a word.
  [[nodiscard]] uint64_t sent_before() const noexcept { return sent_before_; }

  // From the receiver's on_bytes: its on_later() is called once libcurl is left.
  void call_later() noexcept;

 private:
  friend class Client;
  static size_t on_header(char* data, size_t one, size_t count, void* self);
  static size_t on_write(char* data, size_t one, size_t count, void* self);
  static size_t on_read(char* data, size_t one, size_t count, void* self);
  static int on_seek(void* self, int64_t offset, int origin);

  class Client* client_ = nullptr;
  void* handle_ = nullptr;  // CURL*
  void* list_ = nullptr;    // curl_slist*
  Request request_;
  Receiver* receiver_ = nullptr;
  bool head_told_ = false;
  bool refused_ = false;
  bool later_ = false;
  bool clean_ = false;  // its handle may be used again as it is
  uint64_t sent_ = 0;
  uint64_t sent_before_ = 0;
  std::array<char, 256> error_text_{};
};

class Client {
 public:
  // Throws Error.
  explicit Client(Options options);
  ~Client();  // after its exchanges are over or stopped
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Throws Error. Does all that can be done before there is a connection for it: start() then has little left. `exchange` and
  // `receiver` stay until the end, or stop().
  void prepare(Exchange& exchange, Request request, Receiver& receiver);
  // Throws Error. Of one that was prepared.
  void start(Exchange& exchange);
  void start(Exchange& exchange, Request request, Receiver& receiver) {
    prepare(exchange, std::move(request), receiver);
    start(exchange);
  }
  // Sends what was started, as far as that can be done without waiting. What ends meanwhile is told by the next poll().
  void send() noexcept { perform(); }
  // Nothing is called, read or written for it any more.
  void stop(Exchange& exchange) noexcept;

  // Waits for something to happen, up to `timeout_ns`, and serves it. An exception that a receiver throws from on_later or
  // on_end goes to `failed(const char* why)`.
  template <class Failed>
  void poll(uint64_t timeout_ns, const Failed& failed) noexcept {
    serve(timeout_ns);
    while (Receiver* receiver = next_later()) run_action([&] { receiver->on_later(); }, failed);
    while (Receiver* receiver = next_ended()) run_action([&] { receiver->on_end(); }, failed);
  }
  // Ends a poll() that waits, or the next. Any thread.
  void wake() noexcept;

 private:
  friend class Exchange;
  void make_room();
  void take_handle(Exchange& exchange);
  void set_lasting_options(void* handle);
  void set_options(Exchange& exchange);
  void perform() noexcept;
  void give_handle(Exchange& exchange) noexcept;
  void serve(uint64_t timeout_ns) noexcept;
  void finish(Exchange& exchange, int code) noexcept;
  static void explain(Exchange& exchange, int code);
  [[nodiscard]] Receiver* next_later() noexcept;
  [[nodiscard]] Receiver* next_ended() noexcept;

  const Options options_;
  void* multi_ = nullptr;            // CURLM*
  std::vector<void*> idle_handles_;  // CURL*
  std::size_t under_way_ = 0;
  std::vector<Exchange*> later_;  // both have room for all that are under way
  std::vector<Exchange*> ended_;
};

}  // namespace towline::http
