#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <future>
#include <mutex>

#include "base/clock.h"
#include "base/os/unique_fd.h"
#include "http/ask.h"
#include "http/thread.h"

namespace towline::http {
namespace {

constexpr uint64_t kPatienceNs = 20 * kSecondNs;

// A server that answers each request with the text for its path, and remembers what it was sent. The text
// "close" ends the connection instead, "silence" does nothing.
class Server {
 public:
  explicit Server(std::map<std::string, std::string> texts) : texts_(std::move(texts)) {
    listener_.reset(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(listener_.get(), any, sizeof address), 0);
    EXPECT_EQ(listen(listener_.get(), 16), 0);
    socklen_t bytes = sizeof address;
    getsockname(listener_.get(), any, &bytes);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { run(); });
  }
  ~Server() {
    over_ = true;
    shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }
  [[nodiscard]] std::string url(const std::string& path) const {
    return "http://127.0.0.1:" + std::to_string(port_) + path;
  }
  [[nodiscard]] int connections() const { return connections_; }
  [[nodiscard]] std::string last() const {
    const std::lock_guard lock(mutex_);
    return last_;
  }

 private:
  void run() {
    std::vector<std::pair<UniqueFd, std::string>> clients;  // with what each has sent
    while (!over_) {
      std::vector<pollfd> entries{{listener_.get(), POLLIN, 0}};
      for (const auto& [fd, text] : clients) entries.push_back({fd.get(), POLLIN, 0});
      poll(entries.data(), entries.size(), 1000);
      for (size_t i = clients.size(); i != 0; --i)
        if (entries[i].revents != 0 && !serve(clients[i - 1].first.get(), clients[i - 1].second))
          clients.erase(clients.begin() + static_cast<ptrdiff_t>(i - 1));
      if ((entries[0].revents & POLLIN) == 0) continue;
      UniqueFd fd(accept(listener_.get(), nullptr, nullptr));
      if (fd.get() < 0) continue;
      ++connections_;
      clients.emplace_back(std::move(fd), "");
    }
  }
  bool serve(int fd, std::string& sent) {
    char bytes[4096];
    const ssize_t count = recv(fd, bytes, sizeof bytes, 0);
    if (count <= 0) return false;
    sent.append(bytes, static_cast<size_t>(count));
    const size_t head = sent.find("\r\n\r\n");
    if (head == std::string::npos) return true;
    const size_t length = sent.find("Content-Length: ");
    const size_t body = length < head ? std::stoul(sent.substr(length + 16)) : 0;
    if (sent.size() < head + 4 + body) return true;
    const size_t path = sent.find(' ') + 1;
    const std::string text = texts_.at(sent.substr(path, sent.find(' ', path) - path));
    {
      const std::lock_guard lock(mutex_);
      last_ = std::exchange(sent, "");
    }
    if (text == "close") return false;
    if (text != "silence") send(fd, text.data(), text.size(), MSG_NOSIGNAL);
    return true;
  }

  const std::map<std::string, std::string> texts_;
  UniqueFd listener_;
  uint16_t port_ = 0;
  std::atomic<bool> over_{false};
  std::atomic<int> connections_{0};
  mutable std::mutex mutex_;
  std::string last_;
  std::thread thread_;
};

std::string answer(const std::string& body, const std::string& headers = {}) {
  return "HTTP/1.1 200 OK\r\n" + headers + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
         body;
}

// Keeps what it is told, and does what a test wants of it.
class Taker : public Receiver {
 public:
  bool on_head(long, const Headers&) noexcept override { return wanted; }
  bool on_bytes(std::span<const std::byte> bytes) noexcept override {
    body.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (exchange_later != nullptr) exchange_later->call_later();
    return true;
  }
  void on_later() override {
    ++laters;
    if (later) later();
  }
  void on_end() override {
    ++ends;
    if (end) end();
  }

  bool wanted = true;
  Exchange* exchange_later = nullptr;
  std::string body;
  int laters = 0;
  int ends = 0;
  std::function<void()> later;
  std::function<void()> end;
};

Options options() { return {.connect_timeout_ns = 5 * kSecondNs}; }

void poll_until(Client& client, const std::function<bool()>& over) {
  const uint64_t last_ns = monotonic_now_ns() + kPatienceNs;
  while (!over() && monotonic_now_ns() < last_ns)
    client.poll(kSecondNs / 10, [](const char* why) { ADD_FAILURE() << why; });
  EXPECT_TRUE(over());
}

struct Fetched {
  End end;
  long status;
  Headers headers;
  std::string body;
};
Fetched fetch(Client& client, Request request, bool wanted = true) {
  Exchange exchange;
  Taker taker;
  taker.wanted = wanted;
  client.start(exchange, std::move(request), taker);
  poll_until(client, [&] { return taker.ends != 0; });
  client.stop(exchange);
  EXPECT_EQ(taker.ends, 1);
  return {exchange.end, exchange.status, exchange.headers, taker.body};
}

TEST(HttpClientTest, AnAnswerComesWholeAndConnectionsAreKept) {
  const Server server({{"/a", answer("hello", "X-Word:  said \r\n")}, {"/b", answer("")}});
  Client client(options());
  const Fetched get = fetch(client, {"GET", server.url("/a"), {"x-mine: 7"}});
  EXPECT_EQ(get.end, End::kAnswered);
  EXPECT_EQ(get.status, 200);
  EXPECT_EQ(get.body, "hello");
  EXPECT_EQ(get.headers.at("x-word"), "said");
  EXPECT_NE(server.last().find("x-mine: 7\r\n"), std::string::npos);

  TextBody body("what is sent");
  const Fetched put = fetch(client, {"PUT", server.url("/b"), {}, &body});
  EXPECT_EQ(put.end, End::kAnswered);
  EXPECT_TRUE(server.last().starts_with("PUT /b "));
  EXPECT_TRUE(server.last().ends_with("\r\n\r\nwhat is sent"));
  TextBody nothing("");
  EXPECT_EQ(fetch(client, {"POST", server.url("/b"), {}, &nothing}).end, End::kAnswered);
  EXPECT_NE(server.last().find("Content-Length: 0\r\n"), std::string::npos);
  EXPECT_EQ(server.connections(), 1);
}

TEST(HttpClientTest, TheEndTellsWhetherTheServerWasReached) {
  const Server server({{"/closes", "close"}, {"/silent", "silence"}, {"/answers", answer("x")}});
  Client client(options());
  EXPECT_EQ(fetch(client, {"GET", server.url("/closes"), {}}).end, End::kBroken);
  EXPECT_EQ(fetch(client, {"GET", server.url("/silent"), {}, nullptr, kSecondNs / 20}).end, End::kTimedOut);
  EXPECT_EQ(fetch(client, {"GET", server.url("/answers"), {}}, false).end, End::kRefused);
  EXPECT_EQ(fetch(client, {"GET", "http://127.0.0.1:1/", {}}).end, End::kNotSent);
  EXPECT_EQ(fetch(client, {"GET", server.url("/answers"), {}}).end, End::kAnswered);
}

TEST(HttpClientTest, WhatIsPreparedIsSentWhenItIsStartedAndNotBefore) {
  const Server server({{"/first", answer("x")}, {"/dropped", answer("x")}, {"/second", answer("y")}});
  Client client(options());
  EXPECT_EQ(fetch(client, {"GET", server.url("/first"), {}}).end, End::kAnswered);
  Exchange dropped;
  Exchange second;
  Taker never;
  Taker taker;
  client.prepare(dropped, {"GET", server.url("/dropped"), {}}, never);
  client.prepare(second, {"GET", server.url("/second"), {}}, taker);
  client.poll(0, [](const char* why) { ADD_FAILURE() << why; });
  EXPECT_TRUE(server.last().starts_with("GET /first "));
  client.stop(dropped);
  client.start(second);
  // Nobody polls: send() has it on its way, and takes the answer, which the next poll tells.
  const uint64_t last_ns = monotonic_now_ns() + kPatienceNs;
  while (second.status == 0 && monotonic_now_ns() < last_ns) client.send();
  EXPECT_TRUE(server.last().starts_with("GET /second "));
  EXPECT_EQ(taker.ends, 0);
  const uint64_t begin_ns = monotonic_now_ns();
  client.poll(kPatienceNs, [](const char* why) { ADD_FAILURE() << why; });
  EXPECT_LT(monotonic_now_ns() - begin_ns, kPatienceNs / 2);
  EXPECT_EQ(taker.ends, 1);
  EXPECT_EQ(taker.body, "y");
  EXPECT_EQ(never.ends, 0);
  EXPECT_EQ(server.connections(), 1);
}

TEST(HttpClientTest, ARequestMayBeStoppedAndOthersStartedOnceLibcurlIsLeft) {
  const Server server({{"/stream", answer("piece")}, {"/next", answer("next")}});
  Client client(options());
  Exchange stream;
  Exchange next;
  Taker streamed;
  Taker followed;
  streamed.exchange_later = &stream;
  streamed.later = [&] {
    EXPECT_EQ(streamed.body, "piece");
    client.stop(stream);  // it has ended by now, and its end is not told any more
    client.start(next, {"GET", server.url("/next"), {}}, followed);
  };
  client.start(stream, {"GET", server.url("/stream"), {}}, streamed);
  poll_until(client, [&] { return followed.ends != 0; });
  EXPECT_EQ(streamed.laters, 1);
  EXPECT_EQ(streamed.ends, 0);
  EXPECT_EQ(followed.body, "next");
}

TEST(HttpClientTest, AnEndMayStopOthersThatEndedInTheSameTurn) {
  const Server server({{"/", answer("x")}});
  Client client(options());
  Exchange exchanges[2];
  Taker takers[2];
  for (int i = 0; i < 2; ++i) {
    takers[i].end = [&, i] { client.stop(exchanges[1 - i]); };
    client.start(exchanges[i], {"GET", server.url("/"), {}}, takers[i]);
  }
  // Both answers wait in their sockets before one turn takes them.
  poll_until(client, [&] { return takers[0].ends + takers[1].ends != 0; });
  for (int i = 0; i < 20; ++i) client.poll(kMillisecondNs, [](const char*) {});
  EXPECT_EQ(takers[0].ends + takers[1].ends, 1);
}

TEST(HttpThreadTest, CommandsTimersAndAnswersTakeTurnsAndNoneEndsTheThread) {
  const Server server({{"/", answer("x")}});
  std::vector<std::string> failures;
  std::promise<void> answered;
  std::promise<void> timed;
  Exchange exchange;
  Taker taker;
  taker.end = [&] {
    answered.set_value();
    throw std::runtime_error("an answer");
  };
  std::vector<std::string> order;
  {
    Thread thread(options());
    thread.start({[] {}, [&](const char* why) { failures.emplace_back(why); },
                  [&] {
                    order.emplace_back("last");
                    EXPECT_FALSE(thread.run([] {}));
                  }});
    EXPECT_FALSE(thread.is_this());
    thread.run([] { throw std::runtime_error("a command"); });
    thread.run([&] { thread.client().start(exchange, {"GET", server.url("/"), {}}, taker); });
    answered.get_future().wait();
    thread.run([&] {
      thread.timers().after(0, [&] {
        timed.set_value();
        throw std::runtime_error("a timer");
      });
    });
    timed.get_future().wait();
    thread.run([&] {
      EXPECT_TRUE(thread.is_this());
      thread.end();
      thread.run([&] { order.emplace_back("late"); });
    });
    thread.join();
  }
  EXPECT_EQ(failures, (std::vector<std::string>{"a command", "an answer", "a timer"}));
  EXPECT_EQ(order, (std::vector<std::string>{"last", "late"}));
}

TEST(HttpAskTest, OneAnswerOrTheReasonWhyThereIsNone) {
  const Server server({{"/", answer("twelve bytes")}, {"/silent", "silence"}});
  std::atomic<bool> stop{false};
  const auto ask_for = [&](const std::string& url, size_t most) {
    return ask(options(), {"GET", url, {}, nullptr, kPatienceNs}, most, stop);
  };
  EXPECT_EQ(ask_for(server.url("/"), 12).body, "twelve bytes");
  EXPECT_EQ(ask_for(server.url("/"), 11).status, 0);
  EXPECT_EQ(ask_for(server.url("/"), 11).error, "its answer is longer than 11 bytes");
  EXPECT_EQ(ask_for("http://127.0.0.1:1/", 1).status, 0);
  const uint64_t began_ns = monotonic_now_ns();
  std::thread stopper([&] {
    while (server.last().find("/silent") == std::string::npos) std::this_thread::yield();
    stop = true;
  });
  EXPECT_EQ(ask_for(server.url("/silent"), 1).error, "it was given up");
  EXPECT_LT(monotonic_now_ns() - began_ns, kPatienceNs / 4);
  stopper.join();
}

}  // namespace
}  // namespace towline::http
