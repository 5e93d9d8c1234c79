// Towline: a 64-byte WRITE with a notice. The application drives both agents, spinning or asleep in wait();
// or they are hosted, and it sleeps until their thread has something for it.
#include <towline/towline.hpp>

#include <cstring>
#include <optional>
#include <stdexcept>
#include <thread>

#include "link.h"

namespace bench {
namespace {

class TowlineLink final : public Link {
 public:
  TowlineLink(bool initiator, bool sleeps, towline::Progress progress)
      : sleeps_(sleeps),
        hosted_(progress == towline::Progress::kHosted),
        agent_(initiator ? "latency-initiator" : "latency-target",
               {.progress = progress, .listen = "127.0.0.1:0"}),
        memory_(2 * kPage),
        region_(agent_.register_memory(towline::dram(memory_), {.access = towline::Access::kAll})) {}

  Json describe() override {
    const auto blob = agent_.metadata();
    std::vector<std::uint8_t> bytes(blob.size());
    std::memcpy(bytes.data(), blob.data(), blob.size());
    return {{"metadata", bytes}, {"address", reinterpret_cast<std::uint64_t>(memory_.data())}};
  }

  // Driven by the application, an agent connects only as long as somebody drives it, on both sides.
  void connect(const Json& other) override {
    if (!hosted_) {
      driver_ = std::jthread([this](const std::stop_token& stop) {
        while (!stop.stop_requested()) {
          agent_.progress();
          std::this_thread::yield();
        }
      });
    }
    const auto blob = other.at("metadata").get<std::vector<std::uint8_t>>();
    peer_.emplace(agent_.add_peer(blob));
    const auto here = agent_.block_list(towline::Blocks::at(memory_.data(), sizeof(Message)));
    const auto there = peer_->block_list(
        towline::Blocks::at(other.at("address").get<std::uint64_t>() + kPage, sizeof(Message)));
    transfer_.emplace(agent_.transfer(here, there, {.notice = "m"}));
  }

  void connected() override { driver_ = {}; }

  void send(const Message& message) override {
    std::memcpy(memory_.data(), &message, sizeof message);
    towline::Status status = transfer_->post();
    while (status == towline::Status::kAgain) {
      agent_.progress();
      status = transfer_->post();
    }
    while (status == towline::Status::kInProgress) status = transfer_->poll();
    if (status != towline::Status::kOk) throw std::runtime_error(std::string(towline::status_text(status)));
  }

  Message receive() override {
    while (agent_.receive(notice_) != towline::Status::kOk)
      if (sleeps_) (void)agent_.wait();
    Message message;
    std::memcpy(&message, memory_.data() + kPage, sizeof message);
    notice_.release();
    return message;
  }

 private:
  static constexpr std::size_t kPage = 4096;  // outgoing message in the first page, incoming in the second

  bool sleeps_;
  bool hosted_;
  towline::Agent agent_;
  towline::Memory memory_;
  towline::Region region_;
  std::optional<towline::Peer> peer_;
  std::optional<towline::Transfer> transfer_;
  towline::Notice notice_;
  std::jthread driver_;
};

}  // namespace

const LinkKind kTowlineSpinLink = {"towline, spinning", false, "flag", [](bool initiator) {
                                     return std::make_unique<TowlineLink>(initiator, false,
                                                                          towline::Progress::kCaller);
                                   }};
const LinkKind kTowlineSleepLink = {"towline, woken", true, "futex", [](bool initiator) {
                                      return std::make_unique<TowlineLink>(initiator, true,
                                                                           towline::Progress::kCaller);
                                    }};
const LinkKind kTowlineHostedLink = {"towline, hosted, woken", true, "futex", [](bool initiator) {
                                       return std::make_unique<TowlineLink>(initiator, true,
                                                                            towline::Progress::kHosted);
                                     }};

}  // namespace bench
