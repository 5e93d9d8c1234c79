#include "metadata/etcd/posts.h"

#include <fmt/format.h>

#include <new>
#include <utility>

namespace towline::etcd {

http::Options http_options(const Options& options) {
  http::Options http;  // without a proxy: directories are near, and one of the environment is for elsewhere
  http.connect_timeout_ns = options.connect_timeout_ns;
  http.ca_file = options.ca_file;
  http.cert_file = options.cert_file;
  http.key_file = options.key_file;
  return http;
}

class Posts::Flight final : public http::Receiver {
 public:
  Flight(Posts& posts, Id id, Post post, Done done, Piece piece)
      : posts_(posts),
        id_(id),
        body_(std::move(post.body)),
        most_bytes_(post.max_answer_bytes),
        done_(std::move(done)),
        piece_(std::move(piece)) {
    http::Request request{.method = "POST", .url = std::move(post.url), .headers = {}};
    request.headers.emplace_back("Content-Type: application/json");
    if (!post.token.empty()) request.headers.push_back("Authorization: " + post.token);
    request.body = &body_;
    request.timeout_ns = post.timeout_ns;
    posts.client_.start(exchange_, std::move(request), *this);
  }
  ~Flight() override { posts_.client_.stop(exchange_); }

  bool on_head(long status, const http::Headers&) noexcept override {
    streams_ = piece_ && status / 100 == 2;
    return true;
  }
  bool on_bytes(std::span<const std::byte> bytes) noexcept override try {
    too_large_ = received_.size() + bytes.size() > most_bytes_;
    if (too_large_) return false;
    received_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (streams_) exchange_.call_later();
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
  void on_later() override {
    const std::string bytes = std::exchange(received_, {});
    const Piece piece = piece_;  // outlives the request, should it be stopped
    piece(bytes);
  }
  void on_end() override {
    PostAnswer answer{exchange_.end, exchange_.status, std::move(received_), std::move(exchange_.error)};
    try {
      if (answer.end == http::End::kRefused) {
        answer.error = too_large_ ? fmt::format("its answer is longer than {} bytes (tuning.etcd.max_answer)",
                                                most_bytes_)
                                  : "there is no memory for its answer";
      }
    } catch (const std::bad_alloc&) {
      answer.error = "out of memory";  // needs none
    }
    const Done done = std::move(done_);
    Id id = id_;
    posts_.stop(id);  // deletes this
    done(std::move(answer));
  }

 private:
  Posts& posts_;
  const Id id_;
  http::TextBody body_;
  http::Exchange exchange_;
  const std::size_t most_bytes_;
  Done done_;
  const Piece piece_;
  std::string received_;  // of a stream: what is not passed on yet
  bool streams_ = false;
  bool too_large_ = false;
};

Posts::Posts(http::Client& client) : client_(client) {}
Posts::~Posts() = default;

Posts::Id Posts::start(Post post, Done done, Piece piece) {
  const Id id = ++last_;
  flights_.emplace(id,
                   std::make_unique<Flight>(*this, id, std::move(post), std::move(done), std::move(piece)));
  return id;
}

void Posts::stop(Id& id) {
  flights_.erase(id);
  id = 0;
}

}  // namespace towline::etcd
