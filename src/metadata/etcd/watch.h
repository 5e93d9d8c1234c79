// Follows the keys of a span: tells what is there, then every change, over servers that come and go. By one
// thread.
//
//   listing --> streaming --+--> streaming   the stream broke: from the next revision on
//      ^                    +--> listing     the servers forgot that revision (compacted), or are others
//      +-- after a pause, when no server answers
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "metadata/etcd/caller.h"
#include "towline/plugin/v1.h"

namespace towline::etcd {

// Reads a span page by page, all of one revision. Stopped by its end.
class Lister {
 public:
  struct Page {
    std::vector<KeyValue> items;
    Header header;
    bool last = false;
  };
  struct Args {
    Span span;
    bool keys_only = false;
    uint64_t deadline_ns = 0;
    std::string what;
    uint64_t page_timeout_ns = kNoDeadline;
  };
  // Called for each page; and once, instead of a further page, when it fails. Either may end the lister.
  using Take = std::function<void(Page&& page)>;
  using Fail = std::function<void(RpcAnswer&& answer)>;

  Lister(Caller& caller, Args args, Take take, Fail fail);
  ~Lister() { caller_.stop(call_); }
  [[nodiscard]] bool under_way() const { return call_ != 0; }
  Lister(const Lister&) = delete;
  Lister& operator=(const Lister&) = delete;

 private:
  void ask();
  void answered(RpcAnswer&& answer);

  Caller& caller_;
  Args args_;
  Take take_;
  Fail fail_;
  Caller::Id call_ = 0;
  uint64_t limit_;
  uint64_t revision_ = 0;
};

class Watch {
 public:
  struct Event {
    uint32_t kind = 0;  // TOWLINE_DIRECTORY_PUT_SEEN and so on
    const KeyValue* item = nullptr;
    Status status = Status::kOk;
    std::string text;
  };
  // May end the watch: by stop(), not by destroying it.
  using Tell = std::function<void(const Event& event)>;

  Watch(const Options& options, Timers& timers, Posts& posts, Caller& caller, Span span, uint32_t flags,
        Tell tell);
  ~Watch() { stop(); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  void stop();  // tells nothing any more
  [[nodiscard]] bool streaming() const { return stream_ != 0; }
  [[nodiscard]] bool online() const { return online_; }
  [[nodiscard]] const std::string& trouble() const { return trouble_; }
  [[nodiscard]] const std::string& prefix() const { return span_.key; }
  [[nodiscard]] uint64_t next_revision() const { return next_revision_; }
  // A server is said not to answer: if the stream is with it, it goes elsewhere.
  void server_failed(std::size_t server, const std::string& why);
  // From time to time: begins anew if there was no memory to go on.
  void look();

 private:
  void list();
  void listed(Lister::Page&& page);
  void list_failed(RpcAnswer&& answer);
  void stream();
  void piece(std::string_view bytes);
  void line(std::string_view text);
  void told(const WatchAnswer& answer);
  void canceled(const WatchAnswer& answer);
  void stream_ended(PostAnswer&& answer);
  void refused(const Refusal& refusal);
  void close_stream();
  void broken(const std::string& why);
  void list_later(const std::string& why);
  void end(Status status, const std::string& text);
  void offline(const std::string& why);
  void tell(uint32_t kind, const KeyValue* item = nullptr, Status status = Status::kOk,
            std::string text = {});
  [[nodiscard]] std::string what() const;

  const Options& options_;
  Timers& timers_;
  Posts& posts_;
  Caller& caller_;
  const Span span_;
  const uint32_t flags_;
  const Tell tell_;

  bool stopped_ = false;
  bool ended_ = false;
  bool online_ = false;
  bool reset_told_ = false;
  std::string trouble_;
  unsigned failures_ = 0;  // since it was last online
  unsigned denials_ = 0;
  std::unique_ptr<Lister> lister_;
  Timers::Id later_ = 0;
  Timers::Id silence_ = 0;  // until the stream's first answer
  Posts::Id stream_ = 0;
  std::size_t server_ = 0;
  std::string unread_;
  uint64_t cluster_ = 0;
  uint64_t next_revision_ = 0;
};

}  // namespace towline::etcd
