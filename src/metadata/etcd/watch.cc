#include "metadata/etcd/watch.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace towline::etcd {
namespace {

constexpr uint64_t kKeysPerPage = 256;
constexpr unsigned kMostDenials = 3;

}  // namespace

// ---- Lister

Lister::Lister(Caller& caller, Args args, Take take, Fail fail)
    : caller_(caller),
      args_(std::move(args)),
      take_(std::move(take)),
      fail_(std::move(fail)),
      limit_(kKeysPerPage) {
  ask();
}

void Lister::ask() {
  Rpc rpc;
  rpc.path = "/v3/kv/range";
  rpc.body = range_request({args_.span, limit_, revision_, args_.keys_only});
  rpc.what = args_.what;
  rpc.deadline_ns =
      std::min(args_.deadline_ns, Deadline::after(monotonic_now_ns(), args_.page_timeout_ns).ns());
  rpc.done = [this](RpcAnswer&& answer) { answered(std::move(answer)); };
  call_ = caller_.start(std::move(rpc));
}

void Lister::answered(RpcAnswer&& answer) {
  call_ = 0;
  if (answer.status == Status::kLimitExceeded && limit_ > 1) {
    limit_ = std::max<uint64_t>(limit_ / 8, 1);
    return ask();
  }
  // Either may end this lister.
  const Take take = take_;
  const Fail give_up = fail_;
  if (answer.status != Status::kOk) return give_up(std::move(answer));
  Page page;
  try {
    RangeAnswer decoded = decode_range(answer.body);
    page = {std::move(decoded.items), decoded.header, !decoded.more || args_.span.end.empty()};
    if (!page.last && (page.items.empty() || page.items.back().key < args_.span.key)) {
      fail(Status::kProtocol, "there is said to be more after an empty page");
    }
  } catch (const Error& error) {
    answer.status = Status::kProtocol;
    answer.refusal = Refusal::Kind::kAgain;
    answer.text = fmt::format("{} at {}: {}", args_.what, answer.server, error.message());
    return give_up(std::move(answer));
  }
  if (!page.last) {
    if (revision_ == 0) revision_ = page.header.revision;
    args_.span.key = page.items.back().key + '\0';
    ask();
  }
  take(std::move(page));
}

// ---- Watch

Watch::Watch(const Options& options, Timers& timers, Posts& posts, Caller& caller, Span span, uint32_t flags,
             Tell tell)
    : options_(options),
      timers_(timers),
      posts_(posts),
      caller_(caller),
      span_(std::move(span)),
      flags_(flags),
      tell_(std::move(tell)) {
  later_ = timers_.after(0, [this] { list(); });
}

void Watch::stop() {
  stopped_ = true;
  lister_.reset();
  timers_.cancel(later_);
  close_stream();
}

std::string Watch::what() const { return fmt::format("watching '{}'", shown(span_.key)); }

void Watch::tell(uint32_t kind, const KeyValue* item, Status status, std::string text) {
  if (!stopped_) tell_({kind, item, status, std::move(text)});
}

void Watch::offline(const std::string& why) {
  trouble_ = why;
  const bool news = online_ || failures_ == 0;
  online_ = false;
  ++failures_;
  if (news) tell(TOWLINE_DIRECTORY_OFFLINE, nullptr, Status::kUnreachable, why);
}

void Watch::end(Status status, const std::string& text) {
  if (stopped_) return;
  ended_ = true;
  online_ = false;
  trouble_ = text;
  close_stream();
  timers_.cancel(later_);
  tell(TOWLINE_DIRECTORY_ENDED, nullptr, status, text);
}

void Watch::look() {
  if (stopped_ || ended_ || stream_ != 0 || later_ != 0) return;
  if (lister_ == nullptr || !lister_->under_way()) list();
}

// ---- listing

void Watch::list() {
  if (stopped_) return;
  timers_.cancel(later_);
  close_stream();
  reset_told_ = false;
  const bool keys_only = (flags_ & (TOWLINE_DIRECTORY_NO_VALUES | TOWLINE_DIRECTORY_NO_CHANGES)) != 0;
  // Every server is asked before it is said that none answers.
  const uint64_t page_timeout_ns = options_.attempt_timeout_ns * (options_.endpoints.size() + 1);
  lister_ = std::make_unique<Lister>(
      caller_, Lister::Args{span_, keys_only, kNoDeadline, what(), page_timeout_ns},
      [this](Lister::Page&& page) { listed(std::move(page)); },
      [this](RpcAnswer&& answer) { list_failed(std::move(answer)); });
}

void Watch::listed(Lister::Page&& page) try {
  if (stopped_) return;
  if (!std::exchange(reset_told_, true)) {
    tell(TOWLINE_DIRECTORY_RESET);
    cluster_ = page.header.cluster_id;
    next_revision_ = page.header.revision + 1;
  }
  for (const KeyValue& item : page.items) {
    if (stopped_) return;
    tell(TOWLINE_DIRECTORY_PUT_SEEN, &item);
  }
  if (stopped_ || !page.last) return;
  tell(TOWLINE_DIRECTORY_SYNCED);
  if (!stopped_) later_ = timers_.after(0, [this] { stream(); });
} catch (...) {  // the next page would go on as if all of this one had been told: look() begins anew
  lister_.reset();
  throw;
}

void Watch::list_failed(RpcAnswer&& answer) {
  if (stopped_) return;
  if (answer.refusal == Refusal::Kind::kCompacted) return list_later("");  // while it was read
  if (answer.refusal == Refusal::Kind::kFinal) return end(answer.status, answer.text);
  list_later(answer.text);
}

void Watch::list_later(const std::string& why) {
  close_stream();
  if (!why.empty()) offline(why);
  if (stopped_) return;
  timers_.cancel(later_);
  later_ = timers_.after(why.empty() ? 0 : pause_ns(failures_), [this] { list(); });
}

// ---- streaming

void Watch::stream() {
  if (stopped_) return;
  timers_.cancel(later_);
  server_ = caller_.current();
  unread_.clear();
  const bool removals_only = (flags_ & TOWLINE_DIRECTORY_NO_CHANGES) != 0;
  try {
    stream_ = posts_.start(
        {caller_.server(server_) + "/v3/watch", watch_request(span_, next_revision_, removals_only),
         caller_.token(), 0, options_.max_answer_bytes},
        [this](PostAnswer&& answer) { stream_ended(std::move(answer)); },
        [this](std::string_view bytes) {
          try {
            piece(bytes);
          } catch (...) {  // look() begins anew: some events are not told
            close_stream();
            timers_.cancel(later_);
            throw;
          }
        });
  } catch (const Error& error) {
    return end(error.code(), error.message());
  }
  silence_ = timers_.after(options_.attempt_timeout_ns, [this] {
    const std::string why =
        fmt::format("no answer within {:.1f} s", static_cast<double>(options_.attempt_timeout_ns) * 1e-9);
    const std::size_t server = server_;
    broken(fmt::format("{} at {}: {}", what(), caller_.server(server), why));
    caller_.failed(server, why);
  });
}

void Watch::close_stream() {
  timers_.cancel(silence_);
  posts_.stop(stream_);
}

// The stream is of no use any more: another goes on from where it was.
void Watch::broken(const std::string& why) {
  if (stopped_) return;
  close_stream();
  offline(why);
  if (stopped_) return;
  timers_.cancel(later_);
  later_ = timers_.after(pause_ns(failures_ - 1), [this] { stream(); });
}

void Watch::server_failed(std::size_t server, const std::string& why) {
  if (stream_ == 0 || server_ != server) return;
  broken(fmt::format("{}: {}: {}", what(), caller_.server(server), why));
}

void Watch::stream_ended(PostAnswer&& answer) {
  stream_ = 0;
  timers_.cancel(silence_);
  if (stopped_) return;
  const std::string& server = caller_.server(server_);
  if (answer.end != http::End::kAnswered) {
    const std::size_t index = server_;
    broken(fmt::format("{} at {}: {}", what(), server, answer.error));
    return caller_.failed(index, answer.error);
  }
  if (answer.status / 100 == 2) return broken(fmt::format("{}: {} ended the stream", what(), server));
  refused(decode_refusal(answer.status, answer.body));
}

void Watch::refused(const Refusal& refusal) {
  const std::string text = fmt::format("{} at {}: {}", what(), caller_.server(server_), refusal.text);
  switch (refusal.kind) {
    case Refusal::Kind::kFinal:
      return end(refusal.status, text);
    case Refusal::Kind::kAgain:
      return broken(text);
    default:  // reading the list proves who we are anew
      return list_later(text);
  }
}

void Watch::piece(std::string_view bytes) {
  unread_.append(bytes);
  std::string taken;
  taken.swap(unread_);
  std::size_t begin = 0;
  for (std::size_t end = 0; (end = taken.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const std::string_view text = std::string_view(taken).substr(begin, end - begin);
    if (!text.empty()) line(text);
    if (stream_ == 0) return;
  }
  unread_ = taken.substr(begin);
  if (unread_.size() > options_.max_answer_bytes) {
    broken(fmt::format("{} at {}: an event is longer than {} bytes (tuning.etcd.max_answer)", what(),
                       caller_.server(server_), options_.max_answer_bytes));
  }
}

void Watch::line(std::string_view text) {
  WatchAnswer answer;
  try {
    answer = decode_watch(text);
  } catch (const Error& error) {
    // A stream that goes wrong ends with the error in place of an answer.
    const Refusal refusal = decode_refusal(200, text);
    if (refusal.status != Status::kProtocol) return refused(refusal);
    return broken(fmt::format("{} at {}: {}", what(), caller_.server(server_), error.message()));
  }
  told(answer);
}

void Watch::told(const WatchAnswer& answer) {
  timers_.cancel(silence_);
  if (answer.canceled) return canceled(answer);
  const bool other_history =
      answer.header.cluster_id != cluster_ || (answer.created && answer.header.revision + 1 < next_revision_);
  if (other_history) return list_later("the servers have another history than before: were their data lost?");
  if (!online_) {
    online_ = true;
    failures_ = 0;
    trouble_.clear();
    tell(TOWLINE_DIRECTORY_ONLINE);
  }
  for (const WatchAnswer::Event& event : answer.events) {
    if (stopped_) return;
    denials_ = 0;
    if (event.item.revision < next_revision_) continue;  // told already
    tell(event.gone ? TOWLINE_DIRECTORY_GONE_SEEN : TOWLINE_DIRECTORY_PUT_SEEN, &event.item);
  }
  for (const WatchAnswer::Event& event : answer.events) {
    next_revision_ = std::max(next_revision_, event.item.revision + 1);
  }
  const bool progress = answer.events.empty() && !answer.created;
  if (progress) next_revision_ = std::max(next_revision_, answer.header.revision + 1);
}

void Watch::canceled(const WatchAnswer& answer) {
  if (answer.compact_revision != 0) return list_later("");
  const std::string text = fmt::format("{}: {} ended the watch: {}", what(), caller_.server(server_),
                                       answer.reason.empty() ? "no reason given" : answer.reason);
  // A token that ran out looks like this, too; reading the list finds out which it is.
  const bool denied = answer.reason.find("permission denied") != std::string::npos;
  if (denied && ++denials_ >= kMostDenials) return end(Status::kPermissionDenied, text);
  list_later(text);
}

}  // namespace towline::etcd
