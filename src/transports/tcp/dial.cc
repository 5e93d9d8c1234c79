#include "transports/tcp/dial.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>

#include "base/clock.h"
#include "base/error.h"
#include "transports/tcp/socket_lane.h"

namespace towline::tcp {
namespace {

constexpr uint64_t kStaggerNs =
    200 * kMillisecondNs;  // an address that does not answer delays the next by so much
constexpr uint64_t kSilenceNs = 1000 * kMillisecondNs;  // connected but no reply: others get their turn

// 0, or an errno.
int bind_to_own(Stream& stream, const SocketAddress& to, const std::vector<SocketAddress>& own) noexcept {
  const auto address = std::find_if(own.begin(), own.end(), [&](const SocketAddress& one) {
    return one.family() == to.family() && !to.is_loopback();
  });
  return address == own.end() ? 0 : stream.start_from(*address);
}

}  // namespace

Dial::Dial(const plugin::Host& host, uint32_t worker, const SocketAddress& to, const Options& options,
           towline_ready_fn wake, void* argument)
    : host_(host), worker_(worker), to_(to), keys_(options.keys), wake_(wake), argument_(argument) {
  stream_ = Stream::open(to.family());
  tune(stream_, options);
  int error = bind_to_own(stream_, to_, options.own_addresses);
  if (error == 0) error = stream_.start_connect(to_);
  if (error == 0) {
    begin();
  } else if (error == EINPROGRESS) {
    watch(EPOLLOUT);
  } else {
    fail(Status::kUnreachable, errno_text(error));
  }
}

Dial::~Dial() {
  if (watched_) host_.unwatch(worker_, stream_.fd());
}

void Dial::ready(void* self, uint32_t) {
  auto& dial = *static_cast<Dial*>(self);
  dial.stirred_ = true;
  dial.wake_(dial.argument_, 0);
}

void Dial::watch(uint32_t events) {
  if (watched_ && watched_events_ == events) return;
  watched_events_ = events;
  const int32_t status = watched_ ? host_.rewatch(worker_, stream_.fd(), events, ready, this)
                                  : host_.watch(worker_, stream_.fd(), events, ready, this);
  watched_ = watched_ || status == TOWLINE_OK;
  if (status != TOWLINE_OK) fail(static_cast<Status>(status), "its socket can't be watched");
}

void Dial::fail(Status status, std::string text) {
  state_ = State::kFailed;
  status_ = status;
  text_ = std::move(text);
  if (watched_) host_.unwatch(worker_, stream_.fd());
  watched_ = false;
  stream_.close();
}

Dial::State Dial::step() {
  if (!stirred_) return state_;
  stirred_ = false;
  if (state_ == State::kConnecting) {
    if (const int error = stream_.finish_connect(); error != 0) {
      fail(Status::kUnreachable, errno_text(error));
    } else {
      begin();
    }
  } else if (state_ == State::kSecuring) {
    shake_hands();
  } else if (state_ == State::kAwaiting) {
    write_hello();
    if (state_ == State::kAwaiting) read_reply();
  }
  return state_;
}

// It is connected.
void Dial::begin() {
  secure::secure(keys_, stream_, secure::Side::kCaller);
  state_ = State::kSecuring;
  shake_hands();
}

void Dial::watch_for_answer() { watch(stream_.unsent() || !hello_.empty() ? EPOLLIN | EPOLLOUT : EPOLLIN); }

void Dial::shake_hands() {
  const StreamResult shaken = stream_.shake_hands();
  if (shaken.over())
    fail(shaken.refused() ? Status::kPermissionDenied : Status::kUnreachable, stream_.failure(shaken));
  else if (shaken.moved())
    state_ = State::kConnected;
  if (state_ != State::kFailed) watch_for_answer();
}

void Dial::send_hello(const Hello& hello, uint64_t now_ns) {
  hello_ = pack(hello);
  hello_sent_ns_ = now_ns;
  state_ = State::kAwaiting;
  write_hello();
}

// A new socket has room for it, unless it is full of certificates.
void Dial::write_hello() {
  while (!hello_.empty()) {
    const StreamResult sent = stream_.write(hello_.data(), hello_.size());
    if (sent.over()) return fail(Status::kUnreachable, stream_.failure(sent));
    hello_.erase(hello_.begin(), hello_.begin() + static_cast<std::ptrdiff_t>(sent.bytes));
    if (sent.blocked()) break;
  }
  watch_for_answer();
}

void Dial::read_reply() {
  switch (reader_.receive(stream_)) {
    case PacketReader::State::kMore:
      return;
    case PacketReader::State::kGarbage:
      return fail(Status::kProtocol,
                  secure::looks_like_tls(reader_.packet())
                      ? "it takes TLS connections only, and this side has no keys (secure.*)"
                      : "who answers there does not speak Towline's tcp");
    case PacketReader::State::kClosed:
      if (const char* const why = stream_.why(); why != nullptr) return fail(Status::kPermissionDenied, why);
      if (reader_.error() != 0) return fail(Status::kUnreachable, errno_text(reader_.error()));
      return fail(Status::kUnreachable, "it closed the connection without a reply");
    case PacketReader::State::kWhole:
      break;
  }
  const char* problem = unpack(reader_.packet(), reply_);
  if (problem != nullptr) return fail(Status::kProtocol, fmt::format("its reply can't be read: {}", problem));
  state_ = State::kAnswered;
}

Stream Dial::take() {
  if (watched_) host_.unwatch(worker_, stream_.fd());
  watched_ = false;
  return std::move(stream_);
}

Connector::Connector(const plugin::Host& host, uint32_t worker, std::vector<SocketAddress> candidates,
                     const Options& options, Hello hello, std::string peer_name, uint64_t deadline_ns,
                     towline_ready_fn wake, void* argument)
    : host_(host),
      worker_(worker),
      candidates_(std::move(candidates)),
      options_(options),
      hello_(std::move(hello)),
      peer_name_(std::move(peer_name)),
      deadline_ns_(deadline_ns),
      wake_(wake),
      argument_(argument) {}

void Connector::start_next(uint64_t now_ns) {
  const SocketAddress& to = candidates_[next_++];
  next_start_ns_ = now_ns + kStaggerNs;
  try {
    dials_.push_back(std::make_unique<Dial>(host_, worker_, to, options_, wake_, argument_));
  } catch (const Error& error) {
    remember(error.code(), fmt::format("{}: {}", to.text(), error.message()));
  }
}

// Keeps the outcome that tells most: an answer of the other side comes before silence.
void Connector::remember(Status status, const std::string& text) {
  const int rank = status == Status::kUnreachable ? 0
                   : status == Status::kTimedOut  ? 1
                   : status == Status::kProtocol  ? 2
                                                  : 3;
  if (rank > rank_) {
    rank_ = rank;
    status_ = status;
  }
  if (!tried_.empty()) tried_ += "; ";
  tried_ += text;
}

// The winner has answered or failed: is it the peer?
void Connector::judge(const Dial& dial) {
  const std::string where = dial.to().text();
  if (dial.state() == Dial::State::kFailed)
    return remember(dial.status(), fmt::format("{}: {}", where, dial.text()));
  const Reply& reply = dial.reply();
  const auto status = static_cast<Status>(reply.status);
  if (status == Status::kOk && reply.incarnation == hello_.target) {
    verdict_ = Status::kOk;
  } else if (status == Status::kOk || status == Status::kNotFound) {
    remember(Status::kPeerRestarted, fmt::format("{}: another agent is there", where));
  } else {
    remember(status, fmt::format("{}: it refused: {}", where, reply.text));
    verdict_ = status;
  }
}

// Says hello on the first that is connected, unless somebody is being listened to.
bool Connector::elect(uint64_t now_ns) {
  if (winner_ != nullptr) return false;
  for (const auto& dial : dials_) {
    if (dial->state() != Dial::State::kConnected) continue;
    // Another one each time: a peer that was silent for a while may answer a hello that has been given up.
    hello_.connection = Id::random();
    dial->send_hello(hello_, now_ns);
    winner_ = dial.get();
    return true;
  }
  return false;
}

Status Connector::finish(Status status, const std::string& text) {
  text_ = fmt::format("connecting to '{}' over tcp: {}", peer_name_, text);
  return status;
}

Status Connector::step(uint64_t now_ns) {
  for (const auto& dial : dials_) dial->step();
  if (winner_ != nullptr && winner_->state() != Dial::State::kAwaiting) {
    judge(*winner_);
    if (verdict_ == Status::kOk) return Status::kOk;
    if (verdict_) return finish(*verdict_, tried_);
  }
  const bool others = next_ < candidates_.size() || dials_.size() > 1;
  const bool silent = winner_ != nullptr && others && now_ns >= winner_->hello_sent_ns() + kSilenceNs;
  std::erase_if(dials_, [&](const std::unique_ptr<Dial>& dial) {
    const bool chosen = dial.get() == winner_;
    if (chosen && silent && dial->state() == Dial::State::kAwaiting) {
      remember(Status::kTimedOut, fmt::format("{}: no reply", dial->to().text()));
    } else if (dial->state() == Dial::State::kFailed && !chosen) {
      remember(dial->status(), fmt::format("{}: {}", dial->to().text(), dial->text()));
    } else if (!chosen || dial->state() == Dial::State::kAwaiting) {
      return false;
    }
    if (chosen) winner_ = nullptr;
    next_start_ns_ = now_ns;
    return true;
  });
  if (now_ns >= deadline_ns_) {
    std::string waiting;
    for (const auto& dial : dials_) {
      waiting += fmt::format("{}{}: no {}", waiting.empty() ? "" : "; ", dial->to().text(),
                             dial.get() == winner_ ? "reply" : "connection");
    }
    return finish(Status::kTimedOut, fmt::format("the deadline passed ({}{}{})", tried_,
                                                 tried_.empty() || waiting.empty() ? "" : "; ", waiting));
  }
  while (next_ < candidates_.size() && winner_ == nullptr && (dials_.empty() || now_ns >= next_start_ns_)) {
    start_next(now_ns);
    if (!dials_.empty() && dials_.back()->state() == Dial::State::kFailed) {
      remember(dials_.back()->status(),
               fmt::format("{}: {}", dials_.back()->to().text(), dials_.back()->text()));
      dials_.pop_back();
      next_start_ns_ = now_ns;
    }
  }
  elect(now_ns);
  if (dials_.empty() && next_ == candidates_.size()) return finish(status_, tried_);
  return Status::kInProgress;
}

uint64_t Connector::next_ns() const noexcept {
  uint64_t next = deadline_ns_;
  if (winner_ == nullptr && next_ < candidates_.size()) next = std::min(next, next_start_ns_);
  if (winner_ != nullptr && (dials_.size() > 1 || next_ < candidates_.size())) {
    next = std::min(next, winner_->hello_sent_ns() + kSilenceNs);
  }
  return next;
}

}  // namespace towline::tcp
