// Files of keys that change while a process uses them.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/os/socket_address.h"
#include "secure/key_files.h"
#include "secure/keys.h"
#include "secure/test_support.h"

#if defined(TOWLINE_HAVE_OPENSSL)
namespace towline::secure {
namespace {

using testing::Authority;
using testing::key_text;

class Rotation : public ::testing::Test {
 protected:
  void SetUp() override {
    TOWLINE_NEEDS_TLS();
    set_log_sink(
        [](void* to, LogLevel level, std::string_view line) {
          if (level > LogLevel::kWarning) return;
          auto& self = *static_cast<Rotation*>(to);
          const std::lock_guard lock(self.mutex_);
          self.warnings_.emplace_back(line);
        },
        this);
  }
  void TearDown() override { set_log_sink(nullptr, nullptr); }
  std::vector<std::string> warnings() {
    const std::lock_guard lock(mutex_);
    return warnings_;
  }

  static Deadline in_time() { return Deadline::after(monotonic_now_ns(), 60 * kSecondNs); }
  struct Ends {
    Stream caller;
    Stream called;
  };
  static Ends connect(const MaybeKeys& of_caller, const MaybeKeys& of_called) {
    ListeningSocket door({false, "127.0.0.1", 0}, {});
    Ends ends;
    ends.caller = Stream::dial(door.address().endpoint(), in_time(), Stream::Patience::kNone);
    int error = 0;
    while (!ends.called.valid()) ends.called = Stream::accepted(door.accept(nullptr, &error));
    secure(of_caller, ends.caller, Side::kCaller);
    secure(of_called, ends.called, Side::kCalled);
    return ends;
  }
  static bool talk(Ends& ends) {
    auto other = std::async(std::launch::async, [&] {
      uint8_t byte = 0;
      return ends.called.read_all({&byte, 1}, in_time()) == Status::kOk &&
             ends.called.write_all({&byte, 1}, in_time()) == Status::kOk;
    });
    uint8_t byte = 7;
    const bool mine = ends.caller.write_all({&byte, 1}, in_time()) == Status::kOk &&
                      ends.caller.read_all({&byte, 1}, in_time()) == Status::kOk;
    return other.get() && mine;
  }
  static bool meet(const MaybeKeys& of_caller, const MaybeKeys& of_called) {
    Ends ends = connect(of_caller, of_called);
    return talk(ends);
  }
  // In place, as a program that does not care about readers.
  static void copy(const std::string& from, const std::string& to) {
    std::filesystem::copy_file(from, to, std::filesystem::copy_options::overwrite_existing);
  }

  std::shared_ptr<const Keys> key(const std::string& text) {
    return Keys::read({folder_.file("key-" + std::to_string(++count_), text), "", "", ""});
  }
  Keys::Files copies(const Keys::Files& files) {
    const Keys::Files result = {"", folder_.at("live.pem"), folder_.at("live.key"),
                                folder_.at("live-ca.pem")};
    copy(files.certificate, result.certificate);
    copy(files.private_key, result.private_key);
    copy(files.authority, result.authority);
    return result;
  }

  testing::Folder folder_;
  int count_ = 0;
  std::mutex mutex_;
  std::vector<std::string> warnings_;
};

TEST_F(Rotation, ANewKeyIsTakenByTheConnectionsThatBegin) {
  const auto live = Keys::read({folder_.file("live", key_text('a')), "", "", ""}, 0);
  const auto before = key(key_text('a')), after = key(key_text('b'));
  Ends old = connect(live, before);
  EXPECT_TRUE(talk(old));
  folder_.file("live", key_text('b'));
  EXPECT_TRUE(meet(after, live));
  EXPECT_TRUE(meet(live, after));
  EXPECT_FALSE(meet(before, live));
  EXPECT_TRUE(talk(old)) << "a connection that is up goes on";
  EXPECT_TRUE(warnings().empty());
}

TEST_F(Rotation, FilesAreNotLookedAtForEveryConnection) {
  const auto live = Keys::read({folder_.file("live", key_text('a')), "", "", ""}, 3600 * kSecondNs);
  const auto after = key(key_text('b'));
  folder_.file("live", key_text('b'));
  EXPECT_FALSE(meet(after, live));
  live->look();
  EXPECT_TRUE(meet(after, live));
}

TEST_F(Rotation, AKeyThatCantBeReadLeavesTheOldOneWithOneWarning) {
  const std::string file = folder_.file("live", key_text('a'));
  const auto live = Keys::read({file, "", "", ""}, 0);
  const auto before = key(key_text('a')), after = key(key_text('b'));
  folder_.file("live", "short\n");
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(meet(before, live));
  ASSERT_EQ(warnings().size(), 1u);
  EXPECT_NE(warnings()[0].find("line 1 has 5 bytes"), std::string::npos) << warnings()[0];
  EXPECT_NE(warnings()[0].find("from before stay in use"), std::string::npos) << warnings()[0];
  EXPECT_THROW(live->look(), Error);
  std::filesystem::remove(file);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(meet(before, live));
  EXPECT_EQ(warnings().size(), 2u);
  folder_.file("live", key_text('b'));
  EXPECT_TRUE(meet(after, live));
  folder_.file("live", "short\n");
  EXPECT_TRUE(meet(after, live));
  EXPECT_EQ(warnings().size(), 3u) << "it was well in between";
}

TEST_F(Rotation, AChangeRightAfterOneThatWasReadIsSeen) {
  const auto live = Keys::read({folder_.file("live", key_text('a')), "", "", ""}, 0);
  const MaybeKeys others[] = {key(key_text('a')), key(key_text('b'))};
  for (int i = 1; i <= 200; ++i) {  // file systems' times have steps of some milliseconds
    folder_.file("live", key_text(i % 2 == 0 ? 'a' : 'b'));
    ASSERT_TRUE(meet(others[i % 2], live)) << i;
  }
}

TEST_F(Rotation, SomethingThatIsNoPlainFileIsNotOpened) {
  const std::string file = folder_.file("live", key_text('a'));
  const auto live = Keys::read({file, "", "", ""});
  std::filesystem::remove(file);
  ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
  try {
    live->look();  // opening it would wait for a writer
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("no plain file"), std::string::npos) << error.message();
  }
  EXPECT_TRUE(meet(live, live));
}

TEST_F(Rotation, ConnectionsBeginWhileFilesChange) {
  const auto live = Keys::read({folder_.file("live", key_text('a') + key_text('b')), "", "", ""}, 0);
  const auto both = key(key_text('b') + key_text('a'));
  std::atomic<bool> stop{false};
  std::thread changes([&] {
    for (int i = 0; !stop; ++i) {
      folder_.file("next", i % 2 == 0 ? key_text('b') + key_text('a') : key_text('a') + key_text('b'));
      std::filesystem::rename(folder_.at("next"), folder_.at("live"));
    }
  });
  std::thread others([&] {
    for (int i = 0; i < 100; ++i) EXPECT_TRUE(meet(live, both));
  });
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(meet(both, live));
  others.join();
  stop = true;
  changes.join();
}

// Workers begin connections, and a file system may be slow.
TEST_F(Rotation, AConnectionDoesNotWaitForAnothersLook) {
  const auto live = Keys::read({folder_.file("live", key_text('a')), "", "", ""}, 0);
  const auto before = key(key_text('a'));
  std::promise<void> looking, go_on;
  struct Look {
    std::promise<void>& looking;
    std::shared_future<void> go_on;
  } look = {looking, go_on.get_future().share()};
  set_log_sink(
      [](void* to, LogLevel, std::string_view line) {
        if (line.find("were read again") == std::string_view::npos) return;
        static_cast<Look*>(to)->looking.set_value();
        static_cast<Look*>(to)->go_on.wait();
      },
      &look);
  set_log_level(LogLevel::kInfo);
  folder_.file("live", key_text('b'));
  std::thread other([&] { live->look(); });
  looking.get_future().wait();
  auto begun = std::async(std::launch::async, [&] { return meet(before, live); });
  const bool waits = begun.wait_for(std::chrono::seconds(20)) != std::future_status::ready;
  EXPECT_FALSE(waits);
  go_on.set_value();
  other.join();
  EXPECT_TRUE(waits || begun.get()) << "with the keys from before";
  set_log_level(LogLevel::kWarning);
}

class CertificateRotation : public Rotation {
 protected:
  void SetUp() override {
    Rotation::SetUp();
    if (!authority_.good()) GTEST_SKIP() << "the openssl program, which makes the certificates, is not there";
  }
  Authority authority_{folder_};
};

TEST_F(CertificateRotation, AnExpiredCertificateThatIsReplacedConnectsAgain) {
  const Keys::Files files = copies(authority_.sign("old", "DNS:old.example.com", -1));
  const auto live = Keys::read(files, 0);
  const auto peer = Keys::read(authority_.sign("peer"));
  Ends ends = connect(peer, live);
  EXPECT_FALSE(talk(ends));
  EXPECT_NE(std::string(ends.caller.why()).find("certificate has expired"), std::string::npos)
      << ends.caller.why();
  EXPECT_NE(std::string(ends.called.why()).find("refused this side's certificate, of DNS:old.example.com"),
            std::string::npos)
      << ends.called.why();
  EXPECT_NE(std::string(ends.called.why()).find("expired"), std::string::npos) << ends.called.why();
  const Keys::Files next = authority_.sign("next");
  copy(next.certificate, files.certificate);
  copy(next.private_key, files.private_key);
  EXPECT_TRUE(meet(peer, live));
}

// The certificate first, and its key when the other has been looked at.
TEST_F(CertificateRotation, HalfAPairLeavesTheOldOne) {
  const Keys::Files first = authority_.sign("first", "DNS:first.example.com");
  const Keys::Files second = authority_.sign("second", "DNS:second.example.com");
  Keys::Files peer = authority_.sign("peer");
  peer.peers = {"first.example.com"};
  const auto takes_first = Keys::read(peer);
  peer.peers = {"second.example.com"};
  const auto takes_second = Keys::read(peer);
  const Keys::Files files = copies(first);
  const auto live = Keys::read(files, 0);
  EXPECT_TRUE(meet(live, takes_first));
  copy(second.certificate, files.certificate);
  EXPECT_TRUE(meet(live, takes_first));
  ASSERT_EQ(warnings().size(), 1u);
  EXPECT_NE(warnings()[0].find("secure.private_key_file"), std::string::npos) << warnings()[0];
  copy(second.private_key, files.private_key);
  EXPECT_TRUE(meet(live, takes_second));
  EXPECT_FALSE(meet(live, takes_first));
}

// As volumes of Kubernetes have it: the names are links into a folder that another takes the place of at once.
TEST_F(CertificateRotation, AFolderThatChangesByALinkIsReadAgain) {
  Authority next(folder_, "next");
  for (const auto& [name, files] :
       {std::pair("..1", authority_.sign("old")), std::pair("..2", next.sign("new"))}) {
    const std::filesystem::path folder = folder_.at(name);
    std::filesystem::create_directory(folder);
    copy(files.certificate, folder / "cert.pem");
    copy(files.private_key, folder / "key.pem");
    copy(files.authority, folder / "ca.pem");
  }
  std::filesystem::create_symlink("..1", folder_.at("..data"));
  const auto in_data = [&](const char* name) { return folder_.at(std::string("..data/") + name); };
  const auto live = Keys::read({"", in_data("cert.pem"), in_data("key.pem"), in_data("ca.pem")}, 0);
  const auto of_next = Keys::read(next.sign("peer"));
  EXPECT_FALSE(meet(of_next, live));
  std::filesystem::create_symlink("..2", folder_.at("..tmp"));
  std::filesystem::rename(folder_.at("..tmp"), folder_.at("..data"));
  EXPECT_TRUE(meet(of_next, live));
  EXPECT_TRUE(meet(live, of_next));
  EXPECT_TRUE(warnings().empty());
}

TEST(KeyFiles, FileSystemsOfOtherHostsMayNotAnswer) {
  EXPECT_TRUE(waits_for_others(0x6969));
  EXPECT_TRUE(waits_for_others(0xffffffff'ff534d42)) << "types are signed on some hosts";
  EXPECT_FALSE(waits_for_others(0x01021994)) << "tmpfs";
  EXPECT_FALSE(waits_for_others(0xef53)) << "ext4";
}

}  // namespace
}  // namespace towline::secure
#endif
