#include "storage/object/profile.h"

#include <algorithm>

#include "base/os/unique_fd.h"

namespace towline::object {

namespace {

std::string_view trimmed(std::string_view text) {
  const auto space = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  while (!text.empty() && space(text.front())) text.remove_prefix(1);
  while (!text.empty() && space(text.back())) text.remove_suffix(1);
  return text;
}

// "name" of "[name]" or "[profile name]"; empty for sections of another sort.
std::string_view section_name(std::string_view line, bool in_config) {
  line.remove_prefix(1);
  std::string_view name = trimmed(line.substr(0, line.find(']')));
  constexpr std::string_view kWord = "profile";
  const bool has_word = name.starts_with(kWord) && name.size() > kWord.size() &&
                        (name[kWord.size()] == ' ' || name[kWord.size()] == '\t');
  if (has_word) return trimmed(name.substr(kWord.size()));
  return in_config && name != "default" ? std::string_view{} : name;
}

}  // namespace

void read_profile(std::string_view text, std::string_view name, bool in_config, Profile& profile) {
  bool here = false;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view raw = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const std::string_view line = trimmed(raw);
    if (line.empty() || line.front() == '#' || line.front() == ';') continue;
    if (line.front() == '[') {
      here = section_name(line, in_config) == name;
      continue;
    }
    const bool nested = raw.front() == ' ' || raw.front() == '\t';  // "s3 =" and settings below it
    const size_t equals = line.find('=');
    if (!here || nested || equals == std::string_view::npos) continue;
    std::string key(trimmed(line.substr(0, equals)));
    std::transform(key.begin(), key.end(), key.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
    std::string_view value = trimmed(line.substr(equals + 1));
    for (const std::string_view comment : {" #", " ;", "\t#", "\t;"})
      value = value.substr(0, value.find(comment));
    profile.emplace(std::move(key), trimmed(value));
  }
}

Profile read_profile_files(const std::vector<ProfileFile>& files, std::string_view name) {
  Profile profile;
  for (const ProfileFile& file : files) {
    if (const auto contents = read_text_file(file.path))
      read_profile(*contents, name, file.is_config, profile);
  }
  return profile;
}

std::string profile_value(const Profile& profile, std::string_view key) {
  const auto found = profile.find(key);
  return found == profile.end() ? "" : found->second;
}

}  // namespace towline::object
