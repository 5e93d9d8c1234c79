// HTTP requests, many at a time, through libcurl's multi interface; connections are kept. By one thread, but
// for wake().
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "storage/object/answers.h"
#include "storage/object/settings.h"

namespace towline::object {

// Starts libcurl once in this process. Throws plugin::Failure.
void init_curl();

// The contents of a request.
class Body {
 public:
  virtual ~Body() = default;
  [[nodiscard]] virtual uint64_t bytes() const noexcept = 0;
  // Up to `room` of the next bytes; fewer only at the end.
  virtual size_t read(std::byte* into, size_t room) noexcept = 0;
  virtual void rewind() noexcept = 0;
};

// Receives the answer. Called within poll().
class Receiver {
 public:
  virtual ~Receiver() = default;
  // The head of an answer is there. False: its body is not wanted.
  virtual bool on_head(long status, const Headers& headers) noexcept = 0;
  virtual bool on_bytes(std::span<const std::byte> bytes) noexcept = 0;
};

struct HttpRequest {
  std::string method;
  std::string url;
  std::vector<std::string> headers;  // "name: value"
  Body* body = nullptr;              // null: none
};

enum class HttpEnd {
  kAnswered,   // whole
  kNotSent,    // it did not reach the server
  kBroken,     // it may have
  kStalled,    // the same
  kUntrusted,  // TLS: one does not trust the other
  kRefused,    // the receiver did not want it
};

// One request in flight. Owned by its starter.
class Exchange {
 public:
  Exchange() = default;
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;
  ~Exchange();

  HttpEnd end = HttpEnd::kNotSent;
  long status = 0;
  Headers headers;
  std::string error;
  [[nodiscard]] uint64_t sent_bytes() const noexcept { return std::max(sent_, sent_before_); }
  // The same before it was sent again: libcurl does so by itself, once a connection that had been idle turns
  // out to be gone without a word.
  [[nodiscard]] uint64_t sent_before() const noexcept { return sent_before_; }

 private:
  friend class Http;
  static size_t on_header(char* data, size_t one, size_t count, void* self);
  static size_t on_write(char* data, size_t one, size_t count, void* self);
  static size_t on_read(char* data, size_t one, size_t count, void* self);
  static int on_seek(void* self, int64_t offset, int origin);

  void* handle_ = nullptr;  // CURL*
  void* list_ = nullptr;    // curl_slist*
  HttpRequest request_;
  Receiver* receiver_ = nullptr;
  void* owner_ = nullptr;
  bool head_told_ = false;
  bool refused_ = false;
  uint64_t sent_ = 0;
  uint64_t sent_before_ = 0;
  std::array<char, 256> error_text_{};
};

class Http {
 public:
  explicit Http(const Settings& settings);
  ~Http();
  Http(const Http&) = delete;
  Http& operator=(const Http&) = delete;

  // `owner` comes back from poll(). Throws plugin::Failure.
  void start(Exchange& exchange, HttpRequest request, Receiver& receiver, void* owner);
  // Nothing is called, read or written for it any more.
  void stop(Exchange& exchange) noexcept;
  // Waits for something to happen, up to `timeout_ns`, and serves it.
  void poll(uint64_t timeout_ns);
  // The owner of an exchange that ended in poll(), one after the other; null: that was all.
  [[nodiscard]] void* next_ended() noexcept;
  // Ends a poll() that waits, or the next. Any thread.
  void wake() noexcept;

 private:
  void prepare(Exchange& exchange);
  void finish(Exchange& exchange, int code);

  const Settings& settings_;
  void* multi_ = nullptr;            // CURLM*
  std::vector<void*> idle_handles_;  // CURL*
  std::vector<void*> ended_;
};

}  // namespace towline::object
