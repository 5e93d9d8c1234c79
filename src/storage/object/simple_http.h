// One request after another, by a thread that may wait: for the services that give out credentials.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "storage/object/settings.h"

namespace towline::object {

struct SimpleAnswer {
  long status = 0;  // 0: none came
  std::string body;
  std::string error;  // why none came
};

class SimpleHttp {
 public:
  // A request under way is given up when `stop` turns true.
  SimpleHttp(const Settings& settings, const std::atomic<bool>& stop) : settings_(settings), stop_(stop) {}

  [[nodiscard]] SimpleAnswer get(const std::string& url, const std::vector<std::string>& headers) const {
    return ask("GET", url, headers, "");
  }
  [[nodiscard]] SimpleAnswer put(const std::string& url, const std::vector<std::string>& headers) const {
    return ask("PUT", url, headers, "");
  }
  [[nodiscard]] SimpleAnswer post(const std::string& url, const std::string& form) const {
    return ask("POST", url, {"Content-Type: application/x-www-form-urlencoded"}, form);
  }

 private:
  [[nodiscard]] SimpleAnswer ask(const char* method, const std::string& url,
                                 const std::vector<std::string>& headers, const std::string& body) const;

  const Settings& settings_;
  const std::atomic<bool>& stop_;
};

}  // namespace towline::object
