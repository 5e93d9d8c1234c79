#include "base/config/config.h"
#include "base/config/settings_table.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

namespace towline {
namespace {

constexpr char kFile[] = R"(
[tcp]
port_range = "7000-7100"
lanes = 4
nodelay = true
rails = ["eth0", "eth1"]
[shm]
ring = "64KiB"
ratio = 0.25
)";

template <class Call>
std::string error_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Status::kInvalidArgument);
    return error.what();
  }
  return "no error";
}

TEST(ConfigTest, TheProgramWinsOverTheEnvironmentOverTheFileOverTheDefault) {
  Config config = Config::from_sources({{"TOWLINE_TCP_LANES", "8"}, {"LANES", "9"}}, kFile, "f.toml");
  EXPECT_EQ(config.get_u64("tcp.rings", 3), 3u);
  EXPECT_EQ(config.source("tcp.rings"), "default");
  EXPECT_EQ(config.get_string("tcp.port_range"), "7000-7100");
  EXPECT_EQ(config.source("tcp.port_range"), "f.toml line 3");
  EXPECT_EQ(config.get_u64("tcp.lanes", 3), 8u);
  EXPECT_EQ(config.source("tcp.lanes"), "environment TOWLINE_TCP_LANES");
  config.set("tcp.lanes", "16");
  EXPECT_EQ(config.get_u64("tcp.lanes", 3), 16u);
  EXPECT_EQ(config.source("tcp.lanes"), "set by the program");
}

TEST(ConfigTest, AnEmptyEnvironmentValueIsAValue) {
  const Config config = Config::from_sources({{"TOWLINE_TCP_PORT_RANGE", ""}}, kFile);
  EXPECT_EQ(config.get_string("tcp.port_range", "x"), "");
  EXPECT_EQ(config.find("tcp.none"), std::nullopt);
}

TEST(ConfigTest, TypesFromTheFile) {
  const Config config = Config::from_sources({}, kFile);
  EXPECT_TRUE(config.get_bool("tcp.nodelay", false));
  EXPECT_EQ(config.get_list("tcp.rails"), (std::vector<std::string>{"eth0", "eth1"}));
  EXPECT_EQ(config.get_bytes("shm.ring", 0), 65536u);
  EXPECT_EQ(config.get_double("shm.ratio", 1), 0.25);
}

TEST(ConfigTest, BadValuesNameSourceKeyValueAndWhatIsExpected) {
  const Config config = Config::from_sources({{"TOWLINE_A_SIZE", "12 bananas"}},
                                             "[b]\nwait = 5\nmode = \"fast\"", "/etc/towline.toml");
  EXPECT_EQ(error_of([&] { config.get_bytes("a.size", 0); }),
            "environment TOWLINE_A_SIZE: a.size = \"12 bananas\" is not a size, such as 4096, 64KiB, 1.5GiB "
            "or 1GB");
  const std::string wait = error_of([&] { config.get_duration_ns("b.wait", 0); });
  EXPECT_TRUE(wait.starts_with("/etc/towline.toml line 2: b.wait = \"5\" is not a duration")) << wait;
  EXPECT_EQ(error_of([&] {
              config.get_choice("b.mode", {"slow", "slower"}, "slow");
            }),
            "/etc/towline.toml line 3: b.mode = \"fast\" is not one of slow, slower");
  EXPECT_NE(error_of([&] { config.get_u64("a.size", 0); }), "no error");
  EXPECT_NE(error_of([&] { config.get_bool("a.size", false); }), "no error");
  EXPECT_NE(error_of([&] { config.get_double("a.size", 0); }), "no error");
  EXPECT_EQ(error_of([&] { config.get_u64("b.wait", 1, 6, 9); }),
            "/etc/towline.toml line 2: b.wait = \"5\" is not a whole number from 6 to 9");
}

TEST(ConfigTest, NumbersAreParsedStrictly) {
  const auto value = [](const char* text) {
    Config config;
    config.set("k", text);
    return config.get_u64("k", 0);
  };
  EXPECT_EQ(value("0x1F"), 31u);
  EXPECT_EQ(value(" 18446744073709551615 "), UINT64_MAX);
  for (const char* text : {"", "-1", "+1", "1.0", "1e3", "0x", "18446744073709551616", "1 2"}) {
    EXPECT_THROW(value(text), Error) << text;
  }
}

TEST(ConfigTest, SizesAndDurations) {
  EXPECT_EQ(parse_bytes("4096"), 4096u);
  EXPECT_EQ(parse_bytes("64MiB"), 64u << 20);
  EXPECT_EQ(parse_bytes("1.5 GiB"), 3u << 29);
  EXPECT_EQ(parse_bytes("2GB"), 2'000'000'000u);
  EXPECT_EQ(parse_bytes("2G"), 2u << 30);
  for (const char* text :
       {"", "MiB", "-1", "1mib", "1e3", "1.2.3MiB", "17179869184GiB", "99999999999999999999"}) {
    EXPECT_FALSE(parse_bytes(text)) << text;
  }
  EXPECT_EQ(parse_duration_ns("5s"), 5 * kSecondNs);
  EXPECT_EQ(parse_duration_ns("1.5ms"), 1'500'000u);
  EXPECT_EQ(parse_duration_ns("10us"), 10'000u);
  EXPECT_EQ(parse_duration_ns("2min"), 120 * kSecondNs);
  EXPECT_EQ(parse_duration_ns("infinite"), kNoDeadline);
  EXPECT_EQ(parse_duration_ns("0"), 0u);
  for (const char* text : {"", "5", "s", "5 seconds", "-5s", "99999999999h"}) {
    EXPECT_FALSE(parse_duration_ns(text)) << text;
  }
}

TEST(ConfigTest, ListsFromTextAreTrimmed) {
  Config config;
  config.set("k", " a, b ,,c ");
  EXPECT_EQ(config.get_list("k"), (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_TRUE(config.get_list("none").empty());
}

TEST(ConfigTest, MalformedFilesNameTheirLine) {
  const std::string message = error_of([] { Config::from_sources({}, "[tcp]\nlanes = = 4\n", "bad.toml"); });
  EXPECT_TRUE(message.starts_with("bad.toml line 2 column ")) << message;
  EXPECT_NE(error_of([] { Config::from_sources({}, "when = 2020-01-01", "bad.toml"); }), "no error");
  EXPECT_NE(error_of([] { Config::from_sources({}, "a = [\"x,y\"]", "bad.toml"); }), "no error");
}

TEST(ConfigTest, UnknownKeysOfTheFileAreWarnedOfOnce) {
  Config config =
      Config::from_sources({{"ODD", "1"}}, "[tcp]\nlanez = 1\nlanes = 2\n[cuda]\nx = 1\n[shm]\ny=1");
  config.get_u64("tcp.lanes", 0);
  config.declare({"cuda.*", "shm.y"});
  EXPECT_EQ(config.unknown_keys(), std::vector<std::string>{"tcp.lanez"});
  std::vector<std::string> lines;
  set_log_sink([](void* to, LogLevel,
                  std::string_view line) { static_cast<std::vector<std::string>*>(to)->emplace_back(line); },
               &lines);
  config.warn_unknown_keys();
  config.warn_unknown_keys();
  set_log_sink(nullptr, nullptr);
  EXPECT_EQ(lines, std::vector<std::string>{
                       "towline.toml line 2: unknown setting tcp.lanez; `towline config` lists them"});
}

TEST(ConfigTest, UnknownKeysOfTheProgramAreRefused) {
  Config config = Config::from_sources({}, "[tcp]\nlanez = 1\n");
  config.set("peer.los", "1s");
  config.set("peer.lost", "1s");
  config.set("tcp.lanez", "2");
  config.get_duration_ns("peer.lost", 0);
  EXPECT_EQ(config.unknown_keys(), (std::vector<std::string>{"peer.los", "tcp.lanez"}));
  EXPECT_EQ(error_of([&] { config.refuse_unknown_keys(); }),
            "set by the program: unknown setting peer.los; peer.lost is the nearest");
  config.declare({"peer.los", "tcp.*"});
  EXPECT_EQ(error_of([&] { config.refuse_unknown_keys(); }), "no error");
  config.set("another_plugin.lanes", "2");
  EXPECT_EQ(error_of([&] { config.refuse_unknown_keys(); }), "no error");
  config.set("cuad.blocks", "2");
  EXPECT_EQ(error_of([&] { config.refuse_unknown_keys(); }),
            "set by the program: unknown setting cuad.blocks; tuning.cuda.blocks is the nearest");
}

TEST(ConfigTest, EverySettingOfTheTableIsKnownAndNoOther) {
  Config config;
  config.declare_all_settings();
  for (const Setting& setting : all_settings()) {
    EXPECT_EQ(find_setting(setting.name), &setting) << setting.name;
    config.set(setting.name, "1");
  }
  config.set("collectives.library.mine", "/a");
  EXPECT_EQ(config.unknown_keys(), std::vector<std::string>{});
  config.set("cuda.blokcs", "1");
  EXPECT_EQ(config.unknown_keys(), std::vector<std::string>{"cuda.blokcs"});
  EXPECT_EQ(nearest_setting("cuda.blokcs"), "tuning.cuda.blocks");
  EXPECT_EQ(nearest_setting("nothing.like.it"), "");
}

// A default is a value of its type, so that what is documented may be written.
TEST(ConfigTest, DefaultsOfTheTableAreOfTheirTypes) {
  for (const Setting& setting : all_settings()) {
    const std::string_view fallback = setting.fallback;
    EXPECT_NE(std::string_view(setting.meaning), "") << setting.name;
    if (fallback.empty() || fallback == "auto") continue;
    if (setting.type == SettingType::kBytes) {
      EXPECT_TRUE(parse_bytes(fallback)) << setting.name;
    }
    if (setting.type == SettingType::kDuration) {
      EXPECT_TRUE(parse_duration_ns(fallback)) << setting.name;
    }
    if (setting.type == SettingType::kBool) {
      EXPECT_TRUE(fallback == "true" || fallback == "false") << setting.name;
    }
  }
}

TEST(ConfigTest, UnknownVariablesOfTheEnvironmentAreToldAsWell) {
  Config config = Config::from_sources({{"TOWLINE_TCP_LANEZ", "1"},
                                        {"TOWLINE_TCP_LANES", "1"},
                                        {"TOWLINE_CUDA_X", "1"},
                                        {"TOWLINE_CONFIG", ""},
                                        {"TOWLINE_SERVICE_HOST", "10.0.0.1"},
                                        {"TOWLINE_PORT_7777_TCP_ADDR", "10.0.0.1"},
                                        {"TOWLINES", "1"},
                                        {"HOME", "/h"}});
  config.get_u64("tcp.lanes", 0);
  config.declare({"cuda.*"});
  EXPECT_EQ(config.unknown_keys(), std::vector<std::string>{"TOWLINE_TCP_LANEZ"});
}

// Plugins built against older headers ask by such names, too.
TEST(ConfigTest, SettingsForTuningAreGivenWithTheirPrefixAndMayBeAskedForWithout) {
  Config config =
      Config::from_sources({{"TOWLINE_TUNING_TCP_SOCKETS", "3"}}, "[tuning.shm]\ninline_bytes = 7\n");
  EXPECT_EQ(config.get_u64("tcp.sockets", 1), 3u);
  EXPECT_EQ(config.get_u64("tuning.tcp.sockets", 1), 3u);
  EXPECT_EQ(config.source("tcp.sockets"), "environment TOWLINE_TUNING_TCP_SOCKETS");
  EXPECT_EQ(config.get_bytes("shm.inline_bytes", 1), 7u);
  config.declare_all_settings();
  EXPECT_EQ(config.unknown_keys(), std::vector<std::string>{});
}

TEST(ConfigTest, NamesFromBeforeTheyWereTuningNameTheOneOfToday) {
  Config config = Config::from_sources({{"TOWLINE_TCP_SOCKETS", "3"}}, "[cuda]\nblocks = 3\n", "f.toml");
  config.set("shm.inline_bytes", "7");
  EXPECT_EQ(config.get_u64("tcp.sockets", 1), 1u) << "it is not taken";
  EXPECT_EQ(config.get_bytes("shm.inline_bytes", 1), 1u) << "it is not taken";
  config.declare_all_settings();
  EXPECT_EQ(error_of([&] { config.refuse_unknown_keys(); }),
            "set by the program: unknown setting shm.inline_bytes; its name is tuning.shm.inline_bytes");
  std::vector<std::string> lines;
  set_log_sink([](void* to, LogLevel,
                  std::string_view line) { static_cast<std::vector<std::string>*>(to)->emplace_back(line); },
               &lines);
  config.warn_unknown_keys();
  set_log_sink(nullptr, nullptr);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0],
            "environment: unknown setting TOWLINE_TCP_SOCKETS; its name is TOWLINE_TUNING_TCP_SOCKETS");
  EXPECT_EQ(lines[1], "f.toml line 2: unknown setting cuda.blocks; its name is tuning.cuda.blocks");
}

// More than this and it is no surface to freeze; servers, accounts, keys and libraries stand in a table of their own.
TEST(ConfigTest, FewSettingsArePromised) {
  size_t promised = 0;
  for (const Setting& setting : all_settings()) {
    const std::string_view name = setting.name;
    const std::string_view section = name.substr(0, name.find('.'));
    constexpr std::string_view kServers[] = {"object", "azure", "gcs", "etcd",
                                             "hf3fs",  "nixl",  "gds", "secure"};
    const bool of_server = std::find(std::begin(kServers), std::end(kServers), section) != std::end(kServers);
    if (setting.promised() && !of_server && !name.ends_with("library")) ++promised;
  }
  EXPECT_LE(promised, 30u);
}

TEST(ConfigTest, NamesInTheEnvironment) {
  EXPECT_EQ(Config::environment_name("tcp.port_range"), "TOWLINE_TCP_PORT_RANGE");
  EXPECT_EQ(Config::environment_name("a-b.c9"), "TOWLINE_A_B_C9");
  const Config config = Config::from_sources({{"HOME", "/h"}});
  EXPECT_EQ(config.environment("HOME"), "/h");
  EXPECT_EQ(config.environment("NONE"), std::nullopt);
}

class ConfigProcessTest : public testing::Test {
 protected:
  ConfigProcessTest() : path_(testing::TempDir() + "towline_config_" + std::to_string(getpid()) + ".toml") {}
  ~ConfigProcessTest() override {
    unsetenv("TOWLINE_CONFIG");
    unlink(path_.c_str());
  }

  std::string path_;
};

TEST_F(ConfigProcessTest, ReadsTheFileThatTheEnvironmentNames) {
  std::ofstream(path_) << kFile;
  setenv("TOWLINE_CONFIG", path_.c_str(), 1);
  const Config config = Config::from_process();
  EXPECT_EQ(config.get_u64("tcp.lanes", 0), 4u);
  EXPECT_EQ(config.source("tcp.lanes"), path_ + " line 4");
}

TEST_F(ConfigProcessTest, ANamedFileThatIsMissingIsAnError) {
  setenv("TOWLINE_CONFIG", "/no/such/towline.toml", 1);
  EXPECT_THROW(Config::from_process(), Error);
}

}  // namespace
}  // namespace towline
