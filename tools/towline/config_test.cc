#include "config.h"

#include <gtest/gtest.h>

#include "failure.h"

namespace tool {
namespace {

const Terminal kPlain{stdout, false};

nlohmann::json settings() {
  return nlohmann::json::parse(R"({"schema": 1, "settings": [
      {"name": "peer.lost", "type": "duration", "bounds": "", "meaning": "silence", "promised": true,
       "value": "7s", "source": "environment TOWLINE_PEER_LOST"},
      {"name": "workers", "type": "number", "bounds": "1 to 8", "meaning": "threads", "promised": true,
       "value": "1", "source": "default"},
      {"name": "tuning.tcp.bulk_bytes", "type": "bytes", "bounds": "", "meaning": "moved", "promised": false,
       "value": "1MiB", "source": "default"},
      {"name": "tuning.split", "type": "choice", "bounds": "auto, on, off", "meaning": "posts", "promised": false,
       "value": "of", "source": "environment TOWLINE_TUNING_SPLIT",
       "wrong": "tuning.split = \"of\" is not one of auto, on, off"}],
      "unknown": [{"name": "peer.los", "nearest": "peer.lost"}]})");
}

size_t shown(const std::string& filter, bool all, bool set_only) {
  return chosen_settings(settings(), filter, all, set_only).at("settings").size();
}

TEST(ConfigCommand, ShowsWhatIsPromisedOrAskedFor) {
  EXPECT_EQ(shown("", false, false), 3u);
  EXPECT_EQ(shown("", true, false), 4u);
  EXPECT_EQ(shown("bulk", false, false), 1u);
  EXPECT_EQ(shown("", true, true), 2u);
}

TEST(ConfigCommand, RefusesAFilterThatNoSettingMatches) {
  EXPECT_THROW((void)shown("nonesuch", false, false), Failure);
  EXPECT_EQ(shown("workers", false, true), 0u) << "it is there, and not set";
}

TEST(ConfigCommand, SaysValueSourceAndWhatIsWrongOrUnknown) {
  const std::string text = render_config(settings(), kPlain);
  for (const char* part : {"7s", "environment TOWLINE_PEER_LOST", "threads (1 to 8)", "moved [tuning]",
                           "unknown: peer.los; peer.lost is the nearest",
                           "wrong: tuning.split = \"of\" is not one of auto, on, off"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
}

}  // namespace
}  // namespace tool
