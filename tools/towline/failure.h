// Exceptions that end a command early.
#pragma once

#include <stdexcept>

namespace tool {

// Something the user should read: printed as "towline: error: ..", with --json as {"error": ".."} too; exit code 1.
class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Ctrl-C, SIGTERM or the end of the terminal: children are ended, nothing is printed but that, exit code 130.
struct Interrupted {};

}  // namespace tool
