// A profile of Amazon's files (~/.aws/credentials, ~/.aws/config).
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace towline::object {

using Profile = std::map<std::string, std::string, std::less<>>;  // values by lower-case key

// Adds what the text of such a file says of the profile; what is there already stays. `in_config`: sections
// are "[profile name]" there, but for "[default]".
void read_profile(std::string_view text, std::string_view name, bool in_config, Profile& profile);

struct ProfileFile {
  std::string path;
  bool is_config = false;
};

// Reads the profile from the files; earlier files have priority. Unreadable files are skipped.
[[nodiscard]] Profile read_profile_files(const std::vector<ProfileFile>& files, std::string_view name);
// Empty: the profile does not say.
[[nodiscard]] std::string profile_value(const Profile& profile, std::string_view key);

}  // namespace towline::object
