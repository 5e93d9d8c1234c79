#include "storage/object/client.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>

#include "base/error.h"
#include "base/random.h"
#include "base/short_text.h"
#include "storage/object/protocol.h"

namespace towline::object {

namespace {

constexpr const char* kNoMemory = "out of memory";
constexpr uint32_t kBufferBytes = 256 << 10;
constexpr size_t kMostAnswerBytes = 16 << 20;
constexpr uint32_t kMostRedirects = 4;
constexpr uint64_t kRetryAfterMostNs = 60 * kSecondNs;
constexpr uint32_t kAttempts = 6;               // default number of attempts
constexpr uint64_t kLeastPauseNs = 10'000'000;  // after so many
constexpr uint64_t kTellEveryNs = 10 * kSecondNs;
constexpr size_t kMostAhead = 4;                      // requests that are made before there is room for them
constexpr uint64_t kMostPartsOfARange = 4;            // more would leave the last one alone for long
constexpr uint64_t kComposedMostNs = 30 * kSecondNs;  // servers take signatures of some minutes ago

http::Options http_options(const Settings& settings, uint32_t clients) {
  return {.connect_timeout_ns = settings.connect_timeout_ns,
          .stall_timeout_ns = settings.stall_timeout_ns,
          .proxy = settings.proxy,
          .ca_file = settings.ca_file,
          .idle_connections = settings.concurrency / clients + 4,
          .buffer_bytes = kBufferBytes};
}

// Advice for a refusal, if there is any.
std::string advice(const Service& service, const Refusal& refusal) {
  const std::string source = service.credentials.describe();
  if (refusal.code == "NoSuchBucket" || refusal.code == "ContainerNotFound")
    return "; make the bucket, or name another";
  if (refusal.next == Refusal::Next::kRenew) return fmt::format("; its credentials come from {}", source);
  if (refusal.status == Status::kPermissionDenied) return fmt::format("; credentials come from {}", source);
  if (refusal.next == Refusal::Next::kRedirect) return "; set object.region and object.endpoint";
  return "";
}

// Answers of a server, or its gateway, that is overloaded or briefly unavailable. A server that failed at
// this request answers 500.
bool asks_for_patience(long http_status) noexcept {
  return http_status == 429 || (http_status >= 502 && http_status <= 504);
}

}  // namespace

// ---- shared by all clients

Service::Service(ServerKind kind, const plugin::Host& host_services, const Environment& environment)
    : host(host_services),
      settings(Settings::read(kind, host_services, environment)),
      protocol(Protocol::make(kind)),
      credentials(settings, environment, host_services) {}

Service::~Service() = default;

std::string Service::region(const std::string& bucket) const {
  std::lock_guard lock(mutex_);
  const auto found = places_.find(bucket);
  return found == places_.end() || found->second.region.empty() ? settings.region : found->second.region;
}

Endpoint Service::endpoint(const std::string& bucket) const {
  if (settings.kind == ServerKind::kAzure && !settings.endpoint)
    throw plugin::Failure(
        Status::kInvalidArgument,
        "no account is set: azure.account or azure.connection_string (or Azure's variables) name it");
  std::lock_guard lock(mutex_);
  const auto found = places_.find(bucket);
  const bool moved = found != places_.end();
  Endpoint endpoint = settings.endpoint.value_or(
      Endpoint::amazon(moved && !found->second.region.empty() ? found->second.region : settings.region));
  if (!settings.endpoint && settings.style != Style::kAuto) endpoint.style = settings.style;
  if (moved && !found->second.host.empty()) endpoint.host = found->second.host;
  return endpoint;
}

// A redirect is followed only within the domain that was asked: strangers must not get the keys.
bool Service::redirect(const std::string& bucket, const std::string& region, const std::string& target) {
  const Endpoint before = endpoint(bucket);
  std::string own = before.host;
  if (own.ends_with(".amazonaws.com") && !settings.endpoint) own = "amazonaws.com";
  std::string host_now = target;
  if (host_now.starts_with(bucket + ".")) host_now.erase(0, bucket.size() + 1);
  const bool follow = !host_now.empty() && host_now != before.host && host_now.ends_with("." + own);
  std::lock_guard lock(mutex_);
  Place& place = places_[bucket];
  const bool named = settings.endpoint ? !region.empty() : is_region(region);
  const bool new_region = named && region != (place.region.empty() ? settings.region : place.region);
  if (!new_region && !follow) return false;
  if (new_region) place = {region, ""};
  if (follow) place.host = host_now;
  return true;
}

void Service::note_failure(const std::string& text) noexcept {
  try {
    std::lock_guard lock(mutex_);
    last_failure_ = text;
  } catch (const std::bad_alloc&) {  // the log has it
  }
  host.log(1, text);
}

void Service::note_waiting(const std::string& text) {
  const uint64_t now_ns = monotonic_now_ns();
  {
    std::lock_guard lock(mutex_);
    last_failure_ = text;
    if (waiting_told_ns_ != 0 && now_ns - waiting_told_ns_ < kTellEveryNs) return;
    waiting_told_ns_ = now_ns;
  }
  host.log(1, text);
}

std::string Service::last_failure() const {
  std::lock_guard lock(mutex_);
  return last_failure_;
}

uint64_t Service::control_deadline_ns() const noexcept {
  return Deadline::after(monotonic_now_ns(), settings.control_timeout_ns).ns();
}

// ---- a call

bool Call::on_head(long status, const Headers& head) noexcept {
  answer_.http_status = status;
  if (status / 100 != 2 || !begins) return true;
  try {
    answer_.headers = head;
    refused_ = begins(answer_);
  } catch (const std::exception& error) {
    refused_ = {Status::kOutOfMemory, false, error.what()};
  }
  return refused_.status == Status::kOk;
}

bool Call::on_bytes(std::span<const std::byte> bytes) noexcept {
  try {
    if (answer_.http_status / 100 == 2 && takes) {
      progressed_ = true;
      refused_ = takes(bytes);
    } else if (answer_.body.size() + bytes.size() > kMostAnswerBytes) {
      refused_ = {Status::kProtocol, false,
                  fmt::format("its answer is longer than {} bytes", kMostAnswerBytes)};
    } else {
      answer_.body.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
  } catch (const std::exception& error) {
    refused_ = {Status::kOutOfMemory, false, error.what()};
  }
  return refused_.status == Status::kOk;
}

void Call::on_end() { client_->ended(*this); }

// ---- the thread

Client::Client(Service& service, uint32_t count)
    : service_(service),
      thread_(http_options(service.settings, count)),
      most_under_way_(service.settings.concurrency / count),
      most_bytes_(service.settings.window / count),
      random_(monotonic_now_ns() ^ reinterpret_cast<uint64_t>(this)) {
  thread_.start({[this] { turn(); },
                 [this](const char* why) {
                   service_.host.log(1, ShortText("a request was not dealt with: {}", why));
                 }});
}

Client::~Client() {
  thread_.end();
  thread_.join();
  (void)tell_endings();
}

void Client::end_soon(Ending& ending) noexcept { ending.next_ = std::exchange(endings_, &ending); }

void Client::turn() {
  try {
    do {
      pump();
    } while (tell_endings());
  } catch (...) {
    if (tell_endings()) thread_.client().wake();
    throw;
  }
}

bool Client::tell_endings() noexcept {
  const bool any = endings_ != nullptr;
  while (Ending* const ending = endings_) {
    endings_ = ending->next_;
    ending->end();
  }
  return any;
}

void Client::run(std::function<void()> command) { thread_.run(std::move(command)); }

Answer Client::ask(Call& call) {
  std::mutex mutex;
  std::condition_variable changed;
  bool over = false;
  Answer result;
  call.done = [&](Answer& answer) {
    const std::lock_guard lock(mutex);
    result = std::move(answer);
    over = true;
    changed.notify_all();
  };
  run([this, &call] { start(call); });
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return over; });
  return result;
}

bool Client::room() const noexcept {
  const uint32_t count = under_way_.load(std::memory_order_relaxed);
  return count == 0 || (count < most_under_way_ && bytes_under_way_ + settings().part_bytes <= most_bytes_);
}

// A call that was made while there was more room must not go beyond the window, nor one that is tried again.
bool Client::fits(const Call& call) const noexcept {
  return bytes_under_way_ == 0 || bytes_under_way_ + call.cost <= most_bytes_;
}

void Client::pump() {
  while (room() && begin_next()) continue;
  if (room()) return;
  if (std::exchange(unsent_, false)) thread_.client().send();  // before time goes into those that wait
  compose_ahead();
}

void Client::compose_ahead() {
  for (size_t i = 0; i < kMostAhead; ++i) {
    if (i >= ready_.size() && !feed_ahead()) return;
    if (i >= ready_.size()) return;
    Call& call = *ready_[i];
    if (call.composed_ns_ == 0) attempt(call, [&] { compose(call); });
  }
}

// Lets a feeder add a call to those that wait. False: none has any.
bool Client::feed_ahead() {
  while (!feeders_.empty()) {
    std::list<Feeder*> turn;
    turn.splice(turn.end(), feeders_, feeders_.begin());
    const size_t before = ready_.size();
    if (turn.front()->feed()) feeders_.splice(feeders_.end(), turn);
    if (ready_.size() > before) return true;
  }
  return false;
}

// False: nothing waits, or what is next waits for more of the window.
bool Client::begin_next() {
  const auto any = [this](bool urgent) {
    return std::any_of(ready_.begin(), ready_.end(),
                       [&](const Call* call) { return call->urgent == urgent; }) ||
           std::any_of(feeders_.begin(), feeders_.end(),
                       [&](const Feeder* feeder) { return feeder->urgent() == urgent; });
  };
  const bool urgent = any(true);
  const bool others = any(false);
  return (urgent || others) && begin_next(turns_.take(urgent, others));
}

// A call that waits already, else the next one of a feeder.
bool Client::begin_next(bool urgent) {
  const auto ready = std::find_if(ready_.begin(), ready_.end(),
                                  [urgent](const Call* call) { return call->urgent == urgent; });
  if (ready != ready_.end()) {
    Call& call = **ready;
    if (!fits(call)) return false;
    ready_.erase(ready);
    attempt(call, [&] { begin(call); });
    return true;
  }
  const auto found = std::find_if(feeders_.begin(), feeders_.end(),
                                  [urgent](const Feeder* feeder) { return feeder->urgent() == urgent; });
  if (found == feeders_.end()) return false;
  std::list<Feeder*> turn;
  turn.splice(turn.end(), feeders_, found);
  if (turn.front()->feed()) feeders_.splice(feeders_.end(), turn);
  return true;
}

void Client::add_feeder(Feeder& feeder) {
  if (std::find(feeders_.begin(), feeders_.end(), &feeder) == feeders_.end()) feeders_.push_back(&feeder);
}

void Client::remove_feeder(Feeder& feeder) noexcept { std::erase(feeders_, &feeder); }

// Parts are for requests side by side. Where other objects keep all of them busy, they only cost requests: Azurite worked 0.67 ns
// a byte for 16 objects of 16 MiB, and 0.89 for their halves.
uint64_t Client::range_bytes(uint64_t objects, uint32_t own) const noexcept {
  if (settings().concurrency == 1) return UINT64_MAX;
  const uint64_t part = settings().part_bytes;
  const uint64_t all = feeders_.size() + ready_.size() + under_way();
  if (objects + all < most_under_way_ + uint64_t{own}) return part;
  const uint64_t left = most_bytes_ > bytes_under_way_ ? most_bytes_ - bytes_under_way_ : 0;
  return std::clamp(left, part, kMostPartsOfARange * part);
}

void Client::start(Call& call) {
  call.client_ = this;
  call.answer_ = {};
  call.attempts_ = call.redirects_ = 0;
  call.clock_set_ = false;
  const bool at_once = room() && fits(call);
  call.state_ = Call::State::kReady;
  try {
    if (call.deadline_ns != UINT64_MAX) {
      call.deadline_timer_ = timers().at(call.deadline_ns, [this, &call] {
        call.deadline_timer_ = 0;
        call.answer_.uncertain = call.answer_.uncertain || all_sent(call);
        std::string text = std::move(call.answer_.text);
        try {
          text = text.empty() ? "no answer in time" : "the deadline passed; before that: " + text;
        } catch (const std::bad_alloc&) {  // what was before will do
        }
        finish(call, Status::kTimedOut, text);
      });
    }
    if (!at_once) ready_.push_back(&call);
  } catch (const std::bad_alloc&) {
    return finish(call, Status::kOutOfMemory, kNoMemory);
  }
  if (at_once) attempt(call, [&] { begin(call); });
}

template <class Action>
void Client::attempt(Call& call, Action&& action) {
  try {
    action();
  } catch (const plugin::Failure& failure) {
    release(call);
    finish(call, failure.status(), failure.what());
  } catch (const Error& error) {
    release(call);
    finish(call, error.code(), error.what());
  } catch (const std::exception& error) {
    release(call);
    finish(call, Status::kOutOfMemory, error.what());
  }
}

// Makes the request of the next attempt.
void Client::compose(Call& call) {
  const Settings& settings = service_.settings;
  call.composed_ns_ = monotonic_now_ns();
  if (call.before) call.before();
  const Endpoint endpoint = service_.endpoint(call.name.bucket);
  const bool sends = call.body == nullptr && (call.method == "PUT" || call.method == "POST");
  call.text_body_ = sends ? std::make_unique<http::TextBody>(call.text) : nullptr;
  http::Body* const body = call.body != nullptr ? call.body : call.text_body_.get();
  std::string hash = call.payload_hash;
  if (hash.empty()) hash = call.body != nullptr ? kUnsignedPayload : sha256_hex(call.text);
  const std::string region = service_.region(call.name.bucket);
  Outgoing request{.method = call.method,
                   .target = make_target(endpoint, call.name.bucket, call.name.key, call.query),
                   .headers = {call.headers.begin(), call.headers.end()},
                   .body_bytes = body == nullptr ? 0 : body->bytes(),
                   .payload_hash = hash,
                   .now = std::time(nullptr) + service_.clock_offset_s.load(),
                   .region = region};
  call.where_ = request.target.host;
  call.keys_ = service_.credentials.now();
  if (call.keys_ == nullptr && settings.credentials.source != Source::kNone)
    throw plugin::Failure(Status::kPermissionDenied,
                          "there are no credentials: " + service_.credentials.describe());
  service_.protocol->sign(request, call.keys_.get(), settings);
  http::Request sent{.method = call.method, .url = request.target.url(endpoint), .headers = {}, .body = body};
  for (const auto& [name, value] : request.headers) sent.headers.push_back(name + ": " + value);
  thread_.client().prepare(call.exchange_, std::move(sent), call);
}

void Client::begin(Call& call) {
  call.state_ = Call::State::kUnderWay;
  under_way_.fetch_add(1, std::memory_order_relaxed);
  bytes_under_way_ += call.cost;
  ++call.attempts_;
  call.progressed_ = false;
  call.refused_ = {};
  const bool uncertain = call.answer_.uncertain;
  call.answer_ = {};
  call.answer_.uncertain = uncertain;
  if (call.composed_ns_ != 0) {
    const bool old = monotonic_now_ns() - call.composed_ns_ > kComposedMostNs;
    if (old || call.keys_ != service_.credentials.now() || (call.outdated && call.outdated()))
      drop_composed(call);
  }
  if (call.composed_ns_ == 0) compose(call);
  call.composed_ns_ = 0;
  thread_.client().start(call.exchange_);
  unsent_ = true;
}

// Of a request that was made and not sent.
void Client::drop_composed(Call& call) noexcept {
  if (std::exchange(call.composed_ns_, 0) != 0) thread_.client().stop(call.exchange_);
}

void Client::release(Call& call) noexcept {
  if (call.state_ != Call::State::kUnderWay) return;
  call.composed_ns_ = 0;
  thread_.client().stop(call.exchange_);
  under_way_.fetch_sub(1, std::memory_order_relaxed);
  bytes_under_way_ -= call.cost;
  call.state_ = Call::State::kIdle;
}

void Client::stop(Call& call) noexcept {
  release(call);
  drop_composed(call);
  if (call.state_ == Call::State::kReady) std::erase(ready_, &call);
  timers().cancel(call.timer_);
  timers().cancel(call.deadline_timer_);
  call.state_ = Call::State::kIdle;
}

bool Client::all_sent(const Call& call, uint64_t sent_bytes) noexcept {
  const http::Body* body = call.body != nullptr ? call.body : call.text_body_.get();
  return call.effective && (body == nullptr || sent_bytes >= body->bytes());
}

bool Client::all_sent(const Call& call) noexcept {
  return call.state_ == Call::State::kUnderWay && all_sent(call, call.exchange_.sent_bytes());
}

void Client::ended(Call& call) {
  if (call.exchange_.end == http::End::kAnswered) service_.answered.store(true, std::memory_order_relaxed);
  const bool lost = call.exchange_.end == http::End::kBroken || call.exchange_.end == http::End::kTimedOut;
  const bool again = call.exchange_.sent_before() != 0 && all_sent(call, call.exchange_.sent_before());
  if (lost || again || may_be_done(call.exchange_.status))
    call.answer_.uncertain = call.answer_.uncertain || again || all_sent(call);
  release(call);
  try {
    judge(call);
  } catch (const std::bad_alloc&) {  // before its end was told: finish() throws nothing
    call.answer_.uncertain = call.answer_.uncertain || call.effective;
    finish(call, Status::kOutOfMemory, kNoMemory);
  }
}

void Client::judge(Call& call) {
  http::Exchange& exchange = call.exchange_;
  Answer& answer = call.answer_;
  answer.http_status = exchange.status;
  answer.headers = std::move(exchange.headers);
  switch (exchange.end) {
    case http::End::kAnswered: {
      if (exchange.status / 100 != 2) return judge_refusal(call);
      Verdict verdict = call.check ? call.check(answer) : Verdict{};
      if (verdict.status == Status::kOk) return finish(call, Status::kOk, {});
      return verdict.retry ? retry(call, verdict.status, std::move(verdict.text))
                           : finish(call, verdict.status, verdict.text);
    }
    case http::End::kRefused:
      return call.refused_.retry ? retry(call, call.refused_.status, call.refused_.text)
                                 : finish(call, call.refused_.status, call.refused_.text);
    case http::End::kNotSent:
      return retry(
          call, Status::kUnreachable,
          fmt::format("it can't be reached{}: {}",
                      service_.settings.proxy.empty() ? "" : " through " + service_.settings.name("proxy"),
                      exchange.error),
          Trouble::kPasses);
    case http::End::kBroken:
      return retry(call, Status::kIo, "the connection broke: " + exchange.error, Trouble::kPasses);
    case http::End::kTimedOut:
      return retry(call, Status::kTimedOut, "nothing moved: " + exchange.error, Trouble::kPasses);
    case http::End::kUntrusted:
      return finish(
          call, Status::kPermissionDenied,
          exchange.error + "; " + service_.settings.name("ca_file") + " names the authority to be trusted");
  }
}

void Client::judge_refusal(Call& call) {
  Answer& answer = call.answer_;
  const Refusal refusal = decode_refusal(answer.http_status, answer.headers, answer.body);
  answer.code = refusal.code;
  std::string text =
      fmt::format("{}{}{}{}{}{}", answer.http_status, refusal.code.empty() ? "" : " ", refusal.code,
                  refusal.message.empty() ? "" : ": ", refusal.message, advice(service_, refusal));
  switch (refusal.next) {
    case Refusal::Next::kFail:
      return finish(call, refusal.status, text);
    case Refusal::Next::kRetry:
      return retry(call, refusal.status, std::move(text),
                   asks_for_patience(answer.http_status) ? Trouble::kPasses : Trouble::kWrong);
    case Refusal::Next::kRenew:
      if (call.keys_ == nullptr || !service_.credentials.renew(call.keys_))
        return finish(call, refusal.status, text);
      return retry(call, refusal.status, std::move(text));
    case Refusal::Next::kClock: {
      const auto theirs = decode_time(header(answer.headers, "date"));
      const int64_t off = theirs ? *theirs - std::time(nullptr) : 0;
      text += fmt::format("; this machine's clock differs from the server's by {} s", off);
      if (!theirs || call.clock_set_) return finish(call, refusal.status, text);
      call.clock_set_ = true;
      service_.clock_offset_s = off;
      service_.note_failure(text + ": requests are dated by the server's clock from here on");
      return again(call, refusal.status, std::move(text), 0);
    }
    case Refusal::Next::kRedirect:
      if (++call.redirects_ > kMostRedirects ||
          !service_.redirect(call.name.bucket, refusal.region, refusal.host))
        return finish(call, refusal.status, text);
      return again(call, refusal.status, std::move(text), 0);
  }
}

uint64_t Client::backoff_ns(const Call& call) {
  const uint64_t most =
      std::min(settings().backoff_ns << std::min(call.attempts_ - 1, 20u), settings().backoff_most_ns);
  SplitMix64 random(random_++);
  uint64_t delay_ns = random.next() % (most + 1);
  const auto wanted = decode_number(header(call.answer_.headers, "retry-after"));
  if (wanted && *wanted < kRetryAfterMostNs / kSecondNs) delay_ns = std::max(delay_ns, *wanted * kSecondNs);
  return delay_ns;
}

bool Client::has_attempts(const Call& call, Trouble trouble) const noexcept {
  if (call.last_attempt) return false;
  if (settings().attempts != 0) return call.attempts_ < settings().attempts;
  return call.attempts_ < kAttempts || (trouble == Trouble::kPasses && service_.answered);
}

void Client::retry(Call& call, Status status, std::string text, Trouble trouble) {
  if (call.progressed_) call.attempts_ = 1;  // it gets on, if slowly
  if (!has_attempts(call, trouble)) {
    if (call.attempts_ > 1) text += fmt::format(" ({} attempts)", call.attempts_);
    return finish(call, status, text);
  }
  uint64_t delay_ns = backoff_ns(call);
  if (settings().attempts == 0 && call.attempts_ >= kAttempts) {
    delay_ns = std::max(delay_ns, kLeastPauseNs);
    if (call.attempts_ == kAttempts)
      service_.note_waiting(fmt::format("{} {} at {}: {}: it is tried again until its deadline", call.method,
                                        shown(call.name.text()), call.where_, text));
  }
  again(call, status, std::move(text), delay_ns);
}

void Client::again(Call& call, Status status, std::string text, uint64_t delay_ns) {
  service_.retries.fetch_add(1, std::memory_order_relaxed);
  call.answer_.status = status;
  call.answer_.text = std::move(text);
  call.state_ = Call::State::kWaiting;
  call.timer_ = timers().after(delay_ns, [this, &call] {
    call.timer_ = 0;
    call.state_ = Call::State::kReady;
    try {
      ready_.push_back(&call);  // pump() follows
    } catch (const std::bad_alloc&) {
      finish(call, Status::kOutOfMemory, kNoMemory);
    }
  });
}

void Client::finish(Call& call, Status status, std::string_view text) noexcept {
  stop(call);
  Answer answer = std::move(call.answer_);
  answer.status = status;
  answer.text.clear();
  try {
    if (status != Status::kOk)
      answer.text = fmt::format("{} {}{}{}: {}", call.method, shown(call.name.text()),
                                call.where_.empty() ? "" : " at ", call.where_, text);
  } catch (const std::bad_alloc&) {  // without words
  }
  const auto done = std::move(call.done);
  try {
    done(answer);
  } catch (const std::exception& error) {
    service_.host.log(1, error.what());
  }
}

}  // namespace towline::object
