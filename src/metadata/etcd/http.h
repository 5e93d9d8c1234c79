// POSTs to servers, many at a time, through libcurl's multi interface. By one thread, but for wake().
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "metadata/etcd/options.h"

namespace towline::etcd {

struct HttpRequest {
  std::string url;
  std::string body;
  std::string token;        // empty: none
  uint64_t timeout_ns = 0;  // for the whole answer; 0: it may go on for ever
  std::size_t max_answer_bytes = 0;
};

struct HttpAnswer {
  enum class End {
    kAnswered,   // `status` and `body` are the server's
    kNotSent,    // it did not reach the server
    kBroken,     // it may have
    kTimedOut,   // the same
    kTooLarge,   // the answer is
    kUntrusted,  // TLS: one does not trust the other
  };
  End end = End::kNotSent;
  long status = 0;
  std::string body;
  std::string error;  // where it did not answer
};

class Http {
 public:
  using Id = uint64_t;  // 0: none
  using Done = std::function<void(HttpAnswer&& answer)>;
  // Takes pieces of a good (2xx) answer's body as they come.
  using Piece = std::function<void(std::string_view piece)>;

  // Throws Error. `options` outlives it.
  explicit Http(const Options& options);
  ~Http();
  Http(const Http&) = delete;
  Http& operator=(const Http&) = delete;

  // done is called once, from poll(), unless stop() comes first. With `piece`, the answer's body goes there.
  // Both may start and stop requests, this one too.
  Id start(HttpRequest request, Done done, Piece piece = nullptr);
  void stop(Id& id);
  // Waits for something to happen, up to `timeout_ns`, and serves it.
  void poll(uint64_t timeout_ns);
  // Ends a poll() that waits, or the next. Any thread.
  void wake() noexcept;

 private:
  struct Transfer;
  struct Multi;
  static std::size_t write(char* data, std::size_t one, std::size_t bytes, void* transfer);
  void prepare(Transfer& transfer);
  void finish(Transfer& transfer, int curl_code);
  void deliver();
  void reap();

  const Options& options_;
  std::unique_ptr<Multi> multi_;
  std::map<Id, std::unique_ptr<Transfer>> transfers_;
  std::vector<Id> fresh_;  // streams with bytes that are not delivered yet
  Id last_ = 0;
};

}  // namespace towline::etcd
