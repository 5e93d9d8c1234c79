// What NIXL's nixlbench uses of etcd-cpp-api, which Debian has not, over the JSON interface of a real etcd server.
#pragma once

#include <curl/curl.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <iostream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace etcd {

class Value {
 public:
  Value() = default;
  Value(std::string key, std::string text) : key_(std::move(key)), text_(std::move(text)) {}
  const std::string& key() const { return key_; }
  const std::string& as_string() const { return text_; }

 private:
  std::string key_;
  std::string text_;
};

class Response {
 public:
  bool is_ok() const { return code_ == 0; }
  int error_code() const { return code_; }
  const std::string& error_message() const { return message_; }
  const Value& value() const { return values_.empty() ? nothing_ : values_.front(); }
  const std::string& lock_key() const { return lock_key_; }
  const std::vector<std::string>& keys() const { return keys_; }

 private:
  friend class SyncClient;
  int code_ = 0;
  std::string message_;
  std::string lock_key_;
  std::vector<Value> values_;
  std::vector<std::string> keys_;
  Value nothing_;
};

class SyncClient {
 public:
  explicit SyncClient(std::string endpoint) : endpoint_(std::move(endpoint)) {
    const Response any = get("any");
    if (!any.is_ok() && any.error_code() != kKeyNotFound)
      throw std::runtime_error(endpoint_ + ": " + any.error_message());
  }

  Response get(const std::string& key) {
    Response response = call("kv/range", {{"key", encoded(key)}});
    if (response.is_ok() && response.values_.empty()) fail(response, kKeyNotFound, "key not found");
    return response;
  }
  Response ls(const std::string& prefix) {
    return call("kv/range", {{"key", encoded(prefix)}, {"range_end", encoded(after(prefix))}});
  }
  Response put(const std::string& key, const std::string& text, std::int64_t lease = 0) {
    return call("kv/put",
                {{"key", encoded(key)}, {"value", encoded(text)}, {"lease", std::to_string(lease)}});
  }
  Response rm(const std::string& key) { return call("kv/deleterange", {{"key", encoded(key)}}); }
  Response rmdir(const std::string& prefix, bool) {
    return call("kv/deleterange", {{"key", encoded(prefix)}, {"range_end", encoded(after(prefix))}});
  }
  Response lock(const std::string& name) { return call("lock/lock", {{"name", encoded(name)}}); }
  Response unlock(const std::string& key) { return call("lock/unlock", {{"key", encoded(key)}}); }
  std::int64_t grant(int seconds) {
    nlohmann::json answer;
    const Response response = call("lease/grant", {{"TTL", std::to_string(seconds)}}, &answer);
    if (!response.is_ok()) throw std::runtime_error(response.error_message());
    return std::stoll(answer.at("ID").get<std::string>());
  }
  bool renew(std::int64_t lease) { return call("lease/keepalive", {{"ID", std::to_string(lease)}}).is_ok(); }
  void revoke(std::int64_t lease) { (void)call("lease/revoke", {{"ID", std::to_string(lease)}}); }

 private:
  static constexpr int kKeyNotFound = 100;

  static void fail(Response& response, int code, std::string message) {
    response.code_ = code;
    response.message_ = std::move(message);
  }
  static std::string after(std::string prefix) {
    ++prefix.back();
    return prefix;
  }
  static constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  static std::string encoded(const std::string& text) {
    std::string out;
    for (std::size_t at = 0; at < text.size(); at += 3) {
      std::uint32_t bits = 0;
      for (std::size_t i = 0; i < 3; ++i)
        bits = bits << 8 | (at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0);
      for (std::size_t i = 0; i < 4; ++i)
        out += at + i > text.size() ? '=' : kDigits[bits >> (18 - 6 * i) & 63];
    }
    return out;
  }
  static std::string decoded(const std::string& text) {
    std::string out;
    std::uint32_t bits = 0;
    int held = 0;
    for (const char digit : text) {
      const std::size_t value = kDigits.find(digit);
      if (value == std::string_view::npos) break;
      bits = bits << 6 | static_cast<std::uint32_t>(value);
      if ((held += 6) >= 8) out += static_cast<char>(bits >> (held -= 8) & 255);
    }
    return out;
  }
  static std::size_t keep(char* data, std::size_t size, std::size_t count, void* into) {
    static_cast<std::string*>(into)->append(data, size * count);
    return size * count;
  }

  Response call(const std::string& path, const nlohmann::json& request, nlohmann::json* whole = nullptr) {
    Response response;
    std::string body;
    const std::string text = request.dump();
    CURL* curl = curl_easy_init();
    curl_easy_setopt(curl, CURLOPT_URL, (endpoint_ + "/v3/" + path).c_str());
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, text.c_str());
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, &keep);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &body);
    const CURLcode done = curl_easy_perform(curl);
    curl_easy_cleanup(curl);
    if (done != CURLE_OK) {
      fail(response, 14, curl_easy_strerror(done));
      return response;
    }
    const nlohmann::json answer = nlohmann::json::parse(body, nullptr, false);
    if (answer.is_discarded() || answer.contains("error")) {
      fail(response, 2, body);
      return response;
    }
    for (const auto& pair : answer.value("kvs", nlohmann::json::array())) {
      response.values_.emplace_back(decoded(pair.at("key")), decoded(pair.value("value", "")));
      response.keys_.push_back(response.values_.back().key());
    }
    if (path == "lock/lock") response.lock_key_ = decoded(answer.at("key"));
    if (whole != nullptr) *whole = answer;
    return response;
  }

  std::string endpoint_;
};

// A lease that a thread renews.
class KeepAlive {
 public:
  KeepAlive(SyncClient& client, int seconds) : client_(client), lease_(client.grant(seconds)) {
    thread_ = std::thread([this, seconds] {
      std::unique_lock lock(mutex_);
      while (!ended_.wait_for(lock, std::chrono::seconds(seconds) / 4, [this] { return end_; }))
        lost_ |= !client_.renew(lease_);
    });
  }
  ~KeepAlive() { Cancel(); }
  std::int64_t Lease() const { return lease_; }
  void Check() {
    std::lock_guard lock(mutex_);
    if (lost_) throw std::runtime_error("a lease was not renewed");
  }
  void Cancel() {
    {
      std::lock_guard lock(mutex_);
      if (end_) return;
      end_ = true;
    }
    ended_.notify_all();
    thread_.join();
    client_.revoke(lease_);
  }

 private:
  SyncClient& client_;
  std::int64_t lease_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool end_ = false;
  bool lost_ = false;
  std::thread thread_;
};

}  // namespace etcd
