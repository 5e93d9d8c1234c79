#include "companions.h"

#include <dlfcn.h>

#include <filesystem>
#include <vector>

namespace towline::nixl_plugins {

namespace fs = std::filesystem;

namespace {

// "...: libX.so.1: cannot open shared object file: ..."; "" for another text.
std::string missing_in(const std::string& text) {
  const std::size_t end = text.find(": cannot open shared object file");
  if (end == std::string::npos) return {};
  const std::size_t before = text.rfind(' ', end);
  const std::size_t begin = before == std::string::npos ? 0 : before + 1;
  std::string name = text.substr(begin, end - begin);
  return name.find('/') == std::string::npos ? name : std::string{};
}

std::vector<fs::path> folders_around(const std::string& plugin) {
  std::error_code ignored;
  const fs::path folder = fs::absolute(plugin, ignored).parent_path();
  std::vector<fs::path> places = {folder, folder.parent_path()};
  for (const fs::path& around : {folder.parent_path(), folder.parent_path().parent_path()})
    for (const auto& entry : fs::directory_iterator(around, ignored))
      if (entry.is_directory(ignored) && entry.path().filename().string().find("nixl") != std::string::npos)
        places.push_back(entry.path());
  return places;
}

}  // namespace

bool load_companion(const std::string& plugin, const std::string& loader_text) {
  const std::string name = missing_in(loader_text);
  if (name.empty()) return false;
  std::error_code ignored;
  for (const fs::path& place : folders_around(plugin)) {
    const std::string file = place / name;
    if (fs::exists(file, ignored) && ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) != nullptr)
      return true;
  }
  return false;
}

std::string explain_missing(const std::string& plugin, const std::string& loader_text) {
  const std::string name = missing_in(loader_text);
  if (name.empty()) return loader_text;
  std::string text = plugin + " needs " + name;
  std::string looked_in;
  std::error_code ignored;
  for (const fs::path& place : folders_around(plugin)) {
    const std::string file = place / name;
    if (fs::exists(file, ignored) && ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) {
      const char* const why = ::dlerror();  // NOLINT(concurrency-mt-unsafe): of this thread
      return text + ", which can't be loaded: " + (why == nullptr ? file : why);
    }
    looked_in += (looked_in.empty() ? "" : ", ") + place.string();
  }
  return text + ", which is neither in the dynamic loader's folders (LD_LIBRARY_PATH) nor in " + looked_in;
}

}  // namespace towline::nixl_plugins
