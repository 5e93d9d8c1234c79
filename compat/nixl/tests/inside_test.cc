// Internal parts: frames, settings, loaded ranges, messages, asynchronous calls.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <vector>

#include <nixl.h>
#include <towline_nixl.h>

#include "support/failing_new.h"

#include "../src/frame.h"
#include "../src/inbox.h"
#include "../src/log.h"
#include "../src/long_notifications.h"
#include "../src/messages.h"
#include "../src/metadata_calls.h"
#include "../src/notif.h"
#include "../src/remotes.h"
#include "../src/settings.h"

namespace towline::nixl {
namespace {

Frame sample() {
  Frame frame;
  frame.name = "prefill-0";
  frame.addresses = true;
  frame.partial = true;
  frame.backends = {"UCX", "LIBFABRIC"};
  frame.ranges = {{DRAM_SEG, 0, 0x1000, 4096}, {VRAM_SEG, 3, 0x7f0000000000, 1 << 20}};
  frame.blob = std::string("opaque\0bytes", 12);
  return frame;
}

TEST(Frame, IsReadAsItWasWritten) {
  Frame read;
  EXPECT_EQ(decode(encode(sample()), read), "");
  EXPECT_EQ(read, sample());
}

TEST(Frame, EveryCutAndEveryDamagedByteOutsideTheBlobIsSeen) {
  const std::string bytes = encode(sample());
  Frame read;
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_NE(decode(bytes.substr(0, size), read), "") << "cut to " << size;
  }
  for (size_t at = 0; at < bytes.size() - sample().blob.size(); ++at) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] + 1);
    EXPECT_NE(decode(damaged, read), "") << "byte " << at;
  }
  EXPECT_NE(decode(bytes + "x", read), "");
}

TEST(Settings, UcxTlsLimitsTheTransports) {
  EXPECT_EQ(transports_of_ucx_tls(""), "");
  EXPECT_EQ(transports_of_ucx_tls("all"), "");
  EXPECT_EQ(transports_of_ucx_tls("tcp"), "tcp,memory");
  EXPECT_EQ(transports_of_ucx_tls("tcp,self"), "tcp,memory");
  EXPECT_EQ(transports_of_ucx_tls("shm"), "shm,memory");
  EXPECT_EQ(transports_of_ucx_tls("^tcp"), "shm,cuda,memory");
  EXPECT_EQ(transports_of_ucx_tls("^shm"), "cuda,tcp,memory");
  EXPECT_EQ(transports_of_ucx_tls("tcp,cuda_copy"), "tcp,memory,cuda");
  EXPECT_EQ(transports_of_ucx_tls("sm,cuda_ipc,self"), "shm,cuda,memory");
  EXPECT_EQ(transports_of_ucx_tls("tcp,cuda,gdr_copy"), "cuda,tcp,memory");
  EXPECT_EQ(transports_of_ucx_tls("^cuda"), "shm,tcp,memory");
  // An absent transport limits nothing.
  EXPECT_EQ(transports_of_ucx_tls("rc,cuda_ipc"), "");
  EXPECT_EQ(transports_of_ucx_tls("rc_x,tcp"), "tcp,memory");
  EXPECT_EQ(transports_of_ucx_tls("tcp,sm,self"), "shm,tcp,memory");
  EXPECT_EQ(transports_of_ucx_tls("tcp,sm,self,cuda"), "");
}

TEST(Settings, TimesAreReadWithTheirUnit) {
  using namespace std::chrono_literals;
  EXPECT_EQ(parse_duration("30s"), 30s);
  EXPECT_EQ(parse_duration("500ms"), 500ms);
  EXPECT_EQ(parse_duration("1.5s"), 1500ms);
  EXPECT_EQ(parse_duration("2min"), 120s);
  for (const char* bad : {"", "30", "s", "-1s", "0s", "5 s", "nan s", "1e30s"})
    EXPECT_FALSE(parse_duration(bad)) << bad;
}

TEST(Settings, BadValuesAreNamed) {
  ASSERT_EQ(setenv("TOWLINE_NIXL_TIMEOUT", "soon", 1), 0);
  try {
    (void)Settings::read();
    ADD_FAILURE() << "a bad value was taken";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string{error.what()}.find("the environment: TOWLINE_NIXL_TIMEOUT is 'soon'"),
              std::string::npos)
        << error.what();
  }
  ASSERT_EQ(unsetenv("TOWLINE_NIXL_TIMEOUT"), 0);
}

// Sets variables for its life.
class Environment {
 public:
  explicit Environment(std::map<std::string, std::string> variables) {
    for (const auto& [name, value] : variables) {
      const char* before = std::getenv(name.c_str());
      before_[name] = before == nullptr ? std::nullopt : std::optional<std::string>{before};
      setenv(name.c_str(), value.c_str(), 1);
    }
  }
  ~Environment() {
    for (const auto& [name, value] : before_) {
      if (value) {
        setenv(name.c_str(), value->c_str(), 1);
      } else {
        unsetenv(name.c_str());
      }
    }
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  std::map<std::string, std::optional<std::string>> before_;
};

class SettingsFile : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void write(const char* name, const std::string& text) const { std::ofstream(folder_ / name) << text; }
  // None of NIXL's is set: an empty variable is as good as none.
  [[nodiscard]] std::map<std::string, std::string> environment(const char* file) const {
    return {{"NIXL_CONFIG_FILE", file == nullptr ? "" : (folder_ / file).string()},
            {"HOME", folder_.string()},
            {"NIXL_ETCD_ENDPOINTS", ""},
            {"NIXL_ETCD_NAMESPACE", ""},
            {"TOWLINE_ETCD_ENDPOINTS", ""},
            {"TOWLINE_ETCD_NAMESPACE", ""},
            {"NIXL_TELEMETRY_ENABLE", ""},
            {"NIXL_TELEMETRY_EXPORTER", ""},
            {"TOWLINE_TELEMETRY_PROMETHEUS", ""},
            {"TOWLINE_NIXL_TIMEOUT", ""},
            {"TOWLINE_WORKERS", "1"},
            {"TOWLINE_TUNING_CONNECTION_WAIT", "2s"}};  // without these two there are more lines for Towline
  }
  static std::string refusal() {
    try {
      (void)Settings::read();
      return "";
    } catch (const std::runtime_error& error) {
      return error.what();
    }
  }

  const std::filesystem::path folder_ =
      std::filesystem::path(testing::TempDir()) / ("nixl_settings_" + std::to_string(getpid()));
};

TEST_F(SettingsFile, SpeaksWhereTheEnvironmentIsSilent) {
  write("nixl.toml", R"(
NIXL_TELEMETRY_ENABLE = true
NIXL_TELEMETRY_EXPORTER = "prometheus"
NIXL_TELEMETRY_PROMETHEUS_LOCAL = "yes"
NIXL_TELEMETRY_PROMETHEUS_PORT = 9191
NIXL_ETCD_ENDPOINTS = "http://a:1,http://b:2"
NIXL_ETCD_NAMESPACE = "/a \"b\" \\"
TOWLINE_NIXL_TIMEOUT = "5s"
)");
  const Environment environment{this->environment("nixl.toml")};
  Settings settings = Settings::read();
  EXPECT_EQ(settings.telemetry, true);
  EXPECT_EQ(settings.output.exporter, TelemetryExporter::kPrometheus);
  EXPECT_EQ(settings.output.address, "127.0.0.1:9191");
  EXPECT_EQ(settings.timeout, std::chrono::seconds{5});
  EXPECT_TRUE(settings.has_etcd);
  EXPECT_EQ(settings.towline,
            "etcd.endpoints = \"http://a:1,http://b:2\"\netcd.namespace = \"/a \\\"b\\\" \\\\\"\n");
  const Environment louder{{{"NIXL_ETCD_ENDPOINTS", "http://c:3"},
                            {"TOWLINE_ETCD_NAMESPACE", "/ours"},
                            {"NIXL_TELEMETRY_ENABLE", "no"},
                            {"TOWLINE_NIXL_TIMEOUT", "7s"}}};
  settings = Settings::read();
  EXPECT_EQ(settings.telemetry, false);
  EXPECT_EQ(settings.output.exporter, TelemetryExporter::kNone);  // telemetry is off
  EXPECT_EQ(settings.timeout, std::chrono::seconds{7});
  EXPECT_TRUE(settings.has_etcd);
  EXPECT_EQ(settings.towline, "");  // Towline reads the environment itself
}

TEST_F(SettingsFile, IsFoundAtHome) {
  write(".nixl.cfg", "NIXL_TELEMETRY_ENABLE = 1\nNIXL_TELEMETRY_EXPORTER = \"Prometheus\"");
  const Environment environment{this->environment(nullptr)};
  EXPECT_EQ(Settings::read().output.address, "0.0.0.0:9090");
}

TEST_F(SettingsFile, IsRefusedByNameAndPlace) {
  write("broken.toml", "a = 1\nb = ");
  write("typed.toml", "NIXL_TELEMETRY_ENABLE = [true]");
  write("bad.toml",
        "NIXL_TELEMETRY_ENABLE = true\nNIXL_TELEMETRY_EXPORTER = \"prometheus\"\n"
        "NIXL_TELEMETRY_PROMETHEUS_PORT = 70000");
  const auto says = [&](const char* file, const char* what) {
    const Environment environment{this->environment(file)};
    const std::string text = refusal();
    EXPECT_NE(text.find(what), std::string::npos) << text;
    EXPECT_NE(text.find(file), std::string::npos) << text;
  };
  says("broken.toml", "line 2");
  says("typed.toml", "NIXL_TELEMETRY_ENABLE should be text, a number, true or false");
  says("bad.toml", "NIXL_TELEMETRY_PROMETHEUS_PORT is '70000', and should be a number from 0 to 65535");
  says("missing.toml", "could not be opened");
}

TEST(Statuses, EveryOneOfTowlineIsOneOfNixl) {
  EXPECT_EQ(to_nixl(Status::kInternal), NIXL_ERR_UNKNOWN);
  EXPECT_EQ(to_nixl(Status{-12345}), NIXL_ERR_UNKNOWN);
  EXPECT_EQ(to_nixl(Status::kCancelled), NIXL_ERR_CANCELED);
  EXPECT_EQ(to_nixl(Status::kBusy), NIXL_ERR_REPOST_ACTIVE);
  EXPECT_EQ(to_nixl(Status::kTimedOut), NIXL_ERR_BACKEND);
  EXPECT_EQ(to_nixl(Status::kPeerLost), NIXL_ERR_REMOTE_DISCONNECT);
  EXPECT_EQ(list_to_nixl(Status::kOutOfRange), NIXL_ERR_NOT_FOUND);
  EXPECT_EQ(metadata_to_nixl(Status::kCorrupt), NIXL_ERR_MISMATCH);
}

TEST(LoadedRanges, CoverWhatTheyHold) {
  LoadedRanges ranges;
  ranges.add({DRAM_SEG, 0, 100, 50});
  ranges.add({DRAM_SEG, 0, 200, 50});
  ranges.add({VRAM_SEG, 1, 100, 50});
  EXPECT_TRUE(ranges.covers(DRAM_SEG, {100, 50, 0}));
  EXPECT_TRUE(ranges.covers(DRAM_SEG, {120, 10, 7}));
  EXPECT_FALSE(ranges.covers(DRAM_SEG, {99, 2, 0}));
  EXPECT_FALSE(ranges.covers(DRAM_SEG, {140, 20, 0}));
  EXPECT_FALSE(ranges.covers(DRAM_SEG, {100, 150, 0}));
  EXPECT_FALSE(ranges.covers(VRAM_SEG, {100, 50, 0}));
  EXPECT_TRUE(ranges.covers(VRAM_SEG, {100, 50, 1}));
  EXPECT_FALSE(ranges.covers(DRAM_SEG, {120, SIZE_MAX, 0}));
  ranges.add({DRAM_SEG, 0, 140, 70});  // joins the two
  EXPECT_TRUE(ranges.covers(DRAM_SEG, {100, 150, 0}));
  ranges.add({DRAM_SEG, 0, UINT64_MAX - 4, 100});  // wraps: nothing
  EXPECT_FALSE(ranges.covers(DRAM_SEG, {UINT64_MAX - 4, 1, 0}));
}

TEST(Messages, OnlyTextThatLooksLikeOneIsWrapped) {
  const std::string plain = "req-17";
  const NotificationNotice as_it_is{plain};
  EXPECT_EQ(std::string_view(as_it_is.data(), as_it_is.size()), plain);
  const std::string tricky = make_message(MessageType::kInvalidate);
  const NotificationNotice wrapped{tricky};
  const std::string_view notice{wrapped.data(), wrapped.size()};
  ASSERT_TRUE(is_message(notice));
  EXPECT_EQ(message_type(notice), MessageType::kText);
  EXPECT_EQ(message_body(notice), tricky);
  const std::string empty;
  EXPECT_NE(NotificationNotice{empty}.data(), nullptr);
}

TEST(Messages, LongNotificationsWaitForBothTheirPiecesAndTheirEnd) {
  const std::string text(130'000, 'l');
  std::vector<std::string> pieces;
  const auto keep = [&](std::string piece) {
    pieces.push_back(std::move(piece));
    return NIXL_SUCCESS;
  };
  ASSERT_EQ(send_pieces(7, text, keep), NIXL_SUCCESS);
  ASSERT_EQ(pieces.size(), 3U);
  const std::string end = make_end_message(7);
  LongNotifications long_ones;
  std::vector<std::string> texts;
  const auto read = [&](const std::string& message, std::string_view incarnation = "1") {
    long_ones.read("a", incarnation, message, texts);
  };
  for (const std::string& piece : pieces) read(piece);
  EXPECT_TRUE(texts.empty());  // its transfer has not ended
  read(end);
  EXPECT_EQ(texts, std::vector<std::string>{text});
  // The end first, since it came by another connection.
  read(end);
  for (const std::string& piece : pieces) read(piece);
  EXPECT_EQ(texts.size(), 2U);
  // Two runs on the way at once.
  for (const std::string& piece : pieces) read(piece);
  for (const std::string& piece : pieces) read(piece);
  read(end);
  read(end);
  EXPECT_EQ(texts.size(), 4U);
  // Two agents may have one name, and neither ends what the other has begun.
  for (const std::string& piece : pieces) read(piece);
  read(end, "2");
  EXPECT_EQ(texts.size(), 4U);
  read(end);
  for (const std::string& piece : pieces) read(piece, "2");
  EXPECT_EQ(texts.size(), 6U);
  texts.resize(4);
  // No number, no head, no first piece: nothing.
  read(make_message(MessageType::kPiece, "short"));
  read(make_message(MessageType::kPiece, std::string(12, 'x')));
  read(pieces[1]);
  read(make_message(MessageType::kEnd, ""));
  EXPECT_EQ(texts.size(), 4U);
  // A sender that leaves ends behind takes no more and no more memory.
  for (uint64_t number = 100; number < 101 + kMostArriving; ++number) read(make_end_message(number));
  const auto read_all_of = [&](uint64_t number) {
    pieces.clear();
    EXPECT_EQ(send_pieces(number, text, keep), NIXL_SUCCESS);
    for (const std::string& piece : pieces) read(piece);
  };
  read_all_of(100);  // its end was dropped
  EXPECT_EQ(texts.size(), 4U);
  read_all_of(100 + kMostArriving);
  EXPECT_EQ(texts.size(), 5U);
  // A failed send ends it.
  int sent = 0;
  EXPECT_EQ(
      send_pieces(8, text, [&](const std::string&) { return ++sent == 2 ? NIXL_ERR_BACKEND : NIXL_SUCCESS; }),
      NIXL_ERR_BACKEND);
  EXPECT_EQ(sent, 2);
}

TEST(Messages, OfLongNotificationsThatDoNotEndOnlySoManyBytesAreKept) {
  constexpr size_t kMost = 1 << 20;
  LongNotifications long_ones{kMost};
  std::vector<std::string> texts;
  const std::string piece(kPieceBytes, 'p');
  const auto begin = [&](const std::string& sender, uint64_t number) {  // the first of two
    const PieceHead head = {0, 2};
    std::string body{reinterpret_cast<const char*>(&number), sizeof number};
    body.append(reinterpret_cast<const char*>(&head), sizeof head);
    long_ones.read(sender, "1", make_message(MessageType::kPiece, body + piece), texts);
  };
  begin("honest", 1);
  const size_t of_one = long_ones.bytes();
  EXPECT_GE(of_one, kPieceBytes);
  for (uint64_t number = 1; number < 100; ++number) begin("flood", number);
  EXPECT_LE(long_ones.bytes(), kMost);
  const uint64_t number = 1;
  const PieceHead head = {1, 2};
  std::string body{reinterpret_cast<const char*>(&number), sizeof number};
  body.append(reinterpret_cast<const char*>(&head), sizeof head);
  long_ones.read("honest", "1", make_message(MessageType::kPiece, body + "end"), texts);
  long_ones.read("honest", "1", make_end_message(1), texts);
  ASSERT_EQ(texts.size(), 1U) << "others' pieces took the place of those of a sender that has few";
  EXPECT_EQ(texts[0], piece + "end");
  // Ends alone count too, and each name is another sender.
  for (uint64_t i = 0; i < 10'000; ++i)
    long_ones.read("sender-" + std::to_string(i), "1", make_end_message(1), texts);
  EXPECT_LE(long_ones.bytes(), kMost);
  EXPECT_EQ(texts.size(), 1U);
}

TEST(Messages, OfMetadataThatDoesNotEndOnlySoManyBytesAreKept) {
  constexpr size_t kMost = 1 << 20;
  ArrivingFrames frames{kMost};
  std::string frame(150'000, 'm');
  const std::vector<std::string> messages = make_load_messages(frame);
  std::string whole;
  EXPECT_FALSE(frames.add("honest", "1", message_body(messages[0]), whole));
  const std::vector<std::string> longer = make_load_messages(std::string(210'000, 'x'));
  for (int i = 0; i < 100; ++i) {
    const std::string sender = "sender-" + std::to_string(i);
    for (std::size_t piece = 0; piece + 1 < longer.size(); ++piece)
      EXPECT_FALSE(frames.add(sender, "1", message_body(longer[piece]), whole));
  }
  EXPECT_LE(frames.bytes(), kMost);
  EXPECT_FALSE(frames.add("honest", "1", message_body(messages[1]), whole));
  EXPECT_TRUE(frames.add("honest", "1", message_body(messages[2]), whole));
  EXPECT_TRUE(whole == frame);
  // Two agents of one name do not disturb each other.
  EXPECT_FALSE(frames.add("honest", "1", message_body(messages[0]), whole));
  EXPECT_FALSE(frames.add("honest", "2", message_body(longer[0]), whole));
  EXPECT_FALSE(frames.add("honest", "1", message_body(messages[1]), whole));
  EXPECT_FALSE(frames.add("honest", "2", message_body(longer[2]), whole)) << "out of order";
  EXPECT_TRUE(frames.add("honest", "1", message_body(messages[2]), whole));
  EXPECT_TRUE(whole == frame);
  // A message that is no piece leaves nothing behind.
  ArrivingFrames none;
  EXPECT_FALSE(none.add("a", "1", "x", whole));
  EXPECT_EQ(none.bytes(), 0U);
}

// Running out of memory in between does not upset the counts.
TEST(Messages, WithoutMemoryAreCountedAsTheyAre) {
  const std::string text(130'000, 't');
  std::vector<std::string> messages;
  const auto keep = [&](std::string piece) {
    messages.push_back(std::move(piece));
    return NIXL_SUCCESS;
  };
  ASSERT_EQ(send_pieces(1, text, keep), NIXL_SUCCESS);
  messages.push_back(make_end_message(1));
  const std::vector<std::string> loads = make_load_messages(text);
  const auto without_memory = [](int after, auto&& body) {
    support::fail_allocations(after, 1);
    bool failed = false;
    try {
      body();
    } catch (const std::bad_alloc&) {
      failed = true;
    }
    support::stop_failing();
    return failed;
  };
  int after = 0;
  for (bool failed = true; failed; ++after) {
    LongNotifications long_ones{1 << 20};
    std::vector<std::string> texts;
    const auto read = [&](const std::string& message) {
      long_ones.read("a", "an incarnation whose text has a length", message, texts);
    };
    failed = without_memory(after, [&] { std::ranges::for_each(messages, read); });
    texts.clear();
    std::ranges::for_each(messages, read);
    if (long_ones.bytes() != 0) read(messages.back());  // the first end was lost
    EXPECT_TRUE(!texts.empty() && std::ranges::count(texts, text) == std::ssize(texts)) << after;
    ASSERT_EQ(long_ones.bytes(), 0U) << after;
  }
  EXPECT_GT(after, 5);
  after = 0;
  for (bool failed = true; failed; ++after) {
    ArrivingFrames frames{1 << 20};
    std::string whole;
    const auto add_all = [&] {
      for (const std::string& message : loads)
        (void)frames.add("a sender", "1", message_body(message), whole);
    };
    failed = without_memory(after, add_all);
    whole.clear();
    add_all();
    EXPECT_TRUE(whole == text) << after;
    ASSERT_EQ(frames.bytes(), 0U) << after;
  }
  EXPECT_GT(after, 3);
}

TEST(Inboxes, OfApplicationsThatTakeNothingLeaveTheRestUnread) {
  class Reader final : public MessageReader {
    void read_message(const std::string&, std::string_view, std::string_view) override {}
  };
  const towline::Agent agent{"inbox-a", {.listen = "none"}};
  const towline::Agent other{"inbox-b", {.listen = "none"}};
  const towline::Peer to = other.add_peer(agent.metadata());
  Reader reader;
  Inbox inbox{reader, 100'000};
  const std::vector<std::byte> notice(kMaxNotificationBytes, std::byte{'n'});
  const auto send = [&] {  // false: no room for a second
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds{1};
    while (std::chrono::steady_clock::now() < until) {
      inbox.drain(agent);
      if (to.send(notice) == towline::Status::kOk) return true;
      std::this_thread::yield();
    }
    return false;
  };
  size_t sent = 0;
  while (sent < 100 && send()) ++sent;
  EXPECT_GT(sent, 2U);
  EXPECT_LT(sent, 100U) << "requests take in whatever peers send";
  size_t taken = 0;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds{20};
  while (taken < sent && std::chrono::steady_clock::now() < until) taken += inbox.take(agent).size();
  EXPECT_EQ(taken, sent);
  EXPECT_TRUE(send());
}

TEST(Remotes, CountWhatAgentsSentThemselves) {
  const towline::Agent agent{"remotes-a"};
  const towline::Agent others[] = {towline::Agent{"remotes-b"}, towline::Agent{"remotes-c"}};
  Remotes remotes;
  const auto load = [&](int which, size_t sent_bytes) {
    Frame frame;
    frame.name = others[which].name();
    frame.addresses = true;
    const std::vector<std::byte> blob = others[which].metadata();
    return remotes.load(agent.add_peer(blob), frame, sent_bytes);
  };
  ASSERT_EQ(load(0, 100), NIXL_SUCCESS);
  ASSERT_EQ(load(1, 10), NIXL_SUCCESS);
  ASSERT_EQ(load(1, 30), NIXL_SUCCESS);  // again, with more memory
  EXPECT_EQ(remotes.sent("").agents, 2U);
  EXPECT_EQ(remotes.sent("").bytes, 130U);
  EXPECT_EQ(remotes.sent("").left, "");
  EXPECT_EQ(remotes.sent("remotes-c").bytes, 100U);
  ASSERT_EQ(load(0, 0), NIXL_SUCCESS);  // the application brings it
  ASSERT_EQ(load(0, 100), NIXL_SUCCESS);
  EXPECT_EQ(remotes.sent("").bytes, 30U);
}

TEST(Remotes, CountWhatPartialMetadataAddsAndNotHowOftenItComes) {
  const towline::Agent agent{"partly-a"};
  const towline::Agent other{"partly-b"};
  Remotes remotes;
  const auto load = [&](uint64_t first) {
    Frame frame;
    frame.name = other.name();
    frame.addresses = frame.partial = true;
    for (uint64_t i = first; i < first + 1000; ++i)
      frame.ranges.push_back({DRAM_SEG, 0, i * 8192 + 4096, 4096});
    const std::vector<std::byte> blob = other.metadata();
    EXPECT_EQ(remotes.load(agent.add_peer(blob), frame, 100), NIXL_SUCCESS);
    return remotes.sent("").bytes;
  };
  load(0);
  const size_t once = load(0);
  EXPECT_EQ(load(0), once);
  for (uint64_t i = 1; i < 10; ++i) load(i * 1000);
  EXPECT_GT(remotes.sent("").bytes, 10 * 1000 * sizeof(FrameRange));
}

TEST(Messages, ThatAreTooLongAreToldHowLongTheyMayBe) {
  EXPECT_EQ(too_long("a notification", "genNotif"), NIXL_ERR_INVALID_PARAM);
  EXPECT_EQ(last_error(),
            fmt::format("genNotif: a notification has at most {} bytes, not 14", kMaxLongBytes));
}

TEST(Messages, MetadataIsPutTogetherFromItsPieces) {
  std::string frame(150'000, 'm');
  frame[70'000] = 'x';
  const std::vector<std::string> messages = make_load_messages(frame);
  ASSERT_EQ(messages.size(), 3U);
  for (const std::string& message : messages) EXPECT_LE(message.size(), kMaxNotificationBytes);
  Pieces pieces;
  std::string whole;
  const auto add = [&](size_t i) { return pieces.add(message_body(messages[i]), whole); };
  EXPECT_FALSE(add(1));  // not the first
  EXPECT_FALSE(add(0));
  EXPECT_FALSE(add(2));  // one is missing: all is dropped
  EXPECT_FALSE(add(1));
  EXPECT_FALSE(add(0));
  EXPECT_FALSE(add(1));
  EXPECT_FALSE(add(0));  // the sender begins anew
  EXPECT_FALSE(add(1));
  EXPECT_TRUE(add(2));
  EXPECT_EQ(whole, frame);
  EXPECT_FALSE(pieces.add("short", whole));
}

TEST(MetadataCalls, ToOnePlaceHappenInOrderAndDoNotHoldUpOthers) {
  std::mutex mutex;
  std::condition_variable changed;
  bool release = false;
  std::vector<int> order;
  const auto wait_until = [&](auto condition) {
    std::unique_lock lock(mutex);
    ASSERT_TRUE(changed.wait_for(lock, std::chrono::seconds{20}, condition));
  };
  const auto note = [&](int value) {
    std::lock_guard lock(mutex);
    order.push_back(value);
    changed.notify_all();
    return NIXL_SUCCESS;
  };
  MetadataCalls calls;
  ASSERT_EQ(calls.begin("slow", "a",
                        [&] {
                          wait_until([&] { return release; });
                          return note(1);
                        }),
            NIXL_SUCCESS);
  ASSERT_EQ(calls.begin("after it", "a", [&] { return note(2); }), NIXL_SUCCESS);
  ASSERT_EQ(calls.begin("elsewhere", "b", [&] { return note(3); }), NIXL_SUCCESS);
  wait_until([&] { return order == std::vector<int>{3}; });
  {
    std::lock_guard lock(mutex);
    release = true;
    changed.notify_all();
  }
  wait_until([&] { return order == std::vector<int>{3, 1, 2}; });
}

TEST(MetadataCalls, ThatComeTogetherNeedNotShareTheThreadThatIsIdle) {
  constexpr int kTimes = 200;  // each time the idle thread may wake up between the two
  for (int time = 0; time < kTimes && !HasFailure(); ++time) {
    MetadataCalls calls;
    std::atomic<bool> release{false};
    const auto has_ended = [&](size_t index) {
      const auto until = std::chrono::steady_clock::now() + std::chrono::seconds{20};
      while (calls.recent()[index].status == NIXL_IN_PROG && std::chrono::steady_clock::now() < until)
        std::this_thread::yield();
      return calls.recent()[index].status != NIXL_IN_PROG;
    };
    ASSERT_EQ(calls.begin("first", "a", [] { return NIXL_SUCCESS; }), NIXL_SUCCESS);
    ASSERT_TRUE(has_ended(0));  // its thread has nothing to do
    const auto slow = [&] {
      while (!release) std::this_thread::yield();
      return NIXL_SUCCESS;
    };
    ASSERT_EQ(calls.begin("slow", "a", slow), NIXL_SUCCESS);
    ASSERT_EQ(calls.begin("quick", "b", [] { return NIXL_SUCCESS; }), NIXL_SUCCESS);
    EXPECT_TRUE(has_ended(2)) << time;
    release = true;
  }
}

TEST(MetadataCalls, TellTheirOutcomeAndAreCancelledAtTheEnd) {
  MetadataCalls calls;
  std::atomic<bool> release{false};
  std::atomic<bool> entered{false};
  ASSERT_EQ(calls.begin("fails", "a", [] { return quiet_text(NIXL_ERR_NOT_FOUND, "nobody there"); }),
            NIXL_SUCCESS);
  while (calls.recent().front().status == NIXL_IN_PROG) std::this_thread::yield();
  EXPECT_EQ(calls.recent().front().status, NIXL_ERR_NOT_FOUND);
  EXPECT_EQ(calls.recent().front().error, "nobody there");
  ASSERT_EQ(calls.begin("slow", "a",
                        [&] {
                          entered = true;
                          while (!release) std::this_thread::yield();
                          return NIXL_SUCCESS;
                        }),
            NIXL_SUCCESS);
  while (!entered) std::this_thread::yield();
  ASSERT_EQ(calls.begin("never begins", "a", [] { return NIXL_SUCCESS; }), NIXL_SUCCESS);
  std::thread stopper([&] { calls.stop(); });
  while (calls.recent().back().status == NIXL_IN_PROG) std::this_thread::yield();
  release = true;
  stopper.join();
  EXPECT_EQ(calls.recent()[1].status, NIXL_SUCCESS);
  EXPECT_EQ(calls.recent()[2].status, NIXL_ERR_CANCELED);
  EXPECT_EQ(calls.begin("late", "a", [] { return NIXL_SUCCESS; }), NIXL_ERR_NOT_ALLOWED);
}

TEST(Statuses, EveryOneOfTowlinesHasOneOfNixls) {
  for (int32_t status = -28; status <= 1; ++status) {
    const nixl_status_t mapped = to_nixl(Status{status});
    EXPECT_EQ(mapped < 0, status < 0) << status;
    EXPECT_NE(nixlEnumStrings::statusStr(mapped), "BAD_STATUS");
  }
}

// TOWLINE_NIXL_STATIC_PLUGINS of this program's build names MOVER.
TEST(StaticPlugins, OfTheBuildAreListedAndMade) {
  nixlAgent agent("linked-in", nixlAgentConfig{});
  std::vector<nixl_backend_t> names;
  ASSERT_EQ(agent.getAvailPlugins(names), NIXL_SUCCESS);
  EXPECT_EQ(std::ranges::count(names, "MOVER"), 1);
  nixlBackendH* backend = nullptr;
  ASSERT_EQ(agent.createBackend("MOVER", {}, backend), NIXL_SUCCESS) << last_error();
  std::vector<char> memory(8192, 'a');
  std::fill_n(memory.begin(), 4096, 'b');
  const auto address = reinterpret_cast<uintptr_t>(memory.data());
  nixl_reg_dlist_t registered(DRAM_SEG);
  registered.addDesc(nixlBlobDesc(address, memory.size(), 0, ""));
  ASSERT_EQ(agent.registerMem(registered), NIXL_SUCCESS);
  nixl_xfer_dlist_t from(DRAM_SEG);
  nixl_xfer_dlist_t to(DRAM_SEG);
  from.addDesc(nixlBasicDesc(address, 4096, 0));
  to.addDesc(nixlBasicDesc(address + 4096, 4096, 0));
  nixlXferReqH* request = nullptr;
  ASSERT_EQ(agent.createXferReq(NIXL_WRITE, from, to, "linked-in", request), NIXL_SUCCESS) << last_error();
  ASSERT_EQ(agent.postXferReq(request), NIXL_SUCCESS);
  EXPECT_EQ(memory.back(), 'b');
  EXPECT_EQ(agent.releaseXferReq(request), NIXL_SUCCESS);
}

}  // namespace
}  // namespace towline::nixl
