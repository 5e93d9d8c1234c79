#include "http/client.h"

#include <curl/curl.h>

#include <bit>
#include <cstdio>
#include <new>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/error.h"

namespace towline::http {

namespace {

constexpr long kKeepaliveIdleSeconds = 10;
constexpr long kKeepaliveEverySeconds = 3;
constexpr size_t kMostIdleHandles = 256;

CURL* curl_of(void* handle) { return static_cast<CURL*>(handle); }

long milliseconds(uint64_t ns) {
  return static_cast<long>(std::clamp<uint64_t>((ns + kMillisecondNs - 1) / kMillisecondNs, 1, 86'400'000));
}
long seconds(uint64_t ns) {
  return static_cast<long>(std::clamp<uint64_t>((ns + kSecondNs - 1) / kSecondNs, 1, 86'400));
}

template <class Value>
void set(void* handle, CURLoption option, Value value) {
  const CURLcode code = curl_easy_setopt(curl_of(handle), option, value);
  if (code != CURLE_OK) {
    fail(Status::kUnsupported, "libcurl refuses option {}: {}", static_cast<int>(option),
         curl_easy_strerror(code));
  }
}

void init_curl() {
  static const CURLcode code = curl_global_init(CURL_GLOBAL_DEFAULT);
  if (code != CURLE_OK) fail(Status::kInternal, "starting libcurl: {}", curl_easy_strerror(code));
}

}  // namespace

// ---- one request

Exchange::~Exchange() {
  curl_easy_cleanup(curl_of(handle_));
  curl_slist_free_all(static_cast<curl_slist*>(list_));
}

void Exchange::call_later() noexcept {
  if (std::exchange(later_, true)) return;
  client_->later_.push_back(this);
}

size_t Exchange::on_header(char* data, size_t one, size_t count, void* context) {
  auto& self = *static_cast<Exchange*>(context);
  const std::string_view line(data, one * count);
  if (line.starts_with("HTTP/")) {  // of an interim answer, or the one
    self.headers.clear();
    return line.size();
  }
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos) return line.size();
  try {
    std::string name(line.substr(0, colon));
    std::transform(name.begin(), name.end(), name.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
    std::string_view value = line.substr(colon + 1);
    while (!value.empty() && (value.front() == ' ' || value.front() == '\t')) value.remove_prefix(1);
    value = value.substr(0, value.find_last_not_of(" \t\r\n") + 1);
    self.headers.insert_or_assign(std::move(name), std::string(value));
  } catch (const std::bad_alloc&) {
    return 0;
  }
  return line.size();
}

size_t Exchange::on_write(char* data, size_t one, size_t count, void* context) {
  auto& self = *static_cast<Exchange*>(context);
  const size_t bytes = one * count;
  if (!self.head_told_) {
    self.head_told_ = true;
    curl_easy_getinfo(curl_of(self.handle_), CURLINFO_RESPONSE_CODE, &self.status);
    self.refused_ = !self.receiver_->on_head(self.status, self.headers);
  }
  if (!self.refused_)
    self.refused_ =
        !self.receiver_->on_bytes(std::as_bytes(std::span(static_cast<const char*>(data), bytes)));
  return self.refused_ ? 0 : bytes;
}

size_t Exchange::on_read(char* data, size_t one, size_t count, void* context) {
  auto& self = *static_cast<Exchange*>(context);
  const size_t bytes = self.request_.body->read(reinterpret_cast<std::byte*>(data), one * count);
  self.sent_ += bytes;
  return bytes;
}

// libcurl only ever starts anew, on another connection.
int Exchange::on_seek(void* context, int64_t offset, int origin) {
  auto& self = *static_cast<Exchange*>(context);
  if (offset != 0 || origin != SEEK_SET) return CURL_SEEKFUNC_CANTSEEK;
  self.request_.body->rewind();
  self.sent_before_ = self.sent_bytes();
  self.sent_ = 0;
  return CURL_SEEKFUNC_OK;
}

// ---- many

Client::Client(Options options) : options_(std::move(options)) {
  init_curl();
  multi_ = curl_multi_init();
  if (multi_ == nullptr) fail(Status::kOutOfMemory, "libcurl gives no handle");
  curl_multi_setopt(static_cast<CURLM*>(multi_), CURLMOPT_MAXCONNECTS,
                    static_cast<long>(options_.idle_connections));
}

Client::~Client() {
  for (void* handle : idle_handles_) curl_easy_cleanup(curl_of(handle));
  curl_multi_cleanup(static_cast<CURLM*>(multi_));
}

// Idle handles have all options that are the same for all requests: setting them costs more than the rest of a small request.
void Client::take_handle(Exchange& exchange) {
  if (!idle_handles_.empty()) {
    exchange.handle_ = idle_handles_.back();
    idle_handles_.pop_back();
    ++under_way_;
    return;
  }
  exchange.handle_ = curl_easy_init();
  if (exchange.handle_ == nullptr) fail(Status::kOutOfMemory, "libcurl gives no handle");
  ++under_way_;
  set_lasting_options(exchange.handle_);
}

void Client::set_lasting_options(void* handle) {
  set(handle, CURLOPT_PATH_AS_IS, 1L);
  set(handle, CURLOPT_PROTOCOLS_STR, "http,https");
  set(handle, CURLOPT_PROXY, options_.proxy.c_str());
  set(handle, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  set(handle, CURLOPT_NOSIGNAL, 1L);
  set(handle, CURLOPT_TCP_KEEPALIVE, 1L);
  set(handle, CURLOPT_TCP_KEEPIDLE, kKeepaliveIdleSeconds);
  set(handle, CURLOPT_TCP_KEEPINTVL, kKeepaliveEverySeconds);
  if (options_.buffer_bytes != 0) {
    set(handle, CURLOPT_BUFFERSIZE, static_cast<long>(options_.buffer_bytes));
    set(handle, CURLOPT_UPLOAD_BUFFERSIZE, static_cast<long>(options_.buffer_bytes));
  }
  set(handle, CURLOPT_CONNECTTIMEOUT_MS, milliseconds(options_.connect_timeout_ns));
  if (options_.stall_timeout_ns != 0) {
    set(handle, CURLOPT_LOW_SPEED_LIMIT, 1L);
    set(handle, CURLOPT_LOW_SPEED_TIME, seconds(options_.stall_timeout_ns));
  }
  set(handle, CURLOPT_HEADERFUNCTION, &Exchange::on_header);
  set(handle, CURLOPT_WRITEFUNCTION, &Exchange::on_write);
  set(handle, CURLOPT_READFUNCTION, &Exchange::on_read);
  set(handle, CURLOPT_SEEKFUNCTION, &Exchange::on_seek);
  if (!options_.ca_file.empty()) {
    set(handle, CURLOPT_CAINFO, options_.ca_file.c_str());
    if (options_.ca_file_alone) set(handle, CURLOPT_CAPATH, static_cast<const char*>(nullptr));
  }
  if (!options_.cert_file.empty()) {
    set(handle, CURLOPT_SSLCERT, options_.cert_file.c_str());
    set(handle, CURLOPT_SSLKEY, options_.key_file.c_str());
  }
}

void Client::set_options(Exchange& exchange) {
  const Request& request = exchange.request_;
  void* const handle = exchange.handle_;
  // Headers may hold secrets. Nothing but CURLOPT_VERBOSE would log them, and that is never set.
  const auto add_header = [&](const char* text) {
    curl_slist* longer = curl_slist_append(static_cast<curl_slist*>(exchange.list_), text);
    if (longer == nullptr) fail(Status::kOutOfMemory, "libcurl takes no header");
    exchange.list_ = longer;
  };
  add_header("Expect:");
  add_header("Accept:");
  add_header("User-Agent: towline");
  for (const std::string& header : request.headers) add_header(header.c_str());
  set(handle, CURLOPT_URL, request.url.c_str());
  set(handle, CURLOPT_HTTPHEADER, static_cast<curl_slist*>(exchange.list_));
  set(handle, CURLOPT_TIMEOUT_MS, request.timeout_ns == 0 ? 0L : milliseconds(request.timeout_ns));
  set(handle, CURLOPT_ERRORBUFFER, exchange.error_text_.data());
  set(handle, CURLOPT_HEADERDATA, static_cast<void*>(&exchange));
  set(handle, CURLOPT_WRITEDATA, static_cast<void*>(&exchange));
  set(handle, CURLOPT_PRIVATE, static_cast<void*>(&exchange));
  set(handle, CURLOPT_HTTPGET, 1L);  // takes back what the request before was
  if (request.method == "HEAD") {
    set(handle, CURLOPT_CUSTOMREQUEST, static_cast<const char*>(nullptr));
    set(handle, CURLOPT_NOBODY, 1L);
    return;
  }
  if (request.body != nullptr) {
    set(handle, CURLOPT_UPLOAD, 1L);
    set(handle, CURLOPT_READDATA, static_cast<void*>(&exchange));
    set(handle, CURLOPT_SEEKDATA, static_cast<void*>(&exchange));
  }
  const curl_off_t bytes = request.body == nullptr ? -1 : static_cast<curl_off_t>(request.body->bytes());
  set(handle, CURLOPT_INFILESIZE_LARGE, bytes);
  set(handle, CURLOPT_CUSTOMREQUEST, request.method.c_str());
}

void Client::prepare(Exchange& exchange, Request request, Receiver& receiver) {
  make_room();
  exchange.client_ = this;
  exchange.request_ = std::move(request);
  exchange.receiver_ = &receiver;
  exchange.end = End::kNotSent;
  exchange.status = 0;
  exchange.headers.clear();
  exchange.error.clear();
  exchange.error_text_[0] = 0;
  exchange.head_told_ = exchange.refused_ = exchange.clean_ = false;
  exchange.sent_ = exchange.sent_before_ = 0;
  if (exchange.request_.body != nullptr) exchange.request_.body->rewind();
  take_handle(exchange);
  set_options(exchange);
}

void Client::start(Exchange& exchange) {
  const CURLMcode code = curl_multi_add_handle(static_cast<CURLM*>(multi_), curl_of(exchange.handle_));
  if (code != CURLM_OK) fail(Status::kInternal, "libcurl: {}", curl_multi_strerror(code));
}

// finish(), call_later() and give_handle() have no way to fail.
void Client::make_room() {
  later_.reserve(std::bit_ceil(later_.size() + under_way_ + 1));
  ended_.reserve(std::bit_ceil(ended_.size() + under_way_ + 1));
  idle_handles_.reserve(kMostIdleHandles);
}

void Client::give_handle(Exchange& exchange) noexcept {
  if (exchange.handle_ == nullptr) return;
  curl_multi_remove_handle(static_cast<CURLM*>(multi_), curl_of(exchange.handle_));
  if (exchange.clean_ && idle_handles_.size() < kMostIdleHandles) {
    curl_easy_setopt(curl_of(exchange.handle_), CURLOPT_ERRORBUFFER, nullptr);  // the exchange may go
    curl_easy_setopt(curl_of(exchange.handle_), CURLOPT_HTTPHEADER, nullptr);
    idle_handles_.push_back(exchange.handle_);
  } else {
    curl_easy_cleanup(curl_of(exchange.handle_));
  }
  exchange.handle_ = nullptr;
  --under_way_;
  curl_slist_free_all(static_cast<curl_slist*>(exchange.list_));
  exchange.list_ = nullptr;
}

void Client::stop(Exchange& exchange) noexcept {
  // Also one that has ended in this round: its receiver may be gone when its turn to be told comes.
  std::erase(ended_, &exchange);
  if (std::exchange(exchange.later_, false)) std::erase(later_, &exchange);
  give_handle(exchange);
}

// For people.
void Client::explain(Exchange& exchange, int code) {
  exchange.error = exchange.error_text_[0] != 0 ? exchange.error_text_.data()
                                                : curl_easy_strerror(static_cast<CURLcode>(code));
  if (code == CURLE_SSL_CONNECT_ERROR && exchange.error.find("wrong version number") != std::string::npos)
    exchange.error += ": what answers does not speak TLS, perhaps its URL begins with http://";
}

void Client::finish(Exchange& exchange, int code) noexcept {
  try {
    if (code != CURLE_OK) explain(exchange, code);
  } catch (const std::bad_alloc&) {
    exchange.error.clear();
  }
  curl_easy_getinfo(curl_of(exchange.handle_), CURLINFO_RESPONSE_CODE, &exchange.status);
  curl_off_t connected_us = 0;
  curl_easy_getinfo(curl_of(exchange.handle_), CURLINFO_PRETRANSFER_TIME_T, &connected_us);
  switch (code) {
    case CURLE_OK:
      exchange.end = End::kAnswered;
      if (!exchange.head_told_)
        exchange.refused_ = !exchange.receiver_->on_head(exchange.status, exchange.headers);
      if (exchange.refused_) exchange.end = End::kRefused;
      break;
    case CURLE_WRITE_ERROR:
      exchange.end = exchange.refused_ ? End::kRefused : End::kBroken;
      break;
    case CURLE_OPERATION_TIMEDOUT:
      exchange.end = connected_us == 0 ? End::kNotSent : End::kTimedOut;
      break;
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_ISSUER_ERROR:
      exchange.end = End::kUntrusted;
      break;
    default:
      exchange.end = connected_us == 0 ? End::kNotSent : End::kBroken;
  }
  // libcurl counts connections that died over all of a handle's requests, and then gives up.
  long connects = 0;
  curl_easy_getinfo(curl_of(exchange.handle_), CURLINFO_NUM_CONNECTS, &connects);
  exchange.clean_ = code == CURLE_OK && connects == 0;
  give_handle(exchange);
  ended_.push_back(&exchange);
}

void Client::serve(uint64_t timeout_ns) noexcept {
  if (ended_.empty() && later_.empty()) {  // else send() left something to tell
    const uint64_t most_ms =
        std::min<uint64_t>(timeout_ns / kMillisecondNs + (timeout_ns % kMillisecondNs != 0), 60'000);
    curl_multi_poll(static_cast<CURLM*>(multi_), nullptr, 0, static_cast<int>(most_ms), nullptr);
  }
  perform();
}

void Client::perform() noexcept {
  auto* const multi = static_cast<CURLM*>(multi_);
  int running = 0;
  curl_multi_perform(multi, &running);
  int left = 0;
  while (const CURLMsg* message = curl_multi_info_read(multi, &left)) {
    if (message->msg != CURLMSG_DONE) continue;
    const int code = message->data.result;
    Exchange* exchange = nullptr;
    curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &exchange);
    finish(*exchange, code);
  }
}

Receiver* Client::next_later() noexcept {
  if (later_.empty()) return nullptr;
  Exchange* const exchange = later_.front();
  later_.erase(later_.begin());
  exchange->later_ = false;
  return exchange->receiver_;
}

Receiver* Client::next_ended() noexcept {
  if (ended_.empty()) return nullptr;
  Exchange* const exchange = ended_.front();
  ended_.erase(ended_.begin());
  return exchange->receiver_;
}

void Client::wake() noexcept { curl_multi_wakeup(static_cast<CURLM*>(multi_)); }

}  // namespace towline::http
