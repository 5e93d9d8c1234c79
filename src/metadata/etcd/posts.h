// POSTs to servers, many at a time, each with the function that gets its answer. By the thread of the client.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "http/client.h"
#include "metadata/etcd/options.h"

namespace towline::etcd {

struct Post {
  std::string url;
  std::string body;
  std::string token;        // empty: none
  uint64_t timeout_ns = 0;  // for the whole answer; 0: it may go on for ever
  std::size_t max_answer_bytes = 0;
};

struct PostAnswer {
  http::End end = http::End::kNotSent;  // kRefused: it is too large
  long status = 0;
  std::string body;
  std::string error;  // where it did not answer
};

// HTTP options for reaching the servers.
[[nodiscard]] http::Options http_options(const Options& options);

class Posts {
 public:
  using Id = uint64_t;  // 0: none
  using Done = std::function<void(PostAnswer&& answer)>;
  // Takes pieces of a good (2xx) answer's body as they come.
  using Piece = std::function<void(std::string_view piece)>;

  explicit Posts(http::Client& client);
  ~Posts();
  Posts(const Posts&) = delete;
  Posts& operator=(const Posts&) = delete;

  // done is called once, from Client::poll(), unless stop() comes first. With `piece`, the answer's body goes
  // there. Both may start and stop requests, this one too. Throws Error.
  Id start(Post post, Done done, Piece piece = nullptr);
  void stop(Id& id);

 private:
  class Flight;

  http::Client& client_;
  std::map<Id, std::unique_ptr<Flight>> flights_;
  Id last_ = 0;
};

}  // namespace towline::etcd
