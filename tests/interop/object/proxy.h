// A proxy before an S3 server that does to requests and answers what a test wants.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace towline::interop {

// One request as the proxy, or a server of the test's own, sees it.
struct Request {
  std::string method;
  std::string target;                          // path and query
  std::map<std::string, std::string> headers;  // by lower-case name
  std::string body;
  unsigned number = 0;  // of all so far, from 1

  [[nodiscard]] bool has(const std::string& part) const { return target.find(part) != std::string::npos; }
};

// The fault applied to a request and its answer.
struct Fault {
  std::string answer{};                              // not empty: sent instead, and the server is not asked
  bool drop = false;                                 // the connection closes before the server is asked
  bool drop_answer = false;                          // after it was
  size_t cut_answer_at = SIZE_MAX;                   // so many bytes of the body, then the connection closes
  size_t flip_byte_at = SIZE_MAX;                    // of the answer's body
  bool flip_request = false;                         // a byte of the request's body
  size_t shorten_by = 0;                             // of the answer's body, and Content-Length says so
  bool hold = false;                                 // the answer never comes; the connection stays
  uint32_t late_ms = 0;                              // so much later the answer comes
  std::map<std::string, std::string> set_headers{};  // of the answer
};

class Proxy {
 public:
  using Judge = std::function<Fault(const Request& request)>;

  // Port 0: there is no server behind; the judge answers everything.
  explicit Proxy(uint16_t to, Judge judge = {});
  ~Proxy();
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;

  [[nodiscard]] std::string url() const;
  void judge(Judge judge);
  [[nodiscard]] std::vector<Request> seen() const;  // without bodies
  void forget();

  static std::string http(int status, const std::string& body, const std::string& headers = {});
  static std::string s3_error(int status, const std::string& code, const std::string& headers = {});

 private:
  void run();
  void serve(int fd);
  [[nodiscard]] bool forward(int& server, int client, const Request& request, const std::string& raw_head,
                             const Fault& fault);

  const uint16_t to_;
  uint16_t port_ = 0;
  int listener_ = -1;
  mutable std::mutex mutex_;
  Judge judge_;
  std::vector<Request> seen_;
  std::atomic<unsigned> count_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
  std::vector<std::thread> connections_;
};

}  // namespace towline::interop
