// A request, and the receiver of its answer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace towline::http {

using Headers = std::map<std::string, std::string, std::less<>>;  // by lower-case name

// The contents of a request.
class Body {
 public:
  virtual ~Body() = default;
  [[nodiscard]] virtual uint64_t bytes() const noexcept = 0;
  // Up to `room` of the next bytes; fewer only at the end.
  virtual size_t read(std::byte* into, size_t room) noexcept = 0;
  virtual void rewind() noexcept = 0;
};

class TextBody final : public Body {
 public:
  explicit TextBody(std::string text) : text_(std::move(text)) {}
  [[nodiscard]] uint64_t bytes() const noexcept override { return text_.size(); }
  size_t read(std::byte* into, size_t room) noexcept override {
    const size_t bytes = std::min(room, text_.size() - at_);
    std::memcpy(into, text_.data() + at_, bytes);
    at_ += bytes;
    return bytes;
  }
  void rewind() noexcept override { at_ = 0; }

 private:
  const std::string text_;
  size_t at_ = 0;
};

struct Request {
  std::string method;
  std::string url;
  std::vector<std::string> headers;  // "name: value"
  Body* body = nullptr;              // null: none. Outlives the exchange
  uint64_t timeout_ns = 0;           // until the whole answer is there; 0: no limit
};

// Takes an answer. The first two are called while libcurl is at work: they start and stop nothing.
class Receiver {
 public:
  virtual ~Receiver() = default;
  // The head of an answer is there. False: its body is not wanted.
  virtual bool on_head(long status, const Headers& headers) noexcept = 0;
  virtual bool on_bytes(std::span<const std::byte> bytes) noexcept = 0;
  // Once after Exchange::call_later(), when libcurl is left. May start and stop requests, this one too.
  virtual void on_later() {}
  // The exchange is over, as its `end` says. May do the same, and destroy both.
  virtual void on_end() = 0;
};

enum class End {
  kAnswered,   // the whole answer is there
  kNotSent,    // it did not reach the server
  kBroken,     // it may have
  kTimedOut,   // the same
  kUntrusted,  // TLS: one side does not trust the other
  kRefused,    // the receiver did not want it
};

}  // namespace towline::http
