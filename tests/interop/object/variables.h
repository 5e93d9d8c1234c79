// Variables of the environment, for a test.
#pragma once

#include <cstdlib>
#include <map>
#include <string>

namespace towline::interop {

// Sets variables and puts them back.
class Variables {
 public:
  explicit Variables(const std::map<std::string, std::string>& values) {
    for (const auto& [name, value] : values) {
      const char* before = getenv(name.c_str());
      before_[name] = before == nullptr ? "" : before;
      ::setenv(name.c_str(), value.c_str(), 1);
    }
  }
  ~Variables() {
    for (const auto& [name, value] : before_)
      value.empty() ? ::unsetenv(name.c_str()) : ::setenv(name.c_str(), value.c_str(), 1);
  }
  Variables(const Variables&) = delete;
  Variables& operator=(const Variables&) = delete;

 private:
  std::map<std::string, std::string> before_;
};

}  // namespace towline::interop
