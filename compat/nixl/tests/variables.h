// Variables of the environment for the life of an object. No agent may be alive as it begins or ends.
#pragma once

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

namespace compat {

class Variables {
 public:
  explicit Variables(const std::map<std::string, std::string>& values) {
    for (const auto& [name, value] : values) {
      names_.push_back(name);
      ::setenv(name.c_str(), value.c_str(), 1);  // NOLINT: no agent lives
    }
  }
  ~Variables() {
    for (const std::string& name : names_) ::unsetenv(name.c_str());  // NOLINT
  }
  Variables(const Variables&) = delete;
  Variables& operator=(const Variables&) = delete;

 private:
  std::vector<std::string> names_;
};

}  // namespace compat
