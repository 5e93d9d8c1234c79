#include "storage/object/simple_http.h"

#include <curl/curl.h>

#include <array>
#include <memory>

#include "storage/object/http.h"

namespace towline::object {

namespace {

constexpr long kTimeoutMs = 5000;
constexpr size_t kMostAnswerBytes = 1 << 18;

size_t take(char* data, size_t one, size_t count, void* into) {
  auto& body = *static_cast<std::string*>(into);
  if (body.size() + one * count > kMostAnswerBytes) return 0;
  body.append(data, one * count);
  return one * count;
}

int stopped(void* stop, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return static_cast<const std::atomic<bool>*>(stop)->load() ? 1 : 0;
}

}  // namespace

SimpleAnswer SimpleHttp::ask(const char* method, const std::string& url,
                             const std::vector<std::string>& headers, const std::string& body) const {
  init_curl();
  const std::unique_ptr<CURL, void (*)(CURL*)> curl(curl_easy_init(), curl_easy_cleanup);
  if (curl == nullptr) return {0, "", "libcurl gives no handle"};
  curl_slist* list = curl_slist_append(nullptr, "Expect:");
  for (const std::string& header : headers) list = curl_slist_append(list, header.c_str());
  const std::unique_ptr<curl_slist, void (*)(curl_slist*)> owned(list, curl_slist_free_all);
  SimpleAnswer answer;
  std::array<char, CURL_ERROR_SIZE> error{};
  curl_easy_setopt(curl.get(), CURLOPT_URL, url.c_str());
  curl_easy_setopt(curl.get(), CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl.get(), CURLOPT_PROXY, "");
  curl_easy_setopt(curl.get(), CURLOPT_CUSTOMREQUEST, method);
  if (*method != 'G') {
    curl_easy_setopt(curl.get(), CURLOPT_POSTFIELDSIZE, static_cast<long>(body.size()));
    curl_easy_setopt(curl.get(), CURLOPT_POSTFIELDS, body.c_str());
  }
  curl_easy_setopt(curl.get(), CURLOPT_HTTPHEADER, list);
  curl_easy_setopt(curl.get(), CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl.get(), CURLOPT_TIMEOUT_MS, kTimeoutMs);
  curl_easy_setopt(curl.get(), CURLOPT_CONNECTTIMEOUT_MS, kTimeoutMs / 2);
  curl_easy_setopt(curl.get(), CURLOPT_ERRORBUFFER, error.data());
  curl_easy_setopt(curl.get(), CURLOPT_WRITEFUNCTION, take);
  curl_easy_setopt(curl.get(), CURLOPT_WRITEDATA, static_cast<void*>(&answer.body));
  curl_easy_setopt(curl.get(), CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(curl.get(), CURLOPT_XFERINFOFUNCTION, stopped);
  curl_easy_setopt(curl.get(), CURLOPT_XFERINFODATA, const_cast<std::atomic<bool>*>(&stop_));
  if (!settings_.ca_file.empty()) curl_easy_setopt(curl.get(), CURLOPT_CAINFO, settings_.ca_file.c_str());
  const CURLcode code = curl_easy_perform(curl.get());
  if (code != CURLE_OK) {
    answer.error = error[0] != 0 ? error.data() : curl_easy_strerror(code);
  } else {
    curl_easy_getinfo(curl.get(), CURLINFO_RESPONSE_CODE, &answer.status);
  }
  return answer;
}

}  // namespace towline::object
