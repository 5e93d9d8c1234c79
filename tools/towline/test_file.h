// A C stream of a test, closed at its end.
#pragma once

#include <cstdio>
#include <memory>

namespace tool {

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

}  // namespace tool
