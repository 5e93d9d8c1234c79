#include "metadata/etcd/http.h"

#include <curl/curl.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/clock.h"
#include "base/error.h"

namespace towline::etcd {
namespace {

constexpr long kIdleConnections = 16;
constexpr long kKeepaliveIdleSeconds = 10;
constexpr long kKeepaliveEverySeconds = 3;

void init_curl() {
  static const CURLcode code = curl_global_init(CURL_GLOBAL_DEFAULT);
  if (code != CURLE_OK) fail(Status::kInternal, "starting libcurl: {}", curl_easy_strerror(code));
}

long milliseconds(uint64_t ns) {
  return static_cast<long>(std::clamp<uint64_t>((ns + kMillisecondNs - 1) / kMillisecondNs, 1, 86'400'000));
}

}  // namespace

struct Http::Multi {
  CURLM* handle = nullptr;
  ~Multi() { curl_multi_cleanup(handle); }
};

struct Http::Transfer {
  Id id = 0;
  HttpRequest request;
  Done done;
  Piece piece;
  CURL* handle = nullptr;
  curl_slist* headers = nullptr;
  std::array<char, CURL_ERROR_SIZE> error{};
  Http* http = nullptr;
  std::string body;  // or of a stream what is not delivered yet
  bool too_large = false;

  ~Transfer() {
    curl_easy_cleanup(handle);
    curl_slist_free_all(headers);
  }
};

Http::Http(const Options& options) : options_(options), multi_(std::make_unique<Multi>()) {
  init_curl();
  multi_->handle = curl_multi_init();
  if (multi_->handle == nullptr) fail(Status::kOutOfMemory, "libcurl gives no handle");
  curl_multi_setopt(multi_->handle, CURLMOPT_MAXCONNECTS, kIdleConnections);
}

Http::~Http() {
  while (!transfers_.empty()) {
    Id id = transfers_.begin()->first;
    stop(id);
  }
}

std::size_t Http::write(char* data, std::size_t one, std::size_t count, void* context) {
  Transfer& transfer = *static_cast<Transfer*>(context);
  const std::size_t bytes = one * count;
  long status = 0;
  curl_easy_getinfo(transfer.handle, CURLINFO_RESPONSE_CODE, &status);
  // A stream's bytes wait until libcurl is left: it can't be called from here.
  if (transfer.piece && status / 100 == 2 && transfer.body.empty())
    transfer.http->fresh_.push_back(transfer.id);
  if (transfer.body.size() + bytes > transfer.request.max_answer_bytes) {
    transfer.too_large = true;
    return 0;
  }
  transfer.body.append(data, bytes);
  return bytes;
}

void Http::prepare(Transfer& transfer) {
  const HttpRequest& request = transfer.request;
  CURL* const curl = transfer.handle;
  // The token would be logged by nothing but CURLOPT_VERBOSE, which is never set.
  const auto add_header = [&](const std::string& header) {
    curl_slist* longer = curl_slist_append(transfer.headers, header.c_str());
    if (longer == nullptr) fail(Status::kOutOfMemory, "libcurl takes no header");
    transfer.headers = longer;
  };
  add_header("Content-Type: application/json");
  add_header("Expect:");
  if (!request.token.empty()) add_header("Authorization: " + request.token);
  const auto set = [&](CURLoption option, auto value) {
    const CURLcode code = curl_easy_setopt(curl, option, value);
    if (code != CURLE_OK) {
      fail(Status::kUnsupported, "libcurl refuses option {}: {}", static_cast<int>(option),
           curl_easy_strerror(code));
    }
  };
  set(CURLOPT_URL, request.url.c_str());
  set(CURLOPT_PROTOCOLS_STR, "http,https");
  set(CURLOPT_PROXY, "");  // directories are near; a proxy of the environment is for elsewhere
  set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
  set(CURLOPT_POSTFIELDS, request.body.data());
  set(CURLOPT_HTTPHEADER, transfer.headers);
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_TCP_KEEPALIVE, 1L);
  set(CURLOPT_TCP_KEEPIDLE, kKeepaliveIdleSeconds);
  set(CURLOPT_TCP_KEEPINTVL, kKeepaliveEverySeconds);
  set(CURLOPT_CONNECTTIMEOUT_MS, milliseconds(options_.connect_timeout_ns));
  if (request.timeout_ns != 0) set(CURLOPT_TIMEOUT_MS, milliseconds(request.timeout_ns));
  set(CURLOPT_ERRORBUFFER, transfer.error.data());
  set(CURLOPT_WRITEFUNCTION, &Http::write);
  set(CURLOPT_WRITEDATA, static_cast<void*>(&transfer));
  set(CURLOPT_PRIVATE, static_cast<void*>(&transfer));
  if (!options_.ca_file.empty()) {
    set(CURLOPT_CAINFO, options_.ca_file.c_str());
    set(CURLOPT_CAPATH, static_cast<const char*>(nullptr));  // that one alone
  }
  if (!options_.cert_file.empty()) {
    set(CURLOPT_SSLCERT, options_.cert_file.c_str());
    set(CURLOPT_SSLKEY, options_.key_file.c_str());
  }
}

Http::Id Http::start(HttpRequest request, Done done, Piece piece) {
  auto made = std::make_unique<Transfer>();
  Transfer& transfer = *made;
  transfer.id = ++last_;
  transfer.http = this;
  transfer.request = std::move(request);
  transfer.done = std::move(done);
  transfer.piece = std::move(piece);
  transfer.handle = curl_easy_init();
  if (transfer.handle == nullptr) fail(Status::kOutOfMemory, "libcurl gives no handle");
  prepare(transfer);
  const CURLMcode code = curl_multi_add_handle(multi_->handle, transfer.handle);
  if (code != CURLM_OK) fail(Status::kInternal, "libcurl: {}", curl_multi_strerror(code));
  transfers_.emplace(transfer.id, std::move(made));
  return transfer.id;
}

void Http::stop(Id& id) {
  if (const auto found = transfers_.find(id); found != transfers_.end()) {
    curl_multi_remove_handle(multi_->handle, found->second->handle);
    transfers_.erase(found);
  }
  id = 0;
}

void Http::finish(Transfer& transfer, int curl_code) {
  using End = HttpAnswer::End;
  HttpAnswer answer;
  answer.body = std::move(transfer.body);
  answer.error =
      transfer.error[0] != 0 ? transfer.error.data() : curl_easy_strerror(static_cast<CURLcode>(curl_code));
  curl_easy_getinfo(transfer.handle, CURLINFO_RESPONSE_CODE, &answer.status);
  curl_off_t connected_us = 0;
  curl_easy_getinfo(transfer.handle, CURLINFO_PRETRANSFER_TIME_T, &connected_us);
  switch (curl_code) {
    case CURLE_OK:
      answer.end = End::kAnswered;
      break;
    case CURLE_WRITE_ERROR:
      answer.end = transfer.too_large ? End::kTooLarge : End::kBroken;
      if (transfer.too_large) {
        answer.error = fmt::format("its answer is longer than {} bytes (etcd.max_answer)",
                                   transfer.request.max_answer_bytes);
      }
      break;
    case CURLE_OPERATION_TIMEDOUT:
      answer.end = connected_us == 0 ? End::kNotSent : End::kTimedOut;
      break;
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_ISSUER_ERROR:
      answer.end = End::kUntrusted;
      break;
    default:
      answer.end = connected_us == 0 ? End::kNotSent : End::kBroken;
  }
  const Done done = std::move(transfer.done);
  Id id = transfer.id;
  stop(id);
  done(std::move(answer));
}

void Http::deliver() {
  std::vector<Id> fresh;
  fresh.swap(fresh_);
  for (const Id id : fresh) {
    const auto found = transfers_.find(id);
    if (found == transfers_.end()) continue;
    const std::string bytes = std::exchange(found->second->body, {});
    const Piece piece = found->second->piece;  // outlives the transfer, should it be stopped
    piece(bytes);
  }
}

void Http::reap() {
  int left = 0;
  while (const CURLMsg* message = curl_multi_info_read(multi_->handle, &left)) {
    if (message->msg != CURLMSG_DONE) continue;
    const int code = message->data.result;
    Transfer* transfer = nullptr;
    curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &transfer);
    finish(*transfer, code);
  }
}

void Http::poll(uint64_t timeout_ns) {
  const uint64_t most_ms = std::min<uint64_t>((timeout_ns + kMillisecondNs - 1) / kMillisecondNs, 60'000);
  curl_multi_poll(multi_->handle, nullptr, 0, static_cast<int>(most_ms), nullptr);
  int running = 0;
  curl_multi_perform(multi_->handle, &running);
  deliver();
  reap();
}

void Http::wake() noexcept { curl_multi_wakeup(multi_->handle); }

}  // namespace towline::etcd
