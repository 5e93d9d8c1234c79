#include "nixl_plugins/companions.h"

#include <dlfcn.h>

#include <filesystem>
#include <string_view>
#include <vector>

namespace towline::nixl_plugins {

namespace fs = std::filesystem;

namespace {

// "...: libX.so.1: cannot open shared object file: ..."
std::string missing_in(const std::string& text) {
  const std::size_t end = text.find(": cannot open shared object file");
  if (end == std::string::npos) return {};
  const std::size_t before = text.rfind(' ', end);
  std::string name = text.substr(before == std::string::npos ? 0 : before + 1, end - before - 1);
  return name.find('/') == std::string::npos ? name : std::string{};
}

}  // namespace

bool load_companion(const std::string& plugin, const std::string& loader_text) {
  const std::string name = missing_in(loader_text);
  if (name.empty()) return false;
  std::error_code ignored;
  const fs::path folder = fs::absolute(plugin, ignored).parent_path();
  std::vector<fs::path> places = {folder, folder.parent_path()};
  for (const fs::path& around : {folder.parent_path(), folder.parent_path().parent_path()})
    for (const auto& entry : fs::directory_iterator(around, ignored))
      if (entry.is_directory(ignored) && entry.path().filename().string().find("nixl") != std::string::npos)
        places.push_back(entry.path());
  for (const fs::path& place : places) {
    const std::string file = place / name;
    if (fs::exists(file, ignored) && ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) != nullptr)
      return true;
  }
  return false;
}

}  // namespace towline::nixl_plugins
